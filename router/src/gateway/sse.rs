//! Server-sent events: one JSON object each, a comment when all is quiet, `[DONE]` at a good end and only there.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde_json::Value;

use super::refused::error_object;
use crate::refusal::Refusal;

/// Silence after which a comment keeps proxies from closing the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A response that sends `objects`. An error is sent as its object, and then the stream ends without `[DONE]`,
/// so that a client can tell.
pub fn response(objects: impl Stream<Item = Result<Value, Refusal>> + Send + 'static) -> Response {
    let body = Body::from_stream(events(objects).map(Ok::<_, Infallible>));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, [("x-accel-buffering", "no")], body).into_response()
}

fn events(
    objects: impl Stream<Item = Result<Value, Refusal>> + Send + 'static,
) -> impl Stream<Item = Bytes> + Send {
    async_stream::stream! {
        let mut objects = std::pin::pin!(objects);
        loop {
            match tokio::time::timeout(KEEP_ALIVE, objects.next()).await {
                Err(_) => yield Bytes::from_static(b": keep-alive\n\n"),
                Ok(Some(Ok(object))) => yield event(&object),
                Ok(Some(Err(refusal))) => {
                    yield event(&error_object(&refusal));
                    break;
                }
                Ok(None) => {
                    yield Bytes::from_static(b"data: [DONE]\n\n");
                    break;
                }
            }
        }
    }
}

/// JSON has no raw line break, so one `data:` line holds any object.
fn event(object: &Value) -> Bytes {
    Bytes::from(format!("data: {object}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_with_comments() {
        let objects = async_stream::stream! {
            tokio::time::sleep(Duration::from_secs(31)).await;
            yield Ok(json!({"text": "a\nb"}));
        };
        let sent: Vec<Bytes> = events(objects).collect().await;
        let expected =
            [": keep-alive\n\n", ": keep-alive\n\n", "data: {\"text\":\"a\\nb\"}\n\n", "data: [DONE]\n\n"];
        assert_eq!(sent, expected.map(Bytes::from));
    }
}
