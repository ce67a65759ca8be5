//! Answers of models, which stay in memory until theirs are sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::leases::Lease;

impl Lease {
    /// Answers a request by the model, which stays in memory until the whole answer is sent.
    pub async fn answer(self, request: Request) -> Response {
        let response = self.model().routes.answer(request).await;
        response.map(|body| Body::new(Holding { body, _lease: self }))
    }
}

/// The body of an answer, and the model that writes it.
struct Holding {
    body: Body,
    _lease: Lease,
}

impl hyper::body::Body for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
