//! The certificates that this process shows: when they end, as a metric, and in the log when that is soon.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{IntGaugeVec, Opts};
use skein_tls::Certificate;

/// Name of the gauge; its label is `flag`, the setting that names the file.
pub const CERTIFICATE_ENDS: &str = "skein_certificate_expiration_timestamp_seconds";
/// Help text of [`CERTIFICATE_ENDS`].
pub const CERTIFICATE_ENDS_HELP: &str = "When a certificate that this process shows expires, since 1970.";

/// Time until a warning is repeated.
const REPEAT_AFTER: Duration = Duration::from_secs(24 * 3600);

type Source = Box<dyn Fn() -> Option<Certificate> + Send>;

struct Watched {
    source: Source,
    notices: Notices,
}

static WATCHED: Mutex<BTreeMap<&'static str, Watched>> = Mutex::new(BTreeMap::new());

/// The gauge of this process, added to each of its registries; empty if it shows no certificate.
pub(crate) fn gauge() -> &'static IntGaugeVec {
    static GAUGE: LazyLock<IntGaugeVec> = LazyLock::new(|| {
        let opts = Opts::new(CERTIFICATE_ENDS, CERTIFICATE_ENDS_HELP);
        IntGaugeVec::new(opts, &["flag"]).expect("the name is valid")
    });
    &GAUGE
}

/// Follows the certificate that the setting `flag` names; `source` says what is shown now.
pub fn watch(flag: &'static str, source: impl Fn() -> Option<Certificate> + Send + 'static) {
    let watched = Watched { source: Box::new(source), notices: Notices::default() };
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(flag, watched);
}

/// Whether there is anything to [look](look) at.
pub fn is_any_watched() -> bool {
    !WATCHED.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// Sets the gauges, and logs what is due at `now`, since 1970. Sources may read files, so it blocks.
pub fn look(now: Duration) {
    for (flag, Watched { source, notices }) in
        WATCHED.lock().unwrap_or_else(PoisonError::into_inner).iter_mut()
    {
        let Some(certificate) = source() else { continue };
        let ends = i64::try_from(certificate.not_after.as_secs()).unwrap_or(i64::MAX);
        gauge().with_label_values(&[flag]).set(ends);
        let file = certificate.path.display().to_string();
        for notice in notices.due(now, &certificate) {
            match notice {
                Notice::Expired => {
                    tracing::error!(flag, file, "the certificate has expired: new connections fail; renew it")
                }
                Notice::EndsSoon { left } => tracing::warn!(
                    flag,
                    file,
                    hours_left = left.as_secs() / 3600,
                    "the certificate expires soon; renew it"
                ),
                Notice::IsCa => tracing::warn!(
                    flag,
                    file,
                    "the certificate is that of a CA (CA:TRUE), which some clients refuse, all with rustls among them; issue \
                     one for this server (a self-signed one: openssl req -x509 -addext basicConstraints=critical,CA:FALSE)"
                ),
            }
        }
    }
}

/// What there is to say of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    Expired,
    EndsSoon { left: Duration },
    IsCa,
}

/// What has been said of the certificate of one setting.
#[derive(Debug, Default)]
struct Notices {
    seen: Option<Certificate>,
    /// When its end was last spoken of.
    said_at: Option<Duration>,
}

impl Notices {
    /// What is due at `now`: once for each certificate that it is a CA's, and once a day that it ends soon.
    fn due(&mut self, now: Duration, certificate: &Certificate) -> Vec<Notice> {
        let mut due = Vec::new();
        if self.seen.as_ref() != Some(certificate) {
            *self = Self { seen: Some(certificate.clone()), said_at: None };
            due.extend(certificate.is_ca.then_some(Notice::IsCa));
        }
        let is_quiet = self.said_at.is_some_and(|at| {
            let has_ended_since = at < certificate.not_after && certificate.not_after <= now;
            now < at + REPEAT_AFTER && !has_ended_since
        });
        if let (Some(left), false) = (certificate.ends_soon(now), is_quiet) {
            self.said_at = Some(now);
            due.push(if left.is_zero() { Notice::Expired } else { Notice::EndsSoon { left } });
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const HOUR: Duration = Duration::from_secs(3600);

    fn certificate(not_after: Duration) -> Certificate {
        Certificate { path: "server.pem".into(), not_before: not_after - DAY * 365, not_after, is_ca: false }
    }

    #[test]
    fn the_end_of_a_certificate_is_spoken_of_once_a_day_and_when_it_comes() {
        let (mut notices, ends) = (Notices::default(), DAY * 1000);
        let certificate = certificate(ends);
        let mut check = |now: Duration, expected: &[Notice]| {
            assert_eq!(notices.due(now, &certificate), expected, "{now:?}");
        };
        check(ends - DAY * 31, &[]);
        check(ends - DAY * 30, &[Notice::EndsSoon { left: DAY * 30 }]);
        check(ends - DAY * 30 + HOUR, &[]);
        check(ends - DAY * 29, &[Notice::EndsSoon { left: DAY * 29 }]);
        check(ends - HOUR, &[Notice::EndsSoon { left: HOUR }]);
        check(ends - HOUR / 2, &[]);
        check(ends, &[Notice::Expired]);
        check(ends + HOUR, &[]);
        check(ends + DAY, &[Notice::Expired]);
    }

    #[test]
    fn a_renewed_certificate_starts_anew_and_a_ca_is_named_once() {
        let (mut notices, ends) = (Notices::default(), DAY * 1000);
        let now = ends - DAY;
        assert_eq!(notices.due(now, &certificate(ends)), [Notice::EndsSoon { left: DAY }]);
        let renewed = Certificate { is_ca: true, ..certificate(ends + DAY * 364) };
        assert_eq!(notices.due(now + HOUR, &renewed), [Notice::IsCa]);
        assert_eq!(notices.due(now + HOUR * 2, &renewed), []);
        assert_eq!(notices.due(now + HOUR * 3, &certificate(ends)), [Notice::EndsSoon { left: HOUR * 21 }]);
    }

    #[test]
    fn the_gauge_follows_the_files() {
        let ends = std::sync::Arc::new(Mutex::new(Some(certificate(DAY * 1000))));
        let shown = ends.clone();
        watch("a-test's", move || shown.lock().unwrap().clone());
        assert!(is_any_watched());
        let value = || gauge().with_label_values(&["a-test's"]).get();
        look(DAY);
        assert_eq!(value(), 1000 * 24 * 3600);
        *ends.lock().unwrap() = Some(certificate(DAY * 2000));
        look(DAY);
        assert_eq!(value(), 2000 * 24 * 3600);
        *ends.lock().unwrap() = None;
        look(DAY);
        assert_eq!(value(), 2000 * 24 * 3600, "as long as nothing else is shown");
    }
}
