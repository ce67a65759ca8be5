//! Which adapters the workers have. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_proto::adapter::{AdapterId, AdapterInfo};

use crate::worker_id::WorkerId;

/// Adapters of the whole fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownAdapters {
    /// Identity by name for clients.
    pub by_name: BTreeMap<Arc<str>, AdapterId>,
    /// All adapters as if of one large worker, those that only finish requests included.
    pub list: Vec<AdapterInfo>,
}

/// Adapters by worker.
#[derive(Debug, Default)]
pub(super) struct FleetAdapters {
    /// As each worker reported them, by identity.
    of_worker: BTreeMap<WorkerId, BTreeMap<AdapterId, bool>>,
    named: BTreeMap<WorkerId, Vec<AdapterInfo>>,
    known: Arc<KnownAdapters>,
}

impl FleetAdapters {
    /// Replaces the adapters of a worker. A name that several workers give to different adapters belongs to
    /// the first worker's; requests go only to workers that have it.
    pub fn report(&mut self, id: WorkerId, adapters: Vec<AdapterInfo>) {
        let by_id = adapters.iter().map(|info| (info.id, info.is_resident)).collect();
        self.of_worker.insert(id, by_id);
        self.named.insert(id, adapters);
        let mut known = KnownAdapters::default();
        let mut by_name_and_id: BTreeMap<(&str, AdapterId), bool> = BTreeMap::new();
        for info in self.named.values().flatten() {
            if !info.name.is_empty() {
                known.by_name.entry(info.name.as_str().into()).or_insert(info.id);
            }
            *by_name_and_id.entry((&info.name, info.id)).or_default() |= info.is_resident;
        }
        let info = |((name, id), is_resident): ((&str, AdapterId), bool)| AdapterInfo {
            name: name.to_owned(),
            id,
            is_resident,
        };
        known.list = by_name_and_id.into_iter().map(info).collect();
        self.known = Arc::new(known);
    }

    /// Forgets what a worker has. Names stay known until the next report: the worker probably restarts.
    pub fn forget(&mut self, id: WorkerId) {
        self.of_worker.remove(&id);
        self.named.remove(&id);
    }

    /// Whether a worker has an adapter; if so, whether it is in memory.
    #[inline]
    pub fn find(&self, worker: WorkerId, adapter: AdapterId) -> Option<bool> {
        self.of_worker.get(&worker)?.get(&adapter).copied()
    }

    pub fn known(&self) -> Arc<KnownAdapters> {
        self.known.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, id: u64, is_resident: bool) -> AdapterInfo {
        AdapterInfo { name: name.to_owned(), id: AdapterId(id), is_resident }
    }

    #[test]
    fn names_are_those_of_any_worker_and_outlive_it_until_the_next_report() {
        let mut adapters = FleetAdapters::default();
        adapters.report(WorkerId(1), vec![info("a", 1, true), info("", 9, false)]);
        adapters.report(WorkerId(2), vec![info("a", 2, false), info("b", 3, false)]);
        let names = |adapters: &FleetAdapters| -> Vec<(String, u64)> {
            adapters.known().by_name.iter().map(|(name, id)| (name.to_string(), id.0)).collect()
        };
        assert_eq!(names(&adapters), [("a".to_owned(), 1), ("b".to_owned(), 3)]);
        assert_eq!(adapters.find(WorkerId(1), AdapterId(1)), Some(true));
        assert_eq!(adapters.find(WorkerId(1), AdapterId(9)), Some(false), "it finishes what began");
        assert_eq!(adapters.find(WorkerId(2), AdapterId(1)), None);
        assert_eq!(adapters.known().list.len(), 4);
        adapters.forget(WorkerId(2));
        assert_eq!(names(&adapters).len(), 2);
        assert_eq!(adapters.find(WorkerId(2), AdapterId(3)), None);
        adapters.report(WorkerId(1), vec![info("a", 1, true)]);
        assert_eq!(names(&adapters), [("a".to_owned(), 1)]);
    }
}
