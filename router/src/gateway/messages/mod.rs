//! Anthropic's API: `POST /v1/messages` and `/v1/messages/count_tokens`. [`input`] converts a request to a
//! draft; [`output`] writes the blocks and events of the answer.

mod input;
mod output;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use http::HeaderMap;
use serde_json::{Value, json};

use self::input::MessagesRequest;
use self::output::Output;
use super::fields::Fields;
use super::refused::Refused;
use super::request_id::RequestId;
use super::shapes;
use super::single::Single;
use super::sse::{self, Named};
use crate::app::{App, work_bytes};
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::Draft;
use crate::tenant::Tenant;
use crate::text::model_text::ChatPrompt;
use crate::validate::{check_model, most_to_tokenize};

/// Converts a body into drafts.
pub fn drafts(
    fields: Fields,
    headers: &HeaderMap,
    id: &str,
    config: &RouterConfig,
) -> Result<Vec<Draft>, Refusal> {
    MessagesRequest::parse(fields, headers, id, config, false).map(|request| vec![request.draft])
}

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, Refused> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, &app).await.inspect_err(|refusal| refusal.log(&id));
    let request = fields.and_then(|fields| {
        MessagesRequest::parse(fields, &headers, &id, &app.config, false)
            .inspect_err(|refusal| refusal.log(&id))
    });
    let MessagesRequest { draft, stream, thinks, ignored } = request.map_err(Refused::anthropic)?;
    let id = draft.request_id.clone().unwrap_or_default();
    let single = Single::start(&app, &tenant, draft, thinks).await.map_err(Refused::anthropic)?;
    let output = Output::new(&id, &app.text.name());
    let response = if stream {
        sse::named(events(single, output)).into_response()
    } else {
        Json(whole(single, output).await.map_err(Refused::anthropic)?).into_response()
    };
    Ok(shapes::finish_response(response, &id, ignored))
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
    let MessagesRequest { draft, .. } = MessagesRequest::parse(fields, &headers, id, &app.config, true)?;
    check_model(draft.model.as_deref(), &app.text)?;
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

async fn whole(mut single: Single, mut output: Output) -> Result<Value, Refusal> {
    while let Some(part) = single.next().await {
        output.take(part?, &single);
    }
    Ok(output.message(single.usage()))
}

fn events(mut single: Single, mut output: Output) -> impl Stream<Item = Named> + Send {
    async_stream::stream! {
        yield output.begin(single.usage());
        while let Some(part) = single.next().await {
            match part {
                Ok(part) => {
                    for event in output.take(part, &single) {
                        yield event;
                    }
                }
                Err(refusal) => {
                    yield Named { event: "error", object: super::refused::anthropic_error(&refusal) };
                    return;
                }
            }
        }
        for event in output.end(single.usage()) {
            yield event;
        }
    }
}
