//! Measured speeds that forget: tokens a second for routers, and the time a step of so many tokens will take.

use std::time::Duration;

/// Tokens a second, exponentially weighted by tokens: a long prefill says more than a short one, whose time is
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

    /// 0 until something was observed.
    pub fn per_second(&self) -> f32 {
        if self.seconds > 0.0 { (self.tokens / self.seconds) as f32 } else { 0.0 }
    }
}

/// The line `seconds = fixed + per_token * tokens` through the latest steps, by weighted least squares. Attention
/// makes a step over a long context slower than the line says; the fit follows within some tens of steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTime {
    steps: f64,
    tokens: f64,
    tokens_squared: f64,
    seconds: f64,
    tokens_by_seconds: f64,
}

impl StepTime {
    /// What an older step keeps of its weight with every newer one.
    const KEEP: f64 = 0.97;

    pub fn observe(&mut self, tokens: u32, took: Duration) {
        let (tokens, seconds) = (f64::from(tokens), took.as_secs_f64());
        let add = |sum: &mut f64, value: f64| *sum = *sum * Self::KEEP + value;
        add(&mut self.steps, 1.0);
        add(&mut self.tokens, tokens);
        add(&mut self.tokens_squared, tokens * tokens);
        add(&mut self.seconds, seconds);
        add(&mut self.tokens_by_seconds, tokens * seconds);
    }

    /// How many tokens a step may have to end within `limit`; `None` while no step was seen. Where the steps make
    /// no rising line (all of one size, or noise), all their time is put down to their tokens: that errs on the
    /// short side, and the next step of another size makes a line.
    pub fn tokens_within(&self, limit: Duration) -> Option<u32> {
        let limit = limit.as_secs_f64();
        let spread = self.steps * self.tokens_squared - self.tokens * self.tokens;
        let per_token = (self.steps * self.tokens_by_seconds - self.tokens * self.seconds) / spread;
        // Casts saturate: a limit below the fixed cost gives 0.
        if spread >= 1.0 && per_token > 0.0 {
            let fixed = (self.seconds - per_token * self.tokens) / self.steps;
            return Some(((limit - fixed.max(0.0)) / per_token) as u32);
        }
        (self.seconds > 0.0).then(|| (limit * self.tokens / self.seconds) as u32)
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
    fn a_rate_follows_what_was_seen_last() {
        check(&[], 0.0..1e-9);
        check(&[(500, 500)], 999.0..1001.0);
        check(&[(500, 500), (8000, 1000)], 7800.0..8001.0);
        // One slow short step hardly counts.
        check(&[(2000, 1000), (8, 100)], 1700.0..2000.0);
    }

    fn check_within(steps: &[(u32, u64)], limit_millis: u64, expected: Option<u32>) {
        let mut fit = StepTime::default();
        for &(tokens, millis) in steps {
            fit.observe(tokens, Duration::from_millis(millis));
        }
        let got = fit.tokens_within(Duration::from_millis(limit_millis));
        let close = got.zip(expected).is_some_and(|(got, expected)| got.abs_diff(expected) <= 1);
        assert!(got == expected || close, "{steps:?} gave {got:?}, expected {expected:?}");
    }

    #[test]
    fn a_steps_time_is_foreseen() {
        check_within(&[], 100, None);
        // One size only: 2.5 ms a token at most.
        check_within(&[(8, 20), (8, 20), (8, 20)], 100, Some(40));
        // 20 ms and 1 ms a token.
        check_within(&[(8, 28), (100, 120), (8, 28), (200, 220)], 100, Some(80));
        check_within(&[(8, 28), (100, 120)], 10, Some(0));
        check_within(&[(8, 28), (100, 20)], 100, Some(228));
    }
}
