//! Where a router has sent a request.

use crate::worker::v1 as wire;

/// One dispatch of one router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Placement {
    /// Which router.
    pub router: u64,
    /// Its number for the dispatch; rises by one with every dispatch to this worker.
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
