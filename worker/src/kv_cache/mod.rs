//! Ownership of KV blocks. Pure: numbers in, numbers out, without tensors or requests.
//!
//! Every block is in one of three states, and their counts add up to the total: *free* (blank), *cached*
//! (without holders, but its content may serve an equal prefix) and *held* (in a block table).

mod block_pool;
mod block_table;
mod prefix_cache;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use skein_proto::adapter::{self, AdapterId};
use skein_proto::block_hash::{self, BlockHash};
use skein_proto::runs::{CacheChange, RunStored};

pub use block_pool::{BlockCounts, BlockPool};
pub use block_table::BlockTable;
pub use prefix_cache::{Inserted, PrefixCache};

use crate::backend::BlockCopy;
use crate::{BlockId, TokenId};

/// Identifies sequences that may share blocks: same model, same adapter, same salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheScope {
    /// The hash before the first block.
    pub root: BlockHash,
    /// Adapter and salt in the root hash. Compared on every hit, because equal hashes alone must never share
    /// a block.
    pub salt: Arc<str>,
}

impl CacheScope {
    /// The scope of `salt` under `model` without an adapter.
    pub fn new(model: &str, salt: &str) -> Self {
        Self::with_adapter(model, None, salt)
    }

    /// The scope of `salt` under `model` with `adapter`.
    pub fn with_adapter(model: &str, adapter: Option<AdapterId>, salt: &str) -> Self {
        let adapter = adapter::text_of(adapter);
        // No salt of the model alone equals one with an adapter.
        let both = format!("{adapter}:{salt}");
        Self { root: block_hash::root(model, &adapter, salt), salt: both.into() }
    }
}

/// A sequence as the prefix cache sees it: its scope, its tokens, and the chained hashes of its full blocks.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// The sequences that it may share with.
    pub scope: &'a CacheScope,
    /// All its tokens.
    pub tokens: &'a [TokenId],
    /// Hashes of its leading full blocks; may be fewer than there are.
    pub hashes: &'a [BlockHash],
}

/// How much of a prefix is cached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Leading blocks that are cached.
    pub blocks: u32,
    /// Of these, the ones with a holder: sharing them takes no available block.
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
    /// `blocks` free blocks of `block_size` slots; without `share_prefixes` nothing is cached.
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

    /// Number of blocks.
    pub fn total(&self) -> u32 {
        self.pool.total()
    }

    /// Blocks that a sequence could get now: free or only cached.
    pub fn available(&self) -> u32 {
        let counts = self.pool.counts();
        counts.free + counts.cached
    }

    /// Number of block tables that hold `block`.
    pub fn holders(&self, block: BlockId) -> u32 {
        self.pool.holders(block)
    }

    /// How much of `prefix` is cached, never counting its last token, whose logits have to be computed.
    pub fn match_prefix(&self, prefix: Prefix<'_>) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        for block in self.cached_blocks(prefix) {
            found.blocks += 1;
            found.held += u32::from(self.pool.holders(block) > 0);
        }
        found
    }

    /// A block table with the blocks that [`match_prefix`](Self::match_prefix) finds.
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

    /// Makes positions `from..to` of `table` writable, as far as blocks last, and returns the end of
    /// the writable positions.
    ///
    /// A block that is shared or cached is copied before its first write. The copy goes to `copies` and must
    /// be done before the step that writes.
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

    /// A block with one holder: a free one, or else the least recently used cached one, which is evicted.
    fn take(&mut self) -> Option<BlockId> {
        let (block, was_cached) = self.pool.take()?;
        if was_cached {
            self.prefix.evict(block);
        }
        Some(block)
    }

    /// Caches the leading `full` blocks of `table`, whose keys and values are now computed.
    ///
    /// If an equal block is already cached (two sequences computed the same prefix), the table takes that one
    /// and releases its own. Both hold the same bits. This keeps the invariant that eviction relies on: a
    /// holder of a cached block holds all its ancestors.
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

    /// A second table over the same blocks, including the partly filled last one.
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for &block in table.blocks() {
            self.pool.retain(block);
        }
        table.clone()
    }

    /// Cuts `table` back to its first `tokens` tokens and releases the blocks after them, last first. A
    /// cached block that is cut in the middle stays cached, because its content belongs to its hash.
    pub fn truncate(&mut self, table: &mut BlockTable, tokens: u32) {
        let (blocks, full) = (self.blocks_for(tokens), tokens / self.block_size);
        for block in table.truncate(blocks as usize, full) {
            self.pool.release(block);
        }
    }

    /// Releases all blocks, last first, so that leaves are evicted before their parents.
    pub fn release(&mut self, table: BlockTable) {
        for &block in table.blocks().iter().rev() {
            self.pool.release(block);
        }
    }

    /// Insertions and evictions since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        self.prefix.take_changes()
    }

    /// Every cached run, parents before children.
    pub fn snapshot(&self) -> Vec<RunStored> {
        self.prefix.snapshot()
    }
}
