//! The cached blocks of all workers, each block once: a tree of runs. Pure.
//!
//! A *run* is a gapless chain of blocks, stored as one array of hashes. It may continue its parent at any
//! block, so a divergence splits nothing. A hash identifies a block and everything before it, so only the
//! first hash of a run is in a table; the rest of a match compares arrays. Each run lists its holders: the
//! workers that cache its first `cutoff` blocks. One descent therefore finds what every worker holds.
//!
//! Workers refer to their own runs by handle. A handle's blocks are a path in the tree; the tree stores only
//! the last run of the path, its *tail*, from which the path leads up.

use std::collections::{BTreeMap, HashMap, VecDeque};

use skein_proto::block_hash::BlockHash;
use skein_proto::runs::RunStored;

use super::columns::{Column, NO_COLUMN, Slot};
use super::desync::Desync;
use super::hash_map::{ByHash, Mixed, shrink};

/// Index of a run; reused after it is freed.
type RunId = u32;

/// Parent of runs at depth 0.
const ROOT: RunId = RunId::MAX;
/// Bytes of a run besides its arrays: the run itself, and its entries in two tables.
const RUN_BYTES: usize = size_of::<Run>() + 2 * size_of::<(u64, RunId)>() + 16;
/// Bytes of a handle in its table, which is at least 7/16 full.
const HANDLE_BYTES: usize = 2 * size_of::<(u64, Tail)>();

#[derive(Debug, Default)]
pub(super) struct Tree {
    runs: Vec<Run>,
    free_runs: Vec<RunId>,
    /// Run that starts with this hash.
    heads: ByHash<RunId>,
    /// Runs without children by age: candidates to forget.
    leaves: BTreeMap<u64, RunId>,
    last_age: u64,
    caches: Vec<Cache>,
    /// Column of each cache, in a separate array because a search reads many.
    columns: Vec<Column>,
    free_slots: Vec<Slot>,
    /// Further handles with the same tail run in the same cache, by run and slot. Rare.
    more_tails: HashMap<(RunId, Slot), Vec<u64>, Mixed>,
    /// Caches being removed, with their remaining handles.
    retired: VecDeque<(Slot, Vec<u64>)>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Run {
    hashes: Vec<BlockHash>,
    parent: RunId,
    depth: u32,
    children: u32,
    /// Upper bound of the depths at which children continue this run.
    last_child: u32,
    age: u64,
    /// Holders by slot, ascending.
    holders: Vec<Holder>,
    counted_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    slot: Slot,
    /// Number of the run's blocks that it holds, at least one.
    cutoff: u32,
    /// A handle of its cache whose tail is in this run; 0 = none.
    handle: u64,
}

/// Cache of one worker.
#[derive(Debug, Default)]
struct Cache {
    handles: ByHash<Tail>,
    blocks: usize,
    /// Runs were forgotten, so an unknown handle does not imply a lost event.
    forgot: bool,
}

/// Path of a handle: the blocks from `depth` to `end`; the last one is in `run`.
#[derive(Debug, Clone, Copy)]
struct Tail {
    run: RunId,
    end: u32,
    depth: u32,
}

impl Run {
    fn end(&self) -> u32 {
        self.depth + self.hashes.len() as u32
    }

    fn holder(&self, slot: Slot) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&slot, |holder| holder.slot)
    }

    /// Number of blocks that `slot` holds.
    fn cutoff(&self, slot: Slot) -> u32 {
        self.holder(slot).map_or(0, |at| self.holders[at].cutoff)
    }

    fn bytes(&self) -> usize {
        RUN_BYTES
            + self.hashes.capacity() * size_of::<BlockHash>()
            + self.holders.capacity() * size_of::<Holder>()
    }
}

impl Tree {
    /// Creates an empty cache.
    pub fn open(&mut self, column: Column) -> Slot {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.caches.push(Cache::default());
            self.columns.push(NO_COLUMN);
            self.caches.len() as Slot - 1
        });
        self.columns[slot as usize] = column;
        slot
    }

    /// Removes a cache from all results immediately. [`Tree::clean`] frees its memory.
    pub fn retire(&mut self, slot: Slot) {
        self.columns[slot as usize] = NO_COLUMN;
        let handles = self.caches[slot as usize].handles.keys().copied().collect();
        self.retired.push_back((slot, handles));
    }

    /// Frees up to `handles` handles of retired caches; returns whether any cache is left to free.
    pub fn clean(&mut self, handles: usize) -> bool {
        for _ in 0..handles {
            let Some((slot, left)) = self.retired.front_mut() else { return false };
            let slot = *slot;
            match left.pop() {
                Some(handle) => self.drop_handle(slot, handle),
                None => {
                    self.retired.pop_front();
                    self.close(slot);
                }
            }
        }
        !self.retired.is_empty()
    }

    /// Frees the slot of a cache without handles.
    fn close(&mut self, slot: Slot) {
        // A worker that evicted parents before their children leaves blocks without a handle.
        if self.caches[slot as usize].blocks > 0 {
            for run in 0..self.runs.len() {
                self.lower(run as RunId, slot, 0);
            }
        }
        self.caches[slot as usize] = Cache::default();
        self.free_slots.push(slot);
    }

    /// Memory of runs, holders and handles, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of blocks in a cache.
    pub fn blocks(&self, slot: Slot) -> usize {
        self.caches[slot as usize].blocks
    }

    /// Sets `hits[column]` to the number of leading blocks of `chain` that each worker holds. `hits` must be
    /// zero, with an entry per column.
    pub fn search(&self, chain: &[BlockHash], hits: &mut [u32]) {
        let (mut at, mut parent) = (0_usize, ROOT);
        while let Some(&id) = chain.get(at).and_then(|hash| self.heads.get(hash)) {
            let run = &self.runs[id as usize];
            if run.parent != parent || run.depth as usize != at {
                return; // hash collision with another block
            }
            let same = same_prefix(&run.hashes, &chain[at..]);
            for holder in &run.holders {
                let hit = &mut hits[self.columns[holder.slot as usize] as usize];
                if *hit as usize == at {
                    *hit += holder.cutoff.min(same as u32);
                }
            }
            (at, parent) = (at + same, id);
        }
    }

    /// Adds the blocks of `stored` to a cache.
    pub fn store(&mut self, slot: Slot, stored: &RunStored) -> Result<(), Desync> {
        let Some(start) = self.start_of(slot, stored) else {
            // A forgotten run cannot be continued, and a snapshot would only fill the memory again.
            return self.unless_forgotten(slot, stored.handle);
        };
        if stored.hashes.is_empty() {
            return Ok(());
        }
        let known = self.caches[slot as usize].handles.get(&stored.handle).copied();
        if let Some(tail) = known {
            self.unregister(tail.run, slot, stored.handle);
        }
        let (run, end) = self.insert(slot, start, stored.depth, &stored.hashes);
        if end < stored.depth + stored.hashes.len() as u32 {
            self.caches[slot as usize].forgot = true; // hash collision of two blocks
        }
        let depth = known.map_or(stored.depth, |tail| tail.depth);
        if end == depth {
            return Ok(());
        }
        if self.caches[slot as usize].handles.insert(stored.handle, Tail { run, end, depth }).is_none() {
            self.bytes += HANDLE_BYTES;
        }
        self.register(run, slot, stored.handle);
        self.touch(run);
        Ok(())
    }

    fn unless_forgotten(&self, slot: Slot, handle: u64) -> Result<(), Desync> {
        if self.caches[slot as usize].forgot { Ok(()) } else { Err(Desync { handle }) }
    }

    /// Run that `stored` continues; `None` if it does not fit the cache.
    fn start_of(&self, slot: Slot, stored: &RunStored) -> Option<RunId> {
        let cache = &self.caches[slot as usize];
        if stored.handle == 0 {
            return None;
        }
        if let Some(tail) = cache.handles.get(&stored.handle) {
            return (tail.end == stored.depth).then_some(tail.run);
        }
        if stored.depth == 0 {
            return (stored.parent == 0).then_some(ROOT);
        }
        let parent = cache.handles.get(&stored.parent)?;
        if !(parent.depth < stored.depth && stored.depth <= parent.end) {
            return None;
        }
        let mut run = parent.run;
        while self.runs[run as usize].depth >= stored.depth {
            run = self.runs[run as usize].parent;
        }
        let start = &self.runs[run as usize];
        (start.depth + start.cutoff(slot) >= stored.depth).then_some(run)
    }

    /// Makes `slot` hold `rest`, which continues `run` at `depth`; returns the last run and the depth of its
    /// end.
    fn insert(&mut self, slot: Slot, mut run: RunId, mut depth: u32, rest: &[BlockHash]) -> (RunId, u32) {
        let mut rest = rest;
        loop {
            if let Some(known) = self.runs.get(run as usize) {
                let offset = depth - known.depth;
                let same = same_prefix(&known.hashes[offset as usize..], rest);
                if same > 0 {
                    self.hold(run, slot, offset + same as u32);
                }
                (depth, rest) = (depth + same as u32, &rest[same..]);
            }
            let Some(&next) = rest.first() else { return (run, depth) };
            let end = depth + rest.len() as u32;
            match self.heads.get(&next) {
                Some(&child) => {
                    let found = &self.runs[child as usize];
                    if found.parent != run || found.depth != depth {
                        return (run, depth);
                    }
                    run = child;
                }
                None if run != ROOT && self.runs[run as usize].end() == depth => {
                    extend(&mut self.runs[run as usize].hashes, rest);
                    self.hold(run, slot, end - self.runs[run as usize].depth);
                    return (run, end);
                }
                None => {
                    let child = self.add_child(run, depth, rest);
                    self.hold(child, slot, rest.len() as u32);
                    return (child, end);
                }
            }
        }
    }

    fn add_child(&mut self, parent: RunId, depth: u32, hashes: &[BlockHash]) -> RunId {
        let id = self.free_runs.pop().unwrap_or_else(|| {
            self.runs.push(Run::default());
            self.runs.len() as RunId - 1
        });
        self.last_age += 1;
        let age = self.last_age;
        self.runs[id as usize] = Run { hashes: hashes.to_vec(), parent, depth, age, ..Run::default() };
        self.leaves.insert(age, id);
        self.heads.insert(hashes[0], id);
        if let Some(parent) = self.runs.get_mut(parent as usize) {
            if parent.children == 0 {
                self.leaves.remove(&parent.age);
            }
            parent.children += 1;
            parent.last_child = parent.last_child.max(depth);
            self.last_age += 1;
            parent.age = self.last_age;
        }
        id
    }

    /// Makes a run the youngest. A parent is as old as its youngest child was when it was added.
    fn touch(&mut self, id: RunId) {
        self.last_age += 1;
        let run = &mut self.runs[id as usize];
        if run.children == 0 {
            self.leaves.remove(&run.age);
            self.leaves.insert(self.last_age, id);
        }
        run.age = self.last_age;
    }

    /// Makes `slot` hold at least `cutoff` blocks of a run.
    fn hold(&mut self, id: RunId, slot: Slot, cutoff: u32) {
        let run = &mut self.runs[id as usize];
        let before = match run.holder(slot) {
            Ok(at) => {
                let before = run.holders[at].cutoff;
                run.holders[at].cutoff = before.max(cutoff);
                before
            }
            Err(at) => {
                if run.holders.len() == run.holders.capacity() {
                    run.holders.reserve_exact((run.holders.len() / 4).max(1));
                }
                run.holders.insert(at, Holder { slot, cutoff, handle: 0 });
                0
            }
        };
        self.caches[slot as usize].blocks += cutoff.saturating_sub(before) as usize;
        self.count(id);
    }

    /// Updates the byte count of a run.
    fn count(&mut self, id: RunId) {
        let run = &mut self.runs[id as usize];
        let bytes = run.bytes();
        self.bytes = self.bytes + bytes - std::mem::replace(&mut run.counted_bytes, bytes);
    }

    /// Records that the tail of `handle` is in a run that its cache holds.
    fn register(&mut self, id: RunId, slot: Slot, handle: u64) {
        let run = &mut self.runs[id as usize];
        let at = run.holder(slot).expect("a cache holds the tails of its handles");
        match run.holders[at].handle {
            0 => run.holders[at].handle = handle,
            _ => self.more_tails.entry((id, slot)).or_default().push(handle),
        }
    }

    fn unregister(&mut self, id: RunId, slot: Slot, handle: u64) {
        let mut handles = self.take_tails(id, slot);
        handles.retain(|&other| other != handle);
        handles.into_iter().for_each(|other| self.register(id, slot, other));
    }

    /// Removes and returns the handles of `slot` whose tails are in a run.
    fn take_tails(&mut self, id: RunId, slot: Slot) -> Vec<u64> {
        let run = &mut self.runs[id as usize];
        let Ok(at) = run.holder(slot) else { return Vec::new() };
        let first = std::mem::take(&mut run.holders[at].handle);
        let mut handles = self.more_tails.remove(&(id, slot)).unwrap_or_default();
        if first != 0 {
            handles.push(first);
        }
        handles
    }

    /// Removes the blocks of a handle from `new_end` on.
    pub fn truncate(&mut self, slot: Slot, handle: u64, new_end: u32) -> Result<(), Desync> {
        let Some(tail) = self.caches[slot as usize].handles.get(&handle) else {
            return self.unless_forgotten(slot, handle);
        };
        self.cut(slot, handle, new_end.max(tail.depth));
        Ok(())
    }

    fn drop_handle(&mut self, slot: Slot, handle: u64) {
        if let Some(tail) = self.caches[slot as usize].handles.get(&handle) {
            self.cut(slot, handle, tail.depth);
        }
    }

    /// Moves the tail of a handle up to depth `end`; at its start the handle is removed.
    fn cut(&mut self, slot: Slot, handle: u64, end: u32) {
        while let Some(&tail) = self.caches[slot as usize].handles.get(&handle) {
            if tail.end <= end {
                return;
            }
            let to = end.saturating_sub(self.runs[tail.run as usize].depth);
            self.lower(tail.run, slot, to);
        }
    }

    /// Makes `slot` hold at most `to` blocks of a run, and moves the tails beyond that.
    fn lower(&mut self, id: RunId, slot: Slot, to: u32) {
        let run = &mut self.runs[id as usize];
        let Ok(at) = run.holder(slot) else { return };
        let from = run.holders[at].cutoff;
        if from <= to {
            return;
        }
        let (first, parent, was_whole) = (run.depth, run.parent, from as usize == run.hashes.len());
        let tails = self.take_tails(id, slot);
        let run = &mut self.runs[id as usize];
        run.holders[at].cutoff = to;
        if to == 0 {
            run.holders.remove(at);
        }
        self.caches[slot as usize].blocks -= (from - to) as usize;
        for handle in tails {
            self.move_tail(slot, handle, if to > 0 { id } else { parent }, first + to);
        }
        if was_whole {
            self.trim(id);
        }
    }

    /// Limits the tail of a handle to `end`; the block before is in `run`.
    fn move_tail(&mut self, slot: Slot, handle: u64, run: RunId, end: u32) {
        // A worker that evicts parents before children may hold less of the parent.
        let held = self.runs.get(run as usize).map_or(0, |run| run.depth + run.cutoff(slot));
        let end = end.min(held);
        let handles = &mut self.caches[slot as usize].handles;
        let Some(tail) = handles.get_mut(&handle) else { return };
        if tail.depth >= end || self.runs[run as usize].depth >= end {
            handles.remove(&handle);
            shrink(handles);
            self.bytes -= HANDLE_BYTES;
            return;
        }
        (tail.run, tail.end) = (run, tail.end.min(end));
        self.register(run, slot, handle);
    }

    /// Frees blocks at a run's end that no cache holds, an empty run, and then its parents.
    fn trim(&mut self, mut id: RunId) {
        loop {
            let run = &mut self.runs[id as usize];
            if run.holders.is_empty() && run.children == 0 {
                id = self.free(id);
                let is_bare = self.runs.get(id as usize).is_some_and(|parent| parent.children == 0);
                if !is_bare {
                    return;
                }
                continue;
            }
            let held = run.holders.iter().map(|holder| holder.cutoff).max().unwrap_or(0);
            let continued = if run.children > 0 { run.last_child - run.depth } else { 0 };
            run.hashes.truncate(held.max(continued) as usize);
            if run.hashes.capacity() / 2 > run.hashes.len() {
                run.hashes.shrink_to_fit();
            }
            if run.holders.capacity() / 2 > run.holders.len() {
                run.holders.shrink_to_fit();
            }
            return self.count(id);
        }
    }

    /// Frees a run without holders or children; returns its parent.
    fn free(&mut self, id: RunId) -> RunId {
        let run = std::mem::take(&mut self.runs[id as usize]);
        self.leaves.remove(&run.age);
        self.heads.remove(&run.hashes[0]);
        shrink(&mut self.heads);
        self.bytes -= run.counted_bytes;
        self.free_runs.push(id);
        if let Some(parent) = self.runs.get_mut(run.parent as usize) {
            parent.children -= 1;
            if parent.children == 0 {
                parent.last_child = 0;
                self.leaves.insert(parent.age, run.parent);
            }
        }
        run.parent
    }

    /// Forgets the oldest run without children; returns whether there was one.
    pub fn forget_oldest(&mut self) -> bool {
        let Some((_, &id)) = self.leaves.first_key_value() else { return false };
        // Not with `lower`, which would search for the longest holder each time.
        while let Some(holder) = self.runs[id as usize].holders.last().copied() {
            self.caches[holder.slot as usize].forgot = true;
            let tails = self.take_tails(id, holder.slot);
            let run = &mut self.runs[id as usize];
            let (first, parent) = (run.depth, run.parent);
            run.holders.pop();
            self.caches[holder.slot as usize].blocks -= holder.cutoff as usize;
            tails.into_iter().for_each(|handle| self.move_tail(holder.slot, handle, parent, first));
        }
        self.trim(id);
        true
    }

    /// Whether the tree is empty.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let maps = self.heads.len() + self.leaves.len() + self.more_tails.len() + self.retired.len();
        maps == 0 && self.runs.len() == self.free_runs.len() && self.bytes == 0
    }

    /// Checks all invariants.
    #[cfg(test)]
    pub fn audit(&self) {
        let mut blocks = vec![0; self.caches.len()];
        let mut children = vec![Vec::new(); self.runs.len()];
        let mut bytes = 0;
        let mut is_live = vec![true; self.runs.len()];
        self.free_runs.iter().for_each(|&id| is_live[id as usize] = false);
        let live = || self.runs.iter().enumerate().filter(|(id, _)| is_live[*id]);
        for (_, run) in live().filter(|(_, run)| run.parent != ROOT) {
            children[run.parent as usize].push(run.depth);
        }
        for (id, run) in live() {
            assert_eq!(self.heads.get(&run.hashes[0]), Some(&(id as RunId)));
            assert_eq!(children[id].len(), run.children as usize);
            assert!(children[id].iter().all(|depth| (run.depth + 1..=run.end()).contains(depth)));
            assert_eq!(self.leaves.get(&run.age) == Some(&(id as RunId)), run.children == 0);
            assert!(run.holders.is_sorted_by_key(|holder| holder.slot));
            bytes += run.bytes();
            for holder in &run.holders {
                assert!((1..=run.hashes.len() as u32).contains(&holder.cutoff));
                blocks[holder.slot as usize] += holder.cutoff as usize;
                let more = self.more_tails.get(&(id as RunId, holder.slot));
                for handle in more.into_iter().flatten().chain(Some(&holder.handle).filter(|id| **id > 0)) {
                    let tail = self.caches[holder.slot as usize].handles[handle];
                    assert!(tail.run == id as RunId && tail.end <= run.depth + holder.cutoff);
                    assert!(tail.end > run.depth && tail.end > tail.depth);
                }
            }
        }
        for (cache, blocks) in self.caches.iter().zip(blocks) {
            assert_eq!(cache.blocks, blocks);
            bytes += cache.handles.len() * HANDLE_BYTES;
        }
        assert_eq!(self.bytes, bytes);
    }
}

/// Number of leading hashes in common. Hashes are chained: if two are equal, so are all before.
fn same_prefix(one: &[BlockHash], other: &[BlockHash]) -> usize {
    let most = one.len().min(other.len());
    if most == 0 || one[most - 1] == other[most - 1] {
        return most;
    }
    // Binary search: equal before the divergence, different after it.
    let (mut equal, mut different) = (0, most - 1);
    while equal < different {
        let middle = usize::midpoint(equal, different);
        if one[middle] == other[middle] {
            equal = middle + 1;
        } else {
            different = middle;
        }
    }
    equal
}

/// Appends with a quarter of slack, because blocks of answers arrive one by one.
fn extend(hashes: &mut Vec<BlockHash>, rest: &[BlockHash]) {
    if hashes.capacity() - hashes.len() < rest.len() {
        hashes.reserve_exact(rest.len().max(hashes.len() / 4));
    }
    hashes.extend_from_slice(rest);
}
