//! How workers are numbered in the tree of cached blocks.

/// Index of one cache: a worker's, between two resets.
pub(super) type Slot = u32;
/// Index of a worker in search results; unchanged when its cache is reset.
pub(super) type Column = u32;

/// Column of caches being removed; results for it are ignored.
pub(super) const NO_COLUMN: Column = 0;
