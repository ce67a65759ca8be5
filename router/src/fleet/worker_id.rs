//! How a worker is named inside this router.

/// One registration of a worker with this router; never used again after the worker left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

/// A worker at one epoch: one start of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerEpoch {
    /// Which worker.
    pub worker: WorkerId,
    /// Which start of its process.
    pub epoch: u64,
}
