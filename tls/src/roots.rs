//! The certificates that are trusted: a file's, or the system's.

use std::path::Path;

use rustls::RootCertStore;

use crate::error::TlsError;
use crate::pem;

/// All certificates of a file, and no others.
pub(crate) fn of_file(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(path)? {
        roots
            .add(certificate)
            .map_err(|why| TlsError::BadCertificate { path: path.to_owned(), why: why.to_string() })?;
    }
    Ok(roots)
}

/// The system's certificates, or Mozilla's where the system has none, as in an empty container.
pub(crate) fn of_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::debug!(%error, "a certificate of the system cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}
