//! One sequence's way from logical to physical blocks.

use crate::BlockId;

/// The blocks of one sequence, in order. Made, changed and given back through [`KvCache`](super::KvCache) only:
/// a table stands for one hold on each of its blocks.
#[derive(Debug, Clone, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    /// Leading blocks that are in the prefix cache.
    registered: u32,
    /// Set when a block's hash was taken by other content: neither it nor what follows can be cached.
    uncacheable: bool,
}

impl BlockTable {
    pub(super) fn of_cached(blocks: Vec<BlockId>) -> Self {
        Self { registered: blocks.len() as u32, blocks, uncacheable: false }
    }

    /// The blocks, logical order.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Leading blocks that are in the prefix cache.
    pub fn registered(&self) -> u32 {
        self.registered
    }

    /// Positions the blocks cover.
    pub fn positions(&self, block_size: u32) -> u32 {
        self.blocks.len() as u32 * block_size
    }

    /// The slot of `position`, which the table covers.
    pub fn slot(&self, position: u32, block_size: u32) -> u32 {
        self.blocks[(position / block_size) as usize].0 * block_size + position % block_size
    }

    pub(super) fn get(&self, index: usize) -> Option<BlockId> {
        self.blocks.get(index).copied()
    }

    pub(super) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    /// Keeps the first `blocks` blocks, of which `full` are full; the others come out, last first.
    pub(super) fn truncate(&mut self, blocks: usize, full: u32) -> impl Iterator<Item = BlockId> {
        // What stands from the first block without a hash on will be written anew.
        self.uncacheable &= full > self.registered;
        self.registered = self.registered.min(full);
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
