//! The models that Ollama's clients list and look up: `/api/tags`, `/api/ps` and `/api/show`.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Request, State};
use serde_json::{Value, json};
use skein_proto::pooling::PooledKind;
use skein_text::model_text::{Facts, ModelText};
use skein_text::strftime::strftime;

use super::error::OllamaError;
use crate::api::fields::object::Fields;
use crate::app::App;
use crate::repository::Entry;
use crate::request::tenant::Tenant;

/// Ollama's model names end in a tag; this one is the default.
const DEFAULT_TAG: &str = ":latest";
/// Digits of a digest, which at Ollama is a SHA-256.
const DIGEST_DIGITS: usize = 64;
/// Stands for "never": a model is not unloaded for lack of requests.
pub const NEVER: &str = "9999-12-31T23:59:59Z";

/// A model's name without the default tag.
pub fn untagged(name: &str) -> &str {
    name.strip_suffix(DEFAULT_TAG).unwrap_or(name)
}

/// Whether the model's answers are split into reasoning and text.
pub fn thinks(text: &ModelText) -> bool {
    text.formats.reasoning.is_some() || text.formats.harmony
}

/// Models that can be requested.
pub async fn tags(State(app): State<App>, Extension(tenant): Extension<Tenant>) -> Json<Value> {
    let modified_at = strftime("%Y-%m-%dT%H:%M:%SZ", Duration::from_secs(app.created));
    listed(&app, &tenant, |model| model["modified_at"] = modified_at.as_str().into())
}

/// Models in memory, which are those that can be requested.
pub async fn ps(State(app): State<App>, Extension(tenant): Extension<Tenant>) -> Json<Value> {
    let context = context_length(&app);
    listed(&app, &tenant, |model| {
        model["expires_at"] = NEVER.into();
        model["size_vram"] = 0.into();
        model["context_length"] = context.into();
    })
}

fn listed(app: &App, tenant: &Tenant, complete: impl Fn(&mut Value)) -> Json<Value> {
    let facts = &app.text.facts;
    let digest = digest(app);
    let names = app.text.served_names.iter().filter(|name| tenant.may_use(name.as_ref()));
    let models = names.map(|name| {
        let mut model = listed_model(name, facts, &digest);
        complete(&mut model);
        model
    });
    Json(json!({"models": models.collect::<Vec<_>>()}))
}

/// One model of a list.
pub fn listed_model(name: &str, facts: &Facts, digest: &str) -> Value {
    json!({"name": name, "model": name, "size": facts.bytes, "digest": digest, "details": details(facts)})
}

/// The version's digits, followed by zeros, because clients show the first twelve; empty if no version is
/// known.
pub fn digest(app: &App) -> String {
    let version = app.fleet.version();
    if version.is_known() { format!("{:0<DIGEST_DIGITS$}", version.to_string()) } else { String::new() }
}

fn context_length(app: &App) -> Option<u32> {
    app.fleet.model_limits().ok().map(|limits| limits.max_model_len)
}

/// What is known about one model.
pub async fn show(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, OllamaError> {
    let name = asked(&mut Fields::read_of_any_type(request, &app).await?);
    app.check_model(name.as_deref().map(untagged), &tenant)?;
    Ok(Json(shown(&app.text.facts, context_length(&app), &capabilities(&app))))
}

/// What is known of a model that need not be in memory.
pub fn shown_of_text(text: &ModelText, entry: &Entry) -> Value {
    shown(&entry.facts, Some(entry.max_model_len), &capable_of(text, entry.pooled))
}

fn shown(facts: &Facts, context_length: Option<u32>, capabilities: &[&str]) -> Value {
    // Clients look up the context length under the architecture's name.
    let architecture = if facts.family.is_empty() { "skein" } else { &facts.family };
    let info = json!({
        "general.architecture": architecture, "general.parameter_count": facts.parameters,
        format!("{architecture}.context_length"): context_length,
    });
    json!({
        "modelfile": "", "parameters": "", "template": "", "details": details(facts),
        "capabilities": capabilities, "model_info": info,
    })
}

/// Reads which model a body asks about. Ollama ignores what else it has.
pub fn asked(fields: &mut Fields) -> Option<String> {
    let older = fields.string("name");
    fields.string("model").or(older)
}

/// A model that pools gives vectors; Ollama has no word for one that scores.
fn capabilities(app: &App) -> Vec<&'static str> {
    capable_of(&app.text, app.fleet.pooled().ok().flatten().map(|model| model.kind))
}

fn capable_of(text: &ModelText, pooled: Option<PooledKind>) -> Vec<&'static str> {
    match pooled {
        None => generating_capabilities(text),
        Some(PooledKind::Embedding { .. }) => vec!["embedding"],
        Some(PooledKind::Scores(_)) => Vec::new(),
    }
}

fn generating_capabilities(text: &ModelText) -> Vec<&'static str> {
    let renders_tools = text.chat_template.as_ref().is_some_and(|template| template.reads("tools"));
    let tools = text.formats.calls.is_some() && renders_tools;
    let able = [("completion", true), ("tools", tools), ("thinking", thinks(text))];
    able.into_iter().filter(|(_, able)| *able).map(|(name, _)| name).collect()
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
