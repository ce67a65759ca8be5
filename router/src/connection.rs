//! One connection, from its first bytes to its end. Each protocol's state is in a box of its own size, so
//! that a connection keeps room for one of them.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use skein_tls::{Accepted, Wire};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::http::nodes::Node;
use crate::first_bytes::Begun;
use crate::give_back::Crowd;
use crate::idle::{Counted, Requests};
use crate::shards::{ForStreams, Shards};
use crate::unread::{RequestBody, Unread, awaits_continue};

/// Time from connecting to the end of the first request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Most header lines of one request.
const MAX_HEADERS: usize = 100;
/// Most header bytes of one request.
const MAX_HEADER_BYTES: u32 = 64 * 1024;
/// Most requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 1024;
/// Most streams of an HTTP/2 connection that its client has reset and we have not yet accepted; with more,
/// the connection is closed (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;
/// Most streams of an HTTP/2 connection that we reset because of its client's errors; with more, it is
/// closed.
const MAX_ERROR_RESETS: usize = 1024;
/// HTTP/2 flow control: most bytes of bodies in flight to us on a stream, and on a connection.
const WINDOW_BYTES: u32 = 1 << 20;
/// Most bytes of answers that wait on one HTTP/2 stream for its client to read.
const MAX_UNSENT_BYTES: usize = 400 * 1024;
/// How often a silent HTTP/2 peer is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How long it may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How connections are served; all of a port share it.
pub(crate) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<ForStreams>,
    idle_timeout: Duration,
    open: Arc<Crowd>,
}

impl Protocols {
    /// An idle connection of HTTP/1 waits for a head, so one limit bounds both. The first head also has
    /// [`HEAD_TIMEOUT`].
    pub fn new(shards: &Shards, idle_timeout: Duration) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(idle_timeout)
            .max_headers(MAX_HEADERS)
            // The buffer may be twice as large, because it grows by doubling.
            .max_header_size(MAX_HEADER_BYTES as usize)
            .max_buf_size(MAX_HEADER_BYTES as usize);
        let mut http2 = http2::Builder::new(shards.executor());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buf_size(MAX_UNSENT_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        Self { http1, http2, idle_timeout, open: Arc::default() }
    }

    /// Serves the requests of a connection until it ends, or until it has answered what it has begun once
    /// `closing` is cancelled.
    pub async fn serve<F, B>(
        self: Arc<Self>,
        accepted: Accepted,
        closing: CancellationToken,
        service: impl Fn(http::Request<RequestBody>) -> F + Send + 'static,
    ) where
        F: Future<Output = http::Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let (_open, Accepted { wire, is_node }) = (self.open.enter(), accepted);
        let service = move |mut request: http::Request<RequestBody>| {
            if is_node {
                request.extensions_mut().insert(Node);
            }
            service(request)
        };
        let asked = Asked::by(Instant::now() + HEAD_TIMEOUT);
        let begun = tokio::select! {
            begun = tokio::time::timeout_at(asked.deadline, Begun::read(wire)) => begun,
            () = closing.cancelled() => return,
        };
        let ended = match begun {
            Err(_) => return,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection broke before its first request");
                return;
            }
            Ok(Ok(begun)) if begun.is_http2() => self.http2(begun, asked, closing, service).await,
            Ok(Ok(begun)) => self.http1(begun, asked, closing, service).await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        }
    }

    /// In a box that is as large as this protocol's state.
    fn http1<F, B>(
        self: Arc<Self>,
        begun: Begun<Wire>,
        asked: Asked,
        closing: CancellationToken,
        service: impl Fn(http::Request<RequestBody>) -> F + Send + 'static,
    ) -> BoxFuture<'static, hyper::Result<()>>
    where
        F: Future<Output = http::Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        Box::pin(async move {
            let (unread, noting) = (Unread::default(), asked.clone());
            let service = service_fn(move |request: http::Request<Incoming>| {
                noting.note();
                let (unread, awaits_continue) = (unread.clone(), awaits_continue(&request));
                let answered = service(unread.lent(request));
                async move { Ok::<_, Infallible>(unread.settle(awaits_continue, answered.await).await) }
            });
            let mut served = pin!(self.http1.serve_connection(TokioIo::new(begun), service));
            tokio::select! {
                ended = served.as_mut() => ended,
                () = asked.never() => Ok(()),
                () = closing.cancelled() => {
                    served.as_mut().graceful_shutdown();
                    served.await
                }
            }
        })
    }

    /// As [`http1`](Self::http1).
    fn http2<F, B>(
        self: Arc<Self>,
        begun: Begun<Wire>,
        asked: Asked,
        closing: CancellationToken,
        service: impl Fn(http::Request<RequestBody>) -> F + Send + 'static,
    ) -> BoxFuture<'static, hyper::Result<()>>
    where
        F: Future<Output = http::Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        Box::pin(async move {
            let requests = Requests::new();
            let (noting, counting) = (asked.clone(), requests.clone());
            let service = service_fn(move |request: http::Request<Incoming>| {
                noting.note();
                let open = counting.begin();
                let answered = service(request.map(RequestBody::whole));
                async move { Ok::<_, Infallible>(answered.await.map(|body| Counted::new(body, open))) }
            });
            let mut served = pin!(self.http2.serve_connection(TokioIo::new(begun), service));
            tokio::select! {
                ended = served.as_mut() => return ended,
                () = asked.never() => return Ok(()),
                () = closing.cancelled() => {}
                // A request that arrives meanwhile is served: the client is told first that it is the last.
                () = requests.idle(self.idle_timeout) => {}
            }
            served.as_mut().graceful_shutdown();
            served.await
        })
    }
}

/// Whether a connection's first request has come.
#[derive(Clone)]
struct Asked {
    deadline: Instant,
    has_come: Arc<AtomicBool>,
}

impl Asked {
    fn by(deadline: Instant) -> Self {
        Self { deadline, has_come: Arc::default() }
    }

    fn note(&self) {
        self.has_come.store(true, Ordering::Relaxed);
    }

    /// Returns if it has not come in time. After it, the protocol's own timeouts apply.
    async fn never(&self) {
        tokio::time::sleep_until(self.deadline).await;
        if self.has_come.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Ten thousand open connections cost as many kilobytes as ten of these numbers.
    #[tokio::test]
    async fn a_connection_of_http1_has_no_room_for_http2() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let protocols = Arc::new(Protocols::new(&Shards::start(0).unwrap(), HEAD_TIMEOUT));
        let (closing, asked) = (CancellationToken::new(), Asked::by(Instant::now() + HEAD_TIMEOUT));
        let service =
            |_: http::Request<RequestBody>| std::future::ready(http::Response::new(Full::<Bytes>::default()));
        let begun = Begun::read(Wire::Plain(stream)).await.unwrap();
        assert!(!begun.is_http2());
        let http1 = protocols.clone().http1(begun, asked, closing.clone(), service);
        let bytes = size_of_val(&*http1);
        assert!(bytes <= 1600, "{bytes} bytes for HTTP/1");
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let accepted = Accepted { wire: Wire::Plain(stream), is_node: false };
        let bytes = size_of_val(&protocols.serve(accepted, closing, service));
        assert!(bytes <= 1100, "{bytes} bytes for a connection beside its protocol's");
    }
}
