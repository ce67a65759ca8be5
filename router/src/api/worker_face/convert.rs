//! Server side of skein.worker.v1: converts messages to and from the router's own types.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use skein_choice::fleet::capacity::Capacity;
use skein_node::clock::Timestamp;
use skein_node::trace;
use skein_proto::adapter::AdapterId;
use skein_proto::delta::{Delta, WorkerDelta};
use skein_proto::info::WorkerInfo;
use skein_proto::stream_key::StreamKey;
use skein_proto::version::Version;
use skein_proto::worker::v1 as wire;

use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{AdapterRef, Resume, ResumeSample, TokenDelta, TokenRequest};
use crate::validate::is_request_id;

/// Most samples of a request; sample indices are below this.
const MAX_SAMPLES: u32 = 128;

/// Converts a request for the cluster. The worker that gets it checks the sampling parameters.
///
/// # Errors
/// [`Refusal::Invalid`] if a required field is missing or the samples are inconsistent.
pub fn token_request(
    request: wire::GenerateRequest,
    model: Arc<str>,
    now: Timestamp,
) -> Result<TokenRequest, Refusal> {
    if !is_request_id(&request.request_id) {
        return Err(Refusal::invalid("request_id", "request_id must be 1 to 128 printable ASCII bytes."));
    }
    if request.prompt_token_ids.is_empty() {
        return Err(Refusal::invalid("prompt_token_ids", "prompt_token_ids must not be empty."));
    }
    let Some(sampling) = request.sampling else {
        return Err(Refusal::invalid("sampling", "sampling is required."));
    };
    if sampling.max_tokens == 0 {
        return Err(Refusal::invalid("max_tokens", "max_tokens must be at least 1, got 0."));
    }
    let (n, resume) = samples(request.samples, &sampling)?;
    let time_left = Some(request.timeout_ms).filter(|left| *left > 0).map(Duration::from_millis);
    Ok(TokenRequest {
        id: request.request_id.into(),
        model,
        adapter: AdapterId::from_wire(request.adapter).map(|id| AdapterRef { name: "".into(), id }),
        prompt: request.prompt_token_ids.into(),
        sampling: Arc::new(sampling.into()),
        n,
        // The gateway has already mixed the tenant into the salt.
        tenant: Tenant::default(),
        part: 0,
        call: request.call,
        cache_salt: request.cache_salt.into(),
        priority: request.priority,
        arrived: None,
        deadline: time_left.map(|left| now + left),
        stream_key: StreamKey::from_wire(&request.stream_key),
        waits_for_worker: false,
        resume,
        is_resumed: false,
        version: Version(request.model_fingerprint),
        picked_worker: None,
        operation: "generate_content",
        trace: trace::current(),
        receipts: None,
    })
}

/// The number of samples, and what was already delivered of them; `None` if all samples are new.
fn samples(
    samples: Vec<wire::Sample>,
    sampling: &wire::SamplingParams,
) -> Result<(u32, Option<Arc<Resume>>), Refusal> {
    let refused = |message: String| Err(Refusal::invalid("samples", message));
    let mut indices = BTreeSet::new();
    for wire::Sample { index, delivered_token_ids } in &samples {
        if *index >= MAX_SAMPLES || !indices.insert(*index) {
            return refused(format!("sample {index} is named twice, or not below {MAX_SAMPLES}."));
        }
        if delivered_token_ids.len() >= sampling.max_tokens as usize {
            let (got, max) = (delivered_token_ids.len(), sampling.max_tokens);
            return refused(format!("sample {index} has {got} delivered tokens of at most {max}."));
        }
    }
    let Some(n) = indices.last().map(|last| last + 1) else {
        return refused("samples must not be empty.".to_owned());
    };
    let fresh = indices.len() == n as usize && samples.iter().all(|one| one.delivered_token_ids.is_empty());
    let resume = (!fresh).then(|| {
        let sample =
            |one: wire::Sample| ResumeSample { index: one.index, delivered: one.delivered_token_ids };
        let samples = samples.into_iter().map(sample).collect();
        // A router that has all the prompt's log-probabilities does not request them again.
        Arc::new(Resume { samples, prompt_logprobs_done: sampling.prompt_logprobs.is_none() })
    });
    Ok((n, resume))
}

/// Converts a stream's deltas to wire messages, in order.
#[derive(Debug)]
pub struct Deltas {
    epoch: u64,
    /// Prompt position of the next log-probability. Starts at 1 because the first token has none.
    next_prompt_position: u32,
}

impl Deltas {
    /// For a new stream. `epoch` is the router's.
    pub fn new(epoch: u64) -> Self {
        Self { epoch, next_prompt_position: 1 }
    }

    /// Converts the next delta, which `version` of the model generated.
    pub fn next(&mut self, delta: TokenDelta, version: Version) -> wire::GenerateDelta {
        let from_prompt_position = self.next_prompt_position;
        self.next_prompt_position += u32::try_from(delta.prompt_logprobs.len()).unwrap_or(u32::MAX);
        let delta = Delta {
            sample_index: delta.sample_index,
            from_position: delta.from_position,
            tokens: delta.tokens,
            logprobs: delta.logprobs,
            finish: delta.finish,
            cached_tokens: delta.cached_tokens,
            prompt_logprobs: delta.prompt_logprobs,
            pooled: delta.pooled,
            stop_logprobs: delta.stop_logprobs,
            from_prompt_position,
            hand_back: false,
        };
        WorkerDelta { epoch: self.epoch, version, delta }.into()
    }

    /// The last message of a stream that is handed back.
    pub fn hand_back(&self) -> wire::GenerateDelta {
        let delta = Delta { hand_back: true, ..Delta::default() };
        WorkerDelta { epoch: self.epoch, version: Version::UNKNOWN, delta }.into()
    }
}

/// The router's capacity in the form of a worker's info. It announces no version of the model, because it may
/// serve several, and others later; each delta says from which it is.
pub fn info(capacity: &Capacity, epoch: u64, model: String) -> WorkerInfo {
    WorkerInfo {
        epoch,
        model,
        max_model_len: capacity.limits.max_model_len,
        vocab_size: capacity.limits.vocab_size,
        block_size: capacity.block_size,
        kv_blocks: capacity.kv_blocks,
        max_num_seqs: capacity.max_num_seqs,
        max_num_batched_tokens: capacity.max_num_batched_tokens,
        resume_exact: capacity.resume_exact,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backend: skein_proto::info::ROUTER.to_owned(),
        fingerprint: Version::UNKNOWN.0,
        grammar_fingerprint: capacity.grammar_fingerprint,
        tokenizer_fingerprint: 0,
        serving_since_ms: 0,
        pooled: capacity.pooled.clone(),
    }
}

#[cfg(test)]
mod tests {
    use skein_proto::logprobs::TokenLogprobs;

    use super::*;

    fn request(samples: &[(u32, &[u32])]) -> wire::GenerateRequest {
        let sample = |&(index, delivered): &(u32, &[u32])| wire::Sample {
            index,
            delivered_token_ids: delivered.to_vec(),
        };
        wire::GenerateRequest {
            request_id: "mine#1.1".to_owned(),
            prompt_token_ids: vec![1, 2],
            sampling: Some(wire::SamplingParams { max_tokens: 4, ..wire::SamplingParams::default() }),
            samples: samples.iter().map(sample).collect(),
            stream_key: vec![7; 16],
            timeout_ms: 1000,
            ..wire::GenerateRequest::default()
        }
    }

    fn converted(request: wire::GenerateRequest) -> Result<TokenRequest, Refusal> {
        token_request(request, Arc::from("m"), Timestamp::ZERO)
    }

    #[test]
    fn only_a_fresh_request_has_nothing_to_resume() {
        let fresh = converted(request(&[(0, &[]), (1, &[])])).unwrap();
        assert_eq!((fresh.n, fresh.resume.clone()), (2, None));
        assert_eq!(fresh.stream_key, StreamKey::from_wire(&[7; 16]));
        assert_eq!(fresh.deadline, Some(Timestamp::ZERO + Duration::from_secs(1)));
        let resumed = converted(request(&[(2, &[5, 6])])).unwrap();
        let samples = vec![ResumeSample { index: 2, delivered: vec![5, 6] }];
        let resume = Resume { samples, prompt_logprobs_done: true };
        assert_eq!((resumed.n, resumed.resume.as_deref()), (3, Some(&resume)));
        assert!(converted(request(&[(1, &[])])).unwrap().resume.is_some(), "sample 0 has ended");
    }

    #[test]
    fn incomplete_or_inconsistent_requests_are_refused() {
        let refused = |request: wire::GenerateRequest| converted(request).unwrap_err().param().unwrap();
        assert_eq!(refused(request(&[])), "samples");
        assert_eq!(refused(request(&[(0, &[]), (0, &[])])), "samples");
        assert_eq!(refused(request(&[(MAX_SAMPLES, &[])])), "samples");
        assert_eq!(refused(request(&[(0, &[1, 2, 3, 4])])), "samples");
        let whole = || request(&[(0, &[])]);
        assert_eq!(refused(wire::GenerateRequest { request_id: "a b".into(), ..whole() }), "request_id");
        assert_eq!(
            refused(wire::GenerateRequest { prompt_token_ids: vec![], ..whole() }),
            "prompt_token_ids"
        );
        assert_eq!(refused(wire::GenerateRequest { sampling: None, ..whole() }), "sampling");
    }

    #[test]
    fn prompt_positions_are_counted_over_deltas() {
        let at = TokenLogprobs { token: 3, logprob: -0.5, rank: 1, top: vec![(3, -0.5), (4, -1.0)] };
        let scores = |count| TokenDelta { prompt_logprobs: vec![at.clone(); count], ..TokenDelta::default() };
        let mut deltas = Deltas::new(9);
        let positions = [2, 3, 0].map(|count| deltas.next(scores(count), Version(3)).from_prompt_position);
        assert_eq!(positions, [1, 3, 6]);
        let back = deltas.hand_back();
        assert!(back.hand_back && back.epoch == 9);
    }
}
