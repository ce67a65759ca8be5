//! Bodies that must keep a pace: long ones, such as uploads, which no time as a whole would suit.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// Interval in which a body must bring some bytes.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Least bytes in each [`WINDOW`], except the last: a kilobyte a second.
pub const LEAST_BYTES: usize = 60 * 1024;

/// A body was too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it comes at under {LEAST_BYTES} bytes in {} s", WINDOW.as_secs())]
pub struct TooSlow;

/// A body that fails with [`TooSlow`] if less than [`LEAST_BYTES`] come in a [`WINDOW`].
pub struct Paced<B> {
    body: B,
    window: Pin<Box<Sleep>>,
    /// Bytes in the window so far.
    bytes: usize,
}

impl<B> Paced<B> {
    /// `body`, timed from now on.
    pub fn new(body: B) -> Self {
        Self { body, window: Box::pin(sleep(WINDOW)), bytes: 0 }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(context) {
            if let Some(Ok(frame)) = &next {
                self.bytes += frame.data_ref().map_or(0, Bytes::len);
            }
            return Poll::Ready(next.map(|next| next.map_err(Into::into)));
        }
        loop {
            ready!(self.window.as_mut().poll(context));
            if self.bytes < LEAST_BYTES {
                return Poll::Ready(Some(Err(TooSlow.into())));
            }
            self.bytes = 0;
            self.window.as_mut().reset(Instant::now() + WINDOW);
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

    use futures::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// How a body of `seconds` ends that brings `bytes` a second.
    async fn ends(seconds: u64, bytes: usize) -> Result<usize, String> {
        let chunks = stream::unfold(0, move |at| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            (at < seconds).then(|| (Ok::<_, Infallible>(Frame::data(vec![0; bytes].into())), at + 1))
        });
        let body = Paced::new(StreamBody::new(Box::pin(chunks)));
        body.collect().await.map(|body| body.to_bytes().len()).map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_body_at_a_fair_pace_arrives_and_one_that_trickles_does_not() {
        assert_eq!(ends(1000, 1200).await, Ok(1_200_000));
        assert_eq!(ends(50, 1).await, Ok(50), "the last window may be short of bytes");
        let began = Instant::now();
        assert_eq!(ends(1000, 1000).await, Err(TooSlow.to_string()));
        assert_eq!(began.elapsed(), WINDOW);
    }
}
