//! A fixed set of blocks with reference counts, and one intrusive list of the blocks without holders.

use crate::BlockId;

/// Marks the ends of the list.
const NIL: u32 = u32::MAX;

/// How many blocks are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCounts {
    /// Without content and without holders.
    pub free: u32,
    /// Without holders, but with cached content.
    pub cached: u32,
    /// Held by at least one block table.
    pub held: u32,
    /// Of those, held by several.
    pub shared: u32,
}

/// All KV blocks of a backend. Every operation is O(1).
///
/// The list is in the order of reuse: blank blocks first, then cached ones from the least to the
/// most recently released.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    head: u32,
    tail: u32,
    counts: BlockCounts,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    holders: u32,
    cached: bool,
    before: u32,
    after: u32,
}

impl BlockPool {
    /// `total` blank blocks; the lowest id is used first.
    pub fn new(total: u32) -> Self {
        let blank = Block { holders: 0, cached: false, before: NIL, after: NIL };
        let counts = BlockCounts { free: 0, cached: 0, held: total, shared: 0 };
        let mut pool = Self { blocks: vec![blank; total as usize], head: NIL, tail: NIL, counts };
        for id in (0..total).rev() {
            pool.put_back(id);
        }
        pool
    }

    /// Takes the next block for one holder; `true` if its cached content is lost.
    pub fn take(&mut self) -> Option<(BlockId, bool)> {
        let id = self.head;
        if id == NIL {
            return None;
        }
        self.unlink(id);
        let block = &mut self.blocks[id as usize];
        block.holders = 1;
        let was_cached = std::mem::take(&mut block.cached);
        Some((BlockId(id), was_cached))
    }

    /// Adds a holder.
    pub fn retain(&mut self, block: BlockId) {
        if self.blocks[block.0 as usize].holders == 0 {
            self.unlink(block.0);
        }
        let holders = &mut self.blocks[block.0 as usize].holders;
        *holders += 1;
        self.counts.shared += u32::from(*holders == 2);
    }

    /// Removes a holder; the last one puts the block back into the list.
    pub fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.0 as usize];
        assert!(entry.holders > 0, "block {} released more often than held", block.0);
        entry.holders -= 1;
        self.counts.shared -= u32::from(entry.holders == 1);
        if entry.holders == 0 {
            self.put_back(block.0);
        }
    }

    /// Marks the content of this held block as cached.
    pub fn mark_cached(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.0 as usize];
        assert!(entry.holders > 0, "block {} is cached without a holder", block.0);
        entry.cached = true;
    }

    /// Marks the content of this block as blank; without holders, it is used next.
    pub fn forget(&mut self, block: BlockId) {
        let Block { holders, cached, .. } = self.blocks[block.0 as usize];
        if cached && holders == 0 {
            self.unlink(block.0);
            self.blocks[block.0 as usize].cached = false;
            self.put_back(block.0);
        }
        self.blocks[block.0 as usize].cached = false;
    }

    /// Whether the content of `block` is cached.
    pub fn is_cached(&self, block: BlockId) -> bool {
        self.blocks[block.0 as usize].cached
    }

    /// Number of holders of `block`.
    pub fn holders(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].holders
    }

    /// Number of blocks.
    pub fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Free, cached and held blocks.
    pub fn counts(&self) -> BlockCounts {
        self.counts
    }

    fn put_back(&mut self, id: u32) {
        self.counts.held -= 1;
        if self.blocks[id as usize].cached {
            self.counts.cached += 1;
            self.link(self.tail, id, NIL);
        } else {
            self.counts.free += 1;
            self.link(NIL, id, self.head);
        }
    }

    fn link(&mut self, before: u32, id: u32, after: u32) {
        let block = &mut self.blocks[id as usize];
        (block.before, block.after) = (before, after);
        match before {
            NIL => self.head = id,
            before => self.blocks[before as usize].after = id,
        }
        match after {
            NIL => self.tail = id,
            after => self.blocks[after as usize].before = id,
        }
    }

    fn unlink(&mut self, id: u32) {
        let Block { cached, before, after, .. } = self.blocks[id as usize];
        match before {
            NIL => self.head = after,
            before => self.blocks[before as usize].after = after,
        }
        match after {
            NIL => self.tail = before,
            after => self.blocks[after as usize].before = before,
        }
        let count = if cached { &mut self.counts.cached } else { &mut self.counts.free };
        *count -= 1;
        self.counts.held += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Act {
        Take,
        Retain(usize),
        Release(usize),
        Cache(usize),
        Forget(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => Just(Act::Take),
            1 => any::<usize>().prop_map(Act::Retain),
            3 => any::<usize>().prop_map(Act::Release),
            1 => any::<usize>().prop_map(Act::Cache),
            1 => any::<usize>().prop_map(Act::Forget),
        ]
    }

    /// The same pool in its simplest form: blank blocks are a stack, cached ones a queue.
    struct Naive {
        blanks: Vec<u32>,
        queue: Vec<u32>,
        holders: Vec<u32>,
        cached: Vec<bool>,
    }

    impl Naive {
        fn take(&mut self) -> Option<(BlockId, bool)> {
            let (id, evicted) = match self.blanks.pop() {
                Some(id) => (id, false),
                None if self.queue.is_empty() => return None,
                None => (self.queue.remove(0), true),
            };
            (self.holders[id as usize], self.cached[id as usize]) = (1, false);
            Some((BlockId(id), evicted))
        }

        fn retain(&mut self, id: u32) {
            self.blanks.retain(|&blank| blank != id);
            self.queue.retain(|&cached| cached != id);
            self.holders[id as usize] += 1;
        }

        fn forget(&mut self, id: u32) {
            self.cached[id as usize] = false;
            if self.holders[id as usize] == 0 {
                self.queue.retain(|&cached| cached != id);
                self.blanks.push(id);
            }
        }

        fn release(&mut self, id: u32) {
            self.holders[id as usize] -= 1;
            match (self.holders[id as usize], self.cached[id as usize]) {
                (0, true) => self.queue.push(id),
                (0, false) => self.blanks.push(id),
                _ => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn behaves_as_the_naive_pool(total in 0u32..12, acts in prop::collection::vec(act(), 0..200)) {
            let mut pool = BlockPool::new(total);
            let mut naive = Naive {
                blanks: (0..total).rev().collect(),
                queue: Vec::new(),
                holders: vec![0; total as usize],
                cached: vec![false; total as usize],
            };
            for act in acts {
                let held: Vec<u32> = (0..total).filter(|&id| naive.holders[id as usize] > 0).collect();
                let pick = |n: usize, from: &[u32]| (!from.is_empty()).then(|| from[n % from.len()]);
                match act {
                    Act::Take => prop_assert_eq!(pool.take(), naive.take()),
                    Act::Retain(n) => {
                        let known: Vec<u32> = (0..total).filter(|id| !naive.blanks.contains(id)).collect();
                        if let Some(id) = pick(n, &known) {
                            pool.retain(BlockId(id));
                            naive.retain(id);
                        }
                    }
                    Act::Release(n) => {
                        if let Some(id) = pick(n, &held) {
                            pool.release(BlockId(id));
                            naive.release(id);
                        }
                    }
                    Act::Cache(n) => {
                        if let Some(id) = pick(n, &held) {
                            pool.mark_cached(BlockId(id));
                            naive.cached[id as usize] = true;
                        }
                    }
                    Act::Forget(n) => {
                        let cached: Vec<u32> = (0..total).filter(|&id| naive.cached[id as usize]).collect();
                        if let Some(id) = pick(n, &cached) {
                            pool.forget(BlockId(id));
                            naive.forget(id);
                        }
                    }
                }
                let counts = pool.counts();
                prop_assert_eq!(counts.free as usize, naive.blanks.len());
                prop_assert_eq!(counts.cached as usize, naive.queue.len());
                prop_assert_eq!(counts.free + counts.cached + counts.held, total);
                let shared = (0..total).filter(|&id| pool.holders(BlockId(id)) > 1).count();
                prop_assert_eq!(counts.shared as usize, shared);
                for id in 0..total {
                    prop_assert_eq!(pool.holders(BlockId(id)), naive.holders[id as usize]);
                }
            }
        }
    }
}
