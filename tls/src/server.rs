//! What a listener shows, and what it asks of its clients.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SingleCertAndKey;
use serde::{Deserialize, Serialize};

use crate::certificate::Certificate;
use crate::error::TlsError;
use crate::identity::{Identity, IdentityFiles};
use crate::provider::provider;
use crate::reloading::Reloading;
use crate::roots;

/// Protocols that a listener offers by ALPN; gRPC needs the first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Whether a client may come without a certificate. One that is shown must be valid in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ClientCertificates {
    /// No connection without a certificate.
    #[default]
    Required,
    /// A client without a certificate is served, too.
    Optional,
}

/// The files of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFiles {
    /// What the listener shows.
    #[serde(flatten)]
    pub identity: IdentityFiles,
    /// PEM: whose certificates clients must show. Without it clients are asked for none.
    pub client_ca: Option<PathBuf>,
    /// With `client_ca`: whether they must.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
}

/// TLS of a listener; clones share the certificate.
#[derive(Clone)]
pub struct ServerTls(Arc<Reloading<Shown>>);

/// A configuration, and the certificate in it.
pub(crate) struct Shown {
    config: Arc<ServerConfig>,
    certificate: Certificate,
}

/// Whether both share one certificate.
impl PartialEq for ServerTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls")
    }
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub fn read(files: &ServerFiles) -> Result<Self, TlsError> {
        let mut paths = files.identity.paths().to_vec();
        paths.extend(files.client_ca.clone());
        let files = files.clone();
        Self::with(paths, move || {
            let verifier = match &files.client_ca {
                Some(path) => client_verifier(path, files.client_certificates)?,
                None => WebPkiClientVerifier::no_client_auth(),
            };
            config(&files.identity, verifier)
        })
    }

    pub(crate) fn with(
        paths: Vec<PathBuf>,
        make: impl Fn() -> Result<Shown, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(Reloading::read(paths, make)?)))
    }

    /// For the next connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.0.current().config.clone()
    }

    /// What the next connection is shown.
    pub fn certificate(&self) -> Certificate {
        self.0.current().certificate.clone()
    }

    /// Reads the files again if they have changed: whether they had. New connections use the new certificate,
    /// open ones stay as they are.
    ///
    /// # Errors
    /// If a file cannot be used; new connections use the old certificate meanwhile.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.0.reload()
    }
}

/// Accepts certificates that a CA in `path` has issued for clients.
pub(crate) fn client_verifier(
    path: &std::path::Path,
    certificates: ClientCertificates,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(roots::of_file(path)?);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let builder = match certificates {
        ClientCertificates::Required => builder,
        ClientCertificates::Optional => builder.allow_unauthenticated(),
    };
    builder.build().map_err(|why| TlsError::BadCertificate { path: path.to_owned(), why: why.to_string() })
}

pub(crate) fn config(
    identity: &IdentityFiles,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<Shown, TlsError> {
    let Identity { certified, certificate } = identity.read()?;
    let shown = Arc::new(SingleCertAndKey::from(certified));
    let versions = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let versions = versions.unwrap_or_else(|error| unreachable!("ring has every default version: {error}"));
    let mut config = versions.with_client_cert_verifier(verifier).with_cert_resolver(shown);
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Shown { config: Arc::new(config), certificate })
}
