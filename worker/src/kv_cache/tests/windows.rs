//! Window blocks, against a simple model: each sequence's own list of tokens. Two simulated memories hold in
//! every slot the token that was written there.

use super::*;
use crate::backend::WindowBlocks;

#[derive(Debug, Clone)]
enum Act {
    Start(Vec<TokenId>),
    Append(usize, Vec<TokenId>),
    Cut(usize, usize),
    Fork(usize),
    End(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let tokens = || prop::collection::vec(0u32..2, 1..9);
    prop_oneof![
        2 => tokens().prop_map(Act::Start),
        6 => (any::<usize>(), tokens()).prop_map(|(which, tokens)| Act::Append(which, tokens)),
        2 => any::<(usize, usize)>().prop_map(|(which, len)| Act::Cut(which, len)),
        1 => any::<usize>().prop_map(Act::Fork),
        2 => any::<usize>().prop_map(Act::End),
    ]
}

struct Twin {
    tokens: Vec<TokenId>,
    table: BlockTable,
    /// Position of the first row that may follow.
    next: u32,
}

struct World {
    kv: KvCache,
    window: u32,
    scope: CacheScope,
    memory: Vec<TokenId>,
    window_memory: Vec<TokenId>,
    twins: Vec<Twin>,
}

fn copy(memory: &mut [TokenId], copies: Vec<BlockCopy>) {
    let size = BLOCK_SIZE as usize;
    for BlockCopy { from, to } in copies {
        memory.copy_within(from.0 as usize * size..(from.0 as usize + 1) * size, to.0 as usize * size);
    }
}

impl World {
    fn windows(&self, table: &BlockTable) -> Vec<BlockId> {
        let mut windows = Vec::new();
        self.kv.put_windows(table, table.blocks().len(), &mut windows);
        windows
    }

    fn append(&mut self, twin: &mut Twin, tokens: &[TokenId]) {
        let from = twin.tokens.len() as u32;
        let (mut copies, mut window_copies) = (Vec::new(), Vec::new());
        let to = from + tokens.len() as u32;
        let end = self.kv.grow(&mut twin.table, from, to, [&mut copies, &mut window_copies]);
        copy(&mut self.memory, copies);
        copy(&mut self.window_memory, window_copies);
        let windows = self.windows(&twin.table);
        for (position, &token) in (from..end).zip(tokens) {
            let window = windows[(position / BLOCK_SIZE) as usize].0 * BLOCK_SIZE + position % BLOCK_SIZE;
            self.memory[twin.table.slot(position, BLOCK_SIZE) as usize] = token;
            self.window_memory[window as usize] = token;
            twin.tokens.push(token);
        }
        self.check_window(twin);
        let hashes = hashes(&self.scope, &twin.tokens);
        let prefix = Prefix { scope: &self.scope, tokens: &twin.tokens, hashes: &hashes };
        self.kv.register(&mut twin.table, prefix, end / BLOCK_SIZE);
        twin.next = twin.next.max(end.saturating_sub(2));
        self.kv.slide(&mut twin.table, twin.next);
    }

    /// The keys that the next row sees are in the window blocks of its table.
    fn check_window(&self, twin: &Twin) {
        let windows = self.windows(&twin.table);
        for position in (twin.next + 1).saturating_sub(self.window)..twin.tokens.len() as u32 {
            let block = windows[(position / BLOCK_SIZE) as usize].0;
            let token = self.window_memory[(block * BLOCK_SIZE + position % BLOCK_SIZE) as usize];
            assert_eq!(token, twin.tokens[position as usize], "position {position} before {}", twin.next);
        }
    }

    /// The length of a hit by its definition: all blocks are cached, and so are the window blocks that the
    /// next row sees.
    fn hit(&self, tokens: &[TokenId]) -> u32 {
        let hashes = hashes(&self.scope, tokens);
        let known: Vec<BlockId> = (1..=hashes.len())
            .map_while(|blocks| {
                let (before, last) = hashes[..blocks].split_at(blocks - 1);
                let parent = before.last().map(|hash| self.kv.prefix.by_hash(*hash).expect("prefix-closed"));
                let size = BLOCK_SIZE as usize;
                self.kv.prefix.find(
                    last[0],
                    parent,
                    &self.scope.salt,
                    &tokens[(blocks - 1) * size..blocks * size],
                )
            })
            .collect();
        let usable = |&blocks: &u32| {
            let first = (blocks * BLOCK_SIZE + 1).saturating_sub(self.window);
            (first..blocks * BLOCK_SIZE).all(|position| {
                let base = known[(position / BLOCK_SIZE) as usize];
                self.kv.windows.as_ref().is_some_and(|windows| windows.of(base).is_some())
            })
        };
        let most = (known.len() as u32).min((tokens.len() as u32 - 1) / BLOCK_SIZE);
        (0..=most).rev().find(usable).unwrap_or(0)
    }

    /// The length of a hit by what routers are told: cached blocks and gaps.
    fn hit_by_gaps(&self, tokens: &[TokenId]) -> u32 {
        let (hashes, gaps) = (hashes(&self.scope, tokens), self.kv.gaps());
        let most = (tokens.len() - 1) / BLOCK_SIZE as usize;
        let known = hashes.iter().take(most).take_while(|hash| self.kv.prefix.by_hash(**hash).is_some());
        let known = known.count();
        let is_usable = |&end: &usize| {
            let last = &hashes[end.saturating_sub(gaps.window_blocks as usize)..end];
            last.iter().all(|hash| !gaps.hashes.contains(hash))
        };
        (0..=known).rev().find(is_usable).unwrap_or(0) as u32
    }

    fn start(&mut self, tokens: &[TokenId]) -> Twin {
        let hashes = hashes(&self.scope, tokens);
        let prefix = Prefix { scope: &self.scope, tokens, hashes: &hashes };
        let found = self.kv.match_prefix(prefix).blocks;
        assert_eq!(found, self.hit(tokens));
        assert_eq!(found, self.hit_by_gaps(tokens), "routers know as much");
        let table = self.kv.adopt_prefix(prefix, 1);
        let cached = table.positions(BLOCK_SIZE);
        let mut twin = Twin { tokens: tokens[..cached as usize].to_vec(), table, next: cached };
        self.check_window(&twin);
        self.append(&mut twin, &tokens[cached as usize..]);
        twin
    }

    fn apply(&mut self, act: Act) {
        match act {
            Act::Start(tokens) => {
                let twin = self.start(&tokens);
                self.twins.push(twin);
            }
            Act::Append(..) | Act::Cut(..) | Act::Fork(_) | Act::End(_) if self.twins.is_empty() => {}
            Act::Append(which, tokens) => {
                let index = which % self.twins.len();
                let mut twin = self.twins.swap_remove(index);
                self.append(&mut twin, &tokens);
                self.twins.push(twin);
            }
            Act::Cut(which, less) => {
                let index = which % self.twins.len();
                let twin = &mut self.twins[index];
                // Not behind the position that the window slid to.
                let most = twin.tokens.len() - twin.next as usize;
                twin.tokens.truncate(twin.next as usize + less % (most + 1));
                self.kv.truncate(&mut twin.table, twin.tokens.len() as u32);
            }
            Act::Fork(which) => {
                let Twin { tokens, table, next } = &self.twins[which % self.twins.len()];
                let fork = Twin { tokens: tokens.clone(), table: self.kv.fork(table), next: *next };
                self.twins.push(fork);
            }
            Act::End(which) => {
                let twin = self.twins.swap_remove(which % self.twins.len());
                self.kv.release(twin.table);
            }
        }
    }

    fn check(&self) {
        let mut holders = vec![0; self.kv.total() as usize];
        let mut window_holders = holders.clone();
        for twin in &self.twins {
            let read =
                (0..twin.tokens.len() as u32).map(|at| self.memory[twin.table.slot(at, BLOCK_SIZE) as usize]);
            assert_eq!(read.collect::<Vec<_>>(), twin.tokens, "a table leads to its own tokens");
            self.check_window(twin);
            twin.table.blocks().iter().for_each(|block| holders[block.0 as usize] += 1);
            let bases = self.kv.window_bases(&twin.table);
            let rows = twin.tokens.len() as u32 - twin.next;
            let most = (self.window + rows).div_ceil(BLOCK_SIZE) + 2;
            assert!(bases.len() as u32 <= most, "it holds no more than it sees");
            bases.iter().for_each(|base| window_holders[base.0 as usize] += 1);
        }
        let (counts, windows) = (self.kv.counts(), self.kv.window_counts().expect("it has windows"));
        assert_eq!(counts.free + counts.cached + counts.held, self.kv.total());
        assert_eq!(counts.held as usize, holders.iter().filter(|&&holders| holders > 0).count());
        assert_eq!(windows.held as usize, window_holders.iter().filter(|&&holders| holders > 0).count());
        for (block, (holders, window_holders)) in (0..).map(BlockId).zip(holders.iter().zip(window_holders)) {
            assert_eq!(self.kv.holders(block), *holders, "block {}", block.0);
            assert_eq!(self.kv.window_holders(block), window_holders, "window of block {}", block.0);
            let of = self.kv.windows.as_ref().and_then(|windows| windows.of(block));
            let is_blank = *holders == 0 && !self.kv.pool.is_cached(block);
            assert!(of.is_none() || !is_blank, "a blank block has no window block");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    /// After any appends, cuts, shares and releases, a table leads to its sequence's tokens, and within the
    /// window in the window blocks, too. A hit is as long as its definition says, and holds the sequence's
    /// tokens in both.
    #[test]
    fn window_blocks_hold_what_the_next_row_sees(
        blocks in 1u32..14,
        window_blocks in 1u32..10,
        window in 1u32..9,
        acts in prop::collection::vec(act(), 0..120),
    ) {
        let windows = WindowBlocks { window, blocks: window_blocks };
        let mut world = World {
            kv: KvCache::new(KvBlocks { window: Some(windows), ..blocks.into() }, BLOCK_SIZE, true),
            window,
            scope: scope(),
            memory: vec![TokenId::MAX; (blocks * BLOCK_SIZE) as usize],
            window_memory: vec![TokenId::MAX; (window_blocks * BLOCK_SIZE) as usize],
            twins: Vec::new(),
        };
        for act in acts {
            world.apply(act);
            world.check();
        }
        for twin in std::mem::take(&mut world.twins) {
            world.kv.release(twin.table);
        }
        prop_assert_eq!(world.kv.counts().held, 0);
        prop_assert_eq!(world.kv.window_counts().map(|counts| counts.held), Some(0));
    }
}

#[test]
fn a_block_that_lost_its_window_block_gets_that_of_the_next_to_compute_it() {
    let scope = scope();
    let windows = WindowBlocks { window: 2, blocks: 4 };
    let mut kv = KvCache::new(KvBlocks { window: Some(windows), ..12.into() }, BLOCK_SIZE, true);
    let one = compute(&mut kv, &scope, &[1, 1, 1, 1, 1]).expect("it fits");
    kv.release(one);
    let two = compute(&mut kv, &scope, &[2, 2, 2, 2, 2, 2, 2]).expect("it fits");
    let (hashes, tokens) = (hashes(&scope, &[1; 5]), [1; 5]);
    let prefix = Prefix { scope: &scope, tokens: &tokens, hashes: &hashes };
    assert_eq!(
        kv.match_prefix(prefix),
        PrefixMatch::default(),
        "both blocks are there, their windows are not"
    );
    kv.release(two);
    let again = compute(&mut kv, &scope, &tokens).expect("it fits");
    assert_eq!(kv.match_prefix(prefix).blocks, 2);
    assert_eq!(kv.snapshot().iter().map(|run| run.hashes.len()).sum::<usize>(), 2 + 3, "kept once");
    kv.release(again);
    assert_eq!((kv.counts().held, kv.window_counts().map(|counts| counts.held)), (0, Some(0)));
}
