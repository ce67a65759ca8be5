//! OpenAI's newer API, `POST /v1/responses`, without state: nothing is stored, so a client sends the whole
//! conversation each time. [`input`] converts a request to a draft; [`output`] writes the items and events of
//! the answer.

mod input;
mod output;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use http::HeaderMap;

use self::input::ResponsesRequest;
use self::output::Output;
use super::fields::Fields;
use super::refused::Refused;
use super::request_id::RequestId;
use super::shapes;
use super::single::Single;
use super::sse::{self, Named};
use crate::app::App;
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::Draft;
use crate::tenant::Tenant;

/// Converts a body into drafts.
pub fn drafts(
    fields: Fields,
    headers: &HeaderMap,
    id: &str,
    config: &RouterConfig,
) -> Result<Vec<Draft>, Refusal> {
    ResponsesRequest::parse(fields, headers, id, config).map(|request| vec![request.draft])
}

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, Refused> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, &app).await.inspect_err(|refusal| refusal.log(&id))?;
    let request = ResponsesRequest::parse(fields, &headers, &id, &app.config)
        .inspect_err(|refusal| refusal.log(&id))?;
    let ResponsesRequest { draft, echo, stream, ignored } = request;
    let id = draft.request_id.clone().unwrap_or_default();
    let single = Single::start(&app, &tenant, draft, true).await?;
    let output = Output::new(&id, &app.text.name(), echo);
    let response = if stream {
        sse::named(events(single, output)).into_response()
    } else {
        Json(whole(single, output).await?).into_response()
    };
    Ok(shapes::finish_response(response, &id, ignored))
}

async fn whole(mut single: Single, mut output: Output) -> Result<serde_json::Value, Refusal> {
    while let Some(part) = single.next().await {
        output.take(part?, &single);
    }
    Ok(output.response(single.usage()))
}

fn events(mut single: Single, mut output: Output) -> impl Stream<Item = Named> + Send {
    async_stream::stream! {
        for event in output.begin() {
            yield event;
        }
        while let Some(part) = single.next().await {
            match part {
                Ok(part) => {
                    for event in output.take(part, &single) {
                        yield event;
                    }
                }
                Err(refusal) => {
                    yield output.failed(&refusal, single.usage());
                    return;
                }
            }
        }
        yield output.end(single.usage());
    }
}
