//! Tables that are cut back, against a simple model: each sequence's own list of tokens. A simulated memory
//! holds in every slot the token that was written there.

use super::*;

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
        4 => (any::<usize>(), tokens()).prop_map(|(which, tokens)| Act::Append(which, tokens)),
        4 => any::<(usize, usize)>().prop_map(|(which, len)| Act::Cut(which, len)),
        1 => any::<usize>().prop_map(Act::Fork),
        2 => any::<usize>().prop_map(Act::End),
    ]
}

struct Twin {
    tokens: Vec<TokenId>,
    table: BlockTable,
}

struct World {
    kv: KvCache,
    scope: CacheScope,
    memory: Vec<TokenId>,
    twins: Vec<Twin>,
}

impl World {
    /// Computes as many of `tokens`, after those of `twin`, as there are blocks for.
    fn append(&mut self, twin: &mut Twin, tokens: &[TokenId]) {
        let from = twin.tokens.len() as u32;
        let mut copies = Vec::new();
        let end =
            self.kv.grow(&mut twin.table, from, from + tokens.len() as u32, [&mut copies, &mut Vec::new()]);
        for BlockCopy { from, to } in copies {
            for offset in 0..BLOCK_SIZE {
                self.memory[(to.0 * BLOCK_SIZE + offset) as usize] =
                    self.memory[(from.0 * BLOCK_SIZE + offset) as usize];
            }
        }
        for (position, &token) in (from..end).zip(tokens) {
            self.memory[twin.table.slot(position, BLOCK_SIZE) as usize] = token;
            twin.tokens.push(token);
        }
        let hashes = hashes(&self.scope, &twin.tokens);
        let prefix = Prefix { scope: &self.scope, tokens: &twin.tokens, hashes: &hashes };
        self.kv.register(&mut twin.table, prefix, end / BLOCK_SIZE);
    }

    fn start(&mut self, tokens: &[TokenId]) -> Twin {
        let hashes = hashes(&self.scope, tokens);
        let table = self.kv.adopt_prefix(Prefix { scope: &self.scope, tokens, hashes: &hashes }, 1);
        let cached = table.positions(BLOCK_SIZE) as usize;
        let mut twin = Twin { tokens: tokens[..cached].to_vec(), table };
        self.append(&mut twin, &tokens[cached..]);
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
            Act::Cut(which, len) => {
                let index = which % self.twins.len();
                let twin = &mut self.twins[index];
                twin.tokens.truncate(len % (twin.tokens.len() + 1));
                self.kv.truncate(&mut twin.table, twin.tokens.len() as u32);
            }
            Act::Fork(which) => {
                let twin = &self.twins[which % self.twins.len()];
                let fork = Twin { tokens: twin.tokens.clone(), table: self.kv.fork(&twin.table) };
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
        for Twin { tokens, table } in &self.twins {
            let read = (0..tokens.len() as u32).map(|at| self.memory[table.slot(at, BLOCK_SIZE) as usize]);
            assert_eq!(&read.collect::<Vec<_>>(), tokens, "a table leads to its own tokens");
            assert_eq!(table.blocks().len(), tokens.len().div_ceil(BLOCK_SIZE as usize), "and to no more");
            assert!(table.registered() as usize <= tokens.len() / BLOCK_SIZE as usize);
            table.blocks().iter().for_each(|block| holders[block.0 as usize] += 1);
        }
        let counts = self.kv.counts();
        assert_eq!(counts.free + counts.cached + counts.held, self.kv.total());
        assert_eq!(counts.held as usize, holders.iter().filter(|&&holders| holders > 0).count());
        for (block, holders) in (0..).zip(holders) {
            assert_eq!(self.kv.holders(BlockId(block)), holders, "block {block}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// After any appends, cuts, shares and releases, a table leads to its sequence's tokens and to no other
    /// block. Whatever the cache gives to a new sequence holds that sequence's tokens (`start` adopts it,
    /// `check` reads it).
    #[test]
    fn a_table_that_is_cut_back_leads_to_its_tokens(
        blocks in 1u32..12,
        acts in prop::collection::vec(act(), 0..120),
    ) {
        let mut world = World {
            kv: KvCache::new(blocks, BLOCK_SIZE, true),
            scope: scope(),
            memory: vec![TokenId::MAX; (blocks * BLOCK_SIZE) as usize],
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
    }
}

#[test]
fn a_cached_block_that_is_cut_in_two_is_copied_before_it_is_written() {
    let scope = scope();
    let mut kv = KvCache::new(4, BLOCK_SIZE, true);
    let mut table = compute(&mut kv, &scope, &[1, 1, 2, 2]).expect("it fits");
    let cached = table.blocks()[1];
    kv.truncate(&mut table, 3);
    assert_eq!((table.registered(), kv.counts().held), (1, 2));
    let mut copies = Vec::new();
    kv.grow(&mut table, 3, 4, [&mut copies, &mut Vec::new()]);
    assert_eq!(copies, [BlockCopy { from: cached, to: table.blocks()[1] }]);
    let longer = [1, 1, 2, 2, 9];
    let found = kv.match_prefix(Prefix { scope: &scope, tokens: &longer, hashes: &hashes(&scope, &longer) });
    assert_eq!(found.blocks, 2, "others still find it");
}
