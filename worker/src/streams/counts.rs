//! Conservation: where every request that was taken is.

/// What became of the requests that were taken, joins not counted. Each is in exactly one of the places after
/// `accepted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests taken.
    pub accepted: u64,
    /// All their samples ended.
    pub completed: u64,
    /// Cut off by a failure, by the engine's end, or because their last reader was too slow.
    pub errored: u64,
    /// Given up by their readers.
    pub cancelled: u64,
    /// Given back to their routers.
    pub handed_back: u64,
    /// Under way.
    pub running: u64,
}

impl Counts {
    /// No request is counted twice or forgotten.
    pub fn is_conserved(&self) -> bool {
        self.accepted == self.completed + self.errored + self.cancelled + self.handed_back + self.running
    }
}
