//! The identity of a node inside a cluster. Every node's certificate has the DNS name [`CLUSTER_NAME`] beside
//! its hosts, so that nodes found by address recognise each other by the cluster's CA and that name.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use serde::{Deserialize, Serialize};

use crate::client::{ClientFiles, ClientTls};
use crate::error::TlsError;
use crate::identity::{self, IdentityFiles};
use crate::server::{self, ClientCertificates, ServerTls};

/// The DNS name in every node's certificate.
pub const CLUSTER_NAME: &str = "skein-cluster";

/// Protocol between nodes that speak gRPC.
const GRPC: &[&[u8]] = &[b"h2"];

/// The files of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFiles {
    /// PEM: the cluster's CA.
    pub ca: PathBuf,
    /// The node's certificate, for servers and clients.
    #[serde(flatten)]
    pub identity: IdentityFiles,
}

/// A node's TLS towards other nodes, in both directions.
#[derive(Debug, Clone)]
pub struct ClusterTls {
    /// Serves only clients with a node's certificate.
    pub server: ServerTls,
    /// Speaks only to servers with a node's certificate.
    pub client: ClientTls,
}

impl ClusterTls {
    /// Reads the files.
    ///
    /// # Errors
    /// If one of them cannot be used, or the certificate is not a node's.
    pub fn read(files: &ClusterFiles) -> Result<Self, TlsError> {
        let [cert, key] = files.identity.paths();
        let held = files.clone();
        let server = ServerTls::with(vec![files.ca.clone(), cert, key], move || {
            let issued = server::client_verifier(&held.ca, ClientCertificates::Required)?;
            let config = server::config(&held.identity, Arc::new(NodesOnly { issued: issued.clone() }))?;
            check_own(&held, issued.as_ref())?;
            Ok(config)
        })?;
        let client = ClientFiles { ca: Some(files.ca.clone()), identity: Some(files.identity.clone()) };
        let client = ClientTls::read(&client)?.offering(GRPC).expecting(CLUSTER_NAME);
        Ok(Self { server, client })
    }

    /// Reads the files again if they have changed: whether they had.
    ///
    /// # Errors
    /// If a file cannot be used; new connections use the old ones meanwhile.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let server = self.server.reload()?;
        Ok(self.client.reload()? || server)
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from(CLUSTER_NAME).unwrap_or_else(|_| unreachable!("a DNS name"))
}

/// Peers would refuse this node one by one; better that it does not start.
fn check_own(files: &ClusterFiles, issued: &dyn ClientCertVerifier) -> Result<(), TlsError> {
    let path = &files.identity.cert;
    let certified = files.identity.read()?.certified;
    let parsed = identity::parse(path, &certified.cert[0])?;
    verify_server_name(&parsed, &name())
        .map_err(|_| TlsError::NotOfCluster { path: path.clone(), name: CLUSTER_NAME })?;
    issued
        .verify_client_cert(&certified.cert[0], &certified.cert[1..], UnixTime::now())
        .map(drop)
        .map_err(|why| TlsError::NotIssued { path: path.clone(), ca: files.ca.clone(), why })
}

/// Accepts what the CA has issued, if it has the cluster's name: a CA may also issue certificates for others.
#[derive(Debug)]
struct NodesOnly {
    issued: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for NodesOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.issued.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.issued.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &name())?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}
