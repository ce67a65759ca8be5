//! Full blocks by the hash of all tokens up to their end, grouped into runs for routers.
//!
//! A run is an unbranched stretch of blocks with one handle. Routers learn of a run by three numbers and its
//! hashes, and of an eviction by two numbers. Leaves are evicted before their parents, so a run only loses
//! its end, and the cache is always prefix-closed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use skein_proto::block_hash::BlockHash;
use skein_proto::runs::{CacheChange, RunStored, RunTruncated};

use crate::{BlockId, TokenId};

/// Result of offering a block to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// It is cached now.
    New,
    /// An equal block is already cached: share that one.
    Existing(BlockId),
    /// Different content has this hash, so the block cannot be cached.
    Collision,
}

/// The index of cached blocks. It knows hashes and tokens; holders are the pool's concern.
#[derive(Debug)]
pub struct PrefixCache {
    block_size: usize,
    by_hash: HashMap<BlockHash, BlockId>,
    entries: Vec<Option<CachedBlock>>,
    /// `[blocks, block_size]`: the tokens of every cached block.
    tokens: Vec<TokenId>,
    runs: BTreeMap<u64, Run>,
    last_handle: u64,
    changes: Vec<CacheChange>,
}

#[derive(Debug)]
struct CachedBlock {
    hash: BlockHash,
    parent: Option<BlockId>,
    salt: Arc<str>,
    run: u64,
}

#[derive(Debug)]
struct Run {
    parent: u64,
    start: u32,
    blocks: Vec<BlockId>,
}

impl Run {
    fn end(&self) -> u32 {
        self.start + self.blocks.len() as u32
    }
}

impl PrefixCache {
    /// An empty cache over `blocks` blocks.
    pub fn new(blocks: u32, block_size: u32) -> Self {
        Self {
            block_size: block_size as usize,
            by_hash: HashMap::new(),
            entries: (0..blocks).map(|_| None).collect(),
            tokens: vec![0; blocks as usize * block_size as usize],
            runs: BTreeMap::new(),
            last_handle: 0,
            changes: Vec::new(),
        }
    }

    /// The cached block with this hash, parent, salt and content. All four are compared because
    /// 64-bit hashes collide.
    pub fn find(
        &self,
        hash: BlockHash,
        parent: Option<BlockId>,
        salt: &str,
        tokens: &[TokenId],
    ) -> Option<BlockId> {
        let block = *self.by_hash.get(&hash)?;
        self.is(block, parent, salt, tokens).then_some(block)
    }

    fn is(&self, block: BlockId, parent: Option<BlockId>, salt: &str, tokens: &[TokenId]) -> bool {
        let entry = self.entry(block);
        // A cached parent keeps its id as long as it has cached children, so comparing its id and this
        // block's tokens compares the whole prefix.
        entry.parent == parent && &*entry.salt == salt && self.tokens_of(block) == tokens
    }

    /// Caches `block`, which holds `tokens` and follows the cached block `parent`.
    pub fn insert(
        &mut self,
        hash: BlockHash,
        parent: Option<BlockId>,
        salt: &Arc<str>,
        tokens: &[TokenId],
        block: BlockId,
    ) -> Inserted {
        if let Some(&cached) = self.by_hash.get(&hash) {
            let same = self.is(cached, parent, salt, tokens);
            return if same { Inserted::Existing(cached) } else { Inserted::Collision };
        }
        assert!(self.entries[block.0 as usize].is_none(), "block {} is cached twice", block.0);
        self.by_hash.insert(hash, block);
        let at = block.0 as usize * self.block_size;
        self.tokens[at..at + self.block_size].copy_from_slice(tokens);
        let run = self.append_to_run(parent, hash, block);
        self.entries[block.0 as usize] = Some(CachedBlock { hash, parent, salt: salt.clone(), run });
        Inserted::New
    }

    /// Appends to the parent's run if `parent` is its end, or starts a new run.
    fn append_to_run(&mut self, parent: Option<BlockId>, hash: BlockHash, block: BlockId) -> u64 {
        let parent_run = parent.map(|parent| (self.entry(parent).run, parent));
        if let Some((handle, parent)) = parent_run {
            let run = self.runs.get_mut(&handle).expect("a cached block's run exists");
            if run.blocks.last() == Some(&parent) {
                let depth = run.end();
                run.blocks.push(block);
                self.note_stored(RunStored { handle, parent: handle, depth, hashes: vec![hash] });
                return handle;
            }
        }
        self.last_handle += 1;
        let handle = self.last_handle;
        let (parent, start) = parent_run.map_or((0, 0), |(run, block)| (run, self.depth_of(block) + 1));
        self.runs.insert(handle, Run { parent, start, blocks: vec![block] });
        self.note_stored(RunStored { handle, parent, depth: start, hashes: vec![hash] });
        handle
    }

    /// Removes `block`, which has no holders, and returns its hash. Its children are already gone, by the
    /// pool's eviction order.
    pub fn evict(&mut self, block: BlockId) -> BlockHash {
        let entry = self.entries[block.0 as usize].take().expect("an evicted block was cached");
        self.by_hash.remove(&entry.hash);
        let run = self.runs.get_mut(&entry.run).expect("a cached block's run exists");
        let last = run.blocks.pop();
        assert_eq!(last, Some(block), "leaves are evicted before their parents");
        let (new_end, empty) = (run.end(), run.blocks.is_empty());
        if empty {
            self.runs.remove(&entry.run);
        }
        self.note_truncated(RunTruncated { handle: entry.run, new_end });
        entry.hash
    }

    fn note_stored(&mut self, stored: RunStored) {
        let change = match self.changes.last_mut() {
            Some(change) => change,
            None => self.changes.push_mut(CacheChange::default()),
        };
        match change.stored.last_mut() {
            Some(last) if last.handle == stored.handle => last.hashes.extend(stored.hashes),
            _ => change.stored.push(stored),
        }
    }

    fn note_truncated(&mut self, truncated: RunTruncated) {
        // Within one change truncations come first, so one after an insertion opens the next change.
        let change = match self.changes.last_mut() {
            Some(change) if change.stored.is_empty() => change,
            _ => self.changes.push_mut(CacheChange::default()),
        };
        match change.truncated.last_mut() {
            Some(last) if last.handle == truncated.handle => *last = truncated,
            _ => change.truncated.push(truncated),
        }
    }

    /// Changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        std::mem::take(&mut self.changes)
    }

    /// Every cached run, parents before children.
    pub fn snapshot(&self) -> Vec<RunStored> {
        let stored = |(&handle, run): (&u64, &Run)| RunStored {
            handle,
            parent: run.parent,
            depth: run.start,
            hashes: run.blocks.iter().map(|&block| self.entry(block).hash).collect(),
        };
        self.runs.iter().map(stored).collect()
    }

    /// Hash of a cached block.
    pub fn hash_of(&self, block: BlockId) -> BlockHash {
        self.entry(block).hash
    }

    /// All cached blocks with their hashes.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, BlockHash)> {
        (0..).map(BlockId).zip(&self.entries).filter_map(|(block, entry)| Some((block, entry.as_ref()?.hash)))
    }

    /// The cached block with this hash.
    #[cfg(test)]
    pub fn by_hash(&self, hash: BlockHash) -> Option<BlockId> {
        self.by_hash.get(&hash).copied()
    }

    fn entry(&self, block: BlockId) -> &CachedBlock {
        self.entries[block.0 as usize].as_ref().expect("a block named by the cache is cached")
    }

    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        let at = block.0 as usize * self.block_size;
        &self.tokens[at..at + self.block_size]
    }

    /// Linear in the run's length; called only where a run branches.
    fn depth_of(&self, block: BlockId) -> u32 {
        let run = &self.runs[&self.entry(block).run];
        let offset = run.blocks.iter().position(|&other| other == block);
        run.start + offset.expect("a cached block is in its run") as u32
    }
}
