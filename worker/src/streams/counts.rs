//! Requests by outcome; their sum is conserved.

/// Accepted requests by outcome, joins not included. Each accepted request is in exactly one of
/// the other counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests accepted so far.
    pub accepted: u64,
    /// All samples ended.
    pub completed: u64,
    /// Cut off by a failure, by the end of the engine, or because the last reader was too slow.
    pub errored: u64,
    /// Cancelled by their readers.
    pub cancelled: u64,
    /// Handed back to their routers.
    pub handed_back: u64,
    /// Running or waiting.
    pub running: u64,
}

impl Counts {
    /// Whether every accepted request is counted exactly once.
    pub fn is_conserved(&self) -> bool {
        self.accepted == self.completed + self.errored + self.cancelled + self.handed_back + self.running
    }
}
