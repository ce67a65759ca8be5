//! What a call sends must arrive in time. A client that opens calls and sends nothing, or a byte now and
//! then, would keep their places for ever. Of calls that send streams, that is the first message: clients
//! hold these open and send when they have something.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::api::http::body::BODY_TIMEOUT;

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Methods whose requests are streams.
const STREAMS: [&str; 3] = ["/ModelStreamInfer", "/ServerReflectionInfo", "/Exchange"];

/// The request with a limit of time for its message, or for the first of a stream.
pub async fn in_time(request: Request) -> Request {
    let is_stream = STREAMS.iter().any(|method| request.uri().path().ends_with(method));
    request.map(|body| Body::new(Timed::new(body, is_stream)))
}

struct Timed {
    body: Body,
    is_stream: bool,
    /// `None` once everything that must come is there.
    limit: Option<Pin<Box<Sleep>>>,
    prefix: [u8; PREFIX],
    got: usize,
}

impl Timed {
    fn new(body: Body, is_stream: bool) -> Self {
        Self { body, is_stream, limit: Some(Box::pin(sleep(BODY_TIMEOUT))), prefix: [0; PREFIX], got: 0 }
    }

    /// Counts the bytes of a chunk; lifts the limit if they complete the first message of a stream.
    fn count(&mut self, chunk: &Bytes) {
        let open = self.prefix.iter_mut().skip(self.got);
        open.zip(chunk).for_each(|(byte, sent)| *byte = *sent);
        self.got += chunk.len();
        let [_, length @ ..] = self.prefix;
        if self.is_stream && self.got >= PREFIX && self.got - PREFIX >= u32::from_be_bytes(length) as usize {
            self.limit = None;
        }
    }
}

impl hyper::body::Body for Timed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = Pin::new(&mut self.body).poll_frame(context);
        let Some(limit) = &mut self.limit else {
            return next.map(|next| next.map(|next| next.map_err(|error| Status::from_error(error.into()))));
        };
        match next {
            Poll::Ready(next) => {
                if let Some(Ok(frame)) = &next
                    && let Some(chunk) = frame.data_ref()
                {
                    self.count(chunk);
                }
                Poll::Ready(next.map(|next| next.map_err(|error| Status::from_error(error.into()))))
            }
            Poll::Pending => limit.as_mut().poll(context).map(|()| {
                let seconds = BODY_TIMEOUT.as_secs();
                Some(Err(Status::deadline_exceeded(format!("the message did not arrive within {seconds} s"))))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use axum::Router;
    use futures::{StreamExt, stream};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use crate::repository::served::Served;
    use crate::testing::{self, Script};

    /// The status of a call whose message comes in these parts, each a while after the one before, then no
    /// more and no end; `None` if it waits for ever.
    async fn status(method: &str, parts: Vec<Vec<u8>>, wait: Duration) -> Option<String> {
        let app = testing::app(Script::default());
        let routes: Router = super::super::guarded(&Served::One(app)).unwrap();
        let parts = stream::iter(parts).then(move |part| async move {
            tokio::time::sleep(wait).await;
            Ok::<_, Infallible>(part)
        });
        let body = axum::body::Body::from_stream(parts.chain(stream::pending()));
        let request = http::Request::post(method).header("content-type", "application/grpc");
        let response = routes.oneshot(request.body(body).unwrap()).await.unwrap();
        let status = response.headers().get("grpc-status").cloned();
        let ended = tokio::time::timeout(Duration::from_secs(3600), response.into_body().collect()).await;
        let trailers = ended.ok()?.ok().and_then(|body| body.trailers().cloned());
        let status = status.or_else(|| trailers?.get("grpc-status").cloned()).unwrap();
        Some(status.to_str().unwrap().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_whose_message_does_not_come() {
        let second = Duration::from_secs(1);
        let (one, stream) =
            ("/skein.v1.Inference/Tokenize", "/inference.GRPCInferenceService/ModelStreamInfer");
        let framed = [0, 0, 0, 0, 1, 8].map(|byte| vec![byte]).to_vec();
        let late = Some("4".to_owned()); // DEADLINE_EXCEEDED
        let began = tokio::time::Instant::now();
        assert_eq!(status(one, Vec::new(), second).await, late);
        assert_eq!(began.elapsed(), super::BODY_TIMEOUT);
        assert_eq!(status(one, framed.clone(), 30 * second).await, late, "a trickle");
        assert_eq!(status(one, framed[..5].to_vec(), second).await, late, "no message");
        assert_eq!(status(stream, framed[..5].to_vec(), second).await, late, "no message");
        let empty = [0; 5].map(|byte| vec![byte]).to_vec();
        assert_eq!(
            status(one, empty.clone(), second).await,
            late,
            "no end, which a call without a stream has"
        );
        assert_eq!(status(stream, empty, second).await, None, "it may send more, whenever it likes");
    }
}
