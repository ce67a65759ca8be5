//! The gRPC server around the service: health, reflection, limits, and a graceful stop.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use skein_node::supervisor::Secret;
use skein_proto::worker::v1::worker_server::WorkerServer;
use skein_proto::{FILE_DESCRIPTOR_SET, MAX_MESSAGE_BYTES};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tonic::service::{InterceptorLayer, Routes};
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::WorkerService;
use super::incoming::connections;
use super::metrics_port::{self, Readiness};
use super::scrape::scrape;
use crate::config::WorkerConfig;
use crate::error::WorkerError;
use crate::metrics::Metrics;

/// A connection silent for this long is pinged, and closed if the ping is not answered within the same time.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Streams of one connection beyond its requests: watches, aborts, health.
const SPARE_STREAMS: u32 = 256;
/// HTTP/2 flow control: most bytes in flight to us on a stream and on a connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Paths of the health service.
const HEALTH: &str = "/grpc.health.v1.Health/{*rest}";
/// Time for connections to close by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A listening server. If dropped without [`stop`](Self::stop), it ends at once.
pub(super) struct Server {
    pub address: SocketAddr,
    health: HealthReporter,
    stop: oneshot::Sender<()>,
    task: AbortOnDrop,
    readiness: Readiness,
    /// The port of its own for metrics and health, if there is one.
    _metrics: JoinSet<()>,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Accepts calls with the secret as a bearer token.
fn with_secret(secret: &Secret, is_cluster: bool, call: Request<()>) -> Result<Request<()>, Status> {
    let given = call.metadata().get("authorization").map(|value| value.as_bytes());
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    match secret.is(given) {
        true => Ok(call),
        false if is_cluster => Err(Status::unauthenticated(
            "this worker accepts only routers of its cluster: give both the same --cluster-secret-file",
        )),
        false => Err(Status::unauthenticated(
            "this worker accepts only the router that started it; send requests to the router",
        )),
    }
}

/// All routes, and what sets the health that one of them answers. The secret guards them all, with reflection
/// and paths that do not exist; health only without `open_health`.
fn routes(config: &WorkerConfig, service: WorkerService, metrics: Arc<Metrics>) -> (HealthReporter, Routes) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors built into this binary are valid");
    let worker = WorkerServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (secret, open_health) = (config.secret.clone(), config.open_health);
    let guard = InterceptorLayer::new(move |call| match &secret {
        Some(secret) => with_secret(secret, open_health, call),
        None => Ok(call),
    });
    let guarded = Routes::new(worker).add_service(reflection).into_axum_router();
    let guarded = match config.metrics {
        None => guarded.route("/metrics", get(scrape).with_state(metrics)),
        Some(_) => guarded,
    };
    let health = axum::Router::new().route_service(HEALTH, health);
    let routes = match open_health {
        true => guarded.layer(guard).merge(health),
        false => guarded.merge(health).layer(guard),
    };
    (reporter, Routes::from(routes))
}

type Serving = Pin<Box<dyn Future<Output = Result<(), tonic::transport::Error>> + Send>>;

/// The server of `routes` until `stopped`. Like `routes` no part of an `async` function, which is compiled in
/// the crate that awaits it: this crate is optimised for speed.
fn serving(
    config: &WorkerConfig,
    routes: Routes,
    listener: TcpListener,
    stopped: oneshot::Receiver<()>,
) -> Serving {
    let streams = config.scheduler.max_num_queued_reqs + config.scheduler.max_num_seqs + SPARE_STREAMS;
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(streams)
        // For Prometheus, which speaks HTTP/1.1.
        .accept_http1(true)
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections(listener, config.tls.clone()), async {
            // A dropped sender means stop, too.
            let _ = stopped.await;
        });
    Box::pin(server)
}

impl Server {
    /// Listens at once; health says NOT_SERVING.
    pub async fn start(
        config: &WorkerConfig,
        service: WorkerService,
        metrics: Arc<Metrics>,
    ) -> Result<Self, WorkerError> {
        let failed = |source| WorkerError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let readiness = Readiness::default();
        let own_port = metrics_port::open(config.metrics, &metrics, &readiness).await?;
        let (health, routes) = routes(config, service, metrics);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serving(config, routes, listener, stopped);
        let task = AbortOnDrop(tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the gRPC server ended");
            }
        }));
        let server = Self { address, health, stop, task, readiness, _metrics: own_port };
        server.say(ServingStatus::NotServing).await;
        Ok(server)
    }

    /// Sets the health status of the whole process and of the service.
    pub async fn say(&self, status: ServingStatus) {
        self.readiness.set(status == ServingStatus::Serving);
        self.health.set_service_status("", status).await;
        self.health.set_service_status("skein.worker.v1.Worker", status).await;
    }

    /// Accepts no more connections and waits, briefly, for the open ones to end.
    pub async fn stop(mut self) {
        let _ = self.stop.send(());
        // Connections still open are cut when the task is dropped.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, &mut self.task.0).await;
    }
}
