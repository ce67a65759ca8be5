//! Sums of the workers' counters. They include only counts made while this router was connected, so they
//! never fall when a worker leaves or jump when one joins.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use skein_choice::worker_id::WorkerId;
use skein_node::metrics::ENGINE;
use skein_proto::totals::Total;

/// Sums, and the last totals of each worker.
#[derive(Debug, Default)]
pub(crate) struct Totals(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sums: BTreeMap<&'static str, Total>,
    /// Last totals with the worker's epoch.
    last: HashMap<WorkerId, (u64, Vec<Total>)>,
}

impl Totals {
    /// Processes a worker's totals at `epoch`.
    pub fn report(&self, worker: WorkerId, epoch: u64, totals: Vec<Total>) {
        if !totals.is_empty() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).report(worker, epoch, totals);
        }
    }

    /// Removes a worker that has left permanently.
    pub fn forget(&self, worker: WorkerId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last.remove(&worker);
    }

    /// Current sums; empty before the first report.
    pub fn sums(&self) -> Vec<Total> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sums.values().cloned().collect()
    }
}

impl Inner {
    fn report(&mut self, worker: WorkerId, epoch: u64, totals: Vec<Total>) {
        let before = match self.last.get(&worker) {
            Some((known, before)) if *known == epoch => before.as_slice(),
            // A new process starts at zero, so all its counts are new.
            Some(_) => &[],
            // It may have counted long before this router connected, so the first totals are only a baseline.
            None => &totals,
        };
        for metric in &ENGINE {
            let named = |totals: &[Total]| totals.iter().position(|total| total.name == metric.at_worker);
            let Some(now) = named(&totals).map(|at| &totals[at]).filter(|now| metric.fits(now)) else {
                continue;
            };
            let before = named(before).map(|at| &before[at]);
            self.sums.entry(metric.at_worker).or_insert_with(|| metric.zero()).add_difference(now, before);
        }
        self.last.insert(worker, (epoch, totals));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: &str = "skein_engine_steps_total";

    fn steps(count: u64) -> Vec<Total> {
        vec![Total { name: STEPS.into(), count, ..Total::default() }]
    }

    fn sum(totals: &Totals) -> Option<u64> {
        totals.sums().iter().find(|sum| sum.name == STEPS).map(|sum| sum.count)
    }

    #[test]
    fn what_a_worker_counts_while_it_is_known_is_in_the_sum() {
        let totals = Totals::default();
        assert_eq!(sum(&totals), None);
        let (a, b) = (WorkerId(1), WorkerId(2));
        totals.report(a, 10, steps(1000));
        assert_eq!(sum(&totals), Some(0), "counted before this router came");
        totals.report(a, 10, steps(1005));
        totals.report(b, 20, steps(0));
        totals.report(b, 20, steps(7));
        assert_eq!(sum(&totals), Some(12));
        totals.report(a, 11, steps(3));
        assert_eq!(sum(&totals), Some(15), "a restarted worker counts from 0");
        totals.report(a, 11, Vec::new());
        totals.forget(b);
        assert_eq!(sum(&totals), Some(15), "one that leaves takes nothing with it");
        totals.report(WorkerId(3), 20, steps(9));
        assert_eq!(sum(&totals), Some(15), "one that comes back is a new one");
    }

    #[test]
    fn unknown_names_and_other_buckets_are_ignored() {
        let totals = Totals::default();
        let named = |name: &str, buckets: usize| Total {
            name: name.into(),
            buckets: vec![1; buckets],
            ..Total::default()
        };
        for number in 0..100 {
            totals.report(WorkerId(1), number, vec![named(&format!("{number}"), 0), named(STEPS, 3)]);
        }
        assert_eq!(totals.sums(), Vec::new());
    }
}
