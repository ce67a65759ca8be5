//! Classes of requests: batches in the background, and everything else.

use super::sequence::Rank;

/// Requests of this priority or a lower one (a higher number) are background requests.
pub const BACKGROUND: i32 = 100;

/// Which requests a part of the plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Requests of the lowest priority, as in batches.
    Background,
    /// Requests of any other priority.
    Foreground,
}

impl Class {
    pub fn has(self, rank: Rank) -> bool {
        (rank.priority >= BACKGROUND) == (self == Self::Background)
    }
}
