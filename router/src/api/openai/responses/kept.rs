//! `/v1/responses/{id}`: stored answers, which their tenant reads, ends and deletes.

use axum::Json;
use axum::extract::{Extension, Path};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::Uri;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use skein_state::{StateError, Turn};

use super::history;
use crate::api::http::query::{UrlQuery, wrong};
use crate::api::openai::error::OpenAiError;
use crate::api::openai::page::page;
use crate::api::openai::part::PART;
use crate::api::openapi::operation as describe;
use crate::api::openapi::room::Room;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::stored::{StoredResponses, shortened};

/// Most items on one page of the list; OpenAI's limit.
const MAX_PAGE: usize = 100;
/// Items on a page of the list if the client sets no limit.
const PAGE: usize = 20;
/// Refusals of these routes.
const REFUSALS: [u16; 4] = [400, 404, 500, 507];

/// The answers of this router; `None` = it stores none.
#[derive(Clone)]
struct Kept(Option<StoredResponses>);

impl Kept {
    /// Where they are, and the name of `tenant` there.
    fn of(&self, tenant: &Tenant) -> Result<(&StoredResponses, String), Refusal> {
        let missing = "This server stores no responses; start it with --response-store.";
        let stored = self.0.as_ref().ok_or_else(|| Refusal::NotFound(missing.to_owned()))?;
        Ok((stored, stored.owner(tenant)))
    }
}

/// The routes over `stored`.
pub fn routes<S: Clone + Send + Sync + 'static>(stored: Option<StoredResponses>) -> Room<S> {
    Room::new(&PART)
        .route(
            "/v1/responses/{id}",
            get(retrieve).delete(delete),
            [
                describe::get("getResponse", "A stored response.").gives("Response").refuses(&REFUSALS),
                describe::delete("deleteResponse", "Deletes a response; one in the background ends.")
                    .gives("DeletedResponse")
                    .refuses(&REFUSALS),
            ],
        )
        .route(
            "/v1/responses/{id}/cancel",
            post(cancel),
            [describe::post("cancelResponse", "Ends a response in the background.")
                .gives("Response")
                .refuses(&REFUSALS)],
        )
        .route(
            "/v1/responses/{id}/input_items",
            get(input_items),
            [describe::get("listInputItems", "The items that a response answers, earlier turns included.")
                .with(&["Limit", "After", "Order"])
                .gives("InputItemList")
                .refuses(&REFUSALS)],
        )
        .with(|routes| routes.layer(Extension(Kept(stored))))
}

fn not_found(id: &str) -> Refusal {
    Refusal::NotFound(format!("Response with id '{}' not found.", shortened(id)))
}

async fn find(stored: &StoredResponses, owner: &str, id: &str) -> Result<Turn, Refusal> {
    stored.store().turn(owner, id).await?.ok_or_else(|| not_found(id))
}

/// `GET /v1/responses/{id}`.
async fn retrieve(
    Extension(kept): Extension<Kept>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, OpenAiError> {
    let (stored, owner) = kept.of(&tenant)?;
    if let Some(stream) = UrlQuery::parse(&uri)?.take("stream").filter(|stream| stream != "false") {
        return Err(wrong("stream", "left out: a stored response is not streamed again", &stream).into());
    }
    let turn = find(stored, &owner, &id).await?;
    Ok(([(CONTENT_TYPE, "application/json")], turn.answer).into_response())
}

/// `DELETE /v1/responses/{id}`.
async fn delete(
    Extension(kept): Extension<Kept>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let (stored, owner) = kept.of(&tenant)?;
    let deleted = stored.store().delete(&owner, &id).await.map_err(Refusal::from)?;
    if !deleted {
        return Err(not_found(&id).into());
    }
    stored.running().end(&owner, &id);
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// `POST /v1/responses/{id}/cancel`. One that has ended is returned as it is.
async fn cancel(
    Extension(kept): Extension<Kept>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let (stored, owner) = kept.of(&tenant)?;
    let mut answer = history::read(&find(stored, &owner, &id).await?.answer)?;
    if answer["background"] != true {
        let message = "Only a response with background: true can be cancelled; a stream ends when its connection is closed.";
        return Err(Refusal::Invalid { param: None, message: message.to_owned() }.into());
    }
    if history::is_unfinished(&answer) {
        answer["status"] = "cancelled".into();
        let was_unfinished = stored.store().answer(&owner, &id, answer.to_string(), true).await;
        if was_unfinished.map_err(Refusal::from)? {
            stored.running().end(&owner, &id);
            return Ok(Json(answer));
        }
        answer = history::read(&find(stored, &owner, &id).await?.answer)?;
    }
    Ok(Json(answer))
}

/// `GET /v1/responses/{id}/input_items`: newest first. If what it continues cannot be read, because a turn
/// was deleted or there is too much, only its own are listed.
async fn input_items(
    Extension(kept): Extension<Kept>,
    Extension(tenant): Extension<Tenant>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Value>, OpenAiError> {
    let (stored, owner) = kept.of(&tenant)?;
    let page = page(UrlQuery::parse(&uri)?, PAGE, MAX_PAGE)?;
    let turns = match stored.store().turns_up_to(&owner, &id).await {
        Err(StateError::Unknown(_)) => return Err(not_found(&id).into()),
        Err(StateError::Broken { .. } | StateError::TooLong { .. }) => vec![find(stored, &owner, &id).await?],
        turns => turns.map_err(Refusal::from)?,
    };
    let mut items = Vec::new();
    for (at, turn) in turns.iter().enumerate() {
        items.extend(history::listed_input(turn)?);
        if at + 1 < turns.len() {
            items.extend(history::output(turn)?);
        }
    }
    items.reverse();
    Ok(Json(page.of(items)?))
}
