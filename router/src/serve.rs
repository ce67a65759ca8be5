//! HTTP and gRPC on one port: HTTP/1.1 and HTTP/2, distinguished by their first bytes, with or without TLS.
//! Every wait and every size that a client controls has a bound here or in `config`.

use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::Body;
use skein_node::trace::PROCESS;
use skein_tls::PortTls;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};

use crate::api::direct::{self, Direct};
use crate::api::http::nodes::NodeCheck;
use crate::api::{self, grpc};
use crate::app::App;
use crate::connection::Protocols;
use crate::limits::{ConnectionLimits, Place, Places};
use crate::repository::Repository;
use crate::repository::served::Served;
use crate::shards::{Moving, Shards};
use crate::tenants::KeysFile;
use crate::unread::RequestBody;

/// Pause after a failed accept, for example without free file descriptors, so that others can close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After the drain: time to flush responses and close connections.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves `app` until `shutdown`, then drains: new requests are refused with 503 and running ones finish.
/// Those still running after `shutdown_timeout` are cut but continue at their workers for a while, so that
/// their clients can resume them through another router.
///
/// # Errors
/// If the system has no thread for a shard, or the gRPC descriptors cannot be decoded: a broken build.
pub async fn serve(
    listener: TcpListener,
    app: App,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_boxed(listener, app, Box::pin(shutdown))?.await;
    Ok(())
}

/// Not generic, and the future in a box, so that the server is compiled in this crate, which is optimised
/// for speed.
fn serve_boxed<'a>(
    listener: TcpListener,
    app: App,
    shutdown: BoxFuture<'a, ()>,
) -> io::Result<BoxFuture<'a, ()>> {
    let served = Served::One(app.clone());
    let guarded = grpc::guarded(&served).map_err(io::Error::other)?;
    let router = api::router(app.clone(), guarded, grpc::open(&served));
    let (nodes, direct) = (NodeCheck::of(&app.config), Direct::new(&app));
    let service = move |mut request: http::Request<RequestBody>| match nodes.refusal(&mut request) {
        Some(refused) => std::future::ready(refused).boxed(),
        None => direct::answer(direct.as_ref(), &router, request.map(axum::body::Body::new)),
    };
    let (limits, tls) = (app.config.connection_limits(), app.config.tls.clone());
    let (keys, usage) = (app.config.keys_file.clone(), app.config.usage_log.clone());
    let shards = Shards::start(app.config.shards)?;
    let drained = async move {
        shutdown.await;
        let running = app.drain.running();
        tracing::info!(running, "draining");
        let ending = info_span!(target: PROCESS, parent: None, "shutdown", skein.model = &*app.text.name());
        let drain = info_span!(target: PROCESS, parent: &ending, "drain", skein.running = running);
        app.drain.drain(app.config.shutdown_timeout, || app.generator.leave()).instrument(drain).await;
        ending
    };
    let served = async move {
        let _watch = keys.as_ref().map(KeysFile::watch);
        accept_until(listener, &shards, tls, service, limits, drained).await;
        shards.end().await;
        // The requests that were cut have their lines, too.
        if let Some(usage) = usage {
            let _ = tokio::task::spawn_blocking(move || usage.flush()).await;
        }
    };
    Ok(served.boxed())
}

/// Serves `models` until `shutdown`, then drains as [`serve`] does, and ends their workers.
///
/// # Errors
/// As [`serve`].
pub async fn serve_several(
    listener: TcpListener,
    models: Repository,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let shutdown: BoxFuture<'_, ()> = Box::pin(shutdown);
    let served = Served::Several(models.clone());
    let guarded = grpc::guarded(&served).map_err(io::Error::other)?;
    let router = api::repository::router(models.clone(), guarded, grpc::open(&served));
    let service = move |request: http::Request<RequestBody>| {
        direct::answer(None, &router, request.map(axum::body::Body::new))
    };
    let config = models.config();
    let (limits, tls) = (config.connection_limits(), config.tls.clone());
    let shards = Shards::start(config.shards)?;
    let drained = async {
        shutdown.await;
        let running = models.running();
        tracing::info!(running, "draining");
        let ending = info_span!(target: PROCESS, parent: None, "shutdown");
        let drain = info_span!(target: PROCESS, parent: &ending, "drain", skein.running = running);
        models.drain_all(config.shutdown_timeout).instrument(drain).await;
        ending
    };
    let _watch = config.keys_file.as_ref().map(KeysFile::watch);
    accept_until(listener, &shards, tls, service, limits, drained).await;
    shards.end().await;
    models.end_workers().await;
    if let Some(usage) = config.usage_log.clone() {
        let _ = tokio::task::spawn_blocking(move || usage.flush()).await;
    }
    Ok(())
}

/// Serves `service` on every connection until `drained` resolves, then closes the connections. A connection
/// is accepted here and served on one of the `shards`; the limits hold over all of them. It is closed
/// `limits.idle_timeout` after its last answer.
pub async fn accept_until<F, B, D>(
    listener: TcpListener,
    shards: &Shards,
    tls: PortTls,
    service: impl Fn(http::Request<RequestBody>) -> F + Clone + Send + 'static,
    limits: ConnectionLimits,
    drained: impl Future<Output = D>,
) where
    F: Future<Output = http::Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let closing = CancellationToken::new();
    let protocols = Arc::new(Protocols::new(shards, limits.idle_timeout));
    let places = Places::new(&limits);
    let mut connections = JoinSet::new();
    tokio::pin!(drained);
    // What `drained` returns is kept until the connections are closed.
    let _ending = loop {
        tokio::select! {
            biased;
            ending = &mut drained => break ending,
            Some(_) = connections.join_next() => {}
            (place, stream) = accept(&listener, &places) => {
                let served = Serving {
                    protocols: protocols.clone(),
                    tls: tls.clone(),
                    closing: closing.clone(),
                    _place: place,
                };
                shards.spawn(&mut connections, served.connection(shards.moving(stream), service.clone()));
            }
        }
    };
    drop(listener);
    closing.cancel();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLOSE_TIMEOUT, all_closed).await.is_err() {
        tracing::warn!("some connections were cut because their clients did not read");
        connections.shutdown().await;
    }
}

async fn accept(listener: &TcpListener, places: &Places) -> (Place, TcpStream) {
    let mut place = places.next().await;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) if places.give(&mut place, peer.ip()) => return (place, stream),
            Ok(_) => {} // closed
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What a connection is served with.
struct Serving {
    protocols: Arc<Protocols>,
    tls: PortTls,
    closing: CancellationToken,
    /// Held while the connection is open, from before its handshake.
    _place: Place,
}

impl Serving {
    async fn connection<F, B>(
        self,
        stream: Moving,
        service: impl Fn(http::Request<RequestBody>) -> F + Send + 'static,
    ) where
        F: Future<Output = http::Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let stream = match stream.arrived() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, "a connection is not served"),
        };
        // Tokens are small and should leave at once. If the socket refuses the option, serve it anyway.
        let _ = stream.set_nodelay(true);
        let accepted = tokio::select! {
            // In a box: a handshake needs kilobytes that the connection does not need after it.
            accepted = Box::pin(self.tls.accept(stream)) => accepted,
            () = self.closing.cancelled() => return,
        };
        match accepted {
            Ok(accepted) => self.protocols.serve(accepted, self.closing, service).await,
            Err(error) => tracing::debug!(%error, "a connection is not served"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RouterConfig;
    use crate::testing::server::{Server, endless, read_until, send};
    use crate::testing::{self, Script};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn start(script: Script, shutdown_timeout: Duration) -> Server {
        Server::start(script, RouterConfig { shutdown_timeout, ..testing::config() }).await
    }

    fn post(body: &str) -> String {
        let length = body.len();
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    async fn until(condition: impl Fn() -> bool) {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_cancels_its_request() {
        for body in [r#"{"prompt": "a", "stream": true}"#, r#"{"prompt": "a"}"#] {
            let server = start(endless(), Duration::from_secs(5)).await;
            let client = send(server.address, &post(body)).await;
            until(|| server.app.drain.running() == 1).await;
            drop(client);
            until(|| server.app.drain.running() == 0).await;
        }
    }

    #[tokio::test]
    async fn a_stream_that_outlasts_the_drain_is_cut_as_in_a_crash() {
        let server = start(endless(), Duration::from_millis(200)).await;
        let named = r#"{"prompt": "a", "stream": true, "request_id": "mine"}"#;
        let mut client = send(server.address, &post(named)).await;
        let mut idle = send(server.address, "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(read_until(&mut idle, "ok").await.starts_with("HTTP/1.1 200"));
        read_until(&mut client, "\"text\":\"a\"").await;
        let Server { app, stop, served, address } = server;
        stop.send(()).unwrap();
        until(|| app.drain.is_draining()).await;
        let mut late = send(address, &post(r#"{"prompt": "a"}"#)).await;
        assert!(read_until(&mut late, "draining").await.starts_with("HTTP/1.1 503"));
        let mut ready = send(address, "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(read_until(&mut ready, "draining").await.starts_with("HTTP/1.1 503"));
        let rest = read_until(&mut client, "never").await;
        // Without the final chunk (`0\r\n\r\n`), so that no client mistakes it for the end.
        assert!(rest.contains("\nretry: ") && !rest.contains("data:"), "{rest}");
        assert!(!rest.ends_with("0\r\n\r\n"), "{rest}");
        served.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }

    #[tokio::test]
    async fn floods_of_headers_are_refused() {
        let server = start(Script::default(), Duration::ZERO).await;
        let many: String = (0..200).map(|at| format!("x-{at}: 1\r\n")).collect();
        for headers in [many, format!("x: {}\r\n", "y".repeat(100_000))] {
            let request = format!("GET /livez HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
            let mut client = TcpStream::connect(server.address).await.unwrap();
            // The server may close before it has read everything.
            let _ = client.write_all(request.as_bytes()).await;
            let mut answer = vec![0; 64];
            let count = client.read(&mut answer).await.unwrap_or(0);
            let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        }
        let mut client = send(server.address, "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(read_until(&mut client, "ok").await.starts_with("HTTP/1.1 200"));
    }

    /// A proxy that keeps connections for longer would send requests into closed ones: nginx does so for 60
    /// s.
    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_kept_for_its_time_and_then_closed() {
        let second = Duration::from_secs(1);
        for idle_timeout in [testing::config().idle_timeout, 5 * second] {
            let config = RouterConfig { idle_timeout, ..testing::config() };
            let server = Server::start(Script::default(), config).await;
            let mut client = TcpStream::connect(server.address).await.unwrap();
            for _ in 0..3 {
                client.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
                assert!(read_until(&mut client, "ok").await.starts_with("HTTP/1.1 200"));
                tokio::time::sleep(idle_timeout - second).await;
            }
            let rest = tokio::time::timeout(2 * second, read_until(&mut client, "never"));
            assert_eq!(rest.await.expect("it is closed in time"), "", "{idle_timeout:?}");
        }
        assert!(testing::config().idle_timeout > Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed() {
        let server = start(Script::default(), Duration::ZERO).await;
        for begun in ["", "P", "PRI * HTTP/2.0\r\n", "GET /livez HTTP/1.1\r\nhost"] {
            let mut client = send(server.address, begun).await;
            let mut buffer = [0; 64];
            // Closed, with or without a 408.
            while client.read(&mut buffer).await.unwrap_or(0) > 0 {}
        }
    }
}
