//! Calls to a worker. Only this file names `skein.worker.v1`: it validates responses and converts them to our
//! own types, so that the rest of the crate sees no protobuf.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::Map;
use futures::{Stream, StreamExt};
use skein_choice::fleet::LogPosition;
use skein_node::trace::{Headers, TRACEPARENT, TRACESTATE};
use skein_proto::adapter::{AdapterChange, AdapterId, AdapterRecord};
use skein_proto::delta::WorkerDelta;
use skein_proto::info::WorkerInfo;
use skein_proto::placement::Placement;
use skein_proto::sampling::SamplingParams;
use skein_proto::stream_key::StreamKey;
use skein_proto::version::Version;
use skein_proto::watch::WatchEvent;
use skein_proto::worker::v1 as wire;
use skein_proto::{Malformed, TokenId};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::transport::{Connector, Messages, Transport, error_chain};
use crate::request::TokenRequest;

/// Metadata of a router's refusal: see [`CallError::VersionGone`].
pub const VERSION_GONE: &str = "skein-version-gone";
const UNARY_TIMEOUT: Duration = Duration::from_secs(5);
/// A worker reads an adapter whole before it answers.
const ADAPTER_TIMEOUT: Duration = Duration::from_secs(30);

/// One attempt to have the rest of a request generated.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Unique over all attempts, of any request.
    pub id: String,
    /// Unfinished samples, each with the tokens that its client has.
    pub samples: Vec<(u32, Vec<TokenId>)>,
    /// Whether the client still needs the prompt's log-probabilities.
    pub prompt_logprobs: bool,
    /// This router, and its sequence number for the placement.
    pub placement: Placement,
    /// Time until the client's deadline.
    pub time_left: Option<Duration>,
    /// Key by which other readers find the stream.
    pub stream_key: StreamKey,
    /// How long the stream continues without a reader.
    pub linger: Duration,
    /// Version of the model that it must be; unknown = any.
    pub version: Version,
    /// Headers that identify the span of this call, if traced.
    pub trace: Option<Headers>,
}

/// One attempt to read a stream that is already running.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// Unique, like [`Attempt::id`].
    pub id: String,
    /// What the stream is found by; see [`StreamKey`].
    pub stream_key: StreamKey,
    /// Unfinished samples, each with the absolute position of the first token needed.
    pub samples: Vec<(u32, u32)>,
    /// First prompt position whose log-probabilities are needed.
    pub from_prompt_position: u32,
    /// How long the stream continues without a reader.
    pub linger: Duration,
    /// Headers that identify the span of this call, if traced.
    pub trace: Option<Headers>,
}

/// Why a call to a worker failed or its stream ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The worker failed; another may not.
    #[error(transparent)]
    Fault(Fault),
    /// The worker is full; try another, or retry later.
    #[error("the worker is full")]
    Backpressure {
        /// When the worker expects to have room.
        retry_after: Option<Duration>,
    },
    /// The worker rejected the request, as any other worker would.
    #[error("{0}")]
    Rejected(String),
    /// The worker is a router, and none of its workers serves the version of the model that the request began
    /// on.
    #[error("no worker there serves the version of the model that the request began on")]
    VersionGone,
}

/// A worker's failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", code.map(|code| format!("{code:?}: ")).unwrap_or_default())]
pub struct Fault {
    /// Code of the worker's status; `None` = no answer, or a malformed one.
    pub code: Option<Code>,
    /// The worker's message, or what was observed.
    pub message: String,
}

impl CallError {
    /// A fault without a status.
    pub fn fault(message: impl Into<String>) -> Self {
        Self::Fault(Fault { code: None, message: message.into() })
    }
}

/// The deltas of one attempt.
pub type WorkerDeltas = Map<Messages<wire::GenerateDelta>, Read>;
/// Reads a message of a stream.
type Read = fn(Result<wire::GenerateDelta, Status>) -> Result<WorkerDelta, CallError>;

/// A connected worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WorkerClient {
    transport: Arc<dyn Transport>,
}

impl WorkerClient {
    /// Connects to `host:port`.
    pub async fn connect(connector: &dyn Connector, address: &str) -> Result<Self, CallError> {
        let transport = connector.connect(address).await.map_err(CallError::fault)?;
        Ok(Self { transport })
    }

    /// Reads the worker's info.
    pub async fn info(&self) -> Result<WorkerInfo, CallError> {
        bounded(self.transport.info())
            .await?
            .try_into()
            .map_err(|malformed: Malformed| CallError::fault(malformed.to_string()))
    }

    /// Follows the worker's log from a position; `None` = from a snapshot.
    pub async fn watch(
        &self,
        router_id: u64,
        from: Option<LogPosition>,
    ) -> Result<impl Stream<Item = Result<WatchEvent, CallError>> + Send + Unpin + use<>, CallError> {
        let (epoch, next_sequence) = from.map_or((0, 0), |from| (from.epoch, from.next_sequence));
        let request = wire::WatchRequest { epoch, next_sequence, router_id };
        let stream = bounded(self.transport.watch(request)).await?;
        Ok(stream.map(|event| event.map(WatchEvent::from).map_err(call_error)))
    }

    /// Starts an attempt; when it returns, the worker has accepted it.
    pub async fn generate(
        &self,
        request: &TokenRequest,
        mut attempt: Attempt,
    ) -> Result<WorkerDeltas, CallError> {
        let trace = attempt.trace.take();
        let call = self.transport.generate(traced(generate_request(request, attempt), trace));
        Ok(call.await.map_err(call_error)?.map(worker_delta as Read))
    }

    /// Attaches to a stream that runs or is kept at the worker.
    pub async fn attach(&self, mut attachment: Attachment) -> Result<WorkerDeltas, CallError> {
        let trace = attachment.trace.take();
        let call = self.transport.attach(traced(attach_request(attachment), trace));
        Ok(call.await.map_err(call_error)?.map(worker_delta as Read))
    }

    /// Releases an attempt's reader; returns whether the worker knew it.
    pub async fn release(&self, id: String) -> Result<bool, CallError> {
        let answer = bounded(self.transport.release(wire::ReleaseRequest { request_id: id })).await?;
        Ok(answer.found)
    }

    /// Identity of the adapter in `path`, if the worker could serve it as `name`.
    pub async fn check_adapter(&self, name: &str, path: &str) -> Result<AdapterId, CallError> {
        let (name, path) = (name.to_owned(), path.to_owned());
        self.load(wire::LoadAdapterRequest { name, path, id: 0, stamp: 0, only_check: true }).await
    }

    /// Makes a change of the worker's adapters. False if it is told to unload one that it does not have; with
    /// `is_repeated` it remembers that nevertheless.
    pub async fn change_adapter(&self, record: &AdapterRecord, is_repeated: bool) -> Result<bool, CallError> {
        let name = record.name.clone();
        match &record.change {
            AdapterChange::Loaded { path, id, stamp } => {
                let (path, id, stamp) = (path.clone(), id.0, *stamp);
                let request = wire::LoadAdapterRequest { name, path, id, stamp, only_check: false };
                self.load(request).await.map(|_| true)
            }
            AdapterChange::Unloaded { stamp } => {
                let request = wire::UnloadAdapterRequest { name, stamp: *stamp, is_repeated };
                Ok(bounded(self.transport.unload_adapter(request)).await?.found)
            }
        }
    }

    async fn load(&self, request: wire::LoadAdapterRequest) -> Result<AdapterId, CallError> {
        let answer = tokio::time::timeout(ADAPTER_TIMEOUT, self.transport.load_adapter(request)).await;
        let answer = answer.map_err(|_| CallError::fault("no answer in time"))?.map_err(call_error)?;
        AdapterId::from_wire(answer.id).ok_or_else(|| CallError::fault("an adapter without identity"))
    }

    /// Orders the worker to take no more requests and give up the running ones, or to take requests again.
    pub async fn drain(&self, on: bool) -> Result<(), CallError> {
        bounded(self.transport.drain(wire::DrainRequest { on })).await?;
        Ok(())
    }

    /// Aborts one sample of an attempt.
    pub async fn abort(&self, id: String, sample_index: u32) -> Result<(), CallError> {
        bounded(self.transport.abort(wire::AbortRequest { request_id: id, sample_index })).await?;
        Ok(())
    }
}

/// Adds the trace context to a call's metadata.
fn traced<T>(message: T, trace: Option<Headers>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(Headers { parent, state }) = trace {
        if let Ok(mut parent) = MetadataValue::try_from(parent.as_bytes()) {
            // Every value is different, so keep it out of HTTP/2's header table, where it would evict
            // repeated values.
            parent.set_sensitive(true);
            request.metadata_mut().insert(TRACEPARENT, parent);
        }
        if let Some(state) = state.parse().ok().filter(|_| !state.is_empty()) {
            request.metadata_mut().insert(TRACESTATE, state);
        }
    }
    request
}

async fn bounded<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, CallError> {
    let answer = tokio::time::timeout(UNARY_TIMEOUT, call).await.map_err(|_| timed_out())?;
    answer.map_err(call_error)
}

fn timed_out() -> CallError {
    CallError::fault(format!("no answer within {} s", UNARY_TIMEOUT.as_secs()))
}

/// Classifies a failure. Only a status that blames the request itself rejects it; any other failure at one
/// worker may not occur at another.
fn call_error(status: Status) -> CallError {
    match status.code() {
        _ if status.metadata().contains_key(VERSION_GONE) => CallError::VersionGone,
        Code::ResourceExhausted => CallError::Backpressure { retry_after: retry_after(&status) },
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => {
            CallError::Rejected(status.message().to_owned())
        }
        // The error arose on this side. Its text may contain addresses, and clients may see it, so it is
        // replaced.
        _ if status.source().is_some() => {
            let error = error_chain(&status);
            tracing::debug!(error, "the connection to a worker failed");
            CallError::fault(broken(&error))
        }
        code => CallError::Fault(Fault { code: Some(code), message: status.message().to_owned() }),
    }
}

/// What can be said of a broken connection. A server refuses a certificate only after the client's handshake
/// is done, so the refusal arrives in place of an answer.
fn broken(error: &str) -> &'static str {
    match error {
        _ if error.contains("received fatal alert") => {
            "the worker does not accept this process' certificate; check --cluster-ca, --cluster-cert and --cluster-key"
        }
        // An answer in HTTP/1.1 to a client without TLS, read as HTTP/2.
        _ if error.contains("frame with invalid size") => {
            "the worker does not speak HTTP/2 without TLS on this port; give --cluster-ca, --cluster-cert and --cluster-key"
        }
        _ => "the connection to the worker failed",
    }
}

fn retry_after(status: &Status) -> Option<Duration> {
    let millis = status.metadata().get("retry-after-ms")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

fn generate_request(request: &TokenRequest, attempt: Attempt) -> wire::GenerateRequest {
    let Attempt { id, samples, prompt_logprobs, placement, time_left, stream_key, linger, version, trace: _ } =
        attempt;
    let mut sampling = SamplingParams::clone(&request.sampling);
    sampling.prompt_logprobs = sampling.prompt_logprobs.filter(|_| prompt_logprobs);
    let samples =
        samples.into_iter().map(|(index, delivered_token_ids)| wire::Sample { index, delivered_token_ids });
    wire::GenerateRequest {
        request_id: id,
        prompt_token_ids: request.prompt.to_vec(),
        sampling: Some(sampling.into()),
        samples: samples.collect(),
        cache_salt: request.cache_salt.to_string(),
        priority: request.priority,
        // 0 means no deadline on the wire, so a deadline that has just passed is sent as 1.
        timeout_ms: time_left.map_or(0, |left| millis(left).max(1)),
        placement: Some(placement.into()),
        stream_key: stream_key.to_wire(),
        linger_ms: millis(linger),
        call: request.call,
        adapter: request.adapter.as_ref().map_or(0, |adapter| adapter.id.0),
        model_fingerprint: version.0,
    }
}

fn attach_request(attachment: Attachment) -> wire::AttachRequest {
    let Attachment { id, stream_key, samples, from_prompt_position, linger, .. } = attachment;
    let position = |(index, from_position)| wire::SamplePosition { index, from_position };
    wire::AttachRequest {
        request_id: id,
        stream_key: stream_key.to_wire(),
        samples: samples.into_iter().map(position).collect(),
        from_prompt_position,
        linger_ms: millis(linger),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn worker_delta(delta: Result<wire::GenerateDelta, Status>) -> Result<WorkerDelta, CallError> {
    let delta = delta.map_err(call_error)?;
    WorkerDelta::try_from(delta).map_err(|malformed| CallError::fault(malformed.to_string()))
}
