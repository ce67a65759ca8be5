//! Runs a request and writes its answer in an API's form, whole or as events.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde_json::Value;

use super::request::SingleRequest;
use super::{Part, Single};
use crate::app::App;
use crate::gateway::shapes;
use crate::gateway::sse::{self, Named};
use crate::refusal::Refusal;
use crate::tenant::Tenant;
use crate::text::text_stream::Usage;

/// An answer in the form of one API. It is written by the same code whole and as events, so that the events
/// add up to the whole answer.
pub trait Output: Send + 'static {
    /// The events before the first part.
    fn begin(&mut self, usage: Usage) -> Vec<Named>;
    /// The events of a part.
    fn take(&mut self, part: Part, single: &Single) -> Vec<Named>;
    /// The events after the last part.
    fn end(&mut self, usage: Usage) -> Vec<Named>;
    /// The last event of an answer that failed.
    fn failed(&mut self, refusal: &Refusal, usage: Usage) -> Named;
    /// The answer so far, as one object.
    fn whole(&self, usage: Usage) -> Value;
}

/// Starts the request and answers it. `include_reasoning`: whether the answer shows its reasoning.
///
/// # Errors
/// A refusal that comes before the first token, or for a whole answer at any time.
pub async fn answer(
    app: &App,
    tenant: &Tenant,
    request: SingleRequest,
    include_reasoning: bool,
    output: impl Output,
) -> Result<Response, Refusal> {
    let SingleRequest { draft, stream, ignored } = request;
    let id = draft.request_id.clone().unwrap_or_default();
    let single = Single::start(app, tenant, draft, include_reasoning).await?;
    let response = if stream {
        sse::named(events(single, output)).into_response()
    } else {
        Json(whole(single, output).await?).into_response()
    };
    Ok(shapes::finish_response(response, &id, ignored))
}

async fn whole(mut single: Single, mut output: impl Output) -> Result<Value, Refusal> {
    while let Some(part) = single.next().await {
        output.take(part?, &single);
    }
    Ok(output.whole(single.usage()))
}

fn events(mut single: Single, mut output: impl Output) -> impl Stream<Item = Named> + Send {
    async_stream::stream! {
        for event in output.begin(single.usage()) {
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
        for event in output.end(single.usage()) {
            yield event;
        }
    }
}
