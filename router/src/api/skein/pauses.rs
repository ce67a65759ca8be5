//! Having generation stand still and go on, and ending requests, by vLLM's routes for training. They exist
//! only with `--allow-runtime-model-updating` and need the admin key. What they do not know they refuse: a
//! slip of the pen would end requests.

use axum::Json;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use serde_json::{Map, Value, json};

use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::api::http::query::{UrlQuery, wrong};
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::pause::{PauseMode, Pauses};
use crate::refusal::Refusal;

/// Most ids in one call.
const MAX_IDS: usize = 16_384;
/// How the ids of answers begin; the request's own follows.
const PREFIXES: [&str; 2] = ["chatcmpl-", "cmpl-"];

/// `POST /pause`: `mode` is in the query, or in a body.
pub async fn pause(State(app): State<App>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let query = UrlQuery::parse(request.uri())?;
    let mut fields = if request.body().is_end_stream() {
        Fields::of(Map::new())
    } else {
        Fields::read_of_any_type(request, &app).await?
    };
    query.into_fields().for_each(|(name, value)| fields.put(&name, value.into()));
    let mode = mode(fields)?;
    pauses(&app)?.pause(mode).await?;
    Ok(Json(json!({"status": "paused"})))
}

/// Reads what becomes of running requests.
pub fn mode(mut fields: Fields) -> Result<PauseMode, Refusal> {
    let mode = fields.string("mode");
    // vLLM's. Caches belong to a version of the model, and go with it.
    fields.take("clear_cache", Kind::WithoutEffect);
    // Its older name of the mode `wait`.
    let waits = fields.take("wait_for_inflight_requests", Kind::Any);
    let waits = waits.is_some_and(|waits| waits == true || waits == "true");
    let mode = match mode.as_deref() {
        None if waits => Ok(Some(PauseMode::Wait)),
        None | Some("abort") => Ok(Some(PauseMode::Abort)),
        Some("wait") => Ok(Some(PauseMode::Wait)),
        Some("keep") => Ok(Some(PauseMode::Keep)),
        Some(other) => Err(wrong("mode", "`abort`, `wait` or `keep`", other)),
    };
    let mode = fields.value_of(mode);
    fields.finish(true)?;
    mode.ok_or(Refusal::Internal)
}

/// `POST /resume`.
pub async fn resume(State(app): State<App>) -> Result<Json<Value>, OpenAiError> {
    pauses(&app)?.resume()?;
    Ok(Json(json!({"status": "resumed"})))
}

/// `GET /is_paused`.
pub async fn is_paused(State(app): State<App>) -> Result<Json<Value>, OpenAiError> {
    Ok(Json(json!({"is_paused": pauses(&app)?.is_paused()})))
}

/// `POST /abort_requests`: ends the requests with these ids, or all, with what they have.
pub async fn abort(State(app): State<App>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let ids = ids(Fields::read(request, &app).await?)?;
    let aborted = pauses(&app)?.abort(ids.as_deref());
    Ok(Json(json!({"status": "aborted", "aborted": aborted})))
}

/// Reads the ids of the requests to end; `None` = all.
pub fn ids(mut fields: Fields) -> Result<Option<Vec<String>>, Refusal> {
    let is_given = fields.has("request_ids");
    let ids = fields.strings("request_ids");
    if ids.len() > MAX_IDS {
        let message = format!("request_ids has {} ids; at most {MAX_IDS} are allowed.", ids.len());
        fields.note(Refusal::invalid("request_ids", message));
    }
    if is_given && ids.is_empty() && !fields.has_fault("request_ids") {
        let message = "request_ids is empty; leave it out to end all requests.";
        fields.note(Refusal::invalid("request_ids", message));
    }
    fields.finish(true)?;
    let own =
        |id: String| PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(&id).to_owned();
    Ok(is_given.then(|| ids.into_iter().map(own).collect()))
}

fn pauses(app: &App) -> Result<&Pauses, Refusal> {
    app.pauses.as_ref().ok_or(Refusal::Internal)
}
