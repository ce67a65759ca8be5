//! `POST /v1/score` and `/score`, vLLM's: scores of pairs of texts, one with many or each with its own.

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use serde_json::{Value, json};
use skein_node::clock;

use super::pairs::{Pairs, Scored};
use super::texts;
use crate::api::answer::numbers;
use crate::api::answer::response_id::response_id;
use crate::api::answer::shapes::finish_response;
use crate::api::fields::object::Fields;
use crate::api::fields::pooled::{self, Caller, take_unserved};
use crate::api::http::request_id::RequestId;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::pooled::draft::PooledDraft;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// Other names of `text_1` and `text_2`.
const OTHER_NAMES: [(&str, &str); 5] = [
    ("queries", "text_1"),
    ("data_1", "text_1"),
    ("documents", "text_2"),
    ("items", "text_2"),
    ("data_2", "text_2"),
];

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let Asked { draft, pairs, ignored } = pooled::read(request, (&id, &tenant, &app), parse).await?;
    let Scored { id, model, scores, tokens } = pairs.scored(&app, draft).await?;
    let score = |(index, score): (usize, f32)| json!({"index": index, "object": "score", "score": numbers::short(score)});
    let data: Vec<Value> = scores.into_iter().enumerate().map(score).collect();
    let object = json!({
        "id": response_id("score-", &id), "object": "list", "created": clock::unix_time().as_secs(),
        "model": &*model, "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    Ok(finish_response(Json(object).into_response(), &id, ignored))
}

/// A parsed request.
pub struct Asked {
    draft: PooledDraft,
    pairs: Pairs,
    ignored: Option<HeaderValue>,
}

/// Reads a body.
///
/// # Errors
/// All faults in one refusal.
pub fn parse(mut fields: Fields, caller: Caller<'_>) -> Result<Asked, Refusal> {
    let app = caller.app;
    let draft = pooled::draft(&mut fields, caller, "text_2")?;
    for (sent, read_as) in OTHER_NAMES {
        if fields.has(sent) || fields.is_listed() {
            fields.rename(sent, read_as);
        }
    }
    let first = texts::take(&mut fields, "text_1");
    let second = texts::take(&mut fields, "text_2");
    if first.len() > 1 && !second.is_empty() && first.len() != second.len() {
        let message = format!(
            "text_1 must be one text, or as many as text_2 has ({}), got {}.",
            second.len(),
            first.len()
        );
        fields.note(Refusal::invalid("text_1", message));
    }
    let instruction = fields.string("instruction").map(Into::into);
    let is_activated = pooled::use_activation(&mut fields);
    take_unserved(&mut fields);
    let pairs = Pairs { first, second, instruction, most_of_second: None, is_activated };
    Ok(Asked { draft, pairs, ignored: fields.finish(app.config.refuse_unknown_fields)? })
}
