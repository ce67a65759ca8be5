//! Why the index has to be built again for a worker.

/// The index no longer matches the worker's cache; only a snapshot helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("run {handle} does not fit what is known of this worker's cache")]
pub struct Desync {
    /// The run that did not fit.
    pub handle: u64,
}
