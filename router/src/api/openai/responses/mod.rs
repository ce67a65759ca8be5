//! OpenAI's newer API, `/v1/responses`. [`asked`] reads what a request asks of the stored answers, and
//! [`history`] the items that it continues; [`input`] converts the request to a draft, and [`ready`] does all
//! this; [`output`] writes the items and events of the answer, and [`keep`] stores it. [`background`] makes
//! answers that clients come back for, [`kept`] has the routes of those that are stored.

mod asked;
pub mod background;
mod history;
mod ids;
mod input;
mod keep;
pub mod kept;
mod output;
mod ready;
mod tools;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use skein_state::NewTurn;

use self::asked::Asked;
use self::input::Parsed;
use self::keep::Keep;
use self::output::Items;
use self::ready::{Ready, in_own_words, ready};
use crate::api::answer::shapes;
use crate::api::answer::single::output::answer;
use crate::api::answer::single::request::SingleRequest;
use crate::api::fields::object::Fields;
use crate::api::http::request_id::RequestId;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::refusal::Refusal;
use crate::request::Draft;
use crate::request::tenant::Tenant;

/// Converts a body into drafts, as of a request that continues nothing.
pub fn drafts(mut fields: Fields, headers: &HeaderMap, id: &str, app: &App) -> Result<Vec<Draft>, Refusal> {
    let asked = Asked::take(&mut fields, &app.config);
    Parsed::of(fields, &asked, &[], headers, id, app).map(|parsed| vec![parsed.request.draft])
}

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, &app).await.inspect_err(|refusal| refusal.log(&id))?;
    let body = fields.is_true("background").then(|| fields.to_json());
    let ready = ready(fields, &headers, &id, &tenant, &app).await.map_err(in_own_words);
    let Ready { request, mut items, turn } = ready.inspect_err(|refusal| refusal.log(&id))?;
    let (stored, turn) = match (app.config.responses.clone(), turn) {
        (Some(stored), Some(turn)) => (stored, turn),
        _ => return answered(&app, &tenant, request, items).await,
    };
    let Some(body) = body else {
        items.keep = Some(Keep { stored, turn });
        return answered(&app, &tenant, request, items).await;
    };
    if request.stream {
        let message = "stream: a response in the background is not streamed as yet; retrieve it by its id.";
        return Err(Refusal::invalid("stream", message).into());
    }
    let draft = Draft { tenant: tenant.clone(), ..request.draft };
    if let Err(refusal) = app.check(draft).await
        && refusal.retry_after().is_none()
    {
        refusal.log(&id);
        return Err(in_own_words(refusal).into());
    }
    let queued = items.queued();
    let turn = NewTurn { answer: queued.to_string(), ..turn };
    background::begin(&app, &stored, &tenant, body, items.created_at, turn).await?;
    Ok(shapes::finish_response(Json(queued).into_response(), &id, request.ignored))
}

async fn answered(
    app: &App,
    tenant: &Tenant,
    request: SingleRequest,
    items: Items,
) -> Result<Response, OpenAiError> {
    answer(app, tenant, request, true, items).await.map_err(|refusal| in_own_words(refusal).into())
}
