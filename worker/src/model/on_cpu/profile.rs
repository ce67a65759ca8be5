//! Where the time of a step goes.
//!
//! Off, it costs a branch an operation; on, a reading of the clock, some 30 ns, so that what it says is a step's own time.

use std::time::Duration;

use skein_node::clock::{self, Timestamp};

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Looking up embeddings, and the angles of positions.
    Embed,
    /// Normalising rows, and encoding them or what was attended for a product.
    Encode,
    /// The layers' products, with the gate that is computed amid two of them.
    Products,
    /// Rotating queries and keys, and writing keys and values to the cache.
    Cache,
    /// Attention.
    Attention,
    /// The product that gives logits.
    Head,
    /// Drawing and scoring tokens.
    Sample,
}

impl Part {
    /// All of them, in the order of a step.
    pub const ALL: [Self; 7] =
        [Self::Embed, Self::Encode, Self::Products, Self::Cache, Self::Attention, Self::Head, Self::Sample];

    /// For reports.
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
    /// One that measures, from nothing.
    pub fn measuring() -> Self {
        Self { is_on: true, ..Self::default() }
    }

    /// What follows belongs to the next part that is marked.
    #[inline]
    pub(crate) fn start(&mut self) {
        if self.is_on {
            self.last = clock::now();
        }
    }

    /// What was since the last mark or start belongs to `part`.
    #[inline]
    pub(crate) fn mark(&mut self, part: Part) {
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

    /// The share of the time that was not spent on products, from 0 to 1.
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
