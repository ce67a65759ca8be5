//! Stopping without losing anything: new requests are refused, running ones go on, and only those that are
//! still running at the deadline are ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::refusal::Refusal;

/// Whether this router takes requests; shared by all its edges.
#[derive(Debug, Clone)]
pub struct Drain {
    draining: CancellationToken,
    ended: CancellationToken,
    /// Every running request holds a receiver, so `closed` means that none runs.
    running: Arc<watch::Sender<()>>,
}

/// Held by a request while it runs.
#[derive(Debug)]
pub struct Lease {
    _running: watch::Receiver<()>,
    ended: CancellationToken,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            draining: CancellationToken::new(),
            ended: CancellationToken::new(),
            running: Arc::new(watch::Sender::new(())),
        }
    }
}

impl Drain {
    /// Lets a request in, unless draining has begun.
    pub fn enter(&self) -> Result<Lease, Refusal> {
        // The lease is taken before the question is asked: a drain that begins in between waits for it.
        let lease = Lease { _running: self.running.subscribe(), ended: self.ended.clone() };
        if self.is_draining() { Err(Refusal::Draining) } else { Ok(lease) }
    }

    /// Whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Returns when new requests are refused.
    pub async fn began(&self) {
        self.draining.cancelled().await;
    }

    /// Returns when the drain's time is over.
    pub async fn over(&self) {
        self.ended.cancelled().await;
    }

    /// Requests running now.
    pub fn running(&self) -> usize {
        self.running.receiver_count()
    }

    /// Refuses new requests and waits for the running ones, at most `timeout`; then says `leaving` and ends those left.
    pub async fn drain(&self, timeout: Duration, leaving: impl FnOnce()) {
        self.draining.cancel();
        if tokio::time::timeout(timeout, self.running.closed()).await.is_err() {
            tracing::warn!(requests = self.running(), "the drain's time is over; running requests are ended");
        }
        leaving();
        self.ended.cancel();
    }
}

impl Lease {
    /// Returns when the request must end with an error.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_running_requests() {
        let drain = Drain::default();
        let lease = drain.enter().unwrap();
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.drain(Duration::from_secs(60), || ()).await }
        });
        tokio::task::yield_now().await;
        assert!(matches!(drain.enter(), Err(Refusal::Draining)));
        assert!(!waiting.is_finished());
        drop(lease);
        waiting.await.unwrap();
        assert_eq!(drain.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_what_outlasts_it() {
        let drain = Drain::default();
        let lease = drain.enter().unwrap();
        drain.drain(Duration::from_secs(1), || ()).await;
        lease.ended().await;
    }
}
