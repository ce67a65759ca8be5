//! Calls to a worker, and the only file here that names `skein.worker.v1`: what comes in is checked and turned
//! into our own types, so that nothing behind it sees protobuf.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use skein_proto::worker::v1 as wire;
use tonic::{Code, Status};

use super::transport::{Connector, Transport, error_chain};
use crate::fleet::ledger::Load;
use crate::fleet::prefix_index::{CacheChange, Run};
use crate::fleet::report::{WatchBody, WatchEvent, WorkerInfo};
use crate::request::{Sampling, StreamKey, TokenFinish, TokenId, TokenLogprobs, TokenRequest};

const UNARY_TIMEOUT: Duration = Duration::from_secs(5);

/// One try to have a request's tokens produced.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Unique, also among the tries of one request.
    pub id: String,
    /// Samples not finished yet, with what the client has of each.
    pub samples: Vec<(u32, Vec<TokenId>)>,
    /// Prompt log-probabilities are still owed to the client.
    pub prompt_logprobs: bool,
    /// This router, and its number for the placement.
    pub placement: (u64, u64),
    /// What the client still waits.
    pub time_left: Option<Duration>,
    /// Under which name others find the stream.
    pub stream_key: StreamKey,
    /// How long it goes on without a reader.
    pub linger: Duration,
}

/// One try to read a stream that somebody has started.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// Unique, as [`Attempt::id`].
    pub id: String,
    /// The stream's name.
    pub stream_key: StreamKey,
    /// Samples still wanted, each with the absolute position of the first token wanted.
    pub samples: Vec<(u32, u32)>,
    /// First prompt position whose log-probabilities are wanted.
    pub from_prompt_position: u32,
    /// How long the stream goes on without a reader.
    pub linger: Duration,
}

/// New tokens of one sample, as the worker sent them.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)] // as in skein.worker.v1.GenerateDelta
pub struct WorkerDelta {
    pub epoch: u64,
    pub sample_index: u32,
    pub from_position: u32,
    pub tokens: Vec<TokenId>,
    pub logprobs: Vec<TokenLogprobs>,
    pub finish: Option<TokenFinish>,
    pub cached_tokens: Option<u32>,
    pub prompt_logprobs: Vec<TokenLogprobs>,
    pub from_prompt_position: u32,
    pub hand_back: bool,
}

/// Why a call to a worker gave nothing, or nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The worker failed: try another.
    #[error(transparent)]
    Fault(Fault),
    /// The worker is full: try another, or later.
    #[error("the worker is full")]
    Backpressure {
        /// When the worker thinks it has room.
        retry_after: Option<Duration>,
    },
    /// The worker does not take this request, and no other will.
    #[error("{0}")]
    Rejected(String),
}

/// How a worker failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", code.map(|code| format!("{code:?}: ")).unwrap_or_default())]
pub struct Fault {
    /// Of the status that the worker answered with; `None` = it did not answer, or answered nonsense.
    pub code: Option<Code>,
    /// What happened.
    pub message: String,
}

impl CallError {
    /// A fault that no status tells of.
    pub fn fault(message: impl Into<String>) -> Self {
        Self::Fault(Fault { code: None, message: message.into() })
    }
}

/// What a worker sends for one attempt, as it comes.
pub type WorkerDeltas = BoxStream<'static, Result<WorkerDelta, CallError>>;

/// A worker at an address. Cheap to clone.
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

    /// Reads what the worker serves.
    pub async fn info(&self) -> Result<WorkerInfo, CallError> {
        let info = bounded(self.transport.info()).await?;
        Ok(WorkerInfo {
            epoch: info.epoch,
            model: info.model,
            max_model_len: info.max_model_len,
            vocab_size: info.vocab_size,
            block_size: info.block_size.max(1),
            kv_blocks: info.kv_blocks,
            max_num_seqs: info.max_num_seqs,
            max_num_batched_tokens: info.max_num_batched_tokens,
            resume_exact: info.resume_exact,
            version: info.version,
            backend: info.backend,
            fingerprint: info.model_fingerprint,
        })
    }

    /// Follows the worker's log from `(epoch, next_sequence)`; (0, 0) = from a snapshot.
    pub async fn watch(
        &self,
        router_id: u64,
        (epoch, next_sequence): (u64, u64),
    ) -> Result<impl Stream<Item = Result<WatchEvent, CallError>> + Send + Unpin + use<>, CallError> {
        let request = wire::WatchRequest { epoch, next_sequence, router_id };
        let stream = bounded(self.transport.watch(request)).await?;
        Ok(stream.map(|event| event.map(watch_event).map_err(call_error)))
    }

    /// Starts a try; the worker has taken it when this returns.
    pub async fn generate(
        &self,
        request: &TokenRequest,
        attempt: Attempt,
    ) -> Result<WorkerDeltas, CallError> {
        let call = self.transport.generate(generate_request(request, attempt));
        let stream = call.await.map_err(call_error)?;
        Ok(stream.map(|delta| delta.map_err(call_error).and_then(worker_delta)).boxed())
    }

    /// Reads on in a stream that runs or is kept at the worker.
    pub async fn attach(&self, attachment: Attachment) -> Result<WorkerDeltas, CallError> {
        let stream = self.transport.attach(attach_request(attachment)).await.map_err(call_error)?;
        Ok(stream.map(|delta| delta.map_err(call_error).and_then(worker_delta)).boxed())
    }

    /// Tells the worker that a try's reader has left for good; says whether it knew the reader.
    pub async fn release(&self, id: String) -> Result<bool, CallError> {
        let answer = bounded(self.transport.release(wire::ReleaseRequest { request_id: id })).await?;
        Ok(answer.found)
    }

    /// Ends one sample of a try early.
    pub async fn abort(&self, id: String, sample_index: u32) -> Result<(), CallError> {
        bounded(self.transport.abort(wire::AbortRequest { request_id: id, sample_index })).await?;
        Ok(())
    }
}

async fn bounded<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, CallError> {
    let answer = tokio::time::timeout(UNARY_TIMEOUT, call).await.map_err(|_| timed_out())?;
    answer.map_err(call_error)
}

fn timed_out() -> CallError {
    CallError::fault(format!("no answer within {} s", UNARY_TIMEOUT.as_secs()))
}

/// Classes of failure. Only a status that blames the request itself ends it: whatever else goes wrong at one
/// worker may go right at another.
fn call_error(status: Status) -> CallError {
    match status.code() {
        Code::ResourceExhausted => CallError::Backpressure { retry_after: retry_after(&status) },
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => {
            CallError::Rejected(status.message().to_owned())
        }
        // Made on this side: the text may name addresses, and clients get to see it.
        _ if status.source().is_some() => {
            tracing::debug!(error = error_chain(&status), "the connection to a worker failed");
            CallError::fault("the connection to the worker failed")
        }
        code => CallError::Fault(Fault { code: Some(code), message: status.message().to_owned() }),
    }
}

fn retry_after(status: &Status) -> Option<Duration> {
    let millis = status.metadata().get("retry-after-ms")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

fn generate_request(request: &TokenRequest, attempt: Attempt) -> wire::GenerateRequest {
    let Attempt { id, samples, prompt_logprobs, placement, time_left, stream_key, linger } = attempt;
    let (router_id, sequence) = placement;
    let samples =
        samples.into_iter().map(|(index, delivered_token_ids)| wire::Sample { index, delivered_token_ids });
    wire::GenerateRequest {
        request_id: id,
        prompt_token_ids: request.prompt.to_vec(),
        sampling: Some(sampling_params(&request.sampling, prompt_logprobs)),
        samples: samples.collect(),
        cache_salt: request.cache_salt.to_string(),
        priority: request.priority,
        // 0 means none on the wire, and a deadline that has just passed is not none.
        timeout_ms: time_left.map_or(0, |left| millis(left).max(1)),
        placement: Some(wire::Placement { router_id, sequence }),
        stream_key: stream_key.to_wire(),
        linger_ms: millis(linger),
    }
}

fn attach_request(attachment: Attachment) -> wire::AttachRequest {
    let Attachment { id, stream_key, samples, from_prompt_position, linger } = attachment;
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

fn sampling_params(sampling: &Arc<Sampling>, prompt_logprobs: bool) -> wire::SamplingParams {
    let logit_bias = sampling.logit_bias.iter();
    wire::SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        seed: sampling.seed,
        logit_bias: logit_bias.map(|&(token_id, bias)| wire::LogitBias { token_id, bias }).collect(),
        max_tokens: sampling.max_tokens,
        min_tokens: sampling.min_tokens,
        stop_token_ids: sampling.stop_token_ids.clone(),
        ignore_eos: sampling.ignore_eos,
        logprobs: sampling.logprobs,
        prompt_logprobs: sampling.prompt_logprobs.filter(|_| prompt_logprobs),
    }
}

fn worker_delta(delta: wire::GenerateDelta) -> Result<WorkerDelta, CallError> {
    Ok(WorkerDelta {
        epoch: delta.epoch,
        sample_index: delta.sample_index,
        from_position: delta.from_position,
        tokens: delta.token_ids,
        logprobs: token_logprobs(delta.logprobs)?,
        finish: delta.finish.map(token_finish).transpose()?,
        cached_tokens: delta.cached_tokens,
        prompt_logprobs: token_logprobs(delta.prompt_logprobs)?,
        from_prompt_position: delta.from_prompt_position,
        hand_back: delta.hand_back,
    })
}

fn token_finish(finish: wire::Finish) -> Result<TokenFinish, CallError> {
    match finish.reason() {
        wire::FinishReason::Stop => Ok(TokenFinish::Stop { token: finish.stop_token_id }),
        wire::FinishReason::Length => Ok(TokenFinish::Length),
        wire::FinishReason::Abort => Ok(TokenFinish::Aborted),
        wire::FinishReason::Unspecified => Err(CallError::fault("a sample ended without a reason")),
    }
}

fn token_logprobs(logprobs: Vec<wire::TokenLogprobs>) -> Result<Vec<TokenLogprobs>, CallError> {
    let convert = |entry: wire::TokenLogprobs| {
        if entry.top_token_ids.len() != entry.top_logprobs.len() {
            return Err(CallError::fault("top_token_ids and top_logprobs differ in length"));
        }
        let top = entry.top_token_ids.into_iter().zip(entry.top_logprobs).collect();
        Ok(TokenLogprobs { token: entry.token_id, logprob: entry.logprob, rank: entry.rank, top })
    };
    logprobs.into_iter().map(convert).collect()
}

fn watch_event(event: wire::WorkerEvent) -> WatchEvent {
    use wire::worker_event::Event;
    let (epoch, sequence) = (event.epoch, event.sequence);
    let Some(event) = event.event else { return WatchEvent { epoch, sequence, body: WatchBody::Unknown } };
    let body = match event {
        Event::Snapshot(snapshot) => WatchBody::Snapshot {
            runs: runs(snapshot.runs),
            stream_keys: snapshot.stream_keys.iter().filter_map(|key| StreamKey::from_wire(key)).collect(),
        },
        Event::Cache(delta) => WatchBody::Cache(CacheChange {
            truncated: delta.truncated.into_iter().map(|run| (run.handle, run.new_end)).collect(),
            stored: runs(delta.stored),
        }),
        Event::Load(load) => WatchBody::Load(Load {
            queued_uncached_tokens: load.queued_uncached_tokens,
            waiting: load.waiting,
            running: load.running,
            free_blocks: load.free_blocks,
            prefill_tokens_per_second: load.prefill_tokens_per_second,
            decode_tokens_per_second: load.decode_tokens_per_second,
            step: load.step,
            last_placement_sequence: load.last_placement_sequence,
            draining: load.draining,
            giving_back: load.giving_back,
        }),
        Event::Admitted(admitted) => {
            let placement = admitted.placement.unwrap_or_default();
            let (router_id, sequence) = (placement.router_id, placement.sequence);
            let stream_key = StreamKey::from_wire(&admitted.stream_key);
            WatchBody::Admitted { router_id, sequence, hashes: admitted.hashes, stream_key }
        }
    };
    WatchEvent { epoch, sequence, body }
}

fn runs(runs: Vec<wire::RunStored>) -> Vec<Run> {
    let convert = |run: wire::RunStored| Run {
        handle: run.handle,
        parent: run.parent,
        depth: run.depth,
        hashes: run.hashes,
    };
    runs.into_iter().map(convert).collect()
}
