//! State of the workers, for people and gateways.

use skein_proto::info::{ROUTER, WorkerInfo};
use skein_proto::load::Load;

use super::worker::NotReady;
use crate::ledger::CurrentLoad;

/// State of one worker.
#[derive(Debug, Clone)]
pub struct WorkerStatus {
    /// Its name in discovery.
    pub id: String,
    /// `host:port` of its service.
    pub address: String,
    /// Why it accepts no requests now; `None` = it is ready.
    pub refuses: Option<NotReady>,
    /// Its info, once read.
    pub info: Option<WorkerInfo>,
    /// Its estimated load.
    pub load: CurrentLoad,
    /// Its load as last reported.
    pub reported: Load,
    /// Blocks in its prefix cache, as far as this router knows.
    pub cached_blocks: usize,
}

impl WorkerStatus {
    /// Whether it accepts requests.
    pub fn is_ready(&self) -> bool {
        self.refuses.is_none()
    }

    /// Whether it is a router, which a gateway takes for a worker.
    pub fn is_router(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.backend == ROUTER)
    }

    /// `ready`, or the reason why not.
    pub fn state(&self) -> String {
        Self::state_of(self.refuses.as_ref())
    }

    pub(super) fn state_of(refuses: Option<&NotReady>) -> String {
        refuses.map_or_else(|| "ready".to_owned(), ToString::to_string)
    }
}
