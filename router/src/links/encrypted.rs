//! Connections with TLS, for tonic.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use skein_tls::{ClientStream, ClientTls};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::Service;

/// Time for a connection to a worker, its handshake included.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens a connection and does the handshake.
#[derive(Debug, Clone)]
pub(super) struct Encrypted {
    pub tls: ClientTls,
}

impl Service<Uri> for Encrypted {
    type Response = TokioIo<ClientStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let tls = self.tls.clone();
        Box::pin(async move {
            let host = to.host().unwrap_or_default();
            let port = to.port_u16().unwrap_or_default();
            let connecting = async {
                let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
                // Tokens are small and should leave at once.
                stream.set_nodelay(true)?;
                tls.connect(host, stream).await.map_err(io::Error::other)
            };
            let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection with TLS in time");
            Ok(TokioIo::new(timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| late())??))
        })
    }
}
