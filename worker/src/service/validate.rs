//! Checks a request field by field. What gets through cannot hurt: every id is a token, every number is finite
//! and in its range, every list is bounded.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::worker::v1 as wire;

use super::ModelFacts;
use crate::TokenId;
use crate::kv_cache::CacheScope;
use crate::sampling::SamplingParams;
use crate::scheduler::{NewRequest, NewSample, RequestKey};
use crate::streams::{Attachment, SamplePosition, StreamKey};

/// Bytes of a request id.
const MAX_REQUEST_ID_BYTES: usize = 128;
/// Bytes of a cache salt.
const MAX_CACHE_SALT_BYTES: usize = 1024;
/// Samples of one request.
const MAX_SAMPLES: usize = 128;
/// Sample indices are below this.
const MAX_SAMPLE_INDEX: u32 = 1 << 16;
/// Entries of `logit_bias`.
const MAX_LOGIT_BIAS: usize = 1024;
/// Entries of `stop_token_ids`.
const MAX_STOP_TOKENS: usize = 1024;
/// Best tokens reported beside the chosen one.
const MAX_LOGPROBS: u32 = 20;
/// Furthest from 0 that a priority may be.
const MAX_PRIORITY: i32 = 100;
/// A deadline further away than this is none: a month.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A field that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {got}; allowed: {allowed}")]
pub(super) struct Invalid {
    field: &'static str,
    got: String,
    allowed: String,
}

fn check(ok: bool, field: &'static str, got: impl Display, allowed: impl Display) -> Result<(), Invalid> {
    if ok { Ok(()) } else { Err(Invalid { field, got: got.to_string(), allowed: allowed.to_string() }) }
}

fn check_range(
    value: f32,
    field: &'static str,
    ok: impl Fn(f32) -> bool,
    allowed: &str,
) -> Result<f32, Invalid> {
    check(value.is_finite() && ok(value), field, value, allowed).map(|()| value)
}

fn check_tokens(tokens: &[TokenId], field: &'static str, facts: &ModelFacts) -> Result<(), Invalid> {
    let bad = tokens.iter().position(|&token| token >= facts.vocab_size);
    let got = |index: usize| format!("{} at index {index}", tokens[index]);
    let allowed = format_args!("token ids below {}", facts.vocab_size);
    bad.map_or(Ok(()), |index| check(false, field, got(index), allowed))
}

/// The request as the engine takes it.
pub(super) fn request(
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
    let longest = facts.max_model_len as usize - 1;
    let allowed = format_args!("1..={longest} tokens, this worker's max_model_len less one to generate");
    check(
        (1..=longest).contains(&prompt_len),
        "prompt_token_ids",
        format_args!("{prompt_len} tokens"),
        allowed,
    )?;
    check_tokens(&request.prompt_token_ids, "prompt_token_ids", facts)?;
    let Some(params) = request.sampling else {
        return Err(Invalid {
            field: "sampling",
            got: "missing".into(),
            allowed: "sampling parameters".into(),
        });
    };
    let params = sampling(params, facts)?;
    let samples = samples(request.samples, prompt_len, &params, facts)?;
    let timeout = Duration::from_millis(request.timeout_ms);
    Ok(NewRequest {
        key: RequestKey(0),
        prompt: request.prompt_token_ids,
        params: Arc::new(params),
        samples,
        scope: CacheScope::new(&facts.model, &request.cache_salt),
        priority: request.priority,
        deadline: (!timeout.is_zero() && timeout <= MAX_TIMEOUT).then(|| now + timeout),
    })
}

/// Under which others may read the request; absent = nobody may.
pub(super) fn stream_key(bytes: &[u8]) -> Result<Option<StreamKey>, Invalid> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let key = bytes.try_into();
    let got = || format!("{} bytes", bytes.len());
    key.map(|key| Some(StreamKey(key))).map_err(|_| Invalid {
        field: "stream_key",
        got: got(),
        allowed: "none or 16 bytes".into(),
    })
}

/// Who wants to read what, from where.
pub(super) fn attachment(request: wire::AttachRequest) -> Result<Attachment, Invalid> {
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
    let most = (params.max_tokens as usize).min(facts.max_model_len as usize - prompt_len);
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
        check_tokens(&delivered, "samples.delivered_token_ids", facts)?;
        Ok(NewSample { index, delivered })
    };
    samples.into_iter().map(checked).collect()
}

fn sampling(params: wire::SamplingParams, facts: &ModelFacts) -> Result<SamplingParams, Invalid> {
    check(params.max_tokens >= 1, "max_tokens", params.max_tokens, "1 or more")?;
    let allowed = format_args!("at most max_tokens, {}", params.max_tokens);
    check(params.min_tokens <= params.max_tokens, "min_tokens", params.min_tokens, allowed)?;
    let logprobs = |value: Option<u32>, field| {
        check(
            value.unwrap_or(0) <= MAX_LOGPROBS,
            field,
            value.unwrap_or(0),
            format_args!("0..={MAX_LOGPROBS}"),
        )
    };
    logprobs(params.logprobs, "logprobs")?;
    logprobs(params.prompt_logprobs, "prompt_logprobs")?;
    let within_two = |value: f32| value.abs() <= 2.0;
    Ok(SamplingParams {
        temperature: check_range(params.temperature, "temperature", |it| (0.0..=2.0).contains(&it), "0..=2")?,
        top_p: check_range(
            params.top_p,
            "top_p",
            |it| it > 0.0 && it <= 1.0,
            "above 0, at most 1 (1 = off)",
        )?,
        top_k: params.top_k,
        min_p: check_range(params.min_p, "min_p", |it| (0.0..=1.0).contains(&it), "0..=1 (0 = off)")?,
        repetition_penalty: check_range(
            params.repetition_penalty,
            "repetition_penalty",
            |it| it > 0.0,
            "above 0 (1 = off)",
        )?,
        presence_penalty: check_range(params.presence_penalty, "presence_penalty", within_two, "-2..=2")?,
        frequency_penalty: check_range(params.frequency_penalty, "frequency_penalty", within_two, "-2..=2")?,
        seed: params.seed,
        logit_bias: logit_bias(&params.logit_bias, facts)?,
        max_tokens: params.max_tokens,
        min_tokens: params.min_tokens,
        stop_token_ids: stop_tokens(params.stop_token_ids, params.ignore_eos, facts)?,
        logprobs: params.logprobs,
        prompt_logprobs: params.prompt_logprobs,
    })
}

fn logit_bias(entries: &[wire::LogitBias], facts: &ModelFacts) -> Result<Vec<(TokenId, f32)>, Invalid> {
    let got = format_args!("{} entries", entries.len());
    check(
        entries.len() <= MAX_LOGIT_BIAS,
        "logit_bias",
        got,
        format_args!("at most {MAX_LOGIT_BIAS} entries"),
    )?;
    let mut seen = HashSet::new();
    let checked = |&wire::LogitBias { token_id, bias }: &wire::LogitBias| {
        check_tokens(&[token_id], "logit_bias.token_id", facts)?;
        check(seen.insert(token_id), "logit_bias.token_id", token_id, "each token once")?;
        let bias = check_range(bias, "logit_bias.bias", |it| it.abs() <= 100.0, "-100..=100")?;
        Ok((token_id, bias))
    };
    entries.iter().map(checked).collect()
}

/// The request's own, and the model's unless it ignores them.
fn stop_tokens(mut ids: Vec<TokenId>, ignore_eos: bool, facts: &ModelFacts) -> Result<Vec<TokenId>, Invalid> {
    let got = format_args!("{} entries", ids.len());
    check(
        ids.len() <= MAX_STOP_TOKENS,
        "stop_token_ids",
        got,
        format_args!("at most {MAX_STOP_TOKENS} entries"),
    )?;
    check_tokens(&ids, "stop_token_ids", facts)?;
    if !ignore_eos {
        ids.extend_from_slice(&facts.eos_token_ids);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
