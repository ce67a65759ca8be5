//! Maps a sequence's logical blocks to physical ones.

use crate::BlockId;

/// The blocks of one sequence, in order. A table counts as one holder of each of its blocks, so only
/// [`KvCache`](super::KvCache) creates, changes and releases it.
#[derive(Debug, Clone, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    /// Leading blocks that are in the prefix cache.
    registered: u32,
    /// Index of the first block whose window block is held; those behind it were given back.
    windows_from: u32,
    /// Set when other content has a block's hash: neither that block nor any after it can be cached.
    uncacheable: bool,
}

impl BlockTable {
    pub(super) fn of_cached(blocks: Vec<BlockId>, windows_from: u32) -> Self {
        Self { registered: blocks.len() as u32, blocks, windows_from, uncacheable: false }
    }

    /// The blocks in logical order.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Leading blocks that are in the prefix cache.
    pub fn registered(&self) -> u32 {
        self.registered
    }

    /// Positions covered by the blocks.
    pub fn positions(&self, block_size: u32) -> u32 {
        self.blocks.len() as u32 * block_size
    }

    /// The slot of `position`, which must be covered.
    pub fn slot(&self, position: u32, block_size: u32) -> u32 {
        self.blocks[(position / block_size) as usize].0 * block_size + position % block_size
    }

    /// Index of the first block whose window block is held, if the cache has window blocks.
    pub(super) fn windows_from(&self) -> usize {
        self.windows_from as usize
    }

    pub(super) fn set_windows_from(&mut self, index: usize) {
        self.windows_from = index as u32;
    }

    pub(super) fn get(&self, index: usize) -> Option<BlockId> {
        self.blocks.get(index).copied()
    }

    pub(super) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    /// Keeps the first `blocks` blocks, of which `full` are full, and returns the others, last first.
    pub(super) fn truncate(&mut self, blocks: usize, full: u32) -> impl Iterator<Item = BlockId> {
        // Everything from the first block without a hash on will be written again.
        self.uncacheable &= full > self.registered;
        self.registered = self.registered.min(full);
        self.windows_from = self.windows_from.min(blocks as u32);
        self.blocks.drain(blocks.min(self.blocks.len())..).rev()
    }

    pub(super) fn replace(&mut self, index: usize, block: BlockId) {
        self.blocks[index] = block;
    }

    pub(super) fn is_cacheable(&self) -> bool {
        !self.uncacheable
    }

    pub(super) fn stop_caching(&mut self) {
        self.uncacheable = true;
    }

    pub(super) fn advance_registered(&mut self) {
        self.registered += 1;
    }
}
