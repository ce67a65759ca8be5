//! Validates requests field by field. In a valid request every id is a token, every number is finite and in
//! range, and every list is bounded.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::adapter::AdapterId;
use skein_proto::invalid::{Invalid, check, check_tokens};
use skein_proto::sampling::SamplingParams;
use skein_proto::stream_key::StreamKey;
use skein_proto::worker::v1 as wire;

use super::ModelFacts;
use crate::kv_cache::CacheScope;
use crate::scheduler::{NewRequest, NewSample, RequestKey};
use crate::streams::{Attachment, SamplePosition};

/// Most bytes in a request id.
const MAX_REQUEST_ID_BYTES: usize = 128;
/// Most bytes in a cache salt.
const MAX_CACHE_SALT_BYTES: usize = 1024;
/// Most samples in one request.
const MAX_SAMPLES: usize = 128;
/// Sample indices are below this.
const MAX_SAMPLE_INDEX: u32 = 1 << 16;
/// Largest absolute value of a priority.
const MAX_PRIORITY: i32 = 100;
/// Longest deadline, a month; a later one counts as none.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The validated request for the engine.
pub(crate) fn request(
    request: wire::GenerateRequest,
    facts: &ModelFacts,
    now: Timestamp,
) -> Result<NewRequest, Invalid> {
    check_request_id(&request.request_id)?;
    let salt_bytes = request.cache_salt.len();
    let allowed = format_args!("at most {MAX_CACHE_SALT_BYTES} bytes");
    check(salt_bytes <= MAX_CACHE_SALT_BYTES, "cache_salt", format_args!("{salt_bytes} bytes"), allowed)?;
    let allowed = format_args!("-{MAX_PRIORITY}..={MAX_PRIORITY}");
    check(request.priority.unsigned_abs() <= MAX_PRIORITY as u32, "priority", request.priority, allowed)?;
    let prompt_len = request.prompt_token_ids.len();
    check_prompt_len(prompt_len, facts)?;
    check_tokens(&request.prompt_token_ids, "prompt_token_ids", facts.info.vocab_size)?;
    let Some(params) = request.sampling else {
        return Err(Invalid {
            field: "sampling",
            got: "missing".into(),
            allowed: "sampling parameters".into(),
        });
    };
    let params = sampling(params, facts)?;
    check_pooling(&params, &request.samples, prompt_len, facts)?;
    let samples = samples(request.samples, prompt_len, &params, facts)?;
    let timeout = Duration::from_millis(request.timeout_ms);
    Ok(NewRequest {
        key: RequestKey(0),
        prompt: request.prompt_token_ids,
        params: Arc::new(params),
        samples,
        scope: CacheScope::with_adapter(
            &facts.info.model,
            AdapterId::from_wire(request.adapter),
            &request.cache_salt,
        ),
        adapter: None,
        call: (request.call != 0).then_some(request.call),
        priority: request.priority,
        deadline: (!timeout.is_zero() && timeout <= MAX_TIMEOUT).then(|| now + timeout),
    })
}

fn check_prompt_len(prompt_len: usize, facts: &ModelFacts) -> Result<(), Invalid> {
    let max_model_len = facts.info.max_model_len as usize;
    let (longest, of) = match facts.info.pooled {
        Some(_) => (max_model_len, "max_model_len"),
        None => (max_model_len - 1, "max_model_len less one to generate"),
    };
    let allowed = format_args!("1..={longest} tokens, this worker's {of}");
    let fits = (1..=longest).contains(&prompt_len);
    check(fits, "prompt_token_ids", format_args!("{prompt_len} tokens"), allowed)
}

/// A model either pools or generates. A pooled request asks for one vector, and nothing of it was delivered.
fn check_pooling(
    params: &SamplingParams,
    samples: &[wire::Sample],
    prompt_len: usize,
    facts: &ModelFacts,
) -> Result<(), Invalid> {
    let Some(pooling) = params.pooling else {
        let generates = facts.info.pooled.is_none();
        return check(generates, "sampling.pooling", "none", "a vector, which is what this model computes");
    };
    let pools = facts.info.pooled.is_some();
    check(pools, "sampling.pooling", "a vector", "tokens, which are what this model generates")?;
    check(params.max_tokens == 1, "max_tokens", params.max_tokens, "1 with pooling")?;
    let is_one = samples.len() == 1 && samples.iter().all(|sample| sample.delivered_token_ids.is_empty());
    check(is_one, "samples", samples.len(), "one without delivered tokens, with pooling")?;
    let is_plain = params.grammar.is_none() && params.logprobs.is_none() && params.prompt_logprobs.is_none();
    check(is_plain, "sampling", "a grammar or log-probabilities", "neither with pooling")?;
    let second = pooling.second_from.unwrap_or(1);
    let allowed = format_args!("a position in the prompt of {prompt_len} tokens");
    check((second as usize) <= prompt_len.max(1), "sampling.pooling.second_from", second, allowed)
}

/// Key by which other readers may join the request; `None` if none may.
pub(crate) fn stream_key(bytes: &[u8]) -> Result<Option<StreamKey>, Invalid> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let key = StreamKey::from_wire(bytes);
    check(key.is_some(), "stream_key", format_args!("{} bytes", bytes.len()), "none or 16 bytes")?;
    Ok(key)
}

/// The validated attachment for the engine.
pub(crate) fn attachment(request: wire::AttachRequest) -> Result<Attachment, Invalid> {
    check_request_id(&request.request_id)?;
    let missing = || Invalid { field: "stream_key", got: "missing".into(), allowed: "16 bytes".into() };
    let key = stream_key(&request.stream_key)?.ok_or_else(missing)?;
    let allowed = format_args!("1..={MAX_SAMPLES} samples");
    check((1..=MAX_SAMPLES).contains(&request.samples.len()), "samples", request.samples.len(), allowed)?;
    let mut seen = HashSet::new();
    for sample in &request.samples {
        check(seen.insert(sample.index), "samples.index", sample.index, "distinct indices")?;
    }
    let position = |at: &wire::SamplePosition| SamplePosition { index: at.index, from: at.from_position };
    Ok(Attachment {
        id: request.request_id,
        key,
        samples: request.samples.iter().map(position).collect(),
        from_score: request.from_prompt_position,
        linger: Duration::from_millis(request.linger_ms),
    })
}

fn check_request_id(id: &str) -> Result<(), Invalid> {
    let allowed = format_args!("1..={MAX_REQUEST_ID_BYTES} bytes");
    let ok = (1..=MAX_REQUEST_ID_BYTES).contains(&id.len());
    check(ok, "request_id", format_args!("{} bytes", id.len()), allowed)
}

fn samples(
    samples: Vec<wire::Sample>,
    prompt_len: usize,
    params: &SamplingParams,
    facts: &ModelFacts,
) -> Result<Vec<NewSample>, Invalid> {
    let allowed = format_args!("1..={MAX_SAMPLES} samples");
    check((1..=MAX_SAMPLES).contains(&samples.len()), "samples", samples.len(), allowed)?;
    let mut seen = HashSet::new();
    let most = (facts.info.max_model_len as usize).saturating_sub(prompt_len).min(params.max_tokens as usize);
    let checked = |wire::Sample { index, delivered_token_ids: delivered }| {
        let fresh_index = index < MAX_SAMPLE_INDEX && seen.insert(index);
        check(
            fresh_index,
            "samples.index",
            index,
            format_args!("distinct indices below {MAX_SAMPLE_INDEX}"),
        )?;
        let got = format_args!("{} tokens", delivered.len());
        let allowed = format_args!("at most {most} tokens, which is where this request ends");
        check(delivered.len() <= most, "samples.delivered_token_ids", got, allowed)?;
        check_tokens(&delivered, "samples.delivered_token_ids", facts.info.vocab_size)?;
        Ok(NewSample { index, delivered })
    };
    samples.into_iter().map(checked).collect()
}

/// The parameters with all tokens that end a sample: the request's own, and the model's unless
/// it ignores them.
fn sampling(params: wire::SamplingParams, facts: &ModelFacts) -> Result<SamplingParams, Invalid> {
    let mut params = SamplingParams::from(params);
    params.check(facts.info.vocab_size)?;
    let stop = &mut params.stop_token_ids;
    if !params.ignore_eos {
        stop.extend_from_slice(&facts.eos_token_ids);
        // They are now part of the request's own.
        params.ignore_eos = true;
    }
    stop.sort_unstable();
    stop.dedup();
    Ok(params)
}
