//! Counts of a store, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a store has and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Turns now.
    pub turns: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Turns stored since the start.
    pub stored: u64,
    /// Turns that were not stored, because the disk or the store had no room or failed.
    pub not_stored: u64,
    /// Turns removed after their time.
    pub expired: u64,
    /// Turns removed to make room.
    pub evicted: u64,
    /// Turns deleted by their owner.
    pub deleted: u64,
}

/// The same, changed by the thread that writes.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub turns: AtomicU64,
    pub bytes: AtomicU64,
    pub stored: AtomicU64,
    pub not_stored: AtomicU64,
    pub expired: AtomicU64,
    pub evicted: AtomicU64,
    pub deleted: AtomicU64,
}

impl Live {
    /// The counts now.
    pub fn read(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            turns: of(&self.turns),
            bytes: of(&self.bytes),
            stored: of(&self.stored),
            not_stored: of(&self.not_stored),
            expired: of(&self.expired),
            evicted: of(&self.evicted),
            deleted: of(&self.deleted),
        }
    }
}
