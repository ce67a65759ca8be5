//! What predictions leave out, learned from what came of them. Pure.
//!
//! A prediction adds up tokens at measured rates. It knows nothing of what each request costs besides: the
//! fixed part of a step, the network, tokens that wait where no report counts them. So the router fits
//! `actual = fixed + factor * predicted` to the latest first tokens of all workers. A prediction is in
//! seconds at its worker's own rates, so workers of different speeds share the fit.

use std::time::Duration;

/// Factor by which each first token multiplies the weights of all older ones: half of it is of the latest 70.
const KEEP: f64 = 0.99;
/// Weight of the assumption that predictions are right, in first tokens.
const PRIOR: f64 = 4.0;
/// Errors above this fraction count less, in proportion: a request that met others by chance says little of
/// the next one.
const USUAL_ERROR: f64 = 0.1;
/// Shortest time that errors are a fraction of, in seconds.
const SHORTEST: f64 = 0.001;
/// The factor's range: a rate that is further off was measured on something else.
const FACTORS: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// The fit, as weighted sums.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Calibration {
    weight: f64,
    predicted: f64,
    actual: f64,
    predicted_predicted: f64,
    predicted_actual: f64,
}

impl Calibration {
    /// Learns from a first token after `actual`, for which the terms of the prediction added up to
    /// `predicted` seconds.
    pub fn observe(&mut self, predicted: f64, actual: Duration) {
        let actual = actual.as_secs_f64();
        if !predicted.is_finite() {
            return;
        }
        let expected = self.seconds(predicted).max(SHORTEST);
        let error = (actual - expected).abs() / expected;
        // Relative errors count, so long prompts do not decide for short ones.
        let weight = (USUAL_ERROR / error.max(USUAL_ERROR)) / expected.powi(2);
        let add = |sum: &mut f64, value: f64| *sum = *sum * KEEP + weight * value;
        add(&mut self.weight, 1.0);
        add(&mut self.predicted, predicted);
        add(&mut self.actual, actual);
        add(&mut self.predicted_predicted, predicted * predicted);
        add(&mut self.predicted_actual, predicted * actual);
    }

    /// The time to the first token, in seconds, where the terms of the prediction add up to `predicted`.
    pub fn seconds(&self, predicted: f64) -> f64 {
        let (fixed, factor) = self.line();
        fixed + factor * predicted
    }

    /// Fixed seconds and the factor.
    fn line(&self) -> (f64, f64) {
        if self.weight == 0.0 {
            return (0.0, 1.0);
        }
        // Before there are many, the assumption counts as some of the same weight, at the same predictions.
        let prior = PRIOR * (1.0 - KEEP);
        let keep = |actual: f64, predicted: f64| (actual + prior * predicted) / (1.0 + prior);
        let (actual, predicted_actual) =
            (keep(self.actual, self.predicted), keep(self.predicted_actual, self.predicted_predicted));
        let spread = self.weight * self.predicted_predicted - self.predicted * self.predicted;
        let slope = (self.weight * predicted_actual - self.predicted * actual) / spread;
        let has_spread = spread > 1e-3 * self.weight * self.predicted_predicted;
        let factor = if has_spread { slope.clamp(*FACTORS.start(), *FACTORS.end()) } else { 1.0 };
        let fixed = (actual - factor * self.predicted) / self.weight;
        (fixed.max(0.0), factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(calibration: &mut Calibration, count: u32, actual: impl Fn(f64) -> f64) {
        for nth in 0..count {
            let predicted = f64::from(nth * 37 % 100) * 0.002;
            calibration.observe(predicted, Duration::from_secs_f64(actual(predicted)));
        }
    }

    #[track_caller]
    fn check(calibration: &Calibration, actual: impl Fn(f64) -> f64) {
        for predicted in [0.0, 0.01, 0.05, 0.2] {
            let (got, expected) = (calibration.seconds(predicted), actual(predicted));
            assert!((got - expected).abs() <= 0.05 * expected, "{predicted}: {got} instead of {expected}");
        }
    }

    #[test]
    fn predictions_are_taken_as_they_are_until_something_is_known() {
        assert!((Calibration::default().seconds(0.3) - 0.3).abs() < 1e-12);
    }

    #[test]
    fn it_learns_what_each_request_costs_besides_its_tokens() {
        let mut calibration = Calibration::default();
        let actual = |predicted| 0.007 + 0.9 * predicted;
        learn(&mut calibration, 300, actual);
        check(&calibration, actual);
        // And unlearns it.
        let actual = |predicted| 0.03 + 1.2 * predicted;
        learn(&mut calibration, 1000, actual);
        check(&calibration, actual);
    }

    #[test]
    fn a_few_that_waited_for_long_change_little() {
        let mut calibration = Calibration::default();
        let actual = |predicted| 0.007 + predicted;
        learn(&mut calibration, 300, actual);
        for nth in 0..200 {
            let late = if nth % 10 == 0 { 1.0 } else { 0.0 };
            let predicted = f64::from(nth * 37 % 100) * 0.002;
            calibration.observe(predicted, Duration::from_secs_f64(actual(predicted) + late));
        }
        let got = calibration.seconds(0.05);
        assert!((0.05..0.075).contains(&got), "{got}");
    }

    #[test]
    fn equal_or_nonsensical_predictions_break_nothing() {
        let mut calibration = Calibration::default();
        (0..100).for_each(|_| calibration.observe(0.1, Duration::from_millis(150)));
        assert!((calibration.seconds(0.1) - 0.15).abs() < 0.01, "{calibration:?}");
        for predicted in [f64::INFINITY, f64::NAN, 0.0, 1e9] {
            calibration.observe(predicted, Duration::from_secs(3));
            assert!(calibration.seconds(0.1).is_finite() && calibration.seconds(0.1) >= 0.05);
        }
    }
}
