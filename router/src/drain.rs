//! Shutdown without losing requests: new ones are refused, running ones continue, and those still running at
//! the deadline are ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::refusal::Refusal;

/// Whether this router accepts requests. Both APIs share one.
#[derive(Debug, Clone)]
pub struct Drain {
    draining: CancellationToken,
    ended: CancellationToken,
    /// Every running request holds a receiver, so `closed` means that none is running.
    running: Arc<watch::Sender<()>>,
}

/// Held by a running request.
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
    /// Admits a request unless a drain has begun.
    pub fn enter(&self) -> Result<Lease, Refusal> {
        // Take the lease before the check, so that a drain which begins in between waits for it.
        let lease = Lease { _running: self.running.subscribe(), ended: self.ended.clone() };
        if self.is_draining() { Err(Refusal::Draining) } else { Ok(lease) }
    }

    /// Whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Waits until a drain begins.
    pub async fn began(&self) {
        self.draining.cancelled().await;
    }

    /// Waits until the drain's time is over.
    pub async fn over(&self) {
        self.ended.cancelled().await;
    }

    /// Number of running requests.
    pub fn running(&self) -> usize {
        self.running.receiver_count()
    }

    /// Refuses new requests and waits at most `timeout` for the running ones; then calls `leaving` and ends
    /// the rest.
    pub async fn drain(&self, timeout: Duration, leaving: impl FnOnce()) {
        self.draining.cancel();
        if tokio::time::timeout(timeout, self.running.closed()).await.is_err() {
            tracing::warn!(requests = self.running(), "shutdown timeout: ending the requests that still run");
        }
        leaving();
        self.ended.cancel();
    }
}

impl Lease {
    /// Whether the request must end with an error.
    pub fn is_over(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Waits until the request must end with an error.
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
    async fn a_drain_ends_requests_that_outlast_it() {
        let drain = Drain::default();
        let lease = drain.enter().unwrap();
        drain.drain(Duration::from_secs(1), || ()).await;
        lease.ended().await;
    }
}
