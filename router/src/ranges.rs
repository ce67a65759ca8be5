//! The ranges of sampling parameters, for requests and for a model's own defaults. Pure.

use crate::refusal::Refusal;

/// What a number may be; with `open_low` not `low` itself.
pub struct Range {
    low: f64,
    high: f64,
    open_low: bool,
}

impl Range {
    pub const TEMPERATURE: Self = Self { low: 0.0, high: 2.0, open_low: false };
    pub const TOP_P: Self = Self { low: 0.0, high: 1.0, open_low: true };
    pub const MIN_P: Self = Self { low: 0.0, high: 1.0, open_low: false };
    pub const REPETITION_PENALTY: Self = Self { low: 0.0, high: 10.0, open_low: true };
    pub const OTHER_PENALTY: Self = Self { low: -2.0, high: 2.0, open_low: false };
}

/// `value` as the worker takes it; NaN and infinities are in no range.
pub fn number(name: &'static str, value: f64, range: &Range) -> Result<f32, Refusal> {
    let Range { low, high, open_low } = range;
    let above = if *open_low { value > *low } else { value >= *low };
    // What is above 0 in 64 bits must stay so in 32.
    if above && value <= *high && !(*open_low && value as f32 <= 0.0) {
        return Ok(value as f32);
    }
    let bracket = if *open_low { '(' } else { '[' };
    Err(Refusal::invalid(name, format!("{name} must be in {bracket}{low}, {high}], got {value}.")))
}

/// `value` within `low..=high`, if there is one.
pub fn whole(name: &'static str, value: Option<i64>, low: i64, high: i64) -> Result<Option<u32>, Refusal> {
    match value {
        None => Ok(None),
        Some(value) if (low..=high).contains(&value) => Ok(u32::try_from(value).ok()),
        Some(value) => {
            Err(Refusal::invalid(name, format!("{name} must be in [{low}, {high}], got {value}.")))
        }
    }
}

/// `top_k` as the worker takes it: 0 is off.
pub fn top_k(value: i64, vocab_size: u32) -> Result<u32, Refusal> {
    match value {
        -1 | 0 => Ok(0),
        // More than the vocabulary is all of it.
        1.. => Ok(u32::try_from(value).unwrap_or(u32::MAX).min(vocab_size)),
        _ => {
            Err(Refusal::invalid("top_k", format!("top_k must be -1 or 0 (off) or at least 1, got {value}.")))
        }
    }
}
