//! What a supervisor says of its workers, and how long it waits for them.

use std::time::Duration;

use super::lifecycle::Failed;

/// How long a worker may take to exit once its input is closed.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);

/// News of one worker, for the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Weights are loading.
    Progress {
        /// Index of the worker.
        worker: usize,
        /// Bytes loaded so far.
        done: u64,
        /// Bytes to load.
        total: u64,
    },
    /// The worker serves.
    Ready {
        /// Index of the worker.
        worker: usize,
        /// `host:port` of its gRPC service.
        address: String,
    },
    /// The worker has never served and is not started again: the same start would fail the same way, or it is
    /// one that starts beside others.
    Hopeless(Failed),
}
