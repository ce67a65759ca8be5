//! `POST /v1/embeddings`: vectors of texts.

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use http::HeaderValue;
use serde_json::json;
use skein_node::clock;
use skein_proto::pooling::{PooledKind, PooledModel};

use super::chat;
use super::error::OpenAiError;
use crate::api::answer::numbers::Encoding;
use crate::api::answer::response_id::response_id;
use crate::api::answer::shapes::{finish_response, json_response};
use crate::api::fields::object::Fields;
use crate::api::fields::pooled::{self, Caller, take_unserved};
use crate::api::fields::prompt_name;
use crate::api::http::request_id::RequestId;
use crate::app::App;
use crate::pooled::draft::{PooledDraft, PooledInput};
use crate::pooled::run::PooledCall;
use crate::pooled::{refused, values};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let Asked { draft, form, ignored } = pooled::read(request, (&id, &tenant, &app), parse).await?;
    let model = app.pooled_model()?;
    let form = form.of(&model, &app)?;
    let call = app.pool(draft).await?;
    let id = call.id.clone();
    Ok(finish_response(json_response(answer(call, form)), &id, ignored))
}

/// A parsed request.
pub struct Asked {
    draft: PooledDraft,
    form: Form,
    ignored: Option<HeaderValue>,
}

/// What vectors are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// How they are written.
    pub encoding: Encoding,
    /// Values of each; `None` = all.
    pub dimensions: Option<i64>,
    /// Whether they are divided by their length; `None` = as the model says.
    pub normalises: Option<bool>,
}

/// The same for a model.
#[derive(Debug, Clone, Copy)]
pub struct CheckedForm {
    encoding: Encoding,
    dimensions: Option<usize>,
    normalises: bool,
}

/// Reads a body.
///
/// # Errors
/// All faults in one refusal.
pub fn parse(mut fields: Fields, caller: Caller<'_>) -> Result<Asked, Refusal> {
    let app = caller.app;
    let param = if fields.has("messages") { "messages" } else { "input" };
    let mut draft = pooled::draft(&mut fields, caller, param)?;
    let form = Form {
        encoding: encoding(&mut fields),
        dimensions: fields.i64("dimensions"),
        normalises: pooled::use_activation(&mut fields),
    };
    let prompt = prompt_name::take(&mut fields, &app.text.pooled);
    draft.inputs = inputs(&mut fields, &mut draft.add_special_tokens, app);
    pooled::prepare(&mut draft.inputs, &prompt, &app.text.pooled);
    take_unserved(&mut fields);
    Ok(Asked { draft, form, ignored: fields.finish(app.config.refuse_unknown_fields)? })
}

/// Takes `input`, or vLLM's `messages`: a conversation is one input.
fn inputs(fields: &mut Fields, add_special_tokens: &mut Option<bool>, app: &App) -> Vec<PooledInput> {
    if fields.is_listed() || !fields.has("messages") {
        *add_special_tokens = fields.optional_bool("add_special_tokens");
        let inputs = pooled::input(fields, "input");
        if !fields.is_listed() {
            return inputs;
        }
    }
    if fields.has("input") {
        let message = "input and messages are both given; send one of them.";
        fields.note(Refusal::invalid("messages", message));
    }
    // As at vLLM, no turn of the assistant is begun.
    if !fields.has("add_generation_prompt") && !fields.is_listed() {
        fields.put("add_generation_prompt", false.into());
    }
    let (prompt, _) = chat::chat_prompt(fields, &app.text);
    vec![PooledInput::One(prompt)]
}

/// Takes `encoding_format`, and vLLM's order of bytes.
fn encoding(fields: &mut Fields) -> Encoding {
    let is_base64 = match fields.string("encoding_format").as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let message = "encoding_format must be `float` or `base64`.";
            fields.note(Refusal::invalid("encoding_format", message));
            false
        }
    };
    let is_big = match fields.string("endianness").as_deref() {
        None | Some("native" | "little") => false,
        Some("big") => true,
        Some(_) => {
            fields.note(Refusal::invalid("endianness", "endianness must be `native`, `little` or `big`."));
            false
        }
    };
    match (is_base64, is_big) {
        (false, _) => Encoding::Floats,
        (true, false) => Encoding::LittleEndian,
        (true, true) => Encoding::BigEndian,
    }
}

impl Form {
    /// Vectors as the model gives them.
    pub const PLAIN: Self = Self { encoding: Encoding::Floats, dimensions: None, normalises: None };

    /// Checked for the vectors of `model`.
    ///
    /// # Errors
    /// If it gives scores, or fewer values.
    pub fn of(self, model: &PooledModel, app: &App) -> Result<CheckedForm, Refusal> {
        let PooledKind::Embedding { is_normalised } = model.kind else {
            return Err(refused::scores(&app.text.name()));
        };
        let dimensions = match self.dimensions {
            None => None,
            Some(count @ 1..) if count <= i64::from(model.width) => usize::try_from(count).ok(),
            Some(count) => {
                let message = format!(
                    "dimensions must be in [1, {}], the values that this model gives, got {count}.",
                    model.width
                );
                return Err(Refusal::invalid("dimensions", message));
            }
        };
        let normalises = self.normalises.unwrap_or(is_normalised);
        Ok(CheckedForm { encoding: self.encoding, dimensions, normalises })
    }
}

impl CheckedForm {
    /// What the client gets of the model's `vector`.
    pub fn applied(self, vector: Vec<f32>) -> Vec<f32> {
        values::embedding(vector, self.dimensions, self.normalises)
    }
}

/// The answer as JSON text.
fn answer(call: PooledCall, form: CheckedForm) -> String {
    let tokens = call.tokens();
    let head = json!({"id": response_id("embd-", &call.id), "object": "list",
        "created": clock::unix_time().as_secs(), "model": &*call.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens}});
    let mut json = head.to_string();
    json.pop();
    json.push_str(",\"data\":[");
    for (at, vector) in call.vectors.into_iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        json.push_str(&format!("{comma}{{\"object\":\"embedding\",\"index\":{at},\"embedding\":"));
        form.encoding.write(&form.applied(vector), &mut json);
        json.push('}');
    }
    json.push_str("]}");
    json
}
