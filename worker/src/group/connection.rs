//! A connection between two nodes of a group: TCP, or TLS above it if the nodes have certificates.

use std::io::{Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

use skein_kernels::collective::Stream;
use skein_tls::{ClusterTls, HandshakeError, TlsSocket};

/// How long a node waits for another's part of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection. Clones are handles of the same one.
#[derive(Debug)]
pub enum Connection {
    /// For loopback and trusted networks.
    Plain(TcpStream),
    /// Both ends have shown a certificate of the cluster.
    Encrypted(TlsSocket),
}

impl Connection {
    /// The end that was connected to. With `tls`, the first reads shake hands.
    ///
    /// # Errors
    /// If the certificate cannot be used.
    pub fn accepted(socket: TcpStream, tls: Option<&ClusterTls>) -> Result<Self> {
        match tls {
            Some(tls) => tls.accept_blocking(socket).map(Self::Encrypted),
            None => Ok(Self::Plain(socket)),
        }
    }

    /// The end that connected; with `tls` after the handshake.
    ///
    /// # Errors
    /// If the other end is not a node of the cluster, or does not answer.
    pub fn dialled(socket: TcpStream, tls: Option<&ClusterTls>) -> std::result::Result<Self, HandshakeError> {
        match tls {
            Some(tls) => tls.connect_blocking(socket, HANDSHAKE_TIMEOUT).map(Self::Encrypted),
            None => Ok(Self::Plain(socket)),
        }
    }

    /// Another handle, for another thread.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(match self {
            Self::Plain(socket) => Self::Plain(socket.try_clone()?),
            Self::Encrypted(stream) => Self::Encrypted(stream.clone()),
        })
    }
}

impl Stream for Connection {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => stream.socket(),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(to),
            Self::Encrypted(stream) => stream.read(to),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(from),
            Self::Encrypted(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}
