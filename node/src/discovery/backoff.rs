//! Pauses between tries at something that is away: they double up to a limit, and are drawn at random, so that a
//! thousand processes that lost one server together do not come back together.

use std::time::Duration;

use crate::random::SplitMix64;

/// Longest of the first pauses.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest of all. It bounds how late a process notices that what it waits for is back.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The state between two tries.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    longest: Duration,
    draws: SplitMix64,
}

impl Backoff {
    /// Pauses that depend on `seed` and nothing else.
    pub(crate) fn new(seed: u64) -> Self {
        Self { longest: FIRST_PAUSE, draws: SplitMix64::new(seed) }
    }

    /// What to wait before the next try: between half of the current limit and the limit.
    pub(crate) fn pause(&mut self) -> Duration {
        let longest = self.longest;
        self.longest = (longest * 2).min(LONGEST_PAUSE);
        self.jitter(longest)
    }

    /// After a success: the next pause is a short one again.
    pub(crate) fn reset(&mut self) {
        self.longest = FIRST_PAUSE;
    }

    /// Between half of `longest` and `longest`.
    pub(crate) fn jitter(&mut self, longest: Duration) -> Duration {
        let share = self.draws.next_u64() as f64 / u64::MAX as f64;
        longest.mul_f64(0.5 + share / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit_and_differ_between_processes() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(seed);
            for longest_ms in [100, 200, 400, 800, 1600, 2000, 2000] {
                let longest = Duration::from_millis(longest_ms);
                let pause = backoff.pause();
                assert!(pause >= longest / 2 && pause <= longest, "seed {seed}: {pause:?} of {longest:?}");
            }
            backoff.reset();
            assert!(backoff.pause() <= FIRST_PAUSE);
        }
        let firsts: std::collections::BTreeSet<_> = (0..100).map(|seed| Backoff::new(seed).pause()).collect();
        assert!(firsts.len() > 90, "{} different pauses of 100", firsts.len());
    }
}
