//! A certificate with its issuers and its private key, checked before anything is shown to a peer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};
use serde::{Deserialize, Serialize};

use crate::certificate::Certificate;
use crate::error::TlsError;
use crate::pem;
use crate::provider::provider;

/// Where a certificate and its key are. Both may be one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityFiles {
    /// PEM: the certificate itself, then its issuers.
    pub cert: PathBuf,
    /// PEM: the private key.
    pub key: PathBuf,
}

/// What has been read.
pub(crate) struct Identity {
    pub certified: Arc<CertifiedKey>,
    pub certificate: Certificate,
}

impl IdentityFiles {
    /// Reads both files; the key belongs to the certificate, and the certificate is valid now.
    pub(crate) fn read(&self) -> Result<Identity, TlsError> {
        let chain = pem::certificates(&self.cert)?;
        check_dates(&self.cert, &chain[0])?;
        let certificate = Certificate::of(&self.cert, &chain)?;
        let key = pem::private_key(&self.key)?;
        let bad_key = |why: Error| TlsError::BadKey { path: self.key.clone(), why: why.to_string() };
        let key = provider().key_provider.load_private_key(key).map_err(bad_key)?;
        let certified = Arc::new(CertifiedKey::new(chain, key));
        match certified.keys_match() {
            // Only keys outside this process, as in a security module, cannot be compared.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(Identity { certified, certificate })
            }
            Err(_) => Err(TlsError::KeyMismatch { cert: self.cert.clone(), key: self.key.clone() }),
        }
    }

    pub(crate) fn paths(&self) -> [PathBuf; 2] {
        [self.cert.clone(), self.key.clone()]
    }
}

/// The certificate as rustls parses it.
pub(crate) fn parse<'a>(
    path: &Path,
    certificate: &'a CertificateDer<'_>,
) -> Result<ParsedCertificate<'a>, TlsError> {
    ParsedCertificate::try_from(certificate)
        .map_err(|why| TlsError::BadCertificate { path: path.to_owned(), why: why.to_string() })
}

/// webpki compares the dates before it looks for an issuer, so that no root is needed to learn what they say.
fn check_dates(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), TlsError> {
    let parsed = parse(path, certificate)?;
    let algorithms = provider().signature_verification_algorithms.all;
    let (none, now) = (RootCertStore::empty(), UnixTime::now());
    let path = path.to_owned();
    match verify_server_cert_signed_by_trust_anchor(&parsed, &none, &[], now, algorithms) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after })) => {
            Err(TlsError::Expired { path, ago: between(not_after, time) })
        }
        Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })) => {
            Err(TlsError::NotYetValid { path, wait: between(time, not_before) })
        }
        // Its issuer is for the peers to judge.
        _ => Ok(()),
    }
}

fn between(earlier: UnixTime, later: UnixTime) -> Duration {
    Duration::from_secs(later.as_secs().saturating_sub(earlier.as_secs()))
}
