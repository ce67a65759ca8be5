//! The server's side of a handshake, bounded in time, with an answer for clients that do not speak TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::server::ServerTls;

/// Longest handshake, from the connection to its end.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Type of the record that begins every TLS connection.
const HANDSHAKE_RECORD: u8 = 22;
/// Most of a plain request that is read before the connection is closed. A connection closed with unread
/// bytes is reset, and the client may never see the answer.
const MAX_DISCARDED_BYTES: u64 = 64 << 10;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// What a client that speaks HTTP/1.1 without TLS is told.
const PLAIN_REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
content-type: text/plain; charset=utf-8\r\n\
content-length: 61\r\n\
connection: close\r\n\r\n\
This port speaks HTTPS, not plain HTTP; use an https:// URL.\n";

/// A connection is not served.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The first byte is none of TLS. A client that speaks HTTP has been told.
    #[error("a client spoke {} to a TLS port; use an https:// URL", if *.http { "plain HTTP" } else { "something else" })]
    Plain {
        /// Whether it looked like HTTP.
        http: bool,
    },
    /// Not done in time.
    #[error("a client's TLS handshake took longer than {} s", HANDSHAKE_TIMEOUT.as_secs())]
    TooSlow,
    /// The handshake failed.
    #[error("a client's TLS handshake failed: {0}")]
    Failed(#[from] io::Error),
}

impl ServerTls {
    /// Does the handshake with a client that has connected.
    ///
    /// # Errors
    /// If the client does not complete it in time, shows no certificate where one is required, or speaks
    /// something else.
    pub async fn accept(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, AcceptError> {
        bounded(async {
            if first_byte(&stream).await? != HANDSHAKE_RECORD {
                return Err(refuse(stream).await);
            }
            handshake(stream, |_| self.current()).await
        })
        .await
    }
}

pub(crate) async fn bounded<T>(
    accepting: impl Future<Output = Result<T, AcceptError>>,
) -> Result<T, AcceptError> {
    timeout(HANDSHAKE_TIMEOUT, accepting).await.unwrap_or(Err(AcceptError::TooSlow))
}

pub(crate) async fn begins_with_tls(stream: &TcpStream) -> Result<bool, AcceptError> {
    Ok(first_byte(stream).await? == HANDSHAKE_RECORD)
}

async fn first_byte(stream: &TcpStream) -> Result<u8, AcceptError> {
    let mut first = [0; 1];
    match stream.peek(&mut first).await? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(first[0]),
    }
}

/// The handshake with a configuration for the name that the client asks for.
pub(crate) async fn handshake(
    stream: TcpStream,
    choose: impl FnOnce(Option<&str>) -> Arc<ServerConfig>,
) -> Result<TlsStream<TcpStream>, AcceptError> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let config = choose(begun.client_hello().server_name());
    Ok(begun.into_stream(config).await?)
}

/// Answers a client that does not speak TLS, if it can understand the answer.
pub(crate) async fn refuse(stream: TcpStream) -> AcceptError {
    let http = match first_byte(&stream).await {
        Ok(byte) => byte.is_ascii_uppercase(),
        Err(error) => return error,
    };
    if http {
        // The client may be gone already.
        let _ = say_https(stream).await;
    }
    AcceptError::Plain { http }
}

async fn say_https(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(PLAIN_REFUSED).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(MAX_DISCARDED_BYTES);
    let discarded = async {
        let mut buffer = [0; 4096];
        while rest.read(&mut buffer).await? > 0 {}
        Ok(())
    };
    timeout(DISCARD_TIMEOUT, discarded).await.unwrap_or(Ok(()))
}
