//! Predicts how long a step takes from the latest ones, so that steps can be kept short.

use std::time::Duration;

/// The work of a step, as far as its duration depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    /// Rows, of prompts and of streams.
    pub tokens: u32,
    /// Positions attended to, summed over the rows.
    pub attended: u64,
}

/// Fits `seconds = fixed + per_token * tokens + per_attended * attended` to the latest steps by
/// weighted least squares.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTime {
    /// Steps observed, including the first one, which is later discarded.
    seen: u64,
    /// Weighted sums of steps, tokens, positions, seconds, and their products.
    steps: f64,
    tokens: f64,
    attended: f64,
    seconds: f64,
    tokens_tokens: f64,
    tokens_attended: f64,
    attended_attended: f64,
    tokens_seconds: f64,
    attended_seconds: f64,
}

/// The fitted model, in seconds.
#[derive(Debug, Clone, Copy)]
struct Cost {
    fixed: f64,
    per_token: f64,
    per_attended: f64,
}

impl Cost {
    /// Seconds for `work`, without the fixed part.
    fn of(self, work: Work) -> f64 {
        self.per_token * f64::from(work.tokens) + self.per_attended * work.attended as f64
    }

    /// Most tokens of one sequence, starting at position `context`, that take at most `seconds`.
    fn tokens_in(self, seconds: f64, context: u32) -> u32 {
        // `n` of them take `n * first + n * n * growth`.
        let first = self.per_token + self.per_attended * f64::from(context);
        let growth = self.per_attended / 2.0;
        let seconds = seconds.max(0.0);
        (2.0 * seconds / (first + (first * first + 4.0 * growth * seconds).sqrt())) as u32 // saturates
    }
}

impl StepTime {
    /// Factor by which each new step multiplies the weights of all older ones.
    const KEEP: f64 = 0.97;

    pub fn observe(&mut self, work: Work, took: Duration) {
        if self.seen == 1 {
            // The first step also paged the weights in. It counts only until there is a second.
            *self = Self { seen: 1, ..Self::default() };
        }
        self.seen += 1;
        let (tokens, attended, seconds) = (f64::from(work.tokens), work.attended as f64, took.as_secs_f64());
        let add = |sum: &mut f64, value: f64| *sum = *sum * Self::KEEP + value;
        add(&mut self.steps, 1.0);
        add(&mut self.tokens, tokens);
        add(&mut self.attended, attended);
        add(&mut self.seconds, seconds);
        add(&mut self.tokens_tokens, tokens * tokens);
        add(&mut self.tokens_attended, tokens * attended);
        add(&mut self.attended_attended, attended * attended);
        add(&mut self.tokens_seconds, tokens * seconds);
        add(&mut self.attended_seconds, attended * seconds);
    }

    /// Most tokens for a step to end within `limit`, if `planned` is already in it and the additional ones
    /// start at position `context`. At least the planned tokens. `None` before the first step.
    pub fn tokens_within(&self, limit: Duration, planned: Work, context: u32) -> Option<u32> {
        let cost = self.cost()?;
        let left = limit.as_secs_f64() - cost.fixed - cost.of(planned);
        Some(planned.tokens.saturating_add(cost.tokens_in(left, context)))
    }

    /// Number of tokens starting at position `context` that take as long as `work`; `None` before
    /// the first step.
    pub fn equivalent_tokens(&self, work: Work, context: u32) -> Option<u32> {
        let cost = self.cost()?;
        Some(cost.tokens_in(cost.of(work), context))
    }

    /// Fixed time of a step; zero while unknown.
    pub fn fixed(&self) -> Duration {
        self.cost().map_or(Duration::ZERO, |cost| Duration::try_from_secs_f64(cost.fixed).unwrap_or_default())
    }

    /// The best model for the steps so far. The fixed cost must not be negative: if the best line would
    /// make it so, the best fit through zero is used. Otherwise one slow step of many rows among fast
    /// small ones would make rows look expensive, steps would stay small, and small steps would never
    /// correct the estimate.
    fn cost(&self) -> Option<Cost> {
        let fixed = |per_token: f64, per_attended: f64| {
            (self.seconds - per_token * self.tokens - per_attended * self.attended) / self.steps
        };
        let (through_zero, through_mean) = (self.products(), self.products_about_mean());
        if let Some((per_token, per_attended)) = through_mean.slopes() {
            let fixed = fixed(per_token, per_attended);
            if fixed >= 0.0 {
                return Some(Cost { fixed, per_token, per_attended });
            }
            if let Some((per_token, per_attended)) = through_zero.slopes() {
                return Some(Cost { fixed: 0.0, per_token, per_attended });
            }
        }
        if let Some(per_token) = through_mean.slope_of_tokens() {
            let fixed = fixed(per_token, 0.0);
            if fixed >= 0.0 {
                return Some(Cost { fixed, per_token, per_attended: 0.0 });
            }
        }
        // All steps of one size, or noise: attribute all time to tokens. That makes steps rather too short,
        // and the next step of a different size corrects it.
        let per_token = self.seconds / self.tokens;
        (self.seconds > 0.0).then_some(Cost { fixed: 0.0, per_token, per_attended: 0.0 })
    }

    fn products(&self) -> Products {
        Products {
            tokens_tokens: self.tokens_tokens,
            tokens_attended: self.tokens_attended,
            attended_attended: self.attended_attended,
            tokens_seconds: self.tokens_seconds,
            attended_seconds: self.attended_seconds,
        }
    }

    fn products_about_mean(&self) -> Products {
        let about_mean = |products: f64, a: f64, b: f64| products - a * b / self.steps;
        Products {
            tokens_tokens: about_mean(self.tokens_tokens, self.tokens, self.tokens),
            tokens_attended: about_mean(self.tokens_attended, self.tokens, self.attended),
            attended_attended: about_mean(self.attended_attended, self.attended, self.attended),
            tokens_seconds: about_mean(self.tokens_seconds, self.tokens, self.seconds),
            attended_seconds: about_mean(self.attended_seconds, self.attended, self.seconds),
        }
    }
}

/// Weighted sums of products, from which the slopes are computed.
struct Products {
    tokens_tokens: f64,
    tokens_attended: f64,
    attended_attended: f64,
    tokens_seconds: f64,
    attended_seconds: f64,
}

impl Products {
    /// Tokens and positions that rise and fall together cannot be told apart. At least this fraction of their
    /// variance must be independent.
    const MIN_INDEPENDENCE: f64 = 1e-3;

    /// Seconds per token and per position; `None` if they are not separable or not positive.
    fn slopes(&self) -> Option<(f64, f64)> {
        let &Self { tokens_tokens, tokens_attended, attended_attended, tokens_seconds, attended_seconds } =
            self;
        let determinant = tokens_tokens * attended_attended - tokens_attended * tokens_attended;
        let are_separable =
            tokens_tokens >= 1.0 && determinant > Self::MIN_INDEPENDENCE * tokens_tokens * attended_attended;
        let per_token =
            (attended_attended * tokens_seconds - tokens_attended * attended_seconds) / determinant;
        let per_attended =
            (tokens_tokens * attended_seconds - tokens_attended * tokens_seconds) / determinant;
        (are_separable && per_token > 0.0 && per_attended >= 0.0).then_some((per_token, per_attended))
    }

    /// Seconds per token if all time is attributed to tokens.
    fn slope_of_tokens(&self) -> Option<f64> {
        let is_known = self.tokens_tokens >= 1.0 && self.tokens_seconds > 0.0;
        is_known.then(|| self.tokens_seconds / self.tokens_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_within(steps: &[(u32, u64)], limit_millis: u64, expected: Option<u32>) {
        let mut fit = StepTime::default();
        if !steps.is_empty() {
            // The first one is discarded.
            fit.observe(Work { tokens: 64, attended: 0 }, Duration::from_secs(10));
        }
        for &(tokens, millis) in steps {
            fit.observe(Work { tokens, attended: 0 }, Duration::from_millis(millis));
        }
        let got = fit.tokens_within(Duration::from_millis(limit_millis), Work::default(), 0);
        let close = got.zip(expected).is_some_and(|(got, expected)| got.abs_diff(expected) <= 1);
        assert!(got == expected || close, "{steps:?} gave {got:?}, expected {expected:?}");
    }

    #[test]
    fn a_steps_time_is_predicted() {
        check_within(&[], 100, None);
        // One size only: at most 2.5 ms a token.
        check_within(&[(8, 20), (8, 20), (8, 20)], 100, Some(40));
        // 20 ms fixed and 1 ms a token.
        check_within(&[(8, 28), (100, 120), (8, 28), (200, 220)], 100, Some(80));
        check_within(&[(8, 28), (100, 120)], 10, Some(0));
        check_within(&[(8, 28), (100, 20)], 100, Some(228));
    }

    #[test]
    fn slow_first_steps_are_soon_outweighed() {
        // 70 ms fixed and 2.3 ms a row, prompts of 512; the first two steps also page the weights in.
        for slow in [1.0, 2.0, 4.0, 8.0] {
            let mut fit = StepTime::default();
            let (mut start, mut chunks) = (0, Vec::new());
            for step in 0..30 {
                let most =
                    fit.tokens_within(Duration::from_millis(500), Work::default(), start).unwrap_or(64);
                let tokens = most.max(32).min(512 - start);
                let work = Work { tokens, attended: u64::from(tokens) * u64::from(start + tokens / 2) };
                let seconds = 0.07 + 0.0023 * f64::from(tokens);
                fit.observe(work, Duration::from_secs_f64(if step < 2 { slow * seconds } else { seconds }));
                start = (start + tokens) % 512;
                chunks.push(most);
            }
            assert!(chunks[20..].iter().all(|most| *most > 150), "{slow} times: {chunks:?}");
        }
    }

    /// A device with 20 ms fixed, 1 ms a token, and another 1 ms for every 2,000 positions attended to.
    fn seconds(work: Work) -> f64 {
        0.02 + f64::from(work.tokens) * 0.001 + work.attended as f64 * 0.001 / 2000.0
    }

    #[test]
    fn rows_over_a_long_context_count_for_more() {
        let mut fit = StepTime::default();
        assert_eq!(fit.equivalent_tokens(Work { tokens: 64, attended: 0 }, 0), None);
        for (tokens, attended) in [(1, 1), (8, 80), (100, 200_000), (8, 16_000), (200, 20_000), (64, 2080)] {
            let work = Work { tokens, attended };
            fit.observe(work, Duration::from_secs_f64(seconds(work)));
        }
        let short = Work { tokens: 64, attended: 64 * 65 / 2 };
        assert!(fit.equivalent_tokens(short, 0).is_some_and(|tokens| tokens.abs_diff(64) <= 1));
        // At position 4,000 a row takes three times as long.
        assert!(fit.equivalent_tokens(short, 4000).is_some_and(|tokens| tokens.abs_diff(21) <= 1));
    }

    #[test]
    fn chunks_of_a_long_prompt_end_in_time_though_their_context_grows() {
        for noise in [0.0, 0.1] {
            let (mut fit, mut swing) = (StepTime::default(), 1.0);
            let mut observe = |fit: &mut StepTime, work: Work| {
                swing = -swing;
                let took = seconds(work) * (1.0 + noise * swing);
                fit.observe(work, Duration::from_secs_f64(took));
                took
            };
            // Short prompts and their answers first.
            for tokens in [8, 64, 3, 300, 8, 1, 120, 2] {
                observe(&mut fit, Work { tokens, attended: u64::from(tokens) * u64::from(50 + tokens / 2) });
            }
            let (mut context, mut longest, mut steps) = (0, 0f64, 0);
            while context < 8000 {
                let planned = Work { tokens: 4, attended: 4 * 500 };
                let all = fit.tokens_within(Duration::from_millis(500), planned, context).unwrap();
                let chunk = all.clamp(4 + 32, 512) - 4;
                let attended = planned.attended + u64::from(chunk) * u64::from(context + chunk / 2);
                let took = observe(&mut fit, Work { tokens: 4 + chunk, attended });
                longest = longest.max(took);
                (context, steps) = (context + chunk, steps + 1);
            }
            // Unlimited, it would take 12 s in one step.
            assert!(longest < 0.5 * (1.05 + 2.0 * noise), "noise {noise}: a step took {longest} s");
            assert!(steps < 60, "noise {noise}: {steps} steps");
        }
    }
}
