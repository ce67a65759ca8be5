//! Identifiers of workers inside this router.

/// One registration of a worker with this router. Never reused after the worker left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

/// A worker at one epoch: one start of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerEpoch {
    /// The worker's registration.
    pub worker: WorkerId,
    /// Random number that identifies the start of its process.
    pub epoch: u64,
}
