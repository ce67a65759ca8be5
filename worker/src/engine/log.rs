//! State for routers: a bounded ring of numbered entries and the latest load. The engine writes, and any
//! number of watchers read at their own pace. A watcher that falls behind the ring takes a snapshot.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skein_node::signal::{Listener, Signal};
use skein_proto::load::{Load, LoadReport};
use skein_proto::placement::Placement;
use skein_proto::runs::CacheChange;
use skein_proto::watch::{Admitted, WatchBody};

use crate::streams::Counts;

/// Entries kept for watchers that reconnect or lag.
const MAX_ENTRIES: usize = 4096;

/// Most block hashes in all entries together: 2 MiB.
const MAX_HASHES: usize = 256 * 1024;

/// Most routers whose last placement is remembered; the least recently seen is forgotten.
const MAX_ROUTERS: usize = 256;

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    /// Blocks were cached or evicted.
    Cache(CacheChange),
    /// A request was accepted.
    Admitted(Admitted),
}

impl LogEntry {
    fn hashes(&self) -> usize {
        match self {
            Self::Cache(change) => {
                change.gaps.len() + change.stored.iter().map(|run| run.hashes.len()).sum::<usize>()
            }
            Self::Admitted(admitted) => admitted.hashes.len(),
        }
    }
}

impl From<LogEntry> for WatchBody {
    fn from(entry: LogEntry) -> Self {
        match entry {
            LogEntry::Cache(change) => Self::Cache(change),
            LogEntry::Admitted(admitted) => Self::Admitted(admitted),
        }
    }
}

/// Log and load, shared by the engine and its watchers. Entries are numbered from 1.
#[derive(Debug)]
pub struct StateLog {
    inner: Mutex<Inner>,
    draining: AtomicBool,
    giving_back: AtomicBool,
    ordered_drain: AtomicBool,
    changed: Signal,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<Arc<LogEntry>>,
    hashes: usize,
    /// Number of the newest entry; 0 before the first.
    last: u64,
    load: Load,
    /// Steps collected since start.
    step: u64,
    counts: Counts,
    /// Least recently seen router first.
    placements: VecDeque<Placement>,
}

impl Inner {
    fn last_placement(&self, router: u64) -> u64 {
        self.placements.iter().find(|placement| placement.router == router).map_or(0, |known| known.sequence)
    }
}

impl Default for StateLog {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            draining: AtomicBool::new(false),
            giving_back: AtomicBool::new(false),
            ordered_drain: AtomicBool::new(false),
            changed: Signal::default(),
        }
    }
}

impl StateLog {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.changed.send();
    }

    pub(crate) fn append(&self, entry: LogEntry) {
        let mut inner = self.lock();
        inner.hashes += entry.hashes();
        inner.entries.push_back(Arc::new(entry));
        inner.last += 1;
        while inner.entries.len() > MAX_ENTRIES || inner.hashes > MAX_HASHES {
            let Some(oldest) = inner.entries.pop_front() else { break };
            inner.hashes -= oldest.hashes();
        }
        drop(inner);
        self.wake();
    }

    pub(super) fn set_load(&self, load: Load, step: u64) {
        let mut inner = self.lock();
        let changed = (inner.load, inner.step) != (load, step);
        (inner.load, inner.step) = (load, step);
        drop(inner);
        if changed {
            self.wake();
        }
    }

    pub(super) fn set_counts(&self, counts: Counts) {
        self.lock().counts = counts;
    }

    /// Requests by outcome, as of the latest load.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Records that this dispatch arrived, accepted or not.
    pub fn saw(&self, placement: Placement) {
        let mut inner = self.lock();
        let known = inner.placements.iter().position(|other| other.router == placement.router);
        let before = known.and_then(|index| inner.placements.remove(index)).map_or(0, |known| known.sequence);
        let sequence = before.max(placement.sequence);
        inner.placements.push_back(Placement { sequence, ..placement });
        if inner.placements.len() > MAX_ROUTERS {
            inner.placements.pop_front();
        }
    }

    /// Number of the last dispatch seen from `router`; 0 if none.
    pub fn last_placement(&self, router: u64) -> u64 {
        self.lock().last_placement(router)
    }

    /// Announces that new requests are refused from now on.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Announces that routers should move their running requests to another worker, if they have one.
    pub fn set_giving_back(&self) {
        self.giving_back.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// An operator's order to drain, or to take requests again. A shutdown stays one.
    pub fn order_drain(&self, on: bool) {
        self.ordered_drain.store(on, Ordering::Relaxed);
        self.wake();
    }

    fn is_ordered_to_drain(&self) -> bool {
        self.ordered_drain.load(Ordering::Relaxed)
    }

    /// Whether running requests should move to another worker.
    pub fn is_giving_back(&self) -> bool {
        self.giving_back.load(Ordering::Relaxed) || self.is_ordered_to_drain()
    }

    /// Whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed) || self.is_ordered_to_drain()
    }

    /// The latest load.
    pub fn load(&self) -> Load {
        self.lock().load
    }

    /// Steps collected since start, as of the latest load.
    pub fn step(&self) -> u64 {
        self.lock().step
    }

    /// The latest load report for `router`.
    pub fn report(&self, router: u64) -> LoadReport {
        let inner = self.lock();
        LoadReport {
            load: inner.load,
            step: inner.step,
            last_placement_sequence: inner.last_placement(router),
            draining: self.is_draining(),
            giving_back: self.is_giving_back(),
        }
    }

    /// Number of the newest entry; 0 before the first.
    pub fn last_sequence(&self) -> u64 {
        self.lock().last
    }

    /// At most `most` entries from number `next` on. `None` if the ring no longer reaches back that far, or
    /// if `next` lies in the future.
    pub fn entries_from(&self, next: u64, most: usize) -> Option<Vec<Arc<LogEntry>>> {
        let inner = self.lock();
        let first = inner.last + 1 - inner.entries.len() as u64;
        let skip = next.checked_sub(first).filter(|_| next <= inner.last + 1)?;
        Some(inner.entries.iter().skip(skip as usize).take(most).cloned().collect())
    }

    /// Whether an entry from number `first` on is a request of another router than `router`.
    pub fn has_admitted_from_another(&self, first: u64, router: u64) -> bool {
        let inner = self.lock();
        let new = (inner.last + 1).saturating_sub(first) as usize;
        inner.entries.iter().rev().take(new).any(
            |entry| matches!(&**entry, LogEntry::Admitted(admitted) if admitted.placement.router != router),
        )
    }

    /// A listener that wakes on every change.
    pub fn subscribe(&self) -> Listener {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(depth: u32, hashes: usize) -> LogEntry {
        let placement = Placement { router: 1, sequence: 1 };
        LogEntry::Admitted(Admitted { placement, depth, hashes: vec![0; hashes], stream_key: None })
    }

    #[test]
    fn readers_continue_where_they_were_or_start_over() {
        let log = StateLog::default();
        assert_eq!(log.entries_from(1, 10).map(|entries| entries.len()), Some(0), "nothing yet");
        for depth in 0..MAX_ENTRIES as u32 + 5 {
            log.append(entry(depth, 0));
        }
        let last = log.last_sequence();
        assert_eq!(last, MAX_ENTRIES as u64 + 5);
        assert_eq!(log.entries_from(5, 10), None, "forgotten");
        assert_eq!(log.entries_from(last + 2, 10), None, "a number from before a restart");
        assert_eq!(log.entries_from(6, 1), Some(vec![Arc::new(entry(5, 0))]), "entry n has depth n - 1");
        assert_eq!(log.entries_from(last + 1, 10), Some(Vec::new()));
    }

    #[test]
    fn the_ring_is_bounded_in_hashes_too() {
        let log = StateLog::default();
        for depth in 0..10 {
            log.append(entry(depth, MAX_HASHES / 4));
        }
        assert_eq!(log.lock().entries.len(), 4);
    }

    #[test]
    fn the_last_placement_of_each_router_is_kept() {
        let log = StateLog::default();
        for (router, sequence) in [(1, 5), (2, 9), (1, 4)] {
            log.saw(Placement { router, sequence });
        }
        assert_eq!([1, 2, 3].map(|router| log.last_placement(router)), [5, 9, 0]);
        for router in 10..10 + MAX_ROUTERS as u64 {
            log.saw(Placement { router, sequence: 1 });
        }
        assert_eq!(log.last_placement(1), 0, "forgotten, not kept forever");
    }
}
