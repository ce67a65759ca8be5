//! The contents of a worker's prefix cache, as routers follow them. A run is a chain of blocks without
//! branches, named by a handle.

use crate::block_hash::BlockHash;
use crate::worker::v1 as wire;

/// Blocks at depth `depth`, `depth + 1`, … are now cached. If the handle is known, they extend that run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStored {
    /// Identifies the run within the worker's epoch. Handles rise, so a parent's is lower than its child's.
    pub handle: u64,
    /// The run that holds block `depth - 1`; 0 at depth 0.
    pub parent: u64,
    /// Number of blocks before the first of `hashes`.
    pub depth: u32,
    /// Chained hashes of the blocks, in order.
    pub hashes: Vec<BlockHash>,
}

/// Only the run's blocks before depth `new_end` are still cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTruncated {
    /// Handle of the run.
    pub handle: u64,
    /// Depth of the first evicted block.
    pub new_end: u32,
}

/// A block has become a gap, or is one no longer. The worker's [`Gaps`] say what it lacks: the keys of layers
/// that attend to a window, or a state.
///
/// With windows, a block is no gap until it is said to be one; with states, it is one until it is said to be
/// none. An evicted block returns to that: with windows a gap closes, with states a block with one opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Hash of the block.
    pub hash: BlockHash,
    /// Whether the keys, or the state, are missing.
    pub is_open: bool,
}

/// Where cached prefixes cannot be shared: layers with a window would miss keys, or layers with a state would
/// miss it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Number of blocks before the end of a prefix that must not be gaps; 0 = there are no gaps. Not read if
    /// `are_ends`: of a model with windows and states, only the states count.
    pub window_blocks: u32,
    /// Cached blocks that are gaps; if `are_ends`, those that are none.
    pub hashes: Vec<BlockHash>,
    /// Whether `hashes` are *ends*: the only blocks after which a prompt can resume, because these have the
    /// state of recurrent layers. True also while there are none.
    pub are_ends: bool,
}

/// A change of the cache's contents. The truncations happened before the stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheChange {
    /// Evictions, oldest first.
    pub truncated: Vec<RunTruncated>,
    /// Blocks cached after the evictions, oldest first.
    pub stored: Vec<RunStored>,
    /// Changes of gaps, oldest first; independent of the others.
    pub gaps: Vec<Gap>,
}

impl From<RunStored> for wire::RunStored {
    fn from(RunStored { handle, parent, depth, hashes }: RunStored) -> Self {
        Self { handle, parent, depth, hashes }
    }
}

impl From<wire::RunStored> for RunStored {
    fn from(run: wire::RunStored) -> Self {
        Self { handle: run.handle, parent: run.parent, depth: run.depth, hashes: run.hashes }
    }
}

impl From<RunTruncated> for wire::RunTruncated {
    fn from(RunTruncated { handle, new_end }: RunTruncated) -> Self {
        Self { handle, new_end }
    }
}

impl From<wire::RunTruncated> for RunTruncated {
    fn from(run: wire::RunTruncated) -> Self {
        Self { handle: run.handle, new_end: run.new_end }
    }
}

impl From<CacheChange> for wire::CacheDelta {
    fn from(CacheChange { truncated, stored, gaps }: CacheChange) -> Self {
        Self {
            truncated: truncated.into_iter().map(Into::into).collect(),
            stored: stored.into_iter().map(Into::into).collect(),
            gaps: gaps.into_iter().map(|Gap { hash, is_open }| wire::Gap { hash, is_open }).collect(),
        }
    }
}

impl From<wire::CacheDelta> for CacheChange {
    fn from(change: wire::CacheDelta) -> Self {
        Self {
            truncated: change.truncated.into_iter().map(Into::into).collect(),
            stored: change.stored.into_iter().map(Into::into).collect(),
            gaps: change.gaps.into_iter().map(|wire::Gap { hash, is_open }| Gap { hash, is_open }).collect(),
        }
    }
}
