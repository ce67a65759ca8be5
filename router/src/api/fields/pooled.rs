//! The fields that requests for vectors and scores share.

use std::sync::Arc;

use axum::extract::Request;
use http::HeaderMap;
use serde_json::Value;

use super::listing::Kind;
use super::object::{Fields, wrong};
use super::sampling;
use crate::api::http::request_id::{RequestRef, identify};
use crate::app::App;
use crate::pooled::draft::{MAX_INPUTS, PooledDraft, PooledInput, PooledTruncation};
use crate::refusal::Refusal;
use crate::request::Prompt;
use crate::request::tenant::Tenant;

/// Accepted with any value: they do not change the answer.
const WITHOUT_EFFECT: [&str; 3] = ["user", "mm_processor_kwargs", "metadata"];

/// What a request for vectors or scores has besides its body.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Head of the request.
    pub headers: &'a HeaderMap,
    /// Id of the request, unless it names another.
    pub id: &'a str,
    /// Whose key it has.
    pub tenant: &'a Tenant,
    /// The server.
    pub app: &'a App,
}

/// Reads the body of `request` by `parse`, and logs what is refused.
///
/// # Errors
/// If the body cannot be read, or `parse` refuses it.
pub async fn read<T>(
    request: Request,
    (id, tenant, app): (&str, &Tenant, &App),
    parse: impl FnOnce(Fields, Caller<'_>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    Fields::parsed(request, id, app, |fields, headers| parse(fields, Caller { headers, id, tenant, app }))
        .await
}

/// Has `parse` take all fields that it knows, for the description of the API.
pub fn describe<T>(fields: Fields, app: &App, parse: impl FnOnce(Fields, Caller<'_>) -> Result<T, Refusal>) {
    let caller = Caller { headers: &HeaderMap::new(), id: "", tenant: &Tenant::default(), app };
    drop(parse(fields, caller));
}

/// Takes the request's id, model, salt, priority, timeout and truncation. Inputs are left empty.
///
/// # Errors
/// If the request id is invalid.
pub fn draft(fields: &mut Fields, caller: Caller<'_>, param: &'static str) -> Result<PooledDraft, Refusal> {
    let Caller { headers, id, tenant, app } = caller;
    let RequestRef { id, had, .. } = identify(headers, fields.string("request_id"), id)?;
    sampling::refuse_resume(fields, had.as_ref());
    let timeout_ms = fields.value_of(sampling::timeout_ms(headers));
    Ok(PooledDraft {
        model: fields.string("model"),
        request_id: Some(id),
        cache_salt: fields.string("cache_salt").unwrap_or_default(),
        priority: fields.i64("priority"),
        truncation: truncation(fields),
        timeout_ms,
        picked_worker: if app.config.follow_picks { sampling::picked_worker(headers) } else { None },
        tenant: tenant.clone(),
        param,
        ..PooledDraft::default()
    })
}

/// Reads vLLM's `truncate_prompt_tokens` and `truncation_side`, and `truncate`: a boolean as at TEI, or which
/// end is cut, as at Cohere and NVIDIA.
fn truncation(fields: &mut Fields) -> Option<PooledTruncation> {
    let keeps_first = match fields.string("truncation_side").as_deref() {
        None => None,
        Some("right") => Some(true),
        Some("left") => Some(false),
        Some(_) => {
            let message =
                "truncation_side must be `left` (keep the text's end) or `right` (keep its beginning).";
            fields.note(Refusal::invalid("truncation_side", message));
            None
        }
    };
    let of_tokens =
        fields.i64("truncate_prompt_tokens").map(|tokens| PooledTruncation { tokens, keeps_first });
    let to_fit = |keeps_first| Some(PooledTruncation { keeps_first, ..PooledTruncation::TO_FIT });
    let truncate = fields.take("truncate", Kind::Shaped("Truncate"));
    let of_word = match &truncate {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => to_fit(keeps_first),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("none") => None,
        Some(Value::String(word)) if word.eq_ignore_ascii_case("end") => to_fit(Some(true)),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("start") => to_fit(Some(false)),
        Some(other) => {
            fields.note(wrong("truncate", "true, false, `NONE`, `START` or `END`", other));
            None
        }
    };
    of_tokens.or(of_word)
}

/// Takes the fields that have no effect, and those that are not supported, unless their value is neutral.
pub fn take_unserved(fields: &mut Fields) {
    for name in WITHOUT_EFFECT {
        fields.take(name, Kind::WithoutEffect);
    }
    let neutral: [(&str, Value); 3] =
        [("padding", "do_not_pad".into()), ("embed_dtype", "float32".into()), ("softmax", true.into())];
    for (name, neutral) in neutral {
        if fields.take_strange(name).is_some_and(|value| value != neutral) {
            fields.note(Refusal::Invalid {
                param: None,
                message: format!("{name} must be {neutral}, other values are not supported; leave it out."),
            });
        }
    }
    for name in ["chat_template", "image", "images", "embedding_types", "late_chunking"] {
        if fields.take_strange(name).is_some_and(|value| !is_off(&value)) {
            let message = format!("{name} is not supported; leave it out.");
            fields.note(Refusal::Invalid { param: None, message });
        }
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Array(items) => items.is_empty() || items.iter().all(|item| item == "float"),
        _ => false,
    }
}

/// Whether values are normalised or activated: vLLM's `use_activation`, and its older names.
pub fn use_activation(fields: &mut Fields) -> Option<bool> {
    let [current, normalize, activation] =
        ["use_activation", "normalize", "activation"].map(|name| fields.optional_bool(name));
    current.or(normalize).or(activation)
}

/// Takes the texts or ids of the field `name`.
pub fn input(fields: &mut Fields, name: &'static str) -> Vec<PooledInput> {
    let field = fields.take_field(name, Kind::Shaped("PooledInput"));
    let prompts = super::prompts::prompts(name, field, MAX_INPUTS);
    fields.value_of(prompts).into_iter().map(PooledInput::One).collect()
}

/// `prompt` before each text, in the form in which the model wants texts.
pub fn prepare(inputs: &mut [PooledInput], prompt: &str, text: &skein_text::pooled_text::PooledText) {
    for input in inputs {
        match input {
            PooledInput::One(Prompt::Text(one)) => *one = text.prepared(format!("{prompt}{one}")),
            PooledInput::Pair(pair) if text.lowers_case => {
                let lower = |one: &str| Arc::from(text.prepared(one.to_owned()));
                (pair.first, pair.second) = (lower(&pair.first), lower(&pair.second));
            }
            PooledInput::One(Prompt::Tokens(_) | Prompt::Chat { .. }) | PooledInput::Pair(_) => {}
        }
    }
}
