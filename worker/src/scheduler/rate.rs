//! Measured tokens a second, weighted towards the latest, as routers see them.

use std::time::Duration;

/// Tokens a second, exponentially weighted by tokens: a long prefill says more than a short one, which is
/// mostly the fixed cost of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    /// Tokens after which an observation has lost half its weight.
    half_life: f64,
    tokens: f64,
    seconds: f64,
}

impl Rate {
    pub fn new(half_life: f64) -> Self {
        Self { half_life, tokens: 0.0, seconds: 0.0 }
    }

    pub fn observe(&mut self, tokens: u32, took: Duration) {
        let keep = (-f64::from(tokens) / self.half_life).exp2();
        self.tokens = self.tokens * keep + f64::from(tokens);
        self.seconds = self.seconds * keep + took.as_secs_f64();
    }

    /// 0 before the first observation.
    pub fn per_second(&self) -> f32 {
        if self.seconds > 0.0 { (self.tokens / self.seconds) as f32 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(observed: &[(u32, u64)], expected: std::ops::Range<f32>) {
        let mut rate = Rate::new(1000.0);
        for &(tokens, millis) in observed {
            rate.observe(tokens, Duration::from_millis(millis));
        }
        let got = rate.per_second();
        assert!(expected.contains(&got), "{observed:?} gave {got}, expected {expected:?}");
    }

    #[test]
    fn a_rate_follows_the_latest_observations() {
        check(&[], 0.0..1e-9);
        check(&[(500, 500)], 999.0..1001.0);
        check(&[(500, 500), (8000, 1000)], 7800.0..8001.0);
        // One slow short step hardly counts.
        check(&[(2000, 1000), (8, 100)], 1700.0..2000.0);
    }
}
