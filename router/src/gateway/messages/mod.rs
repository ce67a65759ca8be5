//! Anthropic's API: `POST /v1/messages` and `/v1/messages/count_tokens`. [`input`] converts a request to a
//! draft; [`output`] writes the blocks and events of the answer.

mod input;
mod output;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use http::HeaderMap;
use serde_json::{Value, json};

use self::output::Message;
use super::fields::Fields;
use super::refused::Refused;
use super::request_id::RequestId;
use super::single::output::answer;
use super::single::request::SingleRequest;
use crate::app::{App, work_bytes};
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::Draft;
use crate::tenant::Tenant;
use crate::text::model_text::ChatPrompt;
use crate::validate::most_to_tokenize;

/// Converts a body into drafts.
pub fn drafts(
    fields: Fields,
    headers: &HeaderMap,
    id: &str,
    config: &RouterConfig,
) -> Result<Vec<Draft>, Refusal> {
    input::parse(fields, headers, id, config, false).map(|(asked, _)| vec![asked.draft])
}

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, Refused> {
    answered(&app, &id, &tenant, request).await.map_err(Refused::anthropic)
}

async fn answered(app: &App, id: &str, tenant: &Tenant, request: Request) -> Result<Response, Refusal> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, app).await.inspect_err(|refusal| refusal.log(id))?;
    let asked = input::parse(fields, &headers, id, &app.config, false);
    let (asked, thinks) = asked.inspect_err(|refusal| refusal.log(id))?;
    let output = Message::new(
        asked.draft.request_id.as_deref().unwrap_or_default(),
        &app.shown_model(asked.draft.model.as_deref()),
    );
    answer(app, tenant, asked, thinks, output).await
}

/// Counts the tokens of a request's prompt.
pub async fn count_tokens(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    request: Request,
) -> Result<Json<Value>, Refused> {
    counted(app, &id, request).await.map(Json).map_err(Refused::anthropic)
}

async fn counted(app: App, id: &str, request: Request) -> Result<Value, Refusal> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, &app).await?;
    let (SingleRequest { draft, .. }, _) = input::parse(fields, &headers, id, &app.config, true)?;
    app.check_model(draft.model.as_deref())?;
    let most = most_to_tokenize(&app.generator.model_limits()?);
    let text = app.text.clone();
    let bytes = work_bytes(&draft.prompt);
    let count = move || {
        let chat = ChatPrompt::of(&draft.prompt).ok_or(Refusal::Internal)?;
        text.encode_chat(&chat, most).map(|tokens| tokens.len())
    };
    let tokens = app.text_work(bytes, count).await?;
    Ok(json!({"input_tokens": tokens}))
}
