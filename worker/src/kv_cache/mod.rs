//! Who owns which KV block. Pure: numbers in, numbers out; it knows neither tensors nor requests.
//!
//! Every block is in one of three states, and their counts always add up to the whole: *free* (blank), *cached*
//! (nobody holds it, but its content may serve an equal prefix) and *held* (some block table names it).

mod block_pool;
mod block_table;
mod prefix_cache;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use skein_proto::block_hash::{self, BlockHash};
use skein_proto::runs::{CacheChange, RunStored};

pub use block_pool::{BlockCounts, BlockPool};
pub use block_table::BlockTable;
pub use prefix_cache::{Inserted, PrefixCache};

use crate::backend::BlockCopy;
use crate::{BlockId, TokenId};

/// Which sequences may share blocks at all: same model, same adapter, same salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheScope {
    /// The hash before the first block.
    pub root: BlockHash,
    /// What the root was hashed from, compared on every hit: equal hashes alone never share a block.
    pub salt: Arc<str>,
}

impl CacheScope {
    /// The scope of `salt` under `model` without an adapter.
    pub fn new(model: &str, salt: &str) -> Self {
        Self { root: block_hash::root(model, "", salt), salt: salt.into() }
    }
}

/// A sequence as the prefix cache sees it: its scope, its tokens, and the chained hashes of its full blocks.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// What it may share with.
    pub scope: &'a CacheScope,
    /// All its tokens.
    pub tokens: &'a [TokenId],
    /// Hashes of its full blocks, first to last; may stop short of them.
    pub hashes: &'a [BlockHash],
}

/// How much of a prefix is cached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Leading blocks that are cached.
    pub blocks: u32,
    /// Those of them that somebody holds: sharing them costs no available block.
    pub held: u32,
}

/// The block pool and the prefix cache over it.
#[derive(Debug)]
pub struct KvCache {
    pool: BlockPool,
    prefix: PrefixCache,
    block_size: u32,
    share_prefixes: bool,
}

impl KvCache {
    /// `blocks` free blocks of `block_size` slots; without `share_prefixes` nothing is ever cached.
    pub fn new(blocks: u32, block_size: u32, share_prefixes: bool) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let prefix = PrefixCache::new(if share_prefixes { blocks } else { 0 }, block_size);
        Self { pool: BlockPool::new(blocks), prefix, block_size, share_prefixes }
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Blocks that `tokens` tokens need.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// Free, cached and held blocks.
    pub fn counts(&self) -> BlockCounts {
        self.pool.counts()
    }

    /// All blocks there are.
    pub fn total(&self) -> u32 {
        self.pool.total()
    }

    /// Blocks a sequence could get now: free or only cached.
    pub fn available(&self) -> u32 {
        let counts = self.pool.counts();
        counts.free + counts.cached
    }

    /// How many block tables hold `block`.
    pub fn holders(&self, block: BlockId) -> u32 {
        self.pool.holders(block)
    }

    /// How much of `prefix` is cached. The last token is never counted: its logits have to be computed.
    pub fn match_prefix(&self, prefix: Prefix<'_>) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        for block in self.cached_blocks(prefix) {
            found.blocks += 1;
            found.held += u32::from(self.pool.holders(block) > 0);
        }
        found
    }

    /// A block table that holds what [`match_prefix`](Self::match_prefix) finds.
    pub fn adopt_prefix(&mut self, prefix: Prefix<'_>) -> BlockTable {
        let blocks: Vec<BlockId> = self.cached_blocks(prefix).collect();
        for &block in &blocks {
            self.pool.retain(block);
        }
        BlockTable::of_cached(blocks)
    }

    fn cached_blocks<'a>(&'a self, prefix: Prefix<'a>) -> impl Iterator<Item = BlockId> + 'a {
        let size = self.block_size as usize;
        let most = if self.share_prefixes { prefix.tokens.len().saturating_sub(1) / size } else { 0 };
        let mut parent = None;
        prefix.hashes.iter().zip(prefix.tokens.chunks_exact(size)).take(most).map_while(
            move |(hash, tokens)| {
                let block = self.prefix.find(*hash, parent, &prefix.scope.salt, tokens)?;
                parent = Some(block);
                Some(block)
            },
        )
    }

    /// Makes positions `from..to` of `table` writable, as far as blocks go; returns the end of what is.
    ///
    /// A block that others hold too, or may take from the cache, is copied before its first write: the copy goes to
    /// `copies`, and has to be done before the step that writes.
    pub fn grow(&mut self, table: &mut BlockTable, from: u32, to: u32, copies: &mut Vec<BlockCopy>) -> u32 {
        let first = (from / self.block_size) as usize;
        let is_shared = |&block: &BlockId| self.pool.holders(block) > 1 || self.pool.is_cached(block);
        if let Some(shared) = table.get(first).filter(is_shared) {
            let Some(own) = self.take() else { return from };
            copies.push(BlockCopy { from: shared, to: own });
            self.pool.release(shared);
            table.replace(first, own);
        }
        while table.positions(self.block_size) < to {
            let Some(block) = self.take() else { break };
            table.push(block);
        }
        table.positions(self.block_size).clamp(from, to)
    }

    /// A blank block with one holder; evicts the least recently used cached one when none is free.
    fn take(&mut self) -> Option<BlockId> {
        let (block, was_cached) = self.pool.take()?;
        if was_cached {
            self.prefix.evict(block);
        }
        Some(block)
    }

    /// Caches the leading `full` blocks of `table`, whose keys and values are computed now.
    ///
    /// Where an equal block is cached already (two sequences computed the same prefix at once) the table takes
    /// that one and gives its own back. Both hold the same bits, and it keeps the promise that eviction rests
    /// on: whoever holds a cached block holds all its ancestors.
    pub fn register(&mut self, table: &mut BlockTable, prefix: Prefix<'_>, full: u32) {
        if !self.share_prefixes {
            return;
        }
        let size = self.block_size as usize;
        while table.registered() < full && table.is_cacheable() {
            let index = table.registered() as usize;
            let tokens = &prefix.tokens[index * size..(index + 1) * size];
            let parent = index.checked_sub(1).and_then(|before| table.get(before));
            let own = table.blocks()[index];
            match self.prefix.insert(prefix.hashes[index], parent, &prefix.scope.salt, tokens, own) {
                Inserted::New => self.pool.mark_cached(own),
                Inserted::Existing(cached) => {
                    self.pool.retain(cached);
                    self.pool.release(own);
                    table.replace(index, cached);
                }
                Inserted::Collision => {
                    table.stop_caching();
                    return;
                }
            }
            table.advance_registered();
        }
    }

    /// A second table over the same blocks, the partly filled last one included.
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for &block in table.blocks() {
            self.pool.retain(block);
        }
        table.clone()
    }

    /// Cuts `table` back to its first `tokens` tokens and gives the blocks behind them back, last first. A cached block that
    /// is cut in two stays cached: its content belongs to its hash.
    pub fn truncate(&mut self, table: &mut BlockTable, tokens: u32) {
        let (blocks, full) = (self.blocks_for(tokens), tokens / self.block_size);
        for block in table.truncate(blocks as usize, full) {
            self.pool.release(block);
        }
    }

    /// Gives all blocks back, last first, so that leaves are evicted before their parents.
    pub fn release(&mut self, table: BlockTable) {
        for &block in table.blocks().iter().rev() {
            self.pool.release(block);
        }
    }

    /// What was cached and evicted since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        self.prefix.take_changes()
    }

    /// Everything that is cached, parents before their children.
    pub fn snapshot(&self) -> Vec<RunStored> {
        self.prefix.snapshot()
    }
}
