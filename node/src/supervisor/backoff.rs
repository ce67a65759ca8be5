//! Backoff between restarts of a worker.

use std::time::Duration;

/// Delay before a worker's next start. A worker that was ready restarts immediately, because requests wait
/// for it. One that fails before it is ready would probably fail again, so the delay doubles from 100 ms to 5
/// s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);
    /// Shortest time between two starts of a worker, so that one that crashes as soon as it is ready does not
    /// occupy a processor.
    const BETWEEN_STARTS: Duration = Duration::from_millis(200);

    /// Delay after a worker that was ready and ran for `run`.
    pub(super) fn after_ready(&mut self, run: Duration) -> Duration {
        self.next = Self::FIRST;
        Self::BETWEEN_STARTS.saturating_sub(run)
    }

    /// Delay after a worker that died before it was ready.
    pub(super) fn before_ready(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(Self::LONGEST);
        pause
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: Self::FIRST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_reset_once_a_worker_was_ready() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.before_ready().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.after_ready(Duration::from_secs(1));
        assert_eq!(backoff.before_ready().as_millis(), 100);
    }

    #[test]
    fn a_worker_that_was_ready_restarts_at_once_however_often_it_is_killed() {
        let mut backoff = Backoff::default();
        for _ in 0..200 {
            assert_eq!(backoff.after_ready(Duration::from_millis(500)), Duration::ZERO);
        }
        let dies_when_ready = backoff.after_ready(Duration::from_millis(50));
        assert_eq!(dies_when_ready.as_millis(), 150, "starts are 200 ms apart");
    }
}
