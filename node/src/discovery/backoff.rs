//! Exponential backoff with jitter, so that a thousand processes that lost the same server do not all return
//! at once.

use std::time::Duration;

use crate::random::SplitMix64;

/// Upper bound of the first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Upper bound of all pauses, and thus of how late a process notices that the server is back.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Backoff state between two attempts.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    longest: Duration,
    draws: SplitMix64,
}

impl Backoff {
    /// The pauses depend only on `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { longest: FIRST_PAUSE, draws: SplitMix64::new(seed) }
    }

    /// The pause before the next attempt: between half the current bound and the bound. Doubles the bound.
    pub(crate) fn pause(&mut self) -> Duration {
        let longest = self.longest;
        self.longest = (longest * 2).min(LONGEST_PAUSE);
        self.jitter(longest)
    }

    /// Resets the bound after a success.
    pub(crate) fn reset(&mut self) {
        self.longest = FIRST_PAUSE;
    }

    /// A random duration between half of `longest` and `longest`.
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
