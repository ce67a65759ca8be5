//! The transport to a worker: gRPC in production, a simulated network in tests. It carries messages of
//! `skein.worker.v1` without interpreting them; [`super::worker_client`] does that.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use skein_exchange::client::{self, Exchange};
use skein_exchange::limits::CREDIT;
use skein_exchange::metadata::of_call;
use skein_node::task;
use skein_proto::MAX_MESSAGE_BYTES;
use skein_proto::worker::v1::{self as wire, worker_client::WorkerClient as WireClient};
use skein_tls::ClientTls;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::encrypted::{CONNECT_TIMEOUT, Encrypted};
use super::exchanges::Exchanges;

/// With `KEEPALIVE_TIMEOUT` bounds the time until a silent peer (a cut cable, a stopped process) is noticed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// HTTP/2 flow control of token streams: how far a peer may send one stream ahead of its reader. It bounds
/// the memory that a client which stops reading costs this process: an unread message of one token has some
/// 25 bytes, and h2 keeps about 270 for it. The peer joins what has to wait into longer messages.
const STREAM_WINDOW_BYTES: u32 = 8 << 10;
/// HTTP/2 flow control of an exchange. What may wait in it is bounded by the credit of its calls, and it is
/// always read.
const EXCHANGE_WINDOW_BYTES: u32 = 16 << 20;
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
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let watching = endpoint.clone().keep_alive_while_idle(true);
    let control = match &way.tls {
        None => watching.connect().await,
        Some(tls) => watching.connect_with_connector(Encrypted { tls: tls.clone() }).await,
    };
    let control = limited(control.map_err(|error| error_chain(&error))?);
    let reading = endpoint.clone().initial_stream_window_size(STREAM_WINDOW_BYTES);
    let authorization = way.authorization.clone();
    Ok(Arc::new(GrpcTransport {
        control,
        calls: limited(lazy(&reading, way)),
        exchanges: Exchanges::default(),
        endpoint: endpoint.initial_stream_window_size(EXCHANGE_WINDOW_BYTES),
        way: way.clone(),
        authorization,
    }))
}

/// A channel that connects at its first call. Its tasks run in the runtime that asks for it.
fn lazy(endpoint: &Endpoint, way: &Grpc) -> Channel {
    match &way.tls {
        None => endpoint.connect_lazy(),
        Some(tls) => endpoint.connect_with_connector_lazy(Encrypted { tls: tls.clone() }),
    }
}

#[derive(Debug)]
struct GrpcTransport {
    /// For the watch and short calls, so that bulky streams do not delay them.
    control: WireClient<Channel>,
    /// For token streams.
    exchanges: Exchanges,
    /// For token streams that cannot be in an exchange.
    calls: WireClient<Channel>,
    /// Where an exchange connects to.
    endpoint: Endpoint,
    way: Grpc,
    authorization: Option<MetadataValue<Ascii>>,
}

impl GrpcTransport {
    fn call<T>(&self, message: T) -> Request<T> {
        self.authorized(Request::new(message))
    }

    fn authorized<T>(&self, request: Request<T>) -> Request<T> {
        authorized(self.authorization.as_ref(), request)
    }

    /// The exchange with the worker; `None` if it has none.
    async fn exchange(&self) -> Result<Option<Arc<Exchange>>, Status> {
        self.exchanges
            .current(|| {
                let data = limited(lazy(&self.endpoint, &self.way));
                open(data, self.authorization.clone(), self.endpoint.uri().to_string()).boxed()
            })
            .await
    }
}

impl Transport for GrpcTransport {
    fn info(&self) -> Call<'_, wire::InfoResponse> {
        let call = self.call(wire::InfoRequest {});
        let mut control = self.control.clone();
        Box::pin(async move { Ok(control.info(call).await?.into_inner()) })
    }

    fn generate(&self, request: Request<wire::GenerateRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        Box::pin(async move {
            if client::fits(request.get_ref())
                && let Some(exchange) = self.exchange().await?
            {
                return Ok(exchange.generate(request).await?.boxed());
            }
            Ok(self.calls.clone().generate(self.authorized(request)).await?.into_inner().boxed())
        })
    }

    fn attach(&self, request: Request<wire::AttachRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        Box::pin(async move {
            if let Some(exchange) = self.exchange().await? {
                return Ok(exchange.attach(request).await?.boxed());
            }
            Ok(self.calls.clone().attach(self.authorized(request)).await?.into_inner().boxed())
        })
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

/// Opens an exchange with the worker at `address`; its answers are read until it ends.
async fn open(
    mut data: WireClient<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
    address: String,
) -> Result<Exchange, Status> {
    let (exchange, frames, answers) = client::exchange(CREDIT);
    let call = authorized(authorization.as_ref(), Request::new(frames));
    let messages = data.exchange(call).await.map_err(|status| of_call(&status))?.into_inner();
    task::spawn(async move {
        match answers.read(messages).await {
            // The connection broke, which is said elsewhere.
            Some(status) if status.source().is_some() => {
                tracing::debug!(address, %status, "an exchange with a worker ended");
            }
            Some(status) => {
                let (code, reason) = (status.code(), status.message());
                tracing::warn!(
                    address,
                    ?code,
                    reason,
                    "an exchange with a worker failed; its requests continue"
                );
            }
            None => {}
        }
    });
    Ok(exchange)
}

fn authorized<T>(authorization: Option<&MetadataValue<Ascii>>, mut request: Request<T>) -> Request<T> {
    if let Some(authorization) = authorization {
        request.metadata_mut().insert("authorization", authorization.clone());
    }
    request
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
