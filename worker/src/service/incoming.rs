//! Connections to the gRPC server, with their handshakes done.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use skein_tls::{PortTls, Wire};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// Pause after a connection could not be accepted, so that others can close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Most handshakes at once. Each ends in a bounded time, and further connections wait to be accepted.
const MAX_HANDSHAKES: usize = 256;

/// Incoming connections. When one cannot be accepted, tonic tries the next at once. Out of file descriptors
/// that is a silent busy loop, so this logs the error and pauses. A handshake runs on a task of its own: a
/// slow one delays nobody.
pub(super) fn connections(
    listener: TcpListener,
    tls: PortTls,
) -> impl Stream<Item = io::Result<Connection>> + Unpin {
    let accepted = TcpIncoming::from(listener).with_nodelay(Some(true)).then(|accepted| async {
        if let Err(error) = &accepted {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    });
    let shaking = accepted.map(move |accepted| handshake(accepted, tls.clone()));
    Box::pin(shaking.buffer_unordered(MAX_HANDSHAKES).filter_map(std::future::ready))
}

/// `None` if the client is not served.
async fn handshake(accepted: io::Result<TcpStream>, tls: PortTls) -> Option<io::Result<Connection>> {
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => return Some(Err(error)),
    };
    if tls == PortTls::default() {
        return Some(Ok(Connection(Wire::Plain(stream))));
    }
    let peer = stream.peer_addr().ok();
    let shaken = tokio::spawn(async move { tls.accept(stream).await }).await;
    match shaken.map_err(io::Error::other) {
        Ok(Ok(accepted)) => Some(Ok(Connection(accepted.wire))),
        Ok(Err(error)) => {
            tracing::debug!(%error, ?peer, "a connection is not served");
            None
        }
        Err(error) => Some(Err(error)),
    }
}

/// A connection, for tonic.
#[derive(Debug)]
pub(super) struct Connection(Wire);

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.0.socket().connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }
}
