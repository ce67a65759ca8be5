//! Identifies one dispatch of a request to a worker.

use crate::worker::v1 as wire;

/// One dispatch by one router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Placement {
    /// Id of the router.
    pub router: u64,
    /// Number of the dispatch; rises by one with every dispatch from this router to this worker.
    pub sequence: u64,
}

impl From<Placement> for wire::Placement {
    fn from(Placement { router, sequence }: Placement) -> Self {
        Self { router_id: router, sequence }
    }
}

impl From<wire::Placement> for Placement {
    fn from(placement: wire::Placement) -> Self {
        Self { router: placement.router_id, sequence: placement.sequence }
    }
}
