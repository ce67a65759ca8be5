//! The pause between a worker's end and its next start.

use std::time::Duration;

/// Time between a worker's end and its next start: doubles from 100 ms to 5 s, and starts anew after a worker has
/// lived for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);
    const HEALTHY_LIFE: Duration = Duration::from_secs(10);

    /// The pause after a worker that lived for `life`.
    pub(super) fn after(&mut self, life: Duration) -> Duration {
        if life >= Self::HEALTHY_LIFE {
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
    fn pauses_double_to_a_bound_and_start_anew_after_a_healthy_life() {
        let mut backoff = Backoff::default();
        let short = Duration::from_secs(1);
        let pauses: Vec<u128> = (0..8).map(|_| backoff.after(short).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.after(Duration::from_secs(10)).as_millis(), 100);
        assert_eq!(backoff.after(short).as_millis(), 200);
    }
}
