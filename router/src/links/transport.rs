//! The transport to a worker: gRPC in production, a simulated network in tests. It carries messages of
//! `skein.worker.v1` without interpreting them; [`super::worker_client`] does that.

use std::error::Error;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use skein_proto::MAX_MESSAGE_BYTES;
use skein_proto::worker::v1::{self as wire, worker_client::WorkerClient as WireClient};
use skein_tls::ClientTls;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::encrypted::{CONNECT_TIMEOUT, Encrypted};
use crate::shard;

/// With `KEEPALIVE_TIMEOUT` bounds the time until a silent peer (a cut cable, a stopped process) is noticed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// HTTP/2 flow control of token streams: how far a peer may send one stream ahead of its reader. It bounds
/// the memory that a client which stops reading costs this process: an unread message of one token has some
/// 25 bytes, and h2 keeps about 270 for it. The peer joins what has to wait into longer messages.
const STREAM_WINDOW_BYTES: u32 = 8 << 10;
/// The same for all streams of a connection together. It holds the full windows of more unread streams than
/// a router accepts connections, so unread streams never block another one.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// A call with one response.
pub type Call<'a, T> = BoxFuture<'a, Result<T, Status>>;
/// The response of a streaming call.
pub type Messages<T> = BoxStream<'static, Result<T, Status>>;

/// A connection to one worker. Dropping a stream of messages tells the worker, if the network allows, that it
/// is no longer read.
pub trait Transport: Debug + Send + Sync + 'static {
    /// `Worker.Info`: reads what the worker serves.
    fn info(&self) -> Call<'_, wire::InfoResponse>;
    /// `Worker.Generate`; when it returns, the worker has accepted the request. The metadata carries the
    /// trace context.
    fn generate(&self, request: Request<wire::GenerateRequest>) -> Call<'_, Messages<wire::GenerateDelta>>;
    /// `Worker.Attach`: reads a running stream.
    fn attach(&self, request: Request<wire::AttachRequest>) -> Call<'_, Messages<wire::GenerateDelta>>;
    /// `Worker.Abort`: ends one sample early.
    fn abort(&self, request: wire::AbortRequest) -> Call<'_, wire::AbortResponse>;
    /// `Worker.Release`: ends a reader of a stream.
    fn release(&self, request: wire::ReleaseRequest) -> Call<'_, wire::ReleaseResponse>;
    /// `Worker.Watch`: follows the worker's log.
    fn watch(&self, request: wire::WatchRequest) -> Call<'_, Messages<wire::WorkerEvent>>;
    /// `Worker.LoadAdapter`: serves an adapter.
    fn load_adapter(&self, _request: wire::LoadAdapterRequest) -> Call<'_, wire::LoadAdapterResponse> {
        Box::pin(async { Err(Status::unimplemented("this transport loads no adapters")) })
    }
    /// `Worker.UnloadAdapter`: takes no more requests for an adapter.
    fn unload_adapter(&self, _request: wire::UnloadAdapterRequest) -> Call<'_, wire::UnloadAdapterResponse> {
        Box::pin(async { Err(Status::unimplemented("this transport unloads no adapters")) })
    }
    /// `Worker.Drain`: takes no more requests, or takes them again.
    fn drain(&self, _request: wire::DrainRequest) -> Call<'_, wire::DrainResponse> {
        Box::pin(async { Err(Status::unimplemented("this transport drains no workers")) })
    }
}

/// Opens connections to workers.
pub trait Connector: Debug + Send + Sync + 'static {
    /// Connects to `host:port`; the error is a readable reason.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Transport>, String>>;
}

/// gRPC over TCP, with TLS and a bearer token if they are set.
#[derive(Debug, Clone, Default)]
pub struct Grpc {
    authorization: Option<MetadataValue<Ascii>>,
    tls: Option<ClientTls>,
}

impl Grpc {
    /// Sends `key` with every call: a router's API key, or the cluster's secret. `None` if it is not
    /// printable ASCII.
    pub fn with_key(self, key: &str) -> Option<Self> {
        let mut authorization: MetadataValue<Ascii> = format!("Bearer {key}").parse().ok()?;
        authorization.set_sensitive(true);
        Some(Self { authorization: Some(authorization), ..self })
    }

    /// Speaks TLS.
    #[must_use]
    pub fn with_tls(self, tls: ClientTls) -> Self {
        Self { tls: Some(tls), ..self }
    }
}

impl Connector for Grpc {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Transport>, String>> {
        Box::pin(connect(address, self))
    }
}

async fn connect(address: &str, way: &Grpc) -> Result<Arc<dyn Transport>, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| format!("bad worker address: {error}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let watching = endpoint.clone().keep_alive_while_idle(true);
    let reading = endpoint
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let encrypted = way.tls.clone().map(|tls| Encrypted { tls });
    let control = match encrypted.clone() {
        None => watching.connect().await,
        Some(encrypted) => watching.connect_with_connector(encrypted).await,
    };
    let control = limited(control.map_err(|error| error_chain(&error))?);
    let authorization = way.authorization.clone();
    let data = (0..shard::count()).map(|_| OnceLock::new()).collect();
    Ok(Arc::new(GrpcTransport { control, reading, encrypted, data, authorization }))
}

#[derive(Debug)]
struct GrpcTransport {
    /// For the watch and short calls, so that bulky streams do not delay them.
    control: WireClient<Channel>,
    reading: Endpoint,
    encrypted: Option<Encrypted>,
    /// For token streams: a connection of each shard, which its event loop drives.
    data: Box<[OnceLock<WireClient<Channel>>]>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl GrpcTransport {
    /// The connection of this shard. It connects when it is first used, on the shard's own event loop.
    fn data(&self) -> WireClient<Channel> {
        let connect = || {
            limited(match self.encrypted.clone() {
                None => self.reading.connect_lazy(),
                Some(encrypted) => self.reading.connect_with_connector_lazy(encrypted),
            })
        };
        // More shards than there were when this worker was found share their connections.
        self.data[shard::current() % self.data.len()].get_or_init(connect).clone()
    }

    fn call<T>(&self, message: T) -> Request<T> {
        self.authorized(Request::new(message))
    }

    fn authorized<T>(&self, mut request: Request<T>) -> Request<T> {
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }
}

impl Transport for GrpcTransport {
    fn info(&self) -> Call<'_, wire::InfoResponse> {
        let call = self.call(wire::InfoRequest {});
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.info(call).await?.into_inner()) })
    }

    fn generate(&self, request: Request<wire::GenerateRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        let call = self.authorized(request);
        let mut data = self.data();
        Box::pin(async move { Ok(data.generate(call).await?.into_inner().boxed()) })
    }

    fn attach(&self, request: Request<wire::AttachRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        let call = self.authorized(request);
        let mut data = self.data();
        Box::pin(async move { Ok(data.attach(call).await?.into_inner().boxed()) })
    }

    fn abort(&self, request: wire::AbortRequest) -> Call<'_, wire::AbortResponse> {
        let call = self.call(request);
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.abort(call).await?.into_inner()) })
    }

    fn release(&self, request: wire::ReleaseRequest) -> Call<'_, wire::ReleaseResponse> {
        let call = self.call(request);
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.release(call).await?.into_inner()) })
    }

    fn watch(&self, request: wire::WatchRequest) -> Call<'_, Messages<wire::WorkerEvent>> {
        let call = self.call(request);
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.watch(call).await?.into_inner().boxed()) })
    }

    fn load_adapter(&self, request: wire::LoadAdapterRequest) -> Call<'_, wire::LoadAdapterResponse> {
        let call = self.call(request);
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.load_adapter(call).await?.into_inner()) })
    }

    fn unload_adapter(&self, request: wire::UnloadAdapterRequest) -> Call<'_, wire::UnloadAdapterResponse> {
        let call = self.call(request);
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.unload_adapter(call).await?.into_inner()) })
    }

    fn drain(&self, request: wire::DrainRequest) -> Call<'_, wire::DrainResponse> {
        let call = self.call(request);
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.drain(call).await?.into_inner()) })
    }
}

fn limited(channel: Channel) -> WireClient<Channel> {
    WireClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// An error followed by all its causes.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
