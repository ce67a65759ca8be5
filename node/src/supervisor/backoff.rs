//! Backoff between restarts of a worker.

use std::time::Duration;

/// Time between a worker's exit and its next start: doubles from 100 ms to 5 s, and resets after a healthy
/// run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);
    const HEALTHY_RUN: Duration = Duration::from_secs(10);

    /// The pause after a worker that ran for `run`.
    pub(super) fn after(&mut self, run: Duration) -> Duration {
        if run >= Self::HEALTHY_RUN {
            self.next = Self::FIRST;
        }
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
    fn pauses_double_to_a_bound_and_reset_after_a_healthy_run() {
        let mut backoff = Backoff::default();
        let short = Duration::from_secs(1);
        let pauses: Vec<u128> = (0..8).map(|_| backoff.after(short).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.after(Duration::from_secs(10)).as_millis(), 100);
        assert_eq!(backoff.after(short).as_millis(), 200);
    }
}
