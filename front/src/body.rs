//! Bodies of responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::stream::{Cut, Stream};

/// A response's body: whole, or as it arrives.
pub(super) enum AnswerBody {
    /// Whole; empty once it was taken.
    Whole(Bytes),
    /// As it arrives.
    Stream(Box<Stream>),
}

impl Default for AnswerBody {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream(stream) => stream.poll(context).map(|next| next.map(|next| next.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(stream) => stream.length().map(SizeHint::with_exact).unwrap_or_default(),
        }
    }
}
