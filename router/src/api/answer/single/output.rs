//! Runs a request and writes its answer in the format of an API, whole or as events.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde_json::Value;

use super::request::SingleRequest;
use super::{Part, Single};
use crate::api::answer::shapes;
use crate::api::http::sse::{self, NamedEvent};
use crate::app::App;
use crate::metrics::ParsedApi;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::text::text_stream::Usage;

/// An answer in the format of one API. The same code writes it whole and as events, so that the events add up
/// to the whole answer.
pub trait Output: Send + 'static {
    /// The API, for metrics.
    const API: ParsedApi;
    /// Events before the first part.
    fn begin(&mut self, usage: Usage) -> Vec<NamedEvent>;
    /// Events of a part.
    fn take(&mut self, part: Part, single: &Single) -> Vec<NamedEvent>;
    /// Does what must be done before a client learns of the end; `failure` is why the answer failed.
    fn settle(&mut self, _: Usage, _failure: Option<&Refusal>) -> impl Future<Output = ()> + Send {
        async {}
    }
    /// Events after the last part.
    fn end(&mut self, usage: Usage) -> Vec<NamedEvent>;
    /// Last event of a failed answer.
    fn failed(&mut self, refusal: &Refusal, usage: Usage) -> NamedEvent;
    /// The answer so far, as one object.
    fn whole(&self, usage: Usage) -> Value;
}

/// Runs the request and answers it. `include_reasoning`: whether the answer includes its reasoning.
///
/// # Errors
/// If the request is refused before its first token, or at any time if the answer is not streamed.
pub async fn answer<O: Output>(
    app: &App,
    tenant: &Tenant,
    request: SingleRequest,
    include_reasoning: bool,
    output: O,
) -> Result<Response, Refusal> {
    let SingleRequest { draft, stream, ignored } = request;
    let id = draft.request_id.clone().unwrap_or_default();
    let counts = app.metrics.parsed(O::API, stream);
    let single = Single::start(app, tenant, draft, include_reasoning, counts).await?;
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
    output.settle(single.usage(), None).await;
    Ok(output.whole(single.usage()))
}

fn events(mut single: Single, mut output: impl Output) -> impl Stream<Item = NamedEvent> + Send {
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
                    output.settle(single.usage(), Some(&refusal)).await;
                    yield output.failed(&refusal, single.usage());
                    return;
                }
            }
        }
        output.settle(single.usage(), None).await;
        for event in output.end(single.usage()) {
            yield event;
        }
    }
}
