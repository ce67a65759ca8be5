//! TLS to workers with `https://` URLs. A worker's certificate must be valid for the host in its URL, also if
//! that name has several addresses.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The certificates that are trusted, and the protocol that is offered.
#[derive(Clone)]
pub struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Trusts the certificates in `pem`, and no others.
    ///
    /// # Errors
    /// If the text has no certificate, or one that cannot be read.
    pub fn trusting(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| format!("not PEM: {error}"))?;
            roots.add(certificate).map_err(|error| format!("a certificate cannot be used: {error}"))?;
        }
        if roots.is_empty() {
            return Err("no certificate in it; give a PEM file with `BEGIN CERTIFICATE`".to_owned());
        }
        Ok(Self::with(roots))
    }

    /// Trusts the system's certificates, or Mozilla's where the system has none.
    pub fn of_system() -> Self {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in found.errors {
            tracing::debug!(%error, "a certificate of the system cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        Self::with(roots)
    }

    fn with(roots: RootCertStore) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let versions =
            versions.unwrap_or_else(|error| unreachable!("ring has every default version: {error}"));
        let mut config = versions.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// Encrypts `stream`, whose other end must prove to be `host`.
    ///
    /// # Errors
    /// If `host` is no name for a certificate, or the handshake fails.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("`{host}` cannot be the name in a certificate"))?;
        self.0.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused() {
        for (pem, expected) in [
            ("", "no certificate"),
            ("hello", "no certificate"),
            ("-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n", "not PEM"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
        ] {
            let message = Tls::trusting(pem.as_bytes()).unwrap_err();
            assert!(message.contains(expected), "{pem:?}: {message}");
        }
        let _ = Tls::of_system();
    }
}
