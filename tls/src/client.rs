//! What a client trusts, and what it shows to servers that ask.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificate::Certificate;
use crate::error::TlsError;
use crate::handshake::HandshakeError;
use crate::identity::{Identity, IdentityFiles};
use crate::provider::provider;
use crate::reloading::Reloading;
use crate::roots;

/// A client's connection.
pub type ClientStream = TlsStream<TcpStream>;

/// The files of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClientFiles {
    /// PEM: the certificates that are trusted. Without it the system's, or Mozilla's.
    pub ca: Option<PathBuf>,
    /// What the client shows to a server that asks for it.
    pub identity: Option<IdentityFiles>,
}

/// TLS of a client; clones share the certificates.
#[derive(Clone)]
pub struct ClientTls {
    shared: Arc<Reloading<Trusting>>,
    protocols: &'static [&'static [u8]],
    /// The name that every server must prove, instead of the host in its address.
    name: Option<&'static str>,
}

/// A configuration, and the certificate in it, if any.
struct Trusting {
    config: Arc<ClientConfig>,
    certificate: Option<Certificate>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientTls")
    }
}

impl ClientTls {
    /// Reads the files. A file of roots replaces the system's.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub fn read(files: &ClientFiles) -> Result<Self, TlsError> {
        let mut paths: Vec<PathBuf> = files.ca.iter().cloned().collect();
        paths.extend(files.identity.iter().flat_map(IdentityFiles::paths));
        let files = files.clone();
        let shared = Reloading::read(paths, move || {
            let roots = match &files.ca {
                Some(path) => roots::of_file(path)?,
                None => roots::of_system(),
            };
            let shown = files.identity.as_ref().map(IdentityFiles::read).transpose()?;
            let (certified, certificate) =
                shown.map(|Identity { certified, certificate }| (certified, certificate)).unzip();
            Ok(Trusting { config: Arc::new(config(roots, certified)), certificate })
        })?;
        Ok(Self { shared: Arc::new(shared), protocols: &[], name: None })
    }

    /// Trusts the system's certificates, or Mozilla's where the system has none, and shows none.
    pub fn of_system() -> Self {
        let read = Self::read(&ClientFiles::default());
        read.unwrap_or_else(|error| unreachable!("no file is read: {error}"))
    }

    /// Offers these protocols by ALPN, such as `h2`; without them none.
    #[must_use]
    pub fn offering(self, protocols: &'static [&'static [u8]]) -> Self {
        Self { protocols, ..self }
    }

    /// Every server must prove to be `name`, whatever its address.
    #[must_use]
    pub fn expecting(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    /// For the next connection.
    pub fn current(&self) -> Arc<ClientConfig> {
        let config = self.shared.current().config.clone();
        if self.protocols.is_empty() {
            return config;
        }
        // References to what is shared; sessions are resumed across clones.
        let mut offering = ClientConfig::clone(&config);
        offering.alpn_protocols = self.protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(offering)
    }

    /// What the next server that asks is shown.
    pub fn certificate(&self) -> Option<Certificate> {
        self.shared.current().certificate.clone()
    }

    /// The name that a server at `host` must prove.
    ///
    /// # Errors
    /// If `host` is no name for a certificate.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, HandshakeError> {
        let host = self.name.unwrap_or(host);
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        ServerName::try_from(bare.to_owned()).map_err(|_| HandshakeError::Name { host: bare.to_owned() })
    }

    /// Encrypts `stream`, whose other end must prove to be `host`. The caller bounds the time.
    ///
    /// # Errors
    /// If `host` is no name for a certificate, or the handshake fails.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> Result<ClientStream, HandshakeError> {
        let name = self.server_name(host)?;
        let connecting = TlsConnector::from(self.current()).connect(name, stream);
        connecting.await.map_err(HandshakeError::from)
    }

    /// Reads the files again if they have changed: whether they had. Open connections stay as they are.
    ///
    /// # Errors
    /// If a file cannot be used; new connections use the old one meanwhile.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.shared.reload()
    }
}

fn config(roots: RootCertStore, shown: Option<Arc<CertifiedKey>>) -> ClientConfig {
    let versions = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let versions = versions.unwrap_or_else(|error| unreachable!("ring has every default version: {error}"));
    let trusting = versions.with_root_certificates(roots);
    match shown {
        Some(shown) => trusting.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown))),
        None => trusting.with_no_client_auth(),
    }
}
