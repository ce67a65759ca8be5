//! How a worker is named inside this router.

/// Names one life of one worker in this router; never used again after it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);
