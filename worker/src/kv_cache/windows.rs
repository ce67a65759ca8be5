//! Blocks of the layers that attend to a window. Pure.
//!
//! These layers store their keys in *window blocks*, from a pool of their own. A window block belongs to a
//! block of the other layers, its *base*, and covers the same positions. A table that holds a window block
//! also holds its base, and a cached window block has a cached base. A base may lose its window block: while
//! a sequence grows, it gives back those behind the window, which stay cached until others need them.

use super::{BlockCounts, BlockPool};
use crate::BlockId;
use crate::backend::WindowBlocks;

/// The window blocks of a cache, by base.
#[derive(Debug)]
pub(super) struct Windows {
    pool: BlockPool,
    /// Tokens that a row attends to, itself included.
    window: u32,
    of_sequence: u32,
    block_size: u32,
    /// `[blocks]`: the window block of each base that has one.
    of_base: Vec<Option<BlockId>>,
    /// `[window blocks]`: the base of each window block in use.
    bases: Vec<Option<BlockId>>,
}

impl Windows {
    /// All blank, for `blocks` bases of `block_size` slots.
    pub fn new(windows: WindowBlocks, blocks: u32, block_size: u32) -> Self {
        let WindowBlocks { window, blocks: own } = windows;
        assert!(window > 0, "a window holds at least the row's own position");
        Self {
            pool: BlockPool::new(own),
            window,
            of_sequence: windows.of_sequence(block_size),
            block_size,
            of_base: vec![None; blocks as usize],
            bases: vec![None; own as usize],
        }
    }

    /// Index of the first block that a row at `position` sees.
    pub fn first_seen(&self, position: u32) -> usize {
        ((position + 1).saturating_sub(self.window) / self.block_size) as usize
    }

    /// Number of leading blocks in `cached`, a cached prefix, after which a sequence can continue: the most
    /// such that every block that the next row sees has its window block.
    pub fn usable(&self, cached: impl Iterator<Item = BlockId>) -> usize {
        let (mut usable, mut present) = (0, 0);
        for (before, base) in cached.enumerate() {
            present = if self.of(base).is_some() { present + 1 } else { 0 };
            let blocks = before + 1;
            let needed = blocks - self.first_seen(blocks as u32 * self.block_size).min(blocks);
            if present >= needed {
                usable = blocks;
            }
        }
        usable
    }

    /// Most window blocks of a sequence that decodes.
    pub fn of_sequence(&self) -> u32 {
        self.of_sequence
    }

    /// The window block of `base`.
    pub fn of(&self, base: BlockId) -> Option<BlockId> {
        self.of_base[base.0 as usize]
    }

    /// Gives `base` a window block with one holder. `Err` if none is available, otherwise the base that lost
    /// its cached window block.
    pub fn add(&mut self, base: BlockId) -> Result<Option<BlockId>, NoneAvailable> {
        let (block, was_cached) = self.pool.take().ok_or(NoneAvailable)?;
        let before = self.bases[block.0 as usize].replace(base);
        assert_eq!(before.is_some(), was_cached, "only a cached window block has a base but no holder");
        if let Some(before) = before {
            self.of_base[before.0 as usize] = None;
        }
        let own = self.of_base[base.0 as usize].replace(block);
        assert_eq!(own, None, "block {} has one window block", base.0);
        Ok(before)
    }

    /// Adds a holder to the window block of `base`.
    pub fn retain(&mut self, base: BlockId) {
        self.pool.retain(self.held(base));
    }

    /// Removes a holder from the window block of `base`, which loses it if it is neither held nor cached.
    pub fn release(&mut self, base: BlockId) {
        let block = self.held(base);
        self.pool.release(block);
        if self.pool.holders(block) == 0 && !self.pool.is_cached(block) {
            self.detach(base, block);
        }
    }

    /// Marks the window block of `base` as cached; false if it has none.
    pub fn mark_cached(&mut self, base: BlockId) -> bool {
        self.of(base).inspect(|&block| self.pool.mark_cached(block)).is_some()
    }

    /// Makes the window block of `from` that of `to`, which has none.
    pub fn hand_over(&mut self, from: BlockId, to: BlockId) {
        let block = self.held(from);
        self.detach(from, block);
        (self.of_base[to.0 as usize], self.bases[block.0 as usize]) = (Some(block), Some(to));
    }

    /// Drops the window block of `base`, which was evicted and has no holder; false if it has none.
    pub fn evict(&mut self, base: BlockId) -> bool {
        let Some(block) = self.of(base) else { return false };
        assert_eq!(self.pool.holders(block), 0, "a holder of a window block holds its base");
        self.pool.forget(block);
        self.detach(base, block);
        true
    }

    /// Number of holders of the window block of `base`.
    pub fn holders(&self, base: BlockId) -> u32 {
        self.of(base).map_or(0, |block| self.pool.holders(block))
    }

    /// Number of window blocks.
    pub fn total(&self) -> u32 {
        self.pool.total()
    }

    /// Free, cached and held window blocks.
    pub fn counts(&self) -> BlockCounts {
        self.pool.counts()
    }

    fn held(&self, base: BlockId) -> BlockId {
        self.of(base).unwrap_or_else(|| panic!("a table holds the window block of block {}", base.0))
    }

    fn detach(&mut self, base: BlockId, block: BlockId) {
        (self.of_base[base.0 as usize], self.bases[block.0 as usize]) = (None, None);
    }
}

/// All window blocks are held.
#[derive(Debug)]
pub(super) struct NoneAvailable;
