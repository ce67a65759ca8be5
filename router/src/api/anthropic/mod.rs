//! Anthropic's API: `POST /v1/messages` and `/v1/messages/count_tokens`. [`input`] converts a request to a
//! draft; [`output`] writes the blocks and events of the answer.

pub mod error;
mod input;
pub mod models;
mod output;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use axum::routing::post;
use http::HeaderMap;
use serde_json::{Value, json};

use self::error::AnthropicError;
use self::input::Reasoning;
use self::output::Message;
use super::answer::single::output::answer;
use super::answer::single::request::SingleRequest;
use super::fields::object::Fields;
use super::http::request_id::RequestId;
use super::openapi::operation::{self as describe, EVENTS, Part, REFUSALS, UNRESUMED};
use super::openapi::room::Room;
use crate::app::{App, work_bytes};
use crate::refusal::Refusal;
use crate::request::Draft;
use crate::request::tenant::Tenant;
use crate::validate::most_to_tokenize;

static PART: Part = Part { name: "Anthropic", about: "Anthropic's API.", errors: "AnthropicError" };

/// All routes of the API.
pub fn routes() -> Room {
    let answer = describe::post("createMessage", "Answers a conversation.")
        .with(&UNRESUMED)
        .reads("MessagesRequest", |fields, app| drop(drafts(fields, &HeaderMap::new(), "", app)))
        .like(r#"{"max_tokens": 32, "messages": [{"role": "user", "content": "Say hello."}]}"#)
        .gives("Message")
        .streams(EVENTS, "MessagesEvent")
        .refuses(&REFUSALS);
    let count = describe::post("countTokens", "Counts the tokens of a conversation.")
        .reads("CountTokensRequest", |fields, app| {
            drop(input::parse(fields, &HeaderMap::new(), "", app, true));
        })
        .like(r#"{"messages": [{"role": "user", "content": "Say hello."}]}"#)
        .gives("TokenCount")
        .refuses(&[400, 404, 413, 415, 429, 500, 503]);
    Room::new(&PART).route("/v1/messages", post(create), [answer]).route(
        "/v1/messages/count_tokens",
        post(count_tokens),
        [count],
    )
}

/// Converts a body into drafts.
pub fn drafts(fields: Fields, headers: &HeaderMap, id: &str, app: &App) -> Result<Vec<Draft>, Refusal> {
    input::parse(fields, headers, id, app, false).map(|(asked, _)| vec![asked.draft])
}

async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, AnthropicError> {
    answered(&app, &id, &tenant, request).await.map_err(|refusal| in_own_words(refusal).into())
}

/// `refusal` with Anthropic's names of the fields that are checked under OpenAI's.
fn in_own_words(refusal: Refusal) -> Refusal {
    let Refusal::Invalid { param, message } = refusal else { return refusal };
    let message = message
        .replace("response_format.json_schema", "output_format")
        .replace("response_format", "output_format")
        .replace(". stop ", ". stop_sequences ");
    let message = match message.strip_prefix("stop ") {
        Some(rest) => format!("stop_sequences {rest}"),
        None => message,
    };
    Refusal::Invalid { param, message }
}

async fn answered(app: &App, id: &str, tenant: &Tenant, request: Request) -> Result<Response, Refusal> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, app).await.inspect_err(|refusal| refusal.log(id))?;
    let asked = input::parse(fields, &headers, id, app, false);
    let (asked, shows) = asked.inspect_err(|refusal| refusal.log(id))?;
    let output = Message::new(
        asked.draft.request_id.as_deref().unwrap_or_default(),
        &app.shown_model(asked.draft.model.as_deref()),
        shows == Reasoning::Omitted,
    );
    answer(app, tenant, asked, shows != Reasoning::None, output).await
}

/// Counts the tokens of a request's prompt.
async fn count_tokens(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, AnthropicError> {
    counted(app, &id, &tenant, request).await.map(Json).map_err(|refusal| in_own_words(refusal).into())
}

async fn counted(app: App, id: &str, tenant: &Tenant, request: Request) -> Result<Value, Refusal> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, &app).await?;
    let (SingleRequest { draft, .. }, _) = input::parse(fields, &headers, id, &app, true)?;
    app.check_model(draft.model.as_deref(), tenant)?;
    let most = most_to_tokenize(&app.fleet.model_limits()?);
    let text = app.text.clone();
    let bytes = work_bytes(&draft.prompt);
    // Clients count a conversation before they send it.
    let cache_salt = tenant.cache_salt(&draft.cache_salt);
    let count = move || {
        let chat = draft.prompt.as_chat().ok_or(Refusal::Internal)?;
        Ok(text.encode_chat(&chat.kept_in(&cache_salt), most)?.len())
    };
    let tokens = app.text_work(bytes, count).await?;
    Ok(json!({"input_tokens": tokens}))
}
