//! Limits of a store.

use std::time::Duration;

/// Most turns that an answer may continue, one after the other.
pub const MAX_TURNS: usize = 10_000;
/// Most bytes in an answer and all turns that it continues, as JSON: twice the longest body of a request.
pub const MAX_CONTEXT_BYTES: u64 = 16 << 20;
/// Most reads and writes that wait; further ones wait before they are queued.
pub const MAX_WAITING: usize = 1024;
/// Most reads and writes in a queue: those that wait, and those whose callers have gone.
pub const MAX_QUEUED: usize = 2 * MAX_WAITING;
/// Most writes in one transaction, and so for one sync of the disk.
pub const MAX_WRITES: usize = 256;
/// How often turns that have expired are removed.
pub const SWEEP: Duration = Duration::from_secs(30);
/// Most trees that one sweep removes.
pub const MAX_SWEPT: usize = 1024;
/// Most pages of the file that a sweep returns to the disk.
pub const MAX_PAGES_RETURNED: u32 = 4096;
/// Bytes that a turn counts for beside its text: its rows in the tables and their indexes.
pub const TURN_BYTES: u64 = 512;

/// Bounds on what a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of all turns.
    pub bytes: u64,
    /// How long after its last use a tree of turns is kept.
    pub kept_for: Duration,
}
