//! What there is to say of a certificate in use: until when it is valid, and whether it is an authority's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::TlsError;
use crate::pem;

/// Longest notice before the end of a certificate that lives a year or more.
const MOST_NOTICE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Part of its life that is the notice of a shorter one. cert-manager, certbot and kubelet renew when a third
/// is left, so with less than a quarter left a renewal has failed.
const NOTICE_PART: u32 = 4;

/// A certificate in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Its file.
    pub path: PathBuf,
    /// Begin of its validity, since 1970.
    pub not_before: Duration,
    /// End, since 1970: its own, or that of an issuer in the same file if that ends before.
    pub not_after: Duration,
    /// Whether it may issue others. webpki, and so every client by rustls, refuses such a server.
    pub is_ca: bool,
}

impl Certificate {
    /// Reads the file of a certificate and its issuers.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        Self::of(path, &pem::certificates(path)?)
    }

    /// Of the first of `chain`, which is from `path` and not empty.
    pub(crate) fn of(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Self, TlsError> {
        let bad = |why: String| TlsError::BadCertificate { path: path.to_owned(), why };
        let mut found: Option<Self> = None;
        for der in chain {
            let (_, parsed) = X509Certificate::from_der(der).map_err(|why| bad(why.to_string()))?;
            let since_1970 = |time: i64| Duration::from_secs(time.try_into().unwrap_or_default());
            let validity = parsed.validity();
            let not_after = since_1970(validity.not_after.timestamp());
            match &mut found {
                Some(found) => found.not_after = found.not_after.min(not_after),
                None => {
                    let not_before = since_1970(validity.not_before.timestamp());
                    found =
                        Some(Self { path: path.to_owned(), not_before, not_after, is_ca: parsed.is_ca() });
                }
            }
        }
        found.ok_or_else(|| TlsError::NoCertificate { path: path.to_owned() })
    }

    /// When a warning is due, since 1970: 30 days before the end, or when a quarter of a shorter life is
    /// left.
    pub fn notice_from(&self) -> Duration {
        let life = self.not_after.saturating_sub(self.not_before);
        self.not_after.saturating_sub(MOST_NOTICE.min(life / NOTICE_PART))
    }

    /// The time left at `now`, since 1970, if that is so short that a warning is due; zero after the end.
    pub fn ends_soon(&self, now: Duration) -> Option<Duration> {
        (now >= self.notice_from()).then(|| self.not_after.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_warning_is_due_thirty_days_or_a_quarter_of_the_life_before_the_end() {
        let check = |life: u32, left: u32, expected: bool| {
            let (not_before, not_after) = (DAY * 1000, DAY * (1000 + life));
            let certificate = Certificate { path: PathBuf::new(), not_before, not_after, is_ca: false };
            let soon = certificate.ends_soon(not_after - DAY * left);
            assert_eq!(soon, expected.then_some(DAY * left), "{life} days, {left} left");
        };
        check(365, 31, false);
        check(365, 30, true);
        check(90, 30, false); // its renewal begins now
        check(90, 22, true);
        check(4, 2, false);
        check(4, 1, true);
        check(365, 0, true);
    }

    #[test]
    fn after_the_end_no_time_is_left() {
        let path = PathBuf::new();
        let certificate = Certificate { path, not_before: DAY, not_after: DAY * 2, is_ca: false };
        assert_eq!(certificate.ends_soon(DAY * 9), Some(Duration::ZERO));
    }
}
