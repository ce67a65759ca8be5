//! Server-sent events: one JSON object each, with an id from which the stream can resume. A comment is sent
//! during silence, and `[DONE]` only after success.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use pin_project_lite::pin_project;
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};

use super::error::ErrorForm;
use crate::api::answer::events::SseEvent;
use crate::refusal::Refusal;

/// After two thirds of this to all of it without output, a comment keeps proxies from closing the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Number of timer periods per `KEEP_ALIVE`.
const SILENT_PARTS: u32 = 3;
/// Sent before a connection is cut. `retry` is the client's reconnection delay in milliseconds.
const FAREWELL: &[u8] = b": the server is shutting down; go on elsewhere with Last-Event-ID\nretry: 250\n\n";

/// First capacity of an event's text, which grows if needed.
const TYPICAL_EVENT_BYTES: usize = 512;

/// Time between the farewell and the cut, which discards unwritten data.
const FAREWELL_TIME: Duration = Duration::from_millis(50);

/// Response that sends `events`. An error is sent as its object, and the stream then ends without `[DONE]`,
/// so the client can detect it. If the stream ends because this server shuts down and another router can
/// resume it, the connection is cut instead, as in a crash: clients that reconnect send `Last-Event-ID` and
/// get the rest. No client can mistake a cut answer for a complete one, or an error object for part of the
/// answer.
pub fn response<F: ErrorForm>(
    events: impl Stream<Item = Result<SseEvent, Refusal>> + Send + 'static,
) -> Response {
    let body = Body::from_stream(bytes::<F>(events));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, [("x-accel-buffering", "no")], body).into_response()
}

/// An event with a name, as used by Responses and Messages.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedEvent {
    /// Value of `event`; the object's `type` repeats it.
    pub event: &'static str,
    /// The JSON to send as `data`.
    pub object: Value,
}

/// Response that sends named events; the last one marks the end of the stream.
pub fn named(events: impl Stream<Item = NamedEvent> + Send + 'static) -> Response {
    plain(
        events.map(|NamedEvent { event, object }| Bytes::from(format!("event: {event}\ndata: {object}\n\n"))),
    )
}

/// Response that sends `events`, each written in full, and comments during silence.
pub fn plain(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let bytes = async_stream::stream! {
        let mut events = std::pin::pin!(events);
        loop {
            match tokio::time::timeout(KEEP_ALIVE, events.next()).await {
                Err(_) => yield Ok::<_, io::Error>(Bytes::from_static(b": keep-alive\n\n")),
                Ok(Some(event)) => yield Ok(event),
                Ok(None) => break,
            }
        }
    };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, [("x-accel-buffering", "no")], Body::from_stream(bytes)).into_response()
}

fn bytes<F: ErrorForm>(
    events: impl Stream<Item = Result<SseEvent, Refusal>> + Send,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    Lines {
        events,
        timer: sleep(KEEP_ALIVE / SILENT_PARTS),
        silent_parts: 0,
        next: Next::Event { resumable: false },
        body: F::body,
    }
}

pin_project! {
    /// The bytes of a stream of events. Not an async block, which would keep room for `events` twice: where
    /// it is captured, and where it is pinned.
    struct Lines<S> {
        #[pin]
        events: S,
        // One per stream, not one per event: it measures the time since the last output.
        #[pin]
        timer: Sleep,
        silent_parts: u32,
        next: Next,
        body: fn(&Refusal) -> Value,
    }
}

/// What a stream sends next.
#[derive(Clone, Copy)]
enum Next {
    /// An event; with `resumable`, the last one has an id.
    Event { resumable: bool },
    /// An error that cuts the connection, after [`FAREWELL_TIME`].
    Cut,
    /// Nothing.
    Over,
}

impl<S: Stream<Item = Result<SseEvent, Refusal>>> Stream for Lines<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        let resumable = match *this.next {
            Next::Event { resumable } => resumable,
            Next::Cut => {
                ready!(this.timer.poll(context));
                *this.next = Next::Over;
                return Poll::Ready(Some(Err(io::Error::other("the server is shutting down"))));
            }
            Next::Over => return Poll::Ready(None),
        };
        let Poll::Ready(next) = this.events.poll_next(context) else {
            while this.timer.as_mut().poll(context).is_ready() {
                this.timer.as_mut().reset(Instant::now() + KEEP_ALIVE / SILENT_PARTS);
                *this.silent_parts += 1;
                if *this.silent_parts == SILENT_PARTS {
                    *this.silent_parts = 0;
                    return Poll::Ready(Some(Ok(Bytes::from_static(b": keep-alive\n\n"))));
                }
            }
            return Poll::Pending;
        };
        *this.silent_parts = 0;
        let (sent, next) = match next {
            Some(Ok(event)) => (written(&event), Next::Event { resumable: event.id.is_some() }),
            Some(Err(Refusal::Draining)) if resumable => {
                this.timer.reset(Instant::now() + FAREWELL_TIME);
                (Bytes::from_static(FAREWELL), Next::Cut)
            }
            Some(Err(refusal)) => (Bytes::from(format!("data: {}\n\n", (this.body)(&refusal))), Next::Over),
            None => (Bytes::from_static(b"data: [DONE]\n\n"), Next::Over),
        };
        *this.next = next;
        Poll::Ready(Some(Ok(sent)))
    }
}

/// Serialises an event. Neither JSON nor an id contains a raw line break, so one `data:` line holds any
/// object.
fn written(event: &SseEvent) -> Bytes {
    let mut line = Vec::with_capacity(TYPICAL_EVENT_BYTES);
    if let Some(id) = &event.id {
        line.extend_from_slice(b"id: ");
        line.extend_from_slice(id.as_bytes());
        line.push(b'\n');
    }
    line.extend_from_slice(b"data: ");
    event.object.write(&mut line);
    line.extend_from_slice(b"\n\n");
    Bytes::from(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::openai::error::OpenAi;
    use serde_json::json;

    #[tokio::test]
    async fn a_body_has_room_for_its_events_once() {
        let (large, one) = ([0_u8; 4096], SseEvent { object: json!({}).into(), id: None });
        let events = futures::stream::iter([Ok(one)]).inspect(move |_| assert_eq!(large[0], 0));
        let (of_events, bytes) = (size_of_val(&events), size_of_val(&bytes::<OpenAi>(events)));
        assert!(of_events > 4096 && bytes < of_events + 512, "{bytes} bytes for {of_events}");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_with_comments() {
        let events = async_stream::stream! {
            tokio::time::sleep(Duration::from_secs(31)).await;
            yield Ok(SseEvent { object: json!({"text": "a\nb"}).into(), id: Some("a/1.3".to_owned()) });
            yield Ok(SseEvent { object: json!({}).into(), id: None });
        };
        let sent: Vec<Bytes> = bytes::<OpenAi>(events).map(Result::unwrap).collect().await;
        let expected = [
            ": keep-alive\n\n",
            ": keep-alive\n\n",
            "id: a/1.3\ndata: {\"text\":\"a\\nb\"}\n\n",
            "data: {}\n\n",
            "data: [DONE]\n\n",
        ];
        assert_eq!(sent, expected.map(Bytes::from));
    }

    #[tokio::test]
    async fn a_resumable_stream_is_cut_at_shutdown_and_any_other_gets_an_error_object() {
        let body_of = async |refusal: Refusal, id: Option<&str>| {
            let event = SseEvent { object: json!({}).into(), id: id.map(str::to_owned) };
            let sent: Vec<_> =
                bytes::<OpenAi>(futures::stream::iter([Ok(event), Err(refusal)])).skip(1).collect().await;
            let cut = sent.last().unwrap().is_err();
            let text: Vec<u8> = sent.into_iter().flatten().flatten().collect();
            (String::from_utf8(text).unwrap(), cut)
        };
        let (text, cut) = body_of(Refusal::Draining, Some("a/1.1")).await;
        assert!(cut && text.contains("\nretry: 250\n") && !text.contains("data:"), "{text}");
        for (refusal, id) in [(Refusal::Draining, None), (Refusal::Internal, Some("a/1.1"))] {
            let (text, cut) = body_of(refusal, id).await;
            assert!(!cut && text.starts_with("data: {\"error\":"), "{text}");
        }
    }
}
