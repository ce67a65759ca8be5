//! `/api/chat` and `/api/generate`: one answer, as JSON lines or whole.

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use http::header::CONTENT_TYPE;
use serde_json::json;
use skein_node::clock;

use super::error::OllamaError;
use super::input::{self, Asked};
use super::lines::{Kind, Lines};
use crate::api::answer::shapes;
use crate::api::answer::single::Single;
use crate::api::fields::object::Fields;
use crate::api::http::request_id::RequestId;
use crate::app::App;
use crate::metrics::ParsedApi;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// `POST /api/chat`
pub async fn chat(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OllamaError> {
    answer(&app, &tenant, request, &id, Kind::Chat).await.map_err(OllamaError::from)
}

/// `POST /api/generate`
pub async fn generate(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OllamaError> {
    answer(&app, &tenant, request, &id, Kind::Generate).await.map_err(OllamaError::from)
}

async fn answer(
    app: &App,
    tenant: &Tenant,
    request: Request,
    id: &str,
    kind: Kind,
) -> Result<Response, Refusal> {
    let received_at = clock::now();
    let fields = Fields::read_of_any_type(request, app).await.inspect_err(|refusal| refusal.log(id))?;
    let asked = input::parse(fields, kind, app, id).inspect_err(|refusal| refusal.log(id))?;
    let Asked { draft, has_prompt, shown_model, stream, thinks, unloads, ignored } = asked;
    let lines = Lines::new(kind, shown_model, received_at);
    if !has_prompt {
        // Ollama loads the model, or unloads it, for a request without a prompt. Here it stays loaded.
        app.check_model(draft.model.as_deref(), tenant)?;
        let reason = if unloads { "unload" } else { "load" };
        return Ok(Json(lines.without_prompt(reason)).into_response());
    }
    let counts = app.metrics.parsed(ParsedApi::Other, stream);
    let single = Single::start(app, tenant, draft, thinks, counts).await?;
    let response =
        if stream { streamed(lines, single) } else { Json(lines.whole(single).await?).into_response() };
    Ok(shapes::finish_response(response, id, ignored))
}

fn streamed(lines: Lines, single: Single) -> Response {
    let bytes = lines.all(single).map(|line| {
        let line = line.unwrap_or_else(|refusal| json!({"error": refusal.to_string()}));
        Ok::<_, std::convert::Infallible>(Bytes::from(format!("{line}\n")))
    });
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(bytes)).into_response()
}
