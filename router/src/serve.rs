//! HTTP and gRPC on one port: HTTP/1.1 and HTTP/2 without TLS, told apart by their first bytes. Every wait and
//! every size that a client controls has a bound here or in `config`.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::app::App;
use crate::{gateway, grpc};

/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 16_384;
/// From connecting to the head of the first request, and from one head's first byte to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Header lines of one request, and their bytes.
const MAX_HEADERS: usize = 100;
const MAX_HEADER_BYTES: u32 = 64 * 1024;
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 1024;
/// A silent HTTP/2 peer is asked whether it lives, and given this long to say so.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// After a failed accept (no file descriptors): time for others to close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After the drain: time to write out what is written and say good-bye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves `app` until `shutdown`, then drains: new requests are refused with 503, running ones end, those that
/// outlast `shutdown_timeout` end with an error.
///
/// # Errors
/// When the gRPC descriptors cannot be read: a broken build.
pub async fn serve(listener: TcpListener, app: App, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let guarded = grpc::guarded(&app).map_err(io::Error::other)?;
    let router = gateway::router(app.clone(), guarded, grpc::open(&app));
    let closing = CancellationToken::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let drained = async {
        shutdown.await;
        tracing::info!(running = app.drain.running(), "draining");
        app.drain.drain(app.config.shutdown_timeout).await;
    };
    tokio::pin!(drained);
    loop {
        tokio::select! {
            biased;
            () = &mut drained => break,
            Some(_) = connections.join_next() => {}
            (place, stream) = accept(&listener, &places) => {
                connections.spawn(connection(stream, router.clone(), closing.clone(), place));
            }
        }
    }
    drop(listener);
    closing.cancel();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLOSE_TIMEOUT, all_closed).await.is_err() {
        tracing::warn!("some connections were cut: their clients did not read");
    }
    Ok(())
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (Option<OwnedSemaphorePermit>, TcpStream) {
    // The semaphore is never closed.
    let place = places.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (place, stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    closing: CancellationToken,
    _place: Option<OwnedSemaphorePermit>,
) {
    // Tokens are small and each should leave at once. A socket that refuses is served all the same.
    let _ = stream.set_nodelay(true);
    let asked = Arc::new(AtomicBool::new(false));
    let noting = asked.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        noting.store(true, Ordering::Relaxed);
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request).await.unwrap_or_else(|never| match never {})) }
    });
    let builder = protocol();
    let served = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let silent = async {
        tokio::time::sleep(HEAD_TIMEOUT).await;
        // Once a request was read, the protocol's own timers watch.
        if asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = silent => return,
        () = closing.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

fn protocol() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
