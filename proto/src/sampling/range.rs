//! The allowed range of each numeric sampling parameter.

use std::fmt;

/// The values that a parameter may take. NaN and infinity are never allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// Name of the parameter, as in the API.
    pub name: &'static str,
    /// The lowest value, or with `above_low` the exclusive bound.
    pub low: f64,
    /// The highest value; infinite = no upper bound.
    pub high: f64,
    /// `low` itself is not allowed.
    pub above_low: bool,
    /// The neutral value, where it is not obvious from the range.
    pub off: Option<f64>,
}

impl Range {
    /// 0 = greedy.
    pub const TEMPERATURE: Self = Self::closed("temperature", 0.0, 2.0);
    /// Cumulative probability of the tokens kept.
    pub const TOP_P: Self = Self { off: Some(1.0), above_low: true, ..Self::closed("top_p", 0.0, 1.0) };
    /// Probability relative to the most probable token.
    pub const MIN_P: Self = Self { off: Some(0.0), ..Self::closed("min_p", 0.0, 1.0) };
    /// The range for clients; workers accept anything above 0.
    pub const REPETITION_PENALTY: Self =
        Self { off: Some(1.0), above_low: true, ..Self::closed("repetition_penalty", 0.0, 10.0) };
    /// Subtracted from the logits of tokens that occurred.
    pub const PRESENCE_PENALTY: Self = Self::closed("presence_penalty", -2.0, 2.0);
    /// Subtracted from the logit once for each occurrence.
    pub const FREQUENCY_PENALTY: Self = Self::closed("frequency_penalty", -2.0, 2.0);
    /// Added to the logit of one token.
    pub const BIAS: Self = Self::closed("logit_bias.bias", -100.0, 100.0);

    const fn closed(name: &'static str, low: f64, high: f64) -> Self {
        Self { name, low, high, above_low: false, off: None }
    }

    /// Whether the parameter may be `value`, which is later rounded to 32 bits.
    pub fn has(&self, value: f64) -> bool {
        // A value above 0 in 64 bits must stay above 0 in 32.
        let above_low = value > self.low && f64::from(value as f32) > self.low;
        let is_above = if self.above_low { above_low } else { value >= self.low };
        is_above && value <= self.high && value.is_finite()
    }

    /// `value` as a worker takes it.
    ///
    /// # Errors
    /// If `value` is out of range.
    pub fn check(self, value: f64) -> Result<f32, OutOfRange> {
        if self.has(value) { Ok(value as f32) } else { Err(OutOfRange { range: self, value }) }
    }
}

/// The form used in a worker's refusals: `0..=1 (0 = off)`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high, .. } = self;
        match (self.above_low, high.is_finite()) {
            (false, _) => write!(f, "{low}..={high}")?,
            (true, true) => write!(f, "above {low}, at most {high}")?,
            (true, false) => write!(f, "above {low}")?,
        }
        self.off.map_or(Ok(()), |off| write!(f, " ({off} = off)"))
    }
}

/// A number out of its parameter's range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "{} must be in {}{}, {}], got {}.",
    range.name, if range.above_low { '(' } else { '[' }, range.low, range.high, shown(*value)
)]
pub struct OutOfRange {
    /// The parameter's range.
    pub range: Range,
    /// The value that was refused.
    pub value: f64,
}

/// Formats `value` briefly: very small and very large numbers get an exponent instead of many zeros.
pub fn shown(value: f64) -> impl fmt::Display {
    const PLAIN: std::ops::Range<f64> = 1e-4..1e16;
    let is_plain = value == 0.0 || !value.is_finite() || PLAIN.contains(&value.abs());
    fmt::from_fn(move |f| if is_plain { write!(f, "{value}") } else { write!(f, "{value:e}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_what_it_has() {
        let check = |range: Range, text: &str, inside: &[f64], outside: &[f64]| {
            assert_eq!(range.to_string(), text);
            assert!(inside.iter().all(|value| range.has(*value)), "{inside:?} in {range}");
            assert!(outside.iter().all(|value| !range.has(*value)), "{outside:?} not in {range}");
        };
        check(Range::TEMPERATURE, "0..=2", &[0.0, 2.0], &[-0.1, 2.1, f64::NAN, f64::INFINITY]);
        check(Range::TOP_P, "above 0, at most 1 (1 = off)", &[1e-40, 1.0], &[0.0, 1e-300, 1.1]);
        check(Range::MIN_P, "0..=1 (0 = off)", &[0.0, 1.0], &[-0.1, f64::NAN]);
        let any = Range { high: f64::INFINITY, ..Range::REPETITION_PENALTY };
        check(any, "above 0 (1 = off)", &[0.1, 1e30], &[0.0, f64::INFINITY, f64::NAN]);
        check(Range::PRESENCE_PENALTY, "-2..=2", &[-2.0, 2.0], &[-2.1]);
        let refused = |range: Range| range.check(11.0).expect_err("too high").to_string();
        assert_eq!(refused(Range::MIN_P), "min_p must be in [0, 1], got 11.");
        assert_eq!(refused(Range::REPETITION_PENALTY), "repetition_penalty must be in (0, 10], got 11.");
    }

    #[test]
    fn a_tiny_or_huge_value_is_told_in_few_characters() {
        let message = |value: f64| Range::TOP_P.check(value).expect_err("out of range").to_string();
        assert_eq!(message(1e-320), "top_p must be in (0, 1], got 1e-320.");
        assert_eq!(message(-1e30), "top_p must be in (0, 1], got -1e30.");
        assert_eq!(message(0.0), "top_p must be in (0, 1], got 0.");
        assert_eq!(message(-0.25), "top_p must be in (0, 1], got -0.25.");
        assert_eq!(message(f64::NAN), "top_p must be in (0, 1], got NaN.");
    }
}
