//! Bodies of requests that were answered without reading them: of an unknown path, or with a wrong key.
//! hyper closes an HTTP/1 connection if such a body has not arrived when the answer is sent. The client is
//! not told, and its next request on the connection fails. So the rest is read first, or the answer says that
//! the connection ends.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Most bytes of a body that are read for nothing.
const MAX_BYTES: u64 = 256 << 10;
/// Time in which they must arrive.
const WITHIN: Duration = Duration::from_secs(1);

/// The body of a request. Dropped before its end, it goes back to its connection.
#[derive(Debug)]
pub struct RequestBody {
    body: Option<Incoming>,
    unread: Option<Unread>,
}

/// Where a connection finds the body that was not read. Clones share it: HTTP/1 has one request at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(Arc<Mutex<Option<Incoming>>>);

impl Unread {
    /// The request with a body that comes back here, unless it is empty.
    pub fn lent(&self, request: Request<Incoming>) -> Request<RequestBody> {
        let unread = (!request.body().is_end_stream()).then(|| self.clone());
        // A handler may have dropped the body of the request before after its answer.
        drop(self.taken());
        request.map(|body| RequestBody { body: Some(body), unread })
    }

    /// Makes `response` the last one of its connection, or reads the rest of the request.
    pub async fn settle<B>(&self, awaits_continue: bool, mut response: Response<B>) -> Response<B> {
        let Some(body) = self.taken() else { return response };
        // Reading tells a client that waits for it to send its body. In a box, because it is rare.
        if awaits_continue || !Box::pin(is_read(body)).await {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn taken(&self) -> Option<Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a client waits for a word before it sends its body (RFC 9110, section 10.1.1).
pub(crate) fn awaits_continue<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(EXPECT)
}

/// Reads the rest of a body; returns whether that is all.
async fn is_read(mut body: Incoming) -> bool {
    if body.size_hint().lower() > MAX_BYTES {
        return false;
    }
    let rest = async {
        let mut left = MAX_BYTES;
        while let Some(frame) = body.frame().await {
            let bytes = frame.ok()?.data_ref().map_or(0, Bytes::len) as u64;
            left = left.checked_sub(bytes)?;
        }
        Some(())
    };
    matches!(tokio::time::timeout(WITHIN, rest).await, Ok(Some(())))
}

impl RequestBody {
    /// A body beside those of other requests: it may end without being read.
    pub(crate) fn whole(body: Incoming) -> Self {
        Self { body: Some(body), unread: None }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(Unread(place)), Some(body)) = (&self.unread, self.body.take())
            && !body.is_end_stream()
        {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}
