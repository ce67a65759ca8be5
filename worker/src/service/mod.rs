//! gRPC in and out: the only room of this crate that names tonic and the protobuf types. It checks every field
//! of every request, for the worker trusts nobody; behind it there are only checked values.

mod convert;
mod detached;
mod load;
mod local;
mod serve;
mod server;
mod sizing;
#[cfg(test)]
mod tests;
mod validate;
mod watch;

use std::sync::{Arc, OnceLock};

use skein_node::{clock, task};
use skein_proto::worker::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

pub use detached::detached;
pub use load::LoadedBackend;
pub use local::LocalWorker;
pub use serve::{WorkerError, serve, serve_backend};

use crate::TokenId;
use crate::engine::{EngineHandle, Placement, StreamFault, Submission, SubmitError, TokenStream};
use crate::scheduler::{NewRequest, Refusal};

/// Deltas between a request's stream and its HTTP/2 stream; what comes meanwhile is joined in the mailbox.
const DELTA_QUEUE: usize = 4;

/// What a client should wait before it tries this worker again.
const RETRY_AFTER_MS: &str = "1000";

/// What is served, as `Info` tells it and as requests are checked against.
#[derive(Debug, Clone)]
pub(crate) struct ModelFacts {
    pub epoch: u64,
    pub model: String,
    pub vocab_size: u32,
    pub max_model_len: u32,
    pub block_size: u32,
    pub kv_blocks: u32,
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    pub resume_exact: bool,
    pub fingerprint: u64,
    pub backend: &'static str,
    pub eos_token_ids: Vec<TokenId>,
}

/// What exists once the model is loaded.
#[derive(Debug)]
pub(crate) struct Ready {
    pub engine: EngineHandle,
    pub facts: ModelFacts,
}

/// Counts requests by the clones of what it holds.
#[derive(Debug, Default)]
struct Requests(Arc<()>);

/// The `skein.worker.v1.Worker` service.
#[derive(Debug, Clone, Default)]
pub struct WorkerService {
    ready: Arc<OnceLock<Ready>>,
    /// From their arrival to the end of their streams.
    requests: Arc<Requests>,
}

impl WorkerService {
    /// Whether requests are on their way, or their streams not written to the end.
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
    type GenerateStream = ReceiverStream<Result<wire::GenerateDelta, Status>>;
    type AttachStream = ReceiverStream<Result<wire::GenerateDelta, Status>>;
    type WatchStream = ReceiverStream<Result<wire::WorkerEvent, Status>>;

    async fn info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::InfoResponse>, Status> {
        Ok(Response::new(convert::info(&self.ready()?.facts)))
    }

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let Ready { engine, facts } = self.ready()?;
        // Before the look at the drain, which waits for it.
        let open = self.requests.0.clone();
        let request = request.into_inner();
        let placement = request.placement.map(|it| Placement { router: it.router_id, sequence: it.sequence });
        let id = request.request_id.clone();
        let checked = admit(request, engine, facts);
        if let (Err(_), Some(placement)) = (&checked, placement) {
            // The engine will not see it, but the router must know that it came.
            engine.log().saw(placement);
        }
        let request = checked?;
        let stream = engine.submit(Submission { id, request, placement }).await.map_err(refused)?;
        let (sender, receiver) = mpsc::channel(DELTA_QUEUE);
        let epoch = facts.epoch;
        task::spawn(async move {
            forward(stream, epoch, sender).await;
            drop(open);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn abort(
        &self,
        request: Request<wire::AbortRequest>,
    ) -> Result<Response<wire::AbortResponse>, Status> {
        let wire::AbortRequest { request_id, sample_index } = request.into_inner();
        let found = self.ready()?.engine.abort(request_id, sample_index).await;
        Ok(Response::new(wire::AbortResponse { found }))
    }

    async fn attach(&self, _: Request<wire::AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::not_found("no such stream is kept here"))
    }

    async fn release(
        &self,
        _: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseResponse>, Status> {
        Ok(Response::new(wire::ReleaseResponse { found: false }))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let Ready { engine, facts } = self.ready()?;
        let (sender, receiver) = mpsc::channel(watch::EVENT_QUEUE);
        task::spawn(watch::follow(engine.clone(), facts.epoch, request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// What may go to the engine.
fn admit(
    request: wire::GenerateRequest,
    engine: &EngineHandle,
    facts: &ModelFacts,
) -> Result<NewRequest, Status> {
    if engine.log().is_draining() {
        return Err(Status::unavailable("this worker is draining; another one can take the request"));
    }
    let checked = validate::request(request, facts, clock::now());
    checked.map_err(|invalid| Status::invalid_argument(invalid.to_string()))
}

/// Sends what the engine produces until it ends or the client goes away, which cancels the request.
async fn forward(
    mut stream: TokenStream,
    epoch: u64,
    sender: mpsc::Sender<Result<wire::GenerateDelta, Status>>,
) {
    loop {
        let taken = tokio::select! {
            biased;
            taken = stream.next() => taken,
            () = sender.closed() => return,
        };
        let deltas = match taken {
            Some(Ok(deltas)) => deltas,
            Some(Err(fault)) => return drop(sender.send(Err(cut(&fault))).await),
            None => return,
        };
        for delta in deltas {
            if sender.send(Ok(convert::delta(epoch, delta))).await.is_err() {
                return;
            }
        }
    }
}

fn refused(error: SubmitError) -> Status {
    let code = match &error {
        SubmitError::Duplicate { .. } => Code::AlreadyExists,
        SubmitError::Refused(Refusal::QueueFull { .. }) | SubmitError::TooManyStreams { .. } => {
            Code::ResourceExhausted
        }
        SubmitError::Refused(Refusal::TooManySamples { .. }) => Code::InvalidArgument,
        SubmitError::Stopped => Code::Unavailable,
    };
    let mut status = Status::new(code, error.to_string());
    if code == Code::ResourceExhausted {
        let retry_after = tonic::metadata::MetadataValue::from_static(RETRY_AFTER_MS);
        status.metadata_mut().insert("retry-after-ms", retry_after);
    }
    status
}

fn cut(fault: &StreamFault) -> Status {
    let code = match fault {
        StreamFault::Failed { .. } | StreamFault::Stopped => Code::Unavailable,
        StreamFault::SlowReader { .. } => Code::ResourceExhausted,
    };
    Status::new(code, fault.to_string())
}
