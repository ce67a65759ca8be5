//! A small random number generator: the seed of a run reproduces the times and victims of its faults.

use std::time::Duration;

use skein_node::random::SplitMix64;

/// Random numbers, times and choices.
#[derive(Debug, Clone)]
pub struct SeededRng(SplitMix64);

impl SeededRng {
    /// Equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Uniform in 0..count; `count` > 0.
    pub fn below(&mut self, count: usize) -> usize {
        (self.unit() * count as f64) as usize
    }

    /// Uniform between two durations.
    pub fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        shortest + (longest.saturating_sub(shortest)).mul_f64(self.unit())
    }

    /// The time to the next arrival of a Poisson process with `per_second` arrivals.
    pub fn arrival(&mut self, per_second: f64) -> Duration {
        Duration::from_secs_f64(-(1.0 - self.unit()).ln() / per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_at_their_rate() {
        let mut seeded = SeededRng::new(7);
        let total: Duration = (0..10_000).map(|_| seeded.arrival(50.0)).sum();
        assert!((190.0..210.0).contains(&total.as_secs_f64()), "{total:?} for 200 s");
        assert!((0..1000).all(|_| seeded.below(3) < 3));
    }
}
