//! Changes of adapters at run time, as this router and its workers know them. Workers keep them, so a router
//! that starts learns them from any worker; routers repeat them on the workers that lack them. Pure.
//!
//! The latest change of a name counts, whoever made it: [`AdapterRecord::order`].

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_proto::adapter::{AdapterChange, AdapterId, AdapterRecord};

use super::adapters::KnownAdapters;
use crate::worker_id::WorkerId;

/// Most names, and most unloaded adapters, that are kept for workers that connect later; then the oldest is
/// forgotten.
const MOST_RECORDS: usize = 4096;

/// Orders of the changes of names.
type Orders = BTreeMap<String, (u64, bool, u64)>;

/// The changes that count.
#[derive(Debug, Default)]
pub struct AdapterRecords {
    by_name: BTreeMap<String, AdapterRecord>,
    /// Adapters without a name, for requests that had begun; oldest first.
    retired: Vec<AdapterRecord>,
    /// The latest changes that each worker has or was sent.
    seen: BTreeMap<WorkerId, Orders>,
}

impl AdapterRecords {
    /// Adds what a worker or a request said; whether anything is new.
    pub fn merge(&mut self, records: &[AdapterRecord]) -> bool {
        let mut is_new = false;
        for record in records {
            is_new |= if record.name.is_empty() { self.retire(record) } else { self.put(record) };
        }
        while self.by_name.len() > MOST_RECORDS {
            let unloaded = self.by_name.values().filter(|record| id_of(record).is_none());
            let Some(oldest) = unloaded.min_by_key(|record| record.order()) else { break };
            let oldest = oldest.name.clone();
            self.by_name.remove(&oldest);
        }
        let surplus = self.retired.len().saturating_sub(MOST_RECORDS);
        self.retired.drain(..surplus);
        is_new
    }

    fn put(&mut self, record: &AdapterRecord) -> bool {
        if self.by_name.get(&record.name).is_some_and(|old| old.order() >= record.order()) {
            return false;
        }
        // Streams of its former adapter may still move to a worker that starts later.
        if let Some(AdapterRecord { change: AdapterChange::Loaded { path, id, .. }, .. }) =
            self.by_name.insert(record.name.clone(), record.clone())
        {
            let change = AdapterChange::Loaded { path, id, stamp: 0 };
            self.retire(&AdapterRecord { name: String::new(), change });
        }
        true
    }

    fn retire(&mut self, record: &AdapterRecord) -> bool {
        let is_new = self.retired.iter().all(|other| id_of(other) != id_of(record));
        if is_new {
            self.retired.push(record.clone());
        }
        is_new
    }

    /// A stamp above all others, at least `unix_ms`, the milliseconds since 1970.
    pub fn next_stamp(&self, unix_ms: u64) -> u64 {
        let latest = self.by_name.values().map(|record| record.order().0).max().unwrap_or(0);
        unix_ms.max(latest + 1)
    }

    /// A worker has connected: it may have started again.
    pub fn connected(&mut self, worker: WorkerId) {
        self.seen.remove(&worker);
    }

    /// A worker has `records`, or was sent them.
    pub fn saw(&mut self, worker: WorkerId, records: &[AdapterRecord]) {
        let seen = self.seen.entry(worker).or_default();
        for record in records.iter().filter(|record| !record.name.is_empty()) {
            let order = seen.entry(record.name.clone()).or_insert_with(|| record.order());
            *order = record.order().max(*order);
        }
    }

    /// A worker is gone.
    pub fn forget(&mut self, worker: WorkerId) {
        self.seen.remove(&worker);
    }

    /// Everything, in an order in which a worker can take it.
    pub fn all(&self) -> Vec<AdapterRecord> {
        self.retired.iter().chain(self.by_name.values()).cloned().collect()
    }

    /// Changes of names that a worker neither has nor was sent.
    pub fn lacking(&self, worker: WorkerId) -> Vec<AdapterRecord> {
        let none = Orders::new();
        let seen = self.seen.get(&worker).unwrap_or(&none);
        let lacks =
            |record: &&AdapterRecord| seen.get(&record.name).is_none_or(|order| *order < record.order());
        self.by_name.values().filter(lacks).cloned().collect()
    }

    /// `known` by the changes that count: a worker may not have taken them yet.
    pub fn resolve(&self, known: &KnownAdapters) -> KnownAdapters {
        let mut resolved = known.clone();
        for info in &mut resolved.list {
            let is_other = |record: &AdapterRecord| id_of(record) != Some(info.id);
            if self.by_name.get(&info.name).is_some_and(is_other) {
                info.name.clear();
            }
        }
        for record in self.by_name.values() {
            let name: Arc<str> = record.name.as_str().into();
            let id = id_of(record).filter(|id| known.list.iter().any(|info| info.id == *id));
            if let Some(id) = id.filter(|_| known.by_name.contains_key(&name)) {
                resolved.by_name.insert(name, id);
            } else {
                resolved.by_name.remove(&name);
            }
        }
        resolved
    }
}

/// The adapter of a name; `None` if it was unloaded.
fn id_of(record: &AdapterRecord) -> Option<AdapterId> {
    match record.change {
        AdapterChange::Loaded { id, .. } => Some(id),
        AdapterChange::Unloaded { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use skein_proto::adapter::AdapterInfo;

    use super::*;

    fn loaded(name: &str, id: u64, stamp: u64) -> AdapterRecord {
        let change = AdapterChange::Loaded { path: format!("/{id}"), id: AdapterId(id), stamp };
        AdapterRecord { name: name.to_owned(), change }
    }

    fn unloaded(name: &str, stamp: u64) -> AdapterRecord {
        AdapterRecord { name: name.to_owned(), change: AdapterChange::Unloaded { stamp } }
    }

    #[test]
    fn later_workers_get_the_changes_that_count() {
        let mut records = AdapterRecords::default();
        assert_eq!(records.next_stamp(5), 5);
        assert!(records.merge(&[loaded("a", 1, 5), loaded("b", 2, 6)]));
        assert!(records.merge(&[unloaded("a", 7)]));
        assert_eq!(records.next_stamp(5), 8);
        let retired = loaded("", 1, 0);
        let expected = [retired.clone(), unloaded("a", 7), loaded("b", 2, 6)];
        assert_eq!(records.all(), expected, "streams of a may still move");
        // A worker that was away still has the name.
        assert!(!records.merge(&[loaded("a", 1, 5), retired.clone()]));
        assert_eq!(records.all(), expected);
        assert!(records.merge(&[loaded("a", 3, 9)]));
        assert_eq!(records.all(), [retired, loaded("a", 3, 9), loaded("b", 2, 6)]);
    }

    #[test]
    fn two_routers_that_load_one_name_agree_on_the_later_one() {
        let changes = [loaded("a", 1, 5), loaded("a", 2, 6), unloaded("b", 6), loaded("b", 3, 6)];
        let (mut one, mut other) = (AdapterRecords::default(), AdapterRecords::default());
        for (change, from_the_end) in changes.iter().zip(changes.iter().rev()) {
            one.merge(std::slice::from_ref(change));
            other.merge(std::slice::from_ref(from_the_end));
        }
        let named = |records: &AdapterRecords| records.by_name.values().cloned().collect::<Vec<_>>();
        assert_eq!(named(&one), [loaded("a", 2, 6), unloaded("b", 6)]);
        assert_eq!(named(&one), named(&other));
    }

    #[test]
    fn each_change_is_sent_to_a_worker_once_until_it_connects_again() {
        let (mut records, worker) = (AdapterRecords::default(), WorkerId(1));
        records.merge(&[loaded("a", 1, 5), unloaded("b", 6)]);
        records.saw(worker, &[loaded("a", 1, 4)]);
        assert_eq!(records.lacking(worker), [loaded("a", 1, 5), unloaded("b", 6)]);
        let lacking = records.lacking(worker);
        records.saw(worker, &lacking);
        records.saw(worker, &[loaded("a", 1, 4)]);
        assert_eq!(records.lacking(worker), [], "it may have refused them");
        records.connected(worker);
        assert_eq!(records.lacking(worker).len(), 2);
    }

    #[test]
    fn a_name_that_was_unloaded_does_not_come_back_from_a_worker_that_was_away() {
        let info = |name: &str, id| AdapterInfo { name: name.into(), id: AdapterId(id), is_resident: true };
        let by_name = [("a", 1), ("b", 2), ("c", 3)];
        let known = KnownAdapters {
            by_name: by_name.map(|(name, id)| (name.into(), AdapterId(id))).into_iter().collect(),
            list: vec![info("a", 1), info("b", 2), info("b", 4), info("c", 3)],
        };
        let mut records = AdapterRecords::default();
        assert_eq!(records.resolve(&known), known);
        records.merge(&[unloaded("a", 5), loaded("b", 4, 6), loaded("nowhere", 7, 8)]);
        let resolved = records.resolve(&known);
        let names: Vec<_> = resolved.by_name.iter().map(|(name, id)| (&**name, id.0)).collect();
        assert_eq!(names, [("b", 4), ("c", 3)]);
        let listed: Vec<_> = resolved.list.iter().map(|info| (&*info.name, info.id.0)).collect();
        assert_eq!(listed, [("", 1), ("", 2), ("b", 4), ("c", 3)]);
    }
}
