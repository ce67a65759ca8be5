//! When a connection of HTTP/2 has been without a request for too long. HTTP/1.1 has the same limit from its
//! reader of heads; HTTP/2 answers pings by itself, so that nothing else would end it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, sleep_until};

/// The requests of one connection; clones share them.
#[derive(Clone)]
pub(crate) struct Requests(Arc<Counts>);

struct Counts {
    began: Instant,
    open: AtomicUsize,
    /// When a request last ended, in milliseconds since `began`.
    last_end_ms: AtomicU64,
}

impl Requests {
    /// Of a connection that begins now.
    pub fn new() -> Self {
        let (open, last_end_ms) = Default::default();
        Self(Arc::new(Counts { began: Instant::now(), open, last_end_ms }))
    }

    /// Counts a request until what this returns is dropped.
    pub fn begin(&self) -> Open {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }

    /// Returns when no request has been open for `most`. One timer a connection: a request only notes when it
    /// ends.
    pub async fn idle(&self, most: Duration) {
        let mut until = self.0.began + most;
        loop {
            sleep_until(until).await;
            let is_open = self.0.open.load(Ordering::Acquire) > 0;
            let last_end = Duration::from_millis(self.0.last_end_ms.load(Ordering::Relaxed));
            let due = self.0.began + last_end + most;
            until = if is_open {
                // It ends later, and so the limit is not before this.
                Instant::now() + most
            } else if due <= Instant::now() {
                return;
            } else {
                due
            };
        }
    }
}

/// A request that has not ended.
pub(crate) struct Open(Requests);

impl Drop for Open {
    fn drop(&mut self) {
        let counts = &self.0.0;
        let now_ms = u64::try_from(counts.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        counts.last_end_ms.store(now_ms, Ordering::Relaxed);
        counts.open.fetch_sub(1, Ordering::Release);
    }
}

pin_project! {
    /// The body of an answer, with which its request ends.
    pub(crate) struct Counted<B> {
        #[pin]
        body: B,
        open: Open,
    }
}

impl<B> Counted<B> {
    pub fn new(body: B, open: Open) -> Self {
        Self { body, open }
    }
}

impl<B: Body> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(context)
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
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_from_the_end_of_the_last_request() {
        for (ends, expected) in [(vec![0], 10), (vec![3], 13), (vec![12], 22), (vec![7, 16, 40], 50)] {
            let (requests, began) = (Requests::new(), Instant::now());
            let open: Vec<_> = ends.iter().map(|_| requests.begin()).collect();
            let ending = tokio::spawn(async move {
                for (open, end) in open.into_iter().zip(&ends) {
                    sleep_until(began + SECOND * *end).await;
                    drop(open);
                }
            });
            requests.idle(10 * SECOND).await;
            assert_eq!(began.elapsed().as_secs(), expected);
            ending.await.unwrap();
        }
    }
}
