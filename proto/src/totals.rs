//! Counters of a worker since its start, for routers that serve sums over their workers.

use crate::worker::v1 as wire;

/// Value of one counter or histogram.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Total {
    /// Name of the metric at the worker.
    pub name: String,
    /// Value of a counter.
    pub count: u64,
    /// Sum of a histogram's observations.
    pub sum: f64,
    /// Observations in each bucket of a histogram, not cumulative, with those above all bounds last; empty
    /// for a counter.
    pub buckets: Vec<u64>,
}

impl Total {
    /// Adds the increase from `before`, an earlier value of the same process, to `now`. A decrease adds
    /// nothing.
    pub fn add_difference(&mut self, now: &Self, before: Option<&Self>) {
        let beyond = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
        self.count += beyond(now.count, before.map(|before| before.count));
        self.sum += (now.sum - before.map_or(0.0, |before| before.sum)).max(0.0);
        for (at, (own, &now)) in self.buckets.iter_mut().zip(&now.buckets).enumerate() {
            *own += beyond(now, before.and_then(|before| before.buckets.get(at).copied()));
        }
    }
}

impl From<Total> for wire::Total {
    fn from(Total { name, count, sum, buckets }: Total) -> Self {
        Self { name, count, sum, buckets }
    }
}

impl From<wire::Total> for Total {
    fn from(wire::Total { name, count, sum, buckets }: wire::Total) -> Self {
        Self { name, count, sum, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(count: u64, sum: f64, buckets: &[u64]) -> Total {
        Total { name: "t".into(), count, sum, buckets: buckets.to_vec() }
    }

    #[test]
    fn only_increments_are_added() {
        let mut sum = total(0, 0.0, &[0, 0]);
        sum.add_difference(&total(3, 1.5, &[2, 1]), None);
        sum.add_difference(&total(5, 2.5, &[3, 2]), Some(&total(3, 1.5, &[2, 1])));
        assert_eq!(sum, total(5, 2.5, &[3, 2]));
        sum.add_difference(&total(1, 0.5, &[0, 1]), Some(&total(5, 2.5, &[3, 2])));
        assert_eq!(sum, total(5, 2.5, &[3, 2]), "a counter never falls");
    }
}
