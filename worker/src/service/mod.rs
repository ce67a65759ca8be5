//! The gRPC service, and the only module of this crate that uses tonic and the protobuf types. It
//! validates every field of every request, because the worker trusts no caller; behind it there are
//! only validated values.

mod constraint;
mod drain;
mod incoming;
mod local;
mod metrics_port;
mod model_facts;
mod scrape;
mod serve;
mod server;
#[cfg(test)]
mod tests;
pub(crate) mod validate;
mod watch;
mod without_io;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use skein_exchange::server::serve as serve_exchange;
use skein_grammar::Grammars;
use skein_node::{clock, task, trace};
use skein_proto::adapter::AdapterId;
use skein_proto::delta::WorkerDelta;
use skein_proto::invalid::Invalid;
use skein_proto::placement::Placement;
use skein_proto::version::Version;
use skein_proto::worker::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

pub use local::LocalWorker;
pub use serve::{serve, serve_backend};
pub use without_io::without_io;

pub(crate) use model_facts::ModelFacts;

use self::constraint::NotHeld;
use crate::adapters::{Adapters, NotServed};
use crate::engine::{EngineHandle, Submission, SubmitError};
use crate::metrics::Metrics;
use crate::scheduler::NotAdmitted;
use crate::streams::{AttachError, StreamFault, TokenStream};

/// Deltas queued between a request's stream and HTTP/2. Output beyond it is merged into longer deltas
/// in the ring.
const DELTA_QUEUE: usize = 4;

/// Delay before a client should retry this worker.
const RETRY_AFTER_MS: &str = "1000";

/// A request's output on its way to HTTP/2.
type Deltas = ReceiverStream<Result<wire::GenerateDelta, Status>>;

/// What an exchange answers.
type Answers = BoxStream<'static, Result<wire::WorkerFrames, Status>>;

/// Available once the model is loaded.
#[derive(Debug)]
pub(crate) struct Ready {
    pub engine: EngineHandle,
    pub facts: ModelFacts,
    /// `None` if answers cannot be constrained by a grammar.
    pub grammars: Option<Arc<Grammars>>,
    /// Adapters served beside the model; `None` = not enabled.
    pub adapters: Option<Adapters>,
    /// Counters reported to routers; `None` = nothing is counted.
    pub metrics: Option<Arc<Metrics>>,
}

/// Counts open requests by the clones of its `Arc`.
#[derive(Debug, Default)]
struct Requests(Arc<()>);

/// The `skein.worker.v1.Worker` service.
#[derive(Debug, Clone, Default)]
pub struct WorkerService {
    ready: Arc<OnceLock<Ready>>,
    /// Open requests, from arrival until their streams are written.
    requests: Arc<Requests>,
    /// Cancelled when exchanges with routers are to end.
    stopping: CancellationToken,
}

impl WorkerService {
    /// `Worker.Exchange` over any transport: the answers to `frames`.
    pub fn exchange_over(
        &self,
        frames: impl Stream<Item = Result<wire::RouterFrames, Status>> + Send + 'static,
    ) -> impl Stream<Item = Result<wire::WorkerFrames, Status>> + Send + 'static {
        serve_exchange(Arc::new(self.clone()), frames, self.stopping.clone().cancelled_owned())
    }

    /// Ends the exchanges with routers once their calls have ended: connections close by themselves then.
    fn end_exchanges(&self) {
        self.stopping.cancel();
    }

    /// Whether any request is being admitted or any stream still written.
    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.requests.0) > 1
    }

    fn ready(&self) -> Result<&Ready, Status> {
        self.ready
            .get()
            .ok_or_else(|| Status::unavailable("the model is loading; retry when health says SERVING"))
    }
}

#[tonic::async_trait]
impl wire::worker_server::Worker for WorkerService {
    type GenerateStream = Deltas;
    type AttachStream = Deltas;
    type ExchangeStream = Answers;
    type WatchStream = ReceiverStream<Result<wire::WorkerEvent, Status>>;

    async fn info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::InfoResponse>, Status> {
        Ok(Response::new(self.ready()?.facts.info.clone().into()))
    }

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let Ready { engine, facts, grammars, adapters, .. } = self.ready()?;
        // Counted before the drain flag is checked, because the drain waits for it.
        let open = self.requests.0.clone();
        let trace = begin_trace("generate", request.metadata(), facts);
        let request = request.into_inner();
        let placement = request.placement.map(Placement::from);
        let adapter = AdapterId::from_wire(request.adapter);
        let checked = admit(request, placement, engine, facts);
        if let (Err(_), Some(placement)) = (&checked, placement) {
            // The engine will not see it, but the router must learn that it arrived.
            engine.log().saw(placement);
        }
        let held = match held(checked, placement, engine, grammars.as_ref()).await {
            Ok(submission) => with_adapter(submission, adapter, adapters.as_ref()).await.inspect_err(|_| {
                placement.inspect(|&placement| engine.log().saw(placement));
            }),
            Err(status) => Err(status),
        };
        let submitted = match held {
            Ok(submission) => {
                let submission = Submission { trace: trace.clone(), ..submission };
                engine.submit(submission).await.map_err(refused)
            }
            Err(status) => Err(status),
        };
        let stream = submitted.inspect_err(|status| refused_span(&trace, status))?;
        Ok(send(stream, facts.info.epoch, open, trace))
    }

    async fn attach(
        &self,
        request: Request<wire::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let Ready { engine, facts, .. } = self.ready()?;
        let open = self.requests.0.clone();
        let trace = begin_trace("attach", request.metadata(), facts);
        let attachment = validate::attachment(request.into_inner()).map_err(invalid)?;
        let attached = engine.attach(attachment).await.map_err(not_attached);
        let stream = attached.inspect_err(|status| refused_span(&trace, status))?;
        Ok(send(stream, facts.info.epoch, open, trace))
    }

    async fn exchange(
        &self,
        request: Request<Streaming<wire::RouterFrames>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        Ok(Response::new(self.exchange_over(request.into_inner()).boxed()))
    }

    async fn release(
        &self,
        request: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseResponse>, Status> {
        let found = self.ready()?.engine.release(request.into_inner().request_id).await;
        Ok(Response::new(wire::ReleaseResponse { found }))
    }

    async fn abort(
        &self,
        request: Request<wire::AbortRequest>,
    ) -> Result<Response<wire::AbortResponse>, Status> {
        let wire::AbortRequest { request_id, sample_index } = request.into_inner();
        let found = self.ready()?.engine.abort(request_id, sample_index).await;
        Ok(Response::new(wire::AbortResponse { found }))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let Ready { engine, facts, metrics, adapters, .. } = self.ready()?;
        let (sender, receiver) = mpsc::channel(watch::EVENT_QUEUE);
        let sources =
            watch::Sources { engine: engine.clone(), adapters: adapters.clone(), metrics: metrics.clone() };
        task::spawn(watch::follow(sources, facts.info.epoch, request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn load_adapter(
        &self,
        request: Request<wire::LoadAdapterRequest>,
    ) -> Result<Response<wire::LoadAdapterResponse>, Status> {
        let adapters = self.ready()?.adapters.clone().ok_or_else(no_adapters)?;
        let wire::LoadAdapterRequest { name, path, id, stamp, only_check } = request.into_inner();
        let load = move || {
            let (path, id) = (Path::new(&path), AdapterId::from_wire(id));
            if only_check {
                return adapters.could_load(&name, path, id).map(|(found, _)| found);
            }
            adapters.load(&name, path, id, stamp)
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        let loaded = loaded.map_err(|_| Status::internal("loading the adapter panicked"))?;
        let id = loaded.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(wire::LoadAdapterResponse { id: id.0 }))
    }

    async fn unload_adapter(
        &self,
        request: Request<wire::UnloadAdapterRequest>,
    ) -> Result<Response<wire::UnloadAdapterResponse>, Status> {
        let adapters = self.ready()?.adapters.as_ref().ok_or_else(no_adapters)?;
        let wire::UnloadAdapterRequest { name, stamp, is_repeated } = request.into_inner();
        let found = adapters.unload(&name, stamp, is_repeated);
        let found = found.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(wire::UnloadAdapterResponse { found }))
    }

    async fn drain(
        &self,
        request: Request<wire::DrainRequest>,
    ) -> Result<Response<wire::DrainResponse>, Status> {
        let on = request.into_inner().on;
        tracing::info!(on, "an operator ordered a drain, or its end");
        self.ready()?.engine.log().order_drain(on);
        Ok(Response::new(wire::DrainResponse {}))
    }
}

/// Validates a request; refuses it while draining.
fn admit(
    request: wire::GenerateRequest,
    placement: Option<Placement>,
    engine: &EngineHandle,
    facts: &ModelFacts,
) -> Result<Submission, Status> {
    if engine.log().is_draining() {
        return Err(Status::unavailable("this worker is draining; another one can take the request"));
    }
    let (begun_on, served) = (Version(request.model_fingerprint), facts.info.model_version());
    if !begun_on.fits(served) {
        return Err(other_version(begun_on, served));
    }
    let stream_key = validate::stream_key(&request.stream_key).map_err(invalid)?;
    let linger = Duration::from_millis(request.linger_ms);
    let id = request.request_id.clone();
    let request = validate::request(request, facts, clock::now()).map_err(invalid)?;
    Ok(Submission {
        id,
        request,
        placement,
        stream_key,
        linger,
        trace: trace::Request::default(),
        constraint: None,
    })
}

/// Adds the matchers of its grammar to a valid request.
async fn held(
    checked: Result<Submission, Status>,
    placement: Option<Placement>,
    engine: &EngineHandle,
    grammars: Option<&Arc<Grammars>>,
) -> Result<Submission, Status> {
    let submission = checked?;
    match constraint::prepare(&submission.request, grammars).await {
        Ok(constraint) => Ok(Submission { constraint, ..submission }),
        Err(refused) => {
            placement.inspect(|&placement| engine.log().saw(placement));
            Err(match refused {
                NotHeld::Invalid(refused) => invalid(refused),
                NotHeld::Unavailable(reason) => Status::unavailable(format!("no grammar now: {reason}")),
            })
        }
    }
}

/// Adds its adapter to a valid request, once it is in memory.
async fn with_adapter(
    mut submission: Submission,
    adapter: Option<AdapterId>,
    adapters: Option<&Adapters>,
) -> Result<Submission, Status> {
    let Some(id) = adapter else { return Ok(submission) };
    let adapters = adapters.ok_or_else(no_adapters)?;
    submission.request.adapter = Some(adapters.acquire(id).await.map_err(not_served)?);
    Ok(submission)
}

/// A router that knows an earlier process at this address takes this for a fault, and tries another worker.
fn other_version(begun_on: Version, served: Version) -> Status {
    Status::aborted(format!(
        "the request began on version {begun_on} of the model; this worker serves version {served}"
    ))
}

fn no_adapters() -> Status {
    Status::failed_precondition("this worker serves no adapters; start it with --enable-lora")
}

fn not_served(error: NotServed) -> Status {
    let code = match &error {
        NotServed::Busy(_) => Code::ResourceExhausted,
        NotServed::Unknown(_) | NotServed::Unusable { .. } => Code::FailedPrecondition,
    };
    with_retry_after(Status::new(code, error.to_string()))
}

/// Starts the server span of a call; `name` is the operation.
fn begin_trace(name: &'static str, metadata: &MetadataMap, facts: &ModelFacts) -> trace::Request {
    let header = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok());
    let trace = trace::Request::begin(trace::Remote::read(header));
    trace.name(name, facts.name.clone());
    trace
}

/// Records why a call was refused. A full worker or an unknown stream is not an error.
fn refused_span(trace: &trace::Request, status: &Status) {
    let code = status.code();
    match code {
        Code::Internal | Code::Unknown | Code::DataLoss => trace.fail(format!("{code:?}")),
        _ => trace.set("error.type", format!("{code:?}")),
    }
}

fn invalid(invalid: Invalid) -> Status {
    Status::invalid_argument(invalid.to_string())
}

/// Turns a stream into a response written by its own task; `open` counts it until it is fully written.
fn send(stream: TokenStream, epoch: u64, open: Arc<()>, trace: trace::Request) -> Response<Deltas> {
    let (sender, receiver) = mpsc::channel(DELTA_QUEUE);
    // A router already knows the ids, because it sent them.
    let traceparent = trace.traceparent().filter(|_| trace.begins_trace());
    let traceparent = traceparent.and_then(|value| MetadataValue::try_from(value.as_bytes()).ok());
    // This reader shares a stream that another request generates.
    let origin = stream.origin().filter(|origin| trace.is_on() && trace.link() != Some(*origin));
    origin.inspect(|&origin| trace.link_to(origin));
    task::spawn(async move {
        forward(stream, epoch, sender, &trace).await;
        drop(open);
    });
    let mut response = Response::new(ReceiverStream::new(receiver));
    if let Some(traceparent) = traceparent {
        response.metadata_mut().insert(trace::TRACEPARENT, traceparent);
    }
    response
}

/// Sends output until it ends or the client disconnects, which leaves the request to its linger.
async fn forward(
    mut stream: TokenStream,
    epoch: u64,
    sender: mpsc::Sender<Result<wire::GenerateDelta, Status>>,
    trace: &trace::Request,
) {
    loop {
        let taken = tokio::select! {
            biased;
            taken = stream.next() => taken,
            () = sender.closed() => return,
        };
        let deltas = match taken {
            Some(Ok(deltas)) => deltas,
            Some(Err(fault)) => {
                trace.fail(fault_kind(&fault));
                return drop(sender.send(Err(cut(&fault))).await);
            }
            None => return,
        };
        for delta in deltas {
            let delta = WorkerDelta { epoch, version: Version::UNKNOWN, delta };
            if sender.send(Ok(delta.into())).await.is_err() {
                return;
            }
        }
    }
}

fn refused(error: SubmitError) -> Status {
    let code = match &error {
        SubmitError::Duplicate { .. } => Code::AlreadyExists,
        SubmitError::Released { .. } => Code::Cancelled,
        SubmitError::Refused(NotAdmitted::QueueFull { .. }) | SubmitError::TooManyStreams { .. } => {
            Code::ResourceExhausted
        }
        SubmitError::Refused(NotAdmitted::TooManySamples { .. }) => Code::InvalidArgument,
        SubmitError::HandedBack | SubmitError::Stopped => Code::Unavailable,
    };
    with_retry_after(Status::new(code, error.to_string()))
}

fn not_attached(error: AttachError) -> Status {
    let code = match &error {
        AttachError::NotFound => Code::NotFound,
        AttachError::OutOfRange(_) => Code::OutOfRange,
        AttachError::Duplicate { .. } => Code::AlreadyExists,
        AttachError::TooManyStreams { .. } => Code::ResourceExhausted,
        AttachError::Stopped => Code::Unavailable,
    };
    with_retry_after(Status::new(code, error.to_string()))
}

/// Tells clients of a full worker when to retry.
fn with_retry_after(mut status: Status) -> Status {
    if status.code() == Code::ResourceExhausted {
        let retry_after = tonic::metadata::MetadataValue::from_static(RETRY_AFTER_MS);
        status.metadata_mut().insert("retry-after-ms", retry_after);
    }
    status
}

/// Error type of a fault, for an attribute: its text may be long and varied.
fn fault_kind(fault: &StreamFault) -> &'static str {
    match fault {
        StreamFault::Failed { .. } => "engine_failed",
        StreamFault::Stopped => "stopped",
        StreamFault::SlowReader { .. } => "slow_reader",
        StreamFault::Unfollowable { .. } => "unfollowable_grammar",
    }
}

fn cut(fault: &StreamFault) -> Status {
    let code = match fault {
        StreamFault::Failed { .. } | StreamFault::Stopped => Code::Unavailable,
        StreamFault::SlowReader { .. } => Code::ResourceExhausted,
        // It would fail on every other worker as well.
        StreamFault::Unfollowable { .. } => Code::FailedPrecondition,
    };
    Status::new(code, fault.to_string())
}
