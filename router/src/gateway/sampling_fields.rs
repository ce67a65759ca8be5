//! The request fields that completions and chat share.

use http::HeaderMap;
use serde_json::Value;
use skein_proto::sampling::SamplingOptions;

use super::fields::{Fields, wrong};
use super::progress::Progress;
use super::request_id::{Asked, X_REQUEST_ID, asked};
use crate::refusal::Refusal;
use crate::request::Draft;

/// How to send the answer. The worker never sees these.
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
    /// How much of the stream the client has, from `Last-Event-ID`.
    pub had: Option<Progress>,
}

impl Wants {
    /// Whether the client has the whole stream except `[DONE]`.
    pub fn has_all(&self) -> bool {
        self.had.as_ref().is_some_and(|had| had.is_whole(self.include_usage))
    }
}

/// Header for a request's timeout in milliseconds; OpenAI has no field for it.
const TIMEOUT_HEADER: &str = "x-request-timeout-ms";

/// OpenAI fields that are accepted and have no effect here.
const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Takes the sampling parameters, except `max_tokens` and `logprobs`, which differ between the APIs.
pub fn sampling(fields: &mut Fields) -> Result<SamplingOptions, Refusal> {
    Ok(SamplingOptions {
        max_tokens: None,
        min_tokens: fields.i64("min_tokens")?,
        n: fields.i64("n")?,
        best_of: fields.i64("best_of")?,
        temperature: fields.f64("temperature")?,
        top_p: fields.f64("top_p")?,
        top_k: fields.i64("top_k")?,
        min_p: fields.f64("min_p")?,
        repetition_penalty: fields.f64("repetition_penalty")?,
        presence_penalty: fields.f64("presence_penalty")?,
        frequency_penalty: fields.f64("frequency_penalty")?,
        seed: fields.i64("seed")?,
        logit_bias: logit_bias(fields)?,
        stop: fields.strings("stop")?,
        stop_token_ids: fields.integers("stop_token_ids")?.unwrap_or_default(),
        include_stop_str_in_output: fields.bool("include_stop_str_in_output")?,
        ignore_eos: fields.bool("ignore_eos")?,
        logprobs: None,
        prompt_logprobs: fields.i64("prompt_logprobs")?,
        skip_special_tokens: fields.optional_bool("skip_special_tokens")?,
        spaces_between_special_tokens: fields.optional_bool("spaces_between_special_tokens")?,
    })
}

/// Takes the request's id, model, salt, priority and timeout, and how much of its stream the client has. The
/// prompt is left empty.
pub fn draft(
    fields: &mut Fields,
    headers: &HeaderMap,
    request_id: &str,
) -> Result<(Draft, Option<Progress>), Refusal> {
    let timeout = headers.get(TIMEOUT_HEADER).map(|value| {
        let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
        number
            .ok_or_else(|| Refusal::invalid("timeout_ms", format!("{TIMEOUT_HEADER} must be milliseconds.")))
    });
    let Asked { id, had } = asked(headers, fields.string("request_id")?, request_id)?;
    if let Some(given) = headers.get(X_REQUEST_ID) {
        tracing::info!(request = id, x_request_id = ?given, "client sent its own X-Request-Id");
    }
    let draft = Draft {
        model: fields.string("model")?,
        request_id: Some(id),
        cache_salt: fields.string("cache_salt")?.unwrap_or_default(),
        priority: fields.i64("priority")?.unwrap_or(0),
        timeout_ms: timeout.transpose()?,
        ..Draft::default()
    };
    Ok((draft, had))
}

/// Takes `stream` and the fields that shape the stream.
pub fn wants(
    fields: &mut Fields,
    sampling: &SamplingOptions,
    had: Option<Progress>,
) -> Result<Wants, Refusal> {
    let stream = fields.bool("stream")?;
    if had.is_some() && !stream {
        return Err(Refusal::invalid("Last-Event-ID", "Last-Event-ID is allowed only with stream: true."));
    }
    let mut wants =
        Wants { stream, return_token_ids: fields.bool("return_token_ids")?, had, ..Wants::default() };
    if let Some(options) = fields.object("stream_options")? {
        if !stream {
            return Err(Refusal::invalid(
                "stream_options",
                "stream_options is allowed only with stream: true.",
            ));
        }
        let flag = |name: &str| match options.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(wrong("stream_options", "an object of booleans", other)),
        };
        wants.include_usage = flag("include_usage")?;
        wants.continuous_usage = flag("continuous_usage_stats")?;
    }
    if stream && sampling.prompt_logprobs.is_some() {
        return Err(Refusal::invalid(
            "prompt_logprobs",
            "prompt_logprobs is not available with stream: true.",
        ));
    }
    Ok(wants)
}

/// Refuses a `Last-Event-ID` whose number of choices differs from what the body asks for.
pub fn check_choices(had: Option<&Progress>, prompts: usize, n: Option<i64>) -> Result<(), Refusal> {
    let Some(had) = had else { return Ok(()) };
    let asked = prompts.saturating_mul(usize::try_from(n.unwrap_or(1)).unwrap_or(0));
    if had.choices.len() != asked {
        let told = had.choices.len();
        let message = format!(
            "Last-Event-ID is of a call with {told} choices, but this body asks for {asked}; send the same body."
        );
        return Err(Refusal::invalid("Last-Event-ID", message));
    }
    Ok(())
}

/// Takes what neither API serves: refused where it would change the answer, dropped where it has no effect.
pub fn refuse_unsupported(fields: &mut Fields) -> Result<(), Refusal> {
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    let falsy: fn(&Value) -> bool = |value| value == false || value == "" || value == 0;
    let empty: fn(&Value) -> bool = |value| value.as_array().is_some_and(Vec::is_empty);
    let never: fn(&Value) -> bool = |_| false;
    for name in ["use_beam_search", "echo"] {
        fields.unsupported(name, falsy)?;
    }
    for name in ["bad_words", "allowed_token_ids", "logits_processors"] {
        fields.unsupported(name, empty)?;
    }
    for name in [
        "truncate_prompt_tokens",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "regex",
        "ebnf",
        "json_schema",
        "prompt_embeds",
        "kv_transfer_params",
        "lora",
    ] {
        fields.unsupported(name, never)?;
    }
    match fields.object("response_format")? {
        Some(format) if format.get("type") != Some(&Value::from("text")) => {
            let message = "response_format is not supported yet except {\"type\": \"text\"}; leave it out.";
            Err(Refusal::invalid("response_format", message))
        }
        _ => Ok(()),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(i64, f64)>, Refusal> {
    let entry = |(token, bias): (String, Value)| {
        // Digits alone: the parser would take a sign, too.
        let digits = Some(&token).filter(|token| token.bytes().all(|byte| byte.is_ascii_digit()));
        let id = digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| {
            let token: String = token.chars().take(40).collect();
            Refusal::invalid("logit_bias", format!("logit_bias keys must be token ids, got `{token}`."))
        })?;
        Ok((id, bias.as_f64().ok_or_else(|| wrong("logit_bias", "an object of numbers", &bias))?))
    };
    fields.object("logit_bias")?.unwrap_or_default().into_iter().map(entry).collect()
}
