//! `GET /v1/models`, a path that the clients of OpenAI and Anthropic share. Those of Anthropic send a
//! header of their own with every request, and get the form of their API.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::anthropic::error::AnthropicError;
use super::openai::error::OpenAiError;
use super::openapi::operation::{self as describe, Part};
use super::openapi::room::Room;
use super::{anthropic, openai};
use crate::app::App;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

static PART: Part = Part {
    name: "Models",
    about: "What is served, in the form of OpenAI's API or Anthropic's.",
    errors: "ModelsError",
};

/// All routes of the path.
pub fn routes() -> Room {
    let listed =
        describe::get("listModels", "The model and its adapters, by the names that the caller may use.")
            .with(&["AnthropicVersion", "Limit", "AfterId", "BeforeId"])
            .gives("ModelsPage")
            .refuses(&[400]);
    let one = describe::get("getModel", "One model or adapter; its name may have slashes.");
    let one = one.with(&["AnthropicVersion"]).gives("OneModel").refuses(&[400, 404]);
    Room::new(&PART)
        .route("/v1/models", get(list), [listed])
        .same("/v1/models/", "/v1/models", get(list))
        .route("/v1/models/{*id}", get(retrieve), [one])
}

/// Whether a client of Anthropic's API sent the request.
pub fn is_anthropic(request: &Request) -> bool {
    request.headers().contains_key("anthropic-version")
}

/// Answers with `refusal` in the form that the client expects.
pub fn refuse(request: &Request, refusal: Refusal) -> Response {
    let form = if is_anthropic(request) { AnthropicError::refuse } else { OpenAiError::refuse };
    form(request, refusal)
}

async fn list(State(app): State<App>, Extension(tenant): Extension<Tenant>, request: Request) -> Response {
    if !is_anthropic(&request) {
        return Json(openai::models::list(&app, &tenant)).into_response();
    }
    let page = anthropic::models::list(&app, &tenant, request.uri());
    page.map_or_else(|refusal| refuse(&request, refusal), |page| Json(page).into_response())
}

/// `GET /v1/models/{id}`. The id may contain slashes.
async fn retrieve(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let not_text = |_| Refusal::invalid("model", "The model's name in the path is not UTF-8.");
    let found = id.map_err(not_text).and_then(|Path(id)| {
        let adapter = app.check_model(Some(&id), &tenant)?;
        Ok((id, adapter.is_some()))
    });
    match found {
        Err(refusal) => refuse(&request, refusal),
        Ok((id, _)) if is_anthropic(&request) => {
            Json(anthropic::models::model(app.created, &id)).into_response()
        }
        Ok((id, is_adapter)) => Json(openai::models::model(&app, &id, is_adapter)).into_response(),
    }
}
