//! The gRPC server around the service: health, reflection, limits, and a stop that waits a while.

use std::net::SocketAddr;
use std::time::Duration;

use skein_proto::worker::v1::worker_server::WorkerServer;
use skein_proto::{FILE_DESCRIPTOR_SET, MAX_MESSAGE_BYTES};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::{WorkerError, WorkerService};
use crate::config::WorkerConfig;

/// A connection silent for this long is pinged, and gone if it does not answer within as long again.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Streams of one connection beside the requests: watches, aborts, health.
const SPARE_STREAMS: u32 = 256;
/// HTTP/2 flow control: what a stream, and a connection, may have on its way to us.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// After a connection that could not be accepted: time for others to close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What connections get to close by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A listening server. Dropped without [`stop`](Self::stop), it ends at once.
pub(super) struct Server {
    pub address: SocketAddr,
    health: HealthReporter,
    stop: oneshot::Sender<()>,
    task: AbortOnDrop,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The connections that come. tonic passes over one that cannot be accepted and asks for the next at once: without file
/// descriptors, whose lack lasts, that would be a loop that burns a processor and says nothing.
fn connections(listener: TcpListener) -> impl Stream<Item = std::io::Result<TcpStream>> {
    TcpIncoming::from(listener).with_nodelay(Some(true)).then(|accepted| async {
        if let Err(error) = &accepted {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    })
}

impl Server {
    /// Listens at once, NOT_SERVING.
    pub async fn start(config: &WorkerConfig, service: WorkerService) -> Result<Self, WorkerError> {
        let failed = |source| WorkerError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (health, health_service) = tonic_health::server::health_reporter();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .expect("the descriptors built into this binary are valid");
        let worker = WorkerServer::new(service)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let (stop, stopped) = oneshot::channel::<()>();
        let streams = config.scheduler.max_num_queued_reqs + config.scheduler.max_num_seqs + SPARE_STREAMS;
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(streams)
            .add_service(worker)
            .add_service(health_service)
            .add_service(reflection)
            .serve_with_incoming_shutdown(connections(listener), async {
                // A dropped sender means the same.
                let _ = stopped.await;
            });
        let task = AbortOnDrop(tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the gRPC server ended");
            }
        }));
        let server = Self { address, health, stop, task };
        server.say(ServingStatus::NotServing).await;
        Ok(server)
    }

    /// Tells health checks, for the whole process and for the service by its name.
    pub async fn say(&self, status: ServingStatus) {
        self.health.set_service_status("", status).await;
        self.health.set_service_status("skein.worker.v1.Worker", status).await;
    }

    /// Takes no more connections, and ends when the open ones have, or soon anyway.
    pub async fn stop(mut self) {
        let _ = self.stop.send(());
        // A connection that outlives this is cut when the task is dropped.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, &mut self.task.0).await;
    }
}
