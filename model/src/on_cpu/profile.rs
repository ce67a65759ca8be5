//! Measures the time spent in each part of a step.
//!
//! When off, it costs a branch per operation; when on, a clock reading of about 30 ns, too short to distort a
//! step.

use std::time::Duration;

use skein_node::clock::{self, Timestamp};

/// Part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Embedding lookups and rotary angles.
    Embed,
    /// Norms, and encoding the inputs of products.
    Encode,
    /// Products of the layers, including the gate between two of them.
    Products,
    /// Rotating queries and keys, and writing to the cache.
    Cache,
    /// Attention over the cache.
    Attention,
    /// The product with the head.
    Head,
    /// Drawing and scoring tokens.
    Sample,
}

impl Part {
    /// All parts, in the order of a step.
    pub const ALL: [Self; 7] =
        [Self::Embed, Self::Encode, Self::Products, Self::Cache, Self::Attention, Self::Head, Self::Sample];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Encode => "norm and encode",
            Self::Products => "products",
            Self::Cache => "rope and cache",
            Self::Attention => "attention",
            Self::Head => "head",
            Self::Sample => "sample",
        }
    }

    /// Whether it multiplies by weights.
    pub fn is_product(self) -> bool {
        matches!(self, Self::Products | Self::Head)
    }
}

/// Time by part, summed over steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Profile {
    is_on: bool,
    last: Timestamp,
    times: [Duration; Part::ALL.len()],
}

impl Profile {
    /// A profile that is on and empty.
    pub fn measuring() -> Self {
        Self { is_on: true, ..Self::default() }
    }

    /// Starts the time of the next mark.
    #[inline]
    pub(crate) fn start(&mut self) {
        if self.is_on {
            self.last = clock::now();
        }
    }

    /// Adds the time since the last mark or start to `part`.
    #[inline]
    pub fn mark(&mut self, part: Part) {
        if self.is_on {
            let now = clock::now();
            self.times[part as usize] += now.since(self.last);
            self.last = now;
        }
    }

    /// Time spent on `part`.
    pub fn time(&self, part: Part) -> Duration {
        self.times[part as usize]
    }

    /// Time of all parts.
    pub fn total(&self) -> Duration {
        self.times.iter().sum()
    }

    /// Fraction of the time spent outside products, from 0 to 1.
    pub fn share_beyond_products(&self) -> f64 {
        let beyond: Duration =
            Part::ALL.iter().filter(|part| !part.is_product()).map(|part| self.time(*part)).sum();
        beyond.as_secs_f64() / self.total().as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_nothing_is_measured_unless_asked() {
        let mut off = Profile::default();
        off.start();
        off.mark(Part::Head);
        assert_eq!(off.total(), Duration::ZERO);
        let mut profile = Profile::measuring();
        profile.start();
        for (i, part) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, i, "parts index times");
            profile.mark(part);
        }
        profile.times = [1, 2, 10, 1, 1, 4, 1].map(Duration::from_millis);
        assert_eq!(
            (profile.total(), profile.time(Part::Head)),
            (Duration::from_millis(20), Duration::from_millis(4))
        );
        assert!((profile.share_beyond_products() - 0.3).abs() < 1e-9);
    }
}
