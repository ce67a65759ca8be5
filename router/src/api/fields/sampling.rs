//! The request fields that completions and chat share.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use serde_json::Value;
use skein_proto::sampling::SamplingOptions;

use super::constraint;
use super::listing::Kind;
use super::object::{Fields, wrong};
use crate::api::answer::progress::{Progress, Resuming};
use crate::api::http::request_id::{RequestRef, X_REQUEST_ID, identify};
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::{Draft, Truncation};

/// How to send the answer. The worker never sees these fields.
#[derive(Debug, Clone, Default)]
pub struct Wants {
    /// Whether to stream the answer as server-sent events.
    pub stream: bool,
    /// Whether to end the stream with a usage chunk.
    pub include_usage: bool,
    /// Whether every chunk carries the usage so far.
    pub continuous_usage: bool,
    /// Whether to send token ids beside the text.
    pub return_token_ids: bool,
    /// Write tokens in log-probabilities as `token_id:7` instead of text.
    pub tokens_as_ids: bool,
    /// Whether a chunk of the stream says where it moved to another worker.
    pub moves: bool,
    /// What the client has of the stream, and whether it may ask for more.
    pub resuming: Resuming,
}

/// Header in which an endpoint picker names the worker it has chosen.
pub const PICKED_WORKER: HeaderName = HeaderName::from_static("x-skein-worker");
/// Asks for a chunk wherever the stream moves to another worker.
const SHOW_MOVES: HeaderName = HeaderName::from_static("x-skein-moves");
/// Longest name of a worker, in bytes: a host and a port.
const MAX_WORKER_NAME_BYTES: usize = 256 + 6;
/// Header for a request's timeout in milliseconds; OpenAI has no field for it.
pub(crate) const TIMEOUT_HEADER: &str = "x-request-timeout-ms";

/// Takes the sampling parameters, except `max_tokens` and `logprobs`, which differ between the APIs.
pub fn sampling(fields: &mut Fields) -> SamplingOptions {
    SamplingOptions {
        max_tokens: None,
        min_tokens: fields.i64("min_tokens"),
        n: fields.i64("n"),
        best_of: fields.i64("best_of"),
        temperature: fields.f64("temperature"),
        top_p: fields.f64("top_p"),
        top_k: fields.i64("top_k"),
        min_p: fields.f64("min_p"),
        repetition_penalty: fields.f64("repetition_penalty"),
        presence_penalty: fields.f64("presence_penalty"),
        frequency_penalty: fields.f64("frequency_penalty"),
        seed: fields.i64("seed"),
        logit_bias: logit_bias(fields),
        stop: fields.strings("stop"),
        stop_token_ids: fields.integers("stop_token_ids").unwrap_or_default(),
        include_stop_str_in_output: fields.bool("include_stop_str_in_output"),
        ignore_eos: fields.bool("ignore_eos"),
        logprobs: None,
        prompt_logprobs: fields.i64("prompt_logprobs"),
        skip_special_tokens: fields.optional_bool("skip_special_tokens"),
        spaces_between_special_tokens: fields.optional_bool("spaces_between_special_tokens"),
        allowed_token_ids: fields.integers("allowed_token_ids"),
        bad_words: fields.strings("bad_words"),
    }
}

/// Takes the request's id, model, salt, priority and timeout, and the client's progress in its stream. The
/// prompt is left empty.
pub fn draft(
    fields: &mut Fields,
    headers: &HeaderMap,
    request_id: &str,
    config: &RouterConfig,
) -> Result<(Draft, Resuming), Refusal> {
    let RequestRef { id, had, may_return } = identify(headers, fields.string("request_id"), request_id)?;
    if let Some(given) = headers.get(X_REQUEST_ID) {
        tracing::info!(request = &*id, x_request_id = ?given, "client sent its own X-Request-Id");
    }
    let timeout_ms = fields.value_of(timeout_ms(headers));
    let draft = Draft {
        model: fields.string("model"),
        request_id: Some(id),
        cache_salt: fields.string("cache_salt").unwrap_or_default(),
        priority: fields.i64("priority"),
        truncation: truncation(fields),
        constraint: constraint::constraint(fields),
        timeout_ms,
        is_resumed: had.as_ref().is_some_and(Progress::has_begun),
        picked_worker: if config.follow_picks { picked_worker(headers) } else { None },
        ..Draft::default()
    };
    Ok((draft, Resuming { had, wants_ids: may_return }))
}

/// Worker chosen by an endpoint picker. A value that is not a worker's name is ignored.
pub(super) fn picked_worker(headers: &HeaderMap) -> Option<Arc<str>> {
    let name = headers.get(PICKED_WORKER)?.to_str().ok()?;
    (name.len() <= MAX_WORKER_NAME_BYTES).then(|| name.into())
}

pub(crate) fn timeout_ms(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|number| *number > 0);
    number.map(Some).ok_or_else(|| {
        let got: String = String::from_utf8_lossy(value.as_bytes()).escape_default().take(40).collect();
        let most = u64::MAX;
        Refusal::invalid(
            "timeout_ms",
            format!("{TIMEOUT_HEADER} must be milliseconds, 1 to {most}, got `{got}`."),
        )
    })
}

/// Reads vLLM's `truncate_prompt_tokens` and `truncation_side`.
pub fn truncation(fields: &mut Fields) -> Option<Truncation> {
    let side = fields.string("truncation_side");
    let keep_first = side.as_deref() == Some("right");
    if !keep_first && side.as_deref().is_some_and(|side| side != "left") {
        let message =
            "truncation_side must be `left` (keep the prompt's end) or `right` (keep its beginning).";
        fields.note(Refusal::invalid("truncation_side", message));
    }
    fields.i64("truncate_prompt_tokens").map(|tokens| Truncation { tokens, keep_first })
}

/// Takes `stream` and the fields that control the stream.
pub fn wants(
    fields: &mut Fields,
    sampling: &SamplingOptions,
    headers: &HeaderMap,
    resuming: Resuming,
) -> Wants {
    let stream = fields.bool("stream");
    if resuming.had.is_some() && !stream {
        let message = "Last-Event-ID is allowed only with stream: true.";
        fields.note(Refusal::invalid("Last-Event-ID", message));
    }
    if stream && sampling.prompt_logprobs.is_some() {
        let message = "prompt_logprobs is not available with stream: true.";
        fields.note(Refusal::invalid("prompt_logprobs", message));
    }
    let (include_usage, continuous_usage) = stream_options(fields, stream);
    Wants {
        stream,
        include_usage,
        continuous_usage,
        return_token_ids: fields.bool("return_token_ids"),
        tokens_as_ids: fields.bool("return_tokens_as_token_ids"),
        moves: headers.get(SHOW_MOVES).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true")),
        resuming,
    }
}

/// Reads `include_usage` and `continuous_usage_stats`. OpenAI's `include_obfuscation` has no effect: events
/// are not padded.
fn stream_options(fields: &mut Fields, stream: bool) -> (bool, bool) {
    let Some(mut options) = fields.object_as("stream_options", Kind::Shaped("StreamOptions")) else {
        return (false, false);
    };
    if !stream {
        let message = "stream_options is allowed only with stream: true.";
        fields.note(Refusal::invalid("stream_options", message));
    }
    let mut flag = |name: &str| match options.shift_remove(name) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => flag,
        Some(other) => {
            fields.note(wrong("stream_options", "an object of booleans", &other));
            false
        }
    };
    let wanted = (flag("include_usage"), flag("continuous_usage_stats"));
    flag("include_obfuscation");
    options.into_iter().for_each(|(name, _)| fields.leave(format!("stream_options.{name}")));
    wanted
}

/// Refuses a `Last-Event-ID` where events have no ids.
pub fn refuse_resume(fields: &mut Fields, had: Option<&Progress>) {
    if had.is_some() {
        let message = "Last-Event-ID belongs to chat and completion streams; events of this API have no ids.";
        fields.note(Refusal::invalid("Last-Event-ID", message));
    }
}

/// Refuses a `Last-Event-ID` whose number of choices differs from the body's.
pub fn check_choices(had: Option<&Progress>, prompts: usize, n: Option<i64>) -> Result<(), Refusal> {
    let Some(had) = had else { return Ok(()) };
    let expected = prompts.saturating_mul(usize::try_from(n.unwrap_or(1)).unwrap_or(0));
    if had.choices.len() != expected {
        let got = had.choices.len();
        let message = format!(
            "Last-Event-ID belongs to a call with {got} choices, but this body requests {expected}; send the same body."
        );
        return Err(Refusal::invalid("Last-Event-ID", message));
    }
    Ok(())
}

fn logit_bias(fields: &mut Fields) -> Vec<(i64, f64)> {
    let entry = |(token, bias): (String, Value)| {
        // Digits alone: the parser would take a sign, too.
        let digits = Some(&token).filter(|token| token.bytes().all(|byte| byte.is_ascii_digit()));
        let id = digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| {
            let token: String = token.chars().take(40).collect();
            Refusal::invalid("logit_bias", format!("logit_bias keys must be token ids, got `{token}`."))
        })?;
        Ok((id, bias.as_f64().ok_or_else(|| wrong("logit_bias", "an object of numbers", &bias))?))
    };
    let biases = fields
        .object_as("logit_bias", Kind::Shaped("LogitBias"))
        .unwrap_or_default()
        .into_iter()
        .map(entry)
        .collect();
    fields.value_of(biases)
}
