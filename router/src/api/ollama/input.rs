//! Reads the bodies of `/api/chat` and `/api/generate`.

use http::HeaderValue;
use serde_json::{Map, Value, json};
use skein_grammar::Source;

use super::lines::Kind;
use super::messages;
use super::models::{thinks, untagged};
use super::options;
use crate::api::fields::listing::Kind as Take;
use crate::api::fields::object::{Fields, wrong};
use crate::api::fields::tools::{self, Offered};
use crate::app::App;
use crate::refusal::Refusal;
use crate::request::{Constraint, Draft, Prompt};

/// A parsed request.
pub struct Asked {
    /// The request itself; without a prompt it is about the model in memory only.
    pub draft: Draft,
    /// Whether there is a prompt.
    pub has_prompt: bool,
    /// Name that answers show.
    pub shown_model: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether the answer includes its reasoning.
    pub thinks: bool,
    /// Whether the model may leave memory after the answer (`keep_alive` of 0), which it does not here.
    pub unloads: bool,
    /// Fields that were ignored.
    pub ignored: Option<HeaderValue>,
}

/// Reads the fields of a body.
///
/// # Errors
/// If the body has faults; one refusal lists all of them.
pub fn parse(mut fields: Fields, kind: Kind, app: &App, id: &str) -> Result<Asked, Refusal> {
    let named = fields.string("model");
    let stream = fields.optional_bool("stream").unwrap_or(true);
    let unloads = fields.take("keep_alive", Take::Shaped("KeepAlive")).as_ref().is_some_and(is_zero);
    let think = think(&mut fields, app);
    let Offered { tools, shown } =
        if kind == Kind::Chat { tools::tools(&mut fields) } else { Offered::default() };
    let mut variables = think.variables;
    if !shown.is_empty() {
        variables.insert("tools".to_owned(), shown.into());
    }
    let constraint = format(&mut fields);
    let prompt = match kind {
        Kind::Chat => chat(&mut fields, variables),
        Kind::Generate => generate(&mut fields, variables, app),
    };
    let sampling = options::sampling(&mut fields);
    options::take_unserved(&mut fields);
    let ignored = fields.finish(app.config.refuse_unknown_fields)?;
    let model = named.as_deref().map(untagged).filter(|name| !name.is_empty()).map(str::to_owned);
    let has_prompt = prompt.is_some();
    let draft = Draft {
        model,
        prompt: prompt.unwrap_or_default(),
        sampling,
        constraint,
        tools,
        cuts_max_tokens: true,
        request_id: Some(id.into()),
        ..Draft::default()
    };
    let shown_model = named.unwrap_or_else(|| app.text.name().to_string());
    Ok(Asked { draft, has_prompt, shown_model, stream, thinks: think.is_shown, unloads, ignored })
}

/// Whether `keep_alive` is 0: a number, or a duration such as `0s`.
fn is_zero(keep_alive: &Value) -> bool {
    match keep_alive {
        Value::String(text) => text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) == "0",
        number => number.as_f64() == Some(0.0),
    }
}

/// A parsed `think`.
struct Think {
    /// Whether the answer includes its reasoning.
    is_shown: bool,
    /// Variables by which templates switch reasoning.
    variables: Map<String, Value>,
}

/// Reads `think`: a boolean, or how much as a word. Absent leaves the decision to the template.
fn think(fields: &mut Fields, app: &App) -> Think {
    let mut variables = Map::new();
    let is_on = match fields.take("think", Take::Shaped("Think")) {
        None => return Think { is_shown: true, variables },
        Some(Value::Bool(is_on)) => is_on,
        Some(Value::String(level)) if ["high", "medium", "low"].contains(&level.as_str()) => {
            variables.insert("reasoning_effort".to_owned(), level.into());
            true
        }
        Some(other) => {
            fields.note(wrong("think", "true, false, `high`, `medium` or `low`", &other));
            return Think { is_shown: true, variables };
        }
    };
    if is_on && !thinks(&app.text) {
        let message = format!("think: `{}` does not support thinking; leave it out.", app.text.name());
        fields.note(Refusal::invalid("think", message));
    }
    // Different templates use different names.
    for name in ["enable_thinking", "thinking"] {
        variables.insert(name.to_owned(), is_on.into());
    }
    Think { is_shown: is_on, variables }
}

/// Reads `format`: `json`, or a JSON schema.
fn format(fields: &mut Fields) -> Option<Constraint> {
    let source = match fields.take("format", Take::Shaped("OllamaFormat"))? {
        Value::String(word) if word.is_empty() => return None,
        Value::String(word) if word == "json" => Source::json_object(),
        schema @ Value::Object(_) => Source::json_schema(&schema),
        other => {
            fields.note(wrong("format", "`json` or a JSON schema", &other));
            return None;
        }
    };
    let constraint = source.map(|source| Some(Constraint { source, field: "format" }));
    fields.value_of(constraint.map_err(|refused| Refusal::invalid("format", format!("format: {refused}."))))
}

fn chat(fields: &mut Fields, variables: Map<String, Value>) -> Option<Prompt> {
    let messages = fields.list("messages", Take::ListOf("OllamaMessage"), "a list of messages")?;
    if messages.is_empty() {
        return None;
    }
    fields.value_of(messages::prompt(messages, variables).map(Some))
}

fn generate(fields: &mut Fields, variables: Map<String, Value>, app: &App) -> Option<Prompt> {
    let text = fields.string("prompt").filter(|text| !text.is_empty());
    let system = fields.string("system").filter(|text| !text.is_empty());
    let is_plain = fields.bool("raw") || app.text.chat_template.is_none();
    if is_plain && system.is_some() {
        let message = "system needs a chat template: leave it out if raw is true or the model has none.";
        fields.note(Refusal::invalid("system", message));
    }
    let text = text?;
    if is_plain {
        return Some(Prompt::Text(text));
    }
    let system = system.map(|text| json!({"role": "system", "content": text}));
    let messages = system.into_iter().chain([json!({"role": "user", "content": text})]).collect();
    fields.value_of(messages::prompt(messages, variables).map(Some))
}
