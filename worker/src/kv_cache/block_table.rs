//! Maps a sequence's logical blocks to physical ones.

use crate::BlockId;
use crate::backend::{StateId, StateSave};

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
    /// The sequence's state, if the model has recurrent layers.
    state: Option<TableState>,
}

/// A sequence's own slot and the states that it saved.
#[derive(Debug, Clone)]
pub(super) struct TableState {
    pub slot: StateId,
    /// Samples that will part from it and need slots, too.
    pub promised: u32,
    /// Tokens in the state after the planned steps, without drafts.
    pub tokens: u32,
    /// States to be cached once their blocks are.
    pub saves: Vec<StateSave>,
    /// First position of the answer: of states after it, only the last is kept.
    pub rolls_from: u32,
    /// Base of the last state cached of the answer.
    pub rolling: Option<BlockId>,
}

impl BlockTable {
    pub(super) fn of_cached(blocks: Vec<BlockId>, windows_from: u32) -> Self {
        Self { registered: blocks.len() as u32, blocks, windows_from, uncacheable: false, state: None }
    }

    /// Tokens in the sequence's state after the planned steps, without drafts.
    pub fn tokens_in_state(&self) -> Option<u32> {
        self.state.as_ref().map(|state| state.tokens)
    }

    /// Slots that it holds: the sequence's own and those of saved states that are not cached yet.
    pub fn state_slots(&self) -> impl Iterator<Item = StateId> {
        let of = |state: &TableState| {
            std::iter::once(state.slot).chain(state.saves.iter().map(|save| save.to)).collect::<Vec<_>>()
        };
        self.state.as_ref().map_or_else(Vec::new, of).into_iter()
    }

    pub(super) fn state(&mut self) -> &mut Option<TableState> {
        &mut self.state
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
