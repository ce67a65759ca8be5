//! How the workers stand, for people and for gateways.

use skein_proto::info::WorkerInfo;

use super::ledger::CurrentLoad;
use super::worker::Refused;

/// How one worker stands, for people.
#[derive(Debug, Clone)]
pub struct WorkerStatus {
    /// Its name in discovery.
    pub id: String,
    /// Where it listens.
    pub address: String,
    /// Why it takes no requests now; `None` = it is ready.
    pub refuses: Option<Refused>,
    /// What it serves, once known.
    pub info: Option<WorkerInfo>,
    /// What it carries.
    pub load: CurrentLoad,
    /// Blocks in its prefix cache, as far as known here.
    pub cached_blocks: usize,
}

impl WorkerStatus {
    /// Whether it takes requests.
    pub fn is_ready(&self) -> bool {
        self.refuses.is_none()
    }

    /// `ready`, or why not.
    pub fn state(&self) -> String {
        self.refuses.as_ref().map_or_else(|| "ready".to_owned(), ToString::to_string)
    }
}
