//! Ownership of KV blocks. Pure: numbers in, numbers out, without tensors or requests.
//!
//! Every block is in one of three states, and their counts add up to the total: *free* (blank), *cached*
//! (without holders, but its content may serve an equal prefix) and *held* (in a block table).
//!
//! If some layers attend to a window only, their keys are in window blocks ([`windows`]), which a sequence
//! gives back once no later row sees them.

mod block_pool;
mod block_table;
mod prefix_cache;
mod states;
#[cfg(test)]
mod tests;
mod windows;

use std::sync::Arc;

use skein_proto::adapter::{self, AdapterId};
use skein_proto::block_hash::{self, BlockHash};
use skein_proto::runs::{CacheChange, Gap, Gaps, RunStored};

pub use block_pool::{BlockCounts, BlockPool};
pub use block_table::BlockTable;
pub use prefix_cache::{Inserted, PrefixCache};
pub use states::StateCounts;

use crate::backend::{BatchState, BlockCopy, KvBlocks, StateCopy, StateSave};
use crate::{BlockId, TokenId};
use block_table::TableState;
use states::{States, Taken};
use windows::Windows;

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
    windows: Option<Windows>,
    states: Option<States>,
    /// Changes of gaps not yet taken.
    gaps: Vec<Gap>,
    block_size: u32,
    share_prefixes: bool,
}

/// Copies of blocks and of window blocks.
pub type Copies<'a> = [&'a mut Vec<BlockCopy>; 2];

impl KvCache {
    /// Free blocks of `block_size` slots; without `share_prefixes` nothing is cached.
    pub fn new(blocks: impl Into<KvBlocks>, block_size: u32, share_prefixes: bool) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let KvBlocks { blocks, window, states } = blocks.into();
        assert!(window.is_none() || states.is_none(), "no model has both window blocks and states");
        let prefix = PrefixCache::new(if share_prefixes { blocks } else { 0 }, block_size);
        let windows = window.map(|window| Windows::new(window, blocks, block_size));
        let states = states.map(|slots| States::new(slots, blocks));
        let pool = BlockPool::new(blocks);
        Self { pool, prefix, windows, states, gaps: Vec::new(), block_size, share_prefixes }
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

    /// Free, cached and held window blocks, if the cache has any.
    pub fn window_counts(&self) -> Option<BlockCounts> {
        self.windows.as_ref().map(Windows::counts)
    }

    /// Free, cached and held slots for states, if the model has any.
    pub fn state_counts(&self) -> Option<StateCounts> {
        self.states.as_ref().map(States::counts)
    }

    /// Number of slots for states; `None` if the model has none.
    pub fn state_slots(&self) -> Option<u32> {
        self.states.as_ref().map(States::total)
    }

    /// Blocks that a new sequence could get, going by the scarcer kind: as many as if the same part of the
    /// blocks were available as of the window blocks.
    pub fn available_of_both(&self) -> u32 {
        let by_windows = self.windows.as_ref().map_or(u64::MAX, |windows| {
            u64::from(self.available_windows()) * u64::from(self.total()) / u64::from(windows.total().max(1))
        });
        by_windows.min(u64::from(self.available())) as u32
    }

    /// Window blocks that a sequence could get now; without window blocks, more than it needs.
    pub fn available_windows(&self) -> u32 {
        self.window_counts().map_or(u32::MAX, |counts| counts.free + counts.cached)
    }

    /// Window blocks that a sequence of `tokens` tokens needs before its last one is computed.
    pub fn windows_for(&self, tokens: u32) -> u32 {
        self.windows.as_ref().map_or(0, |windows| windows.of_sequence().min(self.blocks_for(tokens)))
    }

    /// Window blocks that `table` holds, by base.
    pub fn window_bases<'a>(&self, table: &'a BlockTable) -> &'a [BlockId] {
        if self.windows.is_some() { &table.blocks()[table.windows_from()..] } else { &[] }
    }

    /// Number of block tables that hold the window block of `base`.
    pub fn window_holders(&self, base: BlockId) -> u32 {
        self.windows.as_ref().map_or(0, |windows| windows.holders(base))
    }

    /// Appends the window blocks of the first `blocks` blocks of `table`; block 0, which no row reads, stands
    /// for those given back. Appends nothing if the cache has no window blocks.
    pub fn put_windows(&self, table: &BlockTable, blocks: usize, to: &mut Vec<BlockId>) {
        let Some(windows) = &self.windows else { return };
        let null = (0..table.windows_from().min(blocks)).map(|_| BlockId(0));
        let held = table.blocks()[..blocks].iter().skip(table.windows_from());
        to.extend(null.chain(held.map(|&base| windows.of(base).unwrap_or(BlockId(0)))));
    }

    /// How much of `prefix` is cached, never counting its last token, whose logits have to be computed.
    /// Counts only blocks after which all layers find the keys that they need.
    pub fn match_prefix(&self, prefix: Prefix<'_>) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        for block in self.shared_blocks(prefix) {
            found.blocks += 1;
            found.held += u32::from(self.pool.holders(block) > 0);
        }
        found
    }

    /// Whether there are slots for the states of a sequence of `samples` samples.
    pub fn has_room_for_states(&self, samples: u32) -> bool {
        self.states.as_ref().is_none_or(|states| states.has_room(samples))
    }

    /// A block table with the blocks that [`match_prefix`](Self::match_prefix) finds, for a sequence from
    /// which all but one of `samples` samples will part.
    pub fn adopt_prefix(&mut self, prefix: Prefix<'_>, samples: u32) -> BlockTable {
        let blocks: Vec<BlockId> = self.shared_blocks(prefix).collect();
        for &block in &blocks {
            self.pool.retain(block);
        }
        let mut windows_from = 0;
        if let Some(windows) = &mut self.windows {
            windows_from = windows.first_seen(blocks.len() as u32 * self.block_size);
            blocks[windows_from..].iter().for_each(|&base| windows.retain(base));
        }
        let base = blocks.last().copied();
        let mut table = BlockTable::of_cached(blocks, windows_from as u32);
        if let Some(states) = &mut self.states {
            states.promise(samples.saturating_sub(1));
            let Taken { slot, lost } = states.seat(base);
            self.note_lost_state(lost);
            let (tokens, rolls_from) = (table.positions(self.block_size), prefix.tokens.len() as u32);
            let (saves, promised) = (Vec::new(), samples.saturating_sub(1));
            *table.state() = Some(TableState { slot, promised, tokens, saves, rolls_from, rolling: None });
        }
        table
    }

    fn note_lost_state(&mut self, base: Option<BlockId>) {
        let lost = base.map(|base| Gap { hash: self.prefix.hash_of(base), is_open: true });
        self.gaps.extend(lost);
    }

    /// Leading blocks of `prefix` that are cached, whether or not a sequence can continue after them.
    pub fn cached_len(&self, prefix: Prefix<'_>) -> u32 {
        self.cached_blocks(prefix).count() as u32
    }

    /// The state of `table` in the step being planned, whose rows end with `drafts` drafts after position
    /// `known`. States are saved at those of `positions` that lie after the ones planned so far and not after
    /// `known`, ascending multiples of the block size, as far as slots last. `only_free` says of a position
    /// whether saving is not worth the eviction of another state.
    pub fn plan_state(
        &mut self,
        table: &mut BlockTable,
        (known, drafts): (u32, u32),
        positions: &[u32],
        only_free: impl Fn(u32) -> bool,
    ) -> Option<BatchState> {
        let states = self.states.as_mut()?;
        let is_cacheable = self.share_prefixes && table.is_cacheable();
        let state = table.state().as_mut().unwrap_or_else(|| panic!("a running sequence has a state"));
        let (mut saves, mut all_lost) = (Vec::new(), Vec::new());
        let is_new = |at: &&u32| is_cacheable && (state.tokens + 1..=known).contains(*at);
        for &position in positions.iter().filter(is_new) {
            assert!(position.is_multiple_of(self.block_size), "a state is kept at the end of a block");
            let Some(Taken { slot, lost }) = states.save(only_free(position)) else { continue };
            all_lost.extend(lost);
            saves.push(StateSave { position, to: slot });
        }
        state.tokens = known;
        state.saves.extend_from_slice(&saves);
        let slot = state.slot;
        all_lost.into_iter().for_each(|lost| self.note_lost_state(Some(lost)));
        Some(BatchState { slot, drafts, saves })
    }

    /// Copies of states that must be done before the next step's rows, in order.
    pub fn take_state_copies(&mut self) -> Vec<StateCopy> {
        self.states.as_mut().map_or_else(Vec::new, States::take_copies)
    }

    /// Caches the saved states of `table` whose blocks are cached.
    fn register_states(&mut self, table: &mut BlockTable) {
        let Some(states) = &mut self.states else { return };
        let (registered, is_cacheable) = (table.registered(), table.is_cacheable());
        let Some(mut state) = table.state().take() else { return };
        for StateSave { position, to } in std::mem::take(&mut state.saves) {
            let blocks = position / self.block_size;
            if !is_cacheable {
                states.free(to);
            } else if blocks > registered {
                state.saves.push(StateSave { position, to });
            } else {
                let base = table.blocks()[blocks as usize - 1];
                if states.attach(base, to) {
                    self.gaps.push(Gap { hash: self.prefix.hash_of(base), is_open: false });
                }
                if position > state.rolls_from
                    && let Some(before) = state.rolling.replace(base)
                    && before != base
                    && states.evict_unused(before)
                {
                    self.gaps.push(Gap { hash: self.prefix.hash_of(before), is_open: true });
                }
            }
        }
        *table.state() = Some(state);
    }

    /// No further sample will part from `table`.
    pub fn forked(&mut self, table: &mut BlockTable) {
        if let Some((states, state)) = self.states.as_mut().zip(table.state().as_mut()) {
            states.release_promise(std::mem::take(&mut state.promised));
        }
    }

    fn release_states(&mut self, table: &mut BlockTable) {
        self.forked(table);
        let Some((states, state)) = self.states.as_mut().zip(table.state().take()) else { return };
        state.saves.iter().for_each(|save| states.free(save.to));
        states.free(state.slot);
    }

    /// The cached leading blocks of `prefix` that a sequence can share.
    fn shared_blocks<'a>(&'a self, prefix: Prefix<'a>) -> impl Iterator<Item = BlockId> + 'a {
        let usable = |windows: &Windows| windows.usable(self.cached_blocks(prefix));
        let by_windows = self.windows.as_ref().map_or(usize::MAX, usable);
        // A sequence can continue after the last block with a state.
        let with_state = |states: &States| {
            let numbered = (1..).zip(self.cached_blocks(prefix));
            numbered.filter(|(_, base)| states.of(*base).is_some()).last().map_or(0, |(blocks, _)| blocks)
        };
        let by_states = self.states.as_ref().map_or(usize::MAX, with_state);
        self.cached_blocks(prefix).take(by_windows.min(by_states))
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
    pub fn grow(&mut self, table: &mut BlockTable, from: u32, to: u32, copies: Copies<'_>) -> u32 {
        let first = (from / self.block_size) as usize;
        let is_shared = |&block: &BlockId| self.pool.holders(block) > 1 || self.pool.is_cached(block);
        if let Some(shared) = table.get(first).filter(is_shared) {
            let Some(own) = self.take() else { return from };
            let [of_blocks, of_windows] = copies;
            of_blocks.push(BlockCopy { from: shared, to: own });
            if let Some(windows) = &mut self.windows
                && let Some((from, to)) = windows.of(shared).zip(windows.of(own))
            {
                of_windows.push(BlockCopy { from, to });
            }
            self.release_block(table, first, shared);
            table.replace(first, own);
        }
        while table.positions(self.block_size) < to {
            let Some(block) = self.take() else { break };
            table.push(block);
        }
        table.positions(self.block_size).clamp(from, to)
    }

    /// A block with one holder, and its window block: a free one, or else the least recently used cached one,
    /// which is evicted.
    fn take(&mut self) -> Option<BlockId> {
        if self.available_windows() == 0 {
            return None;
        }
        let (block, was_cached) = self.pool.take()?;
        let evicted = was_cached.then(|| self.prefix.evict(block));
        if let Some(windows) = &mut self.windows {
            if let Some(hash) = evicted {
                let has_window = windows.evict(block);
                self.gaps.extend((!has_window).then_some(Gap { hash, is_open: false }));
            }
            let lost = windows.add(block).unwrap_or_else(|_| unreachable!("a window block is available"));
            let lost = lost.map(|base| Gap { hash: self.prefix.hash_of(base), is_open: true });
            self.gaps.extend(lost);
        }
        if let Some((states, hash)) = self.states.as_mut().zip(evicted) {
            let had_state = states.evict(block);
            self.gaps.extend(had_state.then_some(Gap { hash, is_open: true }));
        }
        Some(block)
    }

    /// Releases `block`, the one at `index` of `table`, and its window block.
    fn release_block(&mut self, table: &BlockTable, index: usize, block: BlockId) {
        if let Some(windows) = self.windows.as_mut().filter(|_| index >= table.windows_from()) {
            windows.release(block);
        }
        self.pool.release(block);
    }

    /// Gives back the window blocks of `table` that no row from `position` on sees.
    ///
    /// Keeps what a row at the start of the position's block sees, so that the table's full blocks can be
    /// shared. The first ones are evicted first: hits at the end of a long text outlast those at its start.
    pub fn slide(&mut self, table: &mut BlockTable, position: u32) {
        let Some(windows) = &mut self.windows else { return };
        let block_start = position / self.block_size * self.block_size;
        let first = windows.first_seen(block_start).min(table.blocks().len());
        if first > table.windows_from() {
            let behind = &table.blocks()[table.windows_from()..first];
            behind.iter().for_each(|&base| windows.release(base));
            table.set_windows_from(first);
        }
    }

    /// Caches the leading `full` blocks of `table`, whose keys and values are now computed, and the states
    /// saved after them.
    ///
    /// If an equal block is already cached (two sequences computed the same prefix), the table takes that one
    /// and releases its own. Both hold the same bits. This keeps the invariant that eviction relies on: a
    /// holder of a cached block holds all its ancestors.
    pub fn register(&mut self, table: &mut BlockTable, prefix: Prefix<'_>, full: u32) {
        if self.share_prefixes {
            self.register_blocks(table, prefix, full);
            self.register_states(table);
        }
    }

    fn register_blocks(&mut self, table: &mut BlockTable, prefix: Prefix<'_>, full: u32) {
        let size = self.block_size as usize;
        while table.registered() < full && table.is_cacheable() {
            let index = table.registered() as usize;
            let tokens = &prefix.tokens[index * size..(index + 1) * size];
            let parent = index.checked_sub(1).and_then(|before| table.get(before));
            let own = table.blocks()[index];
            match self.prefix.insert(prefix.hashes[index], parent, &prefix.scope.salt, tokens, own) {
                Inserted::New => {
                    self.pool.mark_cached(own);
                    if let Some(windows) = &mut self.windows
                        && !windows.mark_cached(own)
                    {
                        self.gaps.push(Gap { hash: prefix.hashes[index], is_open: true });
                    }
                }
                Inserted::Existing(cached) => {
                    if !self.share_window(table, index, cached) {
                        table.stop_caching();
                        return;
                    }
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

    /// Makes `table` hold the window block of `cached` instead of the one at `index`; if `cached` has none,
    /// it gets that one. False if it cannot, because other tables hold that one, too.
    fn share_window(&mut self, table: &BlockTable, index: usize, cached: BlockId) -> bool {
        let own = table.blocks()[index];
        let Some(windows) = self.windows.as_mut().filter(|_| index >= table.windows_from()) else {
            return true;
        };
        if windows.of(cached).is_some() {
            windows.retain(cached);
            windows.release(own);
            return true;
        }
        if self.pool.holders(own) > 1 {
            return false;
        }
        windows.hand_over(own, cached);
        windows.mark_cached(cached);
        self.gaps.push(Gap { hash: self.prefix.hash_of(cached), is_open: false });
        true
    }

    /// A second table over the same blocks, including the partly filled last one.
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for &block in table.blocks() {
            self.pool.retain(block);
        }
        if let Some(windows) = &mut self.windows {
            table.blocks()[table.windows_from()..].iter().for_each(|&base| windows.retain(base));
        }
        let mut fork = table.clone();
        if let Some((states, state)) = self.states.as_mut().zip(fork.state().as_mut()) {
            // States saved before stay with the first table.
            let Taken { slot, lost } = states.fork(state.slot);
            *state = TableState { slot, promised: 0, saves: Vec::new(), rolling: None, ..*state };
            self.note_lost_state(lost);
        }
        fork
    }

    /// Cuts `table` back to its first `tokens` tokens and releases the blocks after them, last first. A
    /// cached block that is cut in the middle stays cached, because its content belongs to its hash. The next
    /// row must not see window blocks that were given back.
    pub fn truncate(&mut self, table: &mut BlockTable, tokens: u32) {
        let (blocks, full) = (self.blocks_for(tokens), tokens / self.block_size);
        let windows_from = table.windows_from();
        let mut index = table.blocks().len();
        for block in table.truncate(blocks as usize, full) {
            index -= 1;
            if let Some(windows) = self.windows.as_mut().filter(|_| index >= windows_from) {
                windows.release(block);
            }
            self.pool.release(block);
        }
    }

    /// Releases all blocks, last first, so that leaves are evicted before their parents.
    pub fn release(&mut self, mut table: BlockTable) {
        self.release_states(&mut table);
        for (index, &block) in table.blocks().iter().enumerate().rev() {
            self.release_block(&table, index, block);
        }
    }

    /// Insertions and evictions since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        let mut changes = self.prefix.take_changes();
        let gaps = std::mem::take(&mut self.gaps);
        match changes.last_mut() {
            Some(last) => last.gaps = gaps,
            None if gaps.is_empty() => {}
            None => changes.push(CacheChange { gaps, ..CacheChange::default() }),
        }
        changes
    }

    /// Cached blocks without window blocks, or those after which there is a state.
    pub fn gaps(&self) -> Gaps {
        if let Some(states) = &self.states {
            let ends = self.prefix.blocks().filter(|(base, _)| states.of(*base).is_some());
            let hashes = ends.map(|(_, hash)| hash).collect();
            return Gaps { window_blocks: 0, hashes, are_ends: true };
        }
        let Some(windows) = &self.windows else { return Gaps::default() };
        let cached = self.prefix.blocks().filter(|(base, _)| windows.of(*base).is_none());
        let hashes = cached.map(|(_, hash)| hash).collect();
        Gaps { window_blocks: windows.of_sequence() - 1, hashes, are_ends: false }
    }

    /// Every cached run, parents before children.
    pub fn snapshot(&self) -> Vec<RunStored> {
        self.prefix.snapshot()
    }
}
