//! TLS from PEM files. [`ServerTls`] is what a listener shows, [`ClientTls`] what a client trusts and shows,
//! [`ClusterTls`] both for the hops inside a cluster. Clones share their certificates, and
//! [`ServerTls::reload`] replaces them for new connections; open connections keep theirs.
//!
//! Knows files, rustls and sockets. Knows nothing of settings, requests or tasks.

mod accept;
mod blocking;
mod certificate;
mod client;
mod cluster;
mod error;
mod handshake;
mod identity;
mod pem;
mod port;
mod provider;
mod reloading;
mod roots;
mod server;
mod wire;

pub use accept::{AcceptError, HANDSHAKE_TIMEOUT};
pub use blocking::TlsSocket;
pub use certificate::Certificate;
pub use client::{ClientFiles, ClientStream, ClientTls};
pub use cluster::{CLUSTER_NAME, ClusterFiles, ClusterTls};
pub use error::TlsError;
pub use handshake::HandshakeError;
pub use identity::IdentityFiles;
pub use port::{Accepted, PortTls};
pub use server::{ClientCertificates, ServerFiles, ServerTls};
pub use wire::Wire;
