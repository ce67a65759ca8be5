//! Ollama's API, for tools written for it: `/api/chat`, `/api/generate`, `/api/tags`, `/api/show` and
//! `/api/version`. Translates to and from the same [`Draft`] as the OpenAI API; answers stream as JSON lines.

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use skein_node::clock::{self, Timestamp};
use skein_proto::sampling::SamplingOptions;
use skein_text::model_text::Facts;
use skein_text::strftime::strftime;

use self::error::OllamaError;
use super::answer::call_stream::CallStream;
use super::fields::object::Fields;
use super::http::face;
use super::http::request_id::RequestId;
use crate::app::App;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{Draft, Prompt};
use crate::text::text_stream::{TextDelta, TextFinish, Usage};

pub mod error;

/// Version of Ollama's API implemented here. Clients compare it with the version that they require.
const API_VERSION: &str = "0.6.4";
/// Ollama's model names end in a tag; this one is the default.
const DEFAULT_TAG: &str = ":latest";

/// The routes below `/api`.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/tags", get(tags))
        .route("/api/show", post(show))
        .route("/api/version", get(async || Json(json!({"version": API_VERSION}))))
}

/// The other paths below `/api`.
pub fn unknown() -> Router {
    let refuse = any(async |request: Request| face::not_found(&request, OllamaError::refuse));
    Router::new().route("/api/", refuse.clone()).route("/api/{*path}", refuse)
}

async fn tags(State(app): State<App>) -> Json<Value> {
    let modified_at = strftime("%Y-%m-%dT%H:%M:%SZ", std::time::Duration::from_secs(app.created));
    let facts = &app.text.facts;
    let model = |name: &std::sync::Arc<str>| {
        let name = &**name;
        json!({
            "name": name, "model": name, "modified_at": modified_at, "size": facts.bytes, "digest": "",
            "details": details(facts),
        })
    };
    let models: Vec<Value> = app.text.served_names.iter().map(model).collect();
    Json(json!({"models": models}))
}

async fn show(State(app): State<App>, request: Request) -> Result<Json<Value>, OllamaError> {
    let mut fields = Fields::read(request, &app).await?;
    let name = fields.string("model").or_else(|| fields.string("name"));
    app.check_model(name.as_deref().map(untagged))?;
    let context = app.fleet.model_limits().ok().map(|limits| limits.max_model_len);
    let facts = &app.text.facts;
    // Clients look up the context length under the architecture's name.
    let architecture = if facts.family.is_empty() { "skein" } else { &facts.family };
    let info = json!({
        "general.architecture": architecture, "general.parameter_count": facts.parameters,
        format!("{architecture}.context_length"): context,
    });
    Ok(Json(json!({
        "modelfile": "", "parameters": "", "template": "", "details": details(facts), "capabilities": ["completion"],
        "model_info": info,
    })))
}

/// Model details. Unknown ones are empty, because a router may lack the weights.
fn details(facts: &Facts) -> Value {
    let Facts { family, parameters, dtype, .. } = facts;
    let families: Vec<&str> = Some(family.as_str()).filter(|family| !family.is_empty()).into_iter().collect();
    let format = if facts.bytes > 0 { "safetensors" } else { "" };
    json!({
        "parent_model": "", "format": format, "family": family, "families": families,
        "parameter_size": parameter_size(*parameters), "quantization_level": dtype.to_uppercase(),
    })
}

/// `7.3M`, `1.5B`; empty for 0.
fn parameter_size(parameters: u64) -> String {
    let count = parameters as f64;
    match parameters {
        0 => String::new(),
        1..1_000_000 => format!("{:.1}K", count / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", count / 1e6),
        _ => format!("{:.1}B", count / 1e9),
    }
}

fn untagged(name: &str) -> &str {
    name.strip_suffix(DEFAULT_TAG).unwrap_or(name)
}

async fn chat(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OllamaError> {
    let mut fields = Fields::read(request, &app).await?;
    let messages = match fields.take("messages") {
        Some(Value::Array(messages)) => messages,
        None => Vec::new(),
        Some(_) => return Err(Refusal::invalid("messages", "messages must be a list of messages.").into()),
    };
    let has_images = |message: &Value| message["images"].as_array().is_some_and(|images| !images.is_empty());
    if messages.iter().any(has_images) {
        fields.note(Refusal::invalid("images", "images are not supported: the model reads text only."));
    }
    let prompt = (!messages.is_empty()).then(|| conversation(messages));
    answer(app, tenant, fields, id, Kind::Chat, prompt).await
}

async fn generate(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OllamaError> {
    let mut fields = Fields::read(request, &app).await?;
    let text = fields.string("prompt").filter(|text| !text.is_empty());
    let system = fields.string("system").filter(|text| !text.is_empty());
    let is_plain = fields.bool("raw") || app.text.chat_template.is_none();
    if is_plain && system.is_some() {
        let message = "system needs a chat template: leave it out if raw is true or the model has none.";
        fields.note(Refusal::invalid("system", message));
    }
    let prompt = text.map(|text| {
        if is_plain {
            return Prompt::Text(text);
        }
        let system = system.map(|text| json!({"role": "system", "content": text}));
        conversation(system.into_iter().chain([json!({"role": "user", "content": text})]).collect())
    });
    answer(app, tenant, fields, id, Kind::Generate, prompt).await
}

/// A last message of the assistant is the beginning of the answer, unless it calls.
fn conversation(messages: Vec<Value>) -> Prompt {
    let is_begun = |last: &Value| last["role"] == "assistant" && last["tool_calls"].is_null();
    let continues = messages.last().is_some_and(is_begun);
    Prompt::Chat {
        messages,
        add_generation_prompt: !continues,
        continue_final_message: continues,
        template_kwargs: serde_json::Map::new(),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Chat,
    Generate,
}

async fn answer(
    app: App,
    tenant: Tenant,
    mut fields: Fields,
    id: String,
    kind: Kind,
    prompt: Option<Prompt>,
) -> Result<Response, OllamaError> {
    let received_at = clock::now();
    let model = fields.string("model");
    let stream = fields.optional_bool("stream").unwrap_or(true);
    let sampling = sampling(&mut fields);
    take_unserved(&mut fields);
    fields.finish(app.config.refuse_unknown_fields)?;
    let name = untagged(model.as_deref().unwrap_or_default()).to_owned();
    let shown = model.unwrap_or_else(|| app.text.name().to_string());
    let lines = Lines { kind, model: shown, received_at, first_at: None };
    let Some(prompt) = prompt else {
        // A request without a prompt asks Ollama to load the model, which is always loaded here.
        app.check_model(Some(&name).filter(|name| !name.is_empty()).map(String::as_str))?;
        return Ok(Json(lines.last("load", "", Usage::default())).into_response());
    };
    let model = Some(name).filter(|name| !name.is_empty());
    let draft = Draft { model, prompt, sampling, request_id: Some(id), ..Draft::default() };
    let mut call = CallStream::start(&app, &tenant, vec![draft]).await?;
    if stream {
        call.wait_for_first().await?;
        let bytes = lines.all(call).map(|line| {
            let line = line.unwrap_or_else(|refusal| json!({"error": refusal.to_string()}));
            Ok::<_, std::convert::Infallible>(Bytes::from(format!("{line}\n")))
        });
        return Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(bytes)).into_response());
    }
    Ok(Json(lines.whole(call).await?).into_response())
}

/// Takes `options` and translates them to OpenAI's names.
fn sampling(fields: &mut Fields) -> SamplingOptions {
    let Some(options) = fields.object("options") else { return SamplingOptions::default() };
    for (name, value) in options {
        // Settings of Ollama's engine that do not affect answers are ignored.
        let ours = match name.as_str() {
            "num_ctx" | "num_keep" | "num_batch" | "num_gpu" | "main_gpu" | "num_thread" | "numa"
            | "low_vram" | "use_mmap" | "use_mlock" | "f16_kv" | "vocab_only" | "logits_all" => continue,
            "num_predict" => "num_predict",
            "repeat_penalty" => "repetition_penalty",
            "temperature" | "top_p" | "top_k" | "min_p" | "seed" | "stop" | "presence_penalty"
            | "frequency_penalty" | "mirostat" | "typical_p" | "tfs_z" | "repeat_last_n" => name.as_str(),
            _ => {
                fields.leave(format!("options.{name}"));
                continue;
            }
        };
        fields.put(ours, value);
    }
    SamplingOptions {
        // Ollama uses -1 and -2 for no limit.
        max_tokens: fields.i64("num_predict").filter(|count| *count >= 0),
        temperature: fields.f64("temperature"),
        top_p: fields.f64("top_p"),
        top_k: fields.i64("top_k"),
        min_p: fields.f64("min_p"),
        seed: fields.i64("seed"),
        stop: fields.strings("stop"),
        repetition_penalty: fields.f64("repetition_penalty"),
        presence_penalty: fields.f64("presence_penalty"),
        frequency_penalty: fields.f64("frequency_penalty"),
        ..SamplingOptions::default()
    }
}

/// Refuses unsupported fields that would change an answer, unless their value is neutral.
fn take_unserved(fields: &mut Fields) {
    fields.take("keep_alive");
    let is_off = |value: &Value| match value {
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        number => number.as_f64() == Some(0.0),
    };
    for name in
        ["format", "tools", "images", "think", "template", "suffix", "context", "logprobs", "mirostat"]
    {
        if fields.take(name).is_some_and(|value| !is_off(&value)) {
            fields.note(Refusal::invalid(name, format!("{name} is not supported yet; leave it out.")));
        }
    }
    for name in ["typical_p", "tfs_z"] {
        if fields.take(name).is_some_and(|value| value.as_f64() != Some(1.0)) {
            fields.note(Refusal::invalid(name, format!("{name} is not supported; leave it out.")));
        }
    }
    if fields.take("repeat_last_n").is_some_and(|value| value != -1) {
        let message = "repeat_last_n must be -1: repetition_penalty covers all tokens.";
        fields.note(Refusal::invalid("repeat_last_n", message));
    }
}

/// Builds the JSON lines of an answer.
struct Lines {
    kind: Kind,
    model: String,
    received_at: Timestamp,
    first_at: Option<Timestamp>,
}

impl Lines {
    fn all(mut self, mut call: CallStream) -> impl Stream<Item = Result<Value, Refusal>> + Send {
        async_stream::try_stream! {
            let mut reason = "stop";
            while let Some(item) = call.next().await {
                let (_, TextDelta { text, finish, .. }) = item?;
                self.first_at.get_or_insert_with(clock::now);
                reason = finish.as_ref().map_or(reason, TextFinish::reason);
                if !text.is_empty() {
                    yield self.line(&text);
                }
            }
            yield self.last(reason, "", call.usage());
        }
    }

    async fn whole(mut self, mut call: CallStream) -> Result<Value, Refusal> {
        let (mut all, mut reason) = (String::new(), "stop");
        while let Some(item) = call.next().await {
            let (_, TextDelta { text, finish, .. }) = item?;
            self.first_at.get_or_insert_with(clock::now);
            reason = finish.as_ref().map_or(reason, TextFinish::reason);
            all.push_str(&text);
        }
        Ok(self.last(reason, &all, call.usage()))
    }

    fn line(&self, text: &str) -> Value {
        let mut line = json!({"model": self.model, "created_at": now()});
        match self.kind {
            Kind::Chat => line["message"] = json!({"role": "assistant", "content": text}),
            Kind::Generate => line["response"] = text.into(),
        }
        line["done"] = false.into();
        line
    }

    /// Last line, with token counts and durations in nanoseconds.
    fn last(&self, reason: &str, text: &str, usage: Usage) -> Value {
        let mut line = self.line(text);
        let end = clock::now();
        let first = self.first_at.unwrap_or(end);
        let nanos =
            |from: Timestamp, to: Timestamp| u64::try_from(to.since(from).as_nanos()).unwrap_or(u64::MAX);
        line["done"] = true.into();
        line["done_reason"] = reason.into();
        line["total_duration"] = nanos(self.received_at, end).into();
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanos(self.received_at, first).into();
        line["eval_count"] = usage.completion_tokens.into();
        line["eval_duration"] = nanos(first, end).into();
        line
    }
}

fn now() -> String {
    strftime("%Y-%m-%dT%H:%M:%SZ", clock::unix_time())
}
