//! The cache against a simple model: a set of token prefixes.

mod cut;
mod windows;

use std::collections::HashSet;

use proptest::prelude::*;
use skein_proto::runs::{RunStored, RunTruncated};

use super::*;

const BLOCK_SIZE: u32 = 2;

fn scope() -> CacheScope {
    CacheScope::new("model", "tenant")
}

fn hashes(scope: &CacheScope, tokens: &[TokenId]) -> Vec<BlockHash> {
    block_hash::chain(scope.root, tokens, BLOCK_SIZE as usize)
}

/// One sequence computes `tokens` after its cached prefix; `None` if the pool is too small.
fn compute(kv: &mut KvCache, scope: &CacheScope, tokens: &[TokenId]) -> Option<BlockTable> {
    let hashes = hashes(scope, tokens);
    let prefix = Prefix { scope, tokens, hashes: &hashes };
    let mut table = kv.adopt_prefix(prefix, 1);
    let (from, to) = (table.positions(BLOCK_SIZE), tokens.len() as u32);
    let mut copies = Vec::new();
    if kv.grow(&mut table, from, to, [&mut copies, &mut Vec::new()]) < to {
        kv.release(table);
        return None;
    }
    assert_eq!(copies, [], "nothing is shared beyond full blocks");
    kv.register(&mut table, prefix, to / BLOCK_SIZE);
    Some(table)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Random sequences over a tiny alphabet: lookups agree with the runs, and the runs with a
    /// set of prefixes.
    #[test]
    fn finds_exactly_the_prefixes_it_announced(
        blocks in 4u32..14,
        life in prop::collection::vec((prop::collection::vec(0u32..2, 1..9), any::<bool>(), any::<u8>()), 1..60),
    ) {
        let scope = scope();
        let mut kv = KvCache::new(blocks, BLOCK_SIZE, true);
        let mut held: Vec<BlockTable> = Vec::new();
        let mut computed: HashSet<Vec<TokenId>> = HashSet::new();
        for (tokens, keep, which) in life {
            if let Some(table) = compute(&mut kv, &scope, &tokens) {
                computed.extend((1..=tokens.len() / 2).map(|full| tokens[..full * 2].to_vec()));
                if keep { held.push(table) } else { kv.release(table) }
            }
            if !held.is_empty() && which % 3 == 0 {
                let table = held.swap_remove(which as usize % held.len());
                kv.release(table);
            }
            let announced: HashSet<BlockHash> = kv.snapshot().into_iter().flat_map(|run| run.hashes).collect();
            let counts = kv.counts();
            prop_assert_eq!(counts.free + counts.cached + counts.held, blocks);
            prop_assert!(announced.len() as u32 <= counts.cached + counts.held);
            for prefix in &computed {
                let hashes = hashes(&scope, prefix);
                let known = hashes.iter().take_while(|hash| announced.contains(hash)).count();
                prop_assert!(hashes[known..].iter().all(|hash| !announced.contains(hash)), "prefix-closed");
                // One more token, because a lookup never covers the last one.
                let longer: Vec<TokenId> = prefix.iter().copied().chain([9]).collect();
                let found = kv.match_prefix(Prefix { scope: &scope, tokens: &longer, hashes: &hashes });
                prop_assert_eq!(found.blocks as usize, known);
            }
        }
        for table in held.drain(..) {
            kv.release(table);
        }
        prop_assert_eq!(kv.counts().held, 0);
    }
}

#[test]
fn a_hash_collision_never_shares_a_block() {
    let scope = scope();
    let mut kv = KvCache::new(8, BLOCK_SIZE, true);
    let forged = [11, 12];
    let mut register = |tokens: &[TokenId]| {
        let mut table = BlockTable::default();
        kv.grow(&mut table, 0, 4, [&mut Vec::new(), &mut Vec::new()]);
        kv.register(&mut table, Prefix { scope: &scope, tokens, hashes: &forged }, 2);
        let found =
            kv.match_prefix(Prefix { scope: &scope, tokens: &[tokens, &[9]].concat(), hashes: &forged });
        (table.registered(), found.blocks)
    };
    assert_eq!(register(&[1, 2, 3, 4]), (2, 2));
    assert_eq!(register(&[5, 6, 3, 4]), (0, 0), "first block collides: nothing after it is shared either");
    assert_eq!(register(&[1, 2, 5, 6]), (1, 1), "second block collides");
    let other = CacheScope { root: scope.root, salt: "someone else".into() };
    let found = kv.match_prefix(Prefix { scope: &other, tokens: &[1, 2, 3, 4, 9], hashes: &forged });
    assert_eq!(found.blocks, 0, "equal roots by accident, different salts");
}

#[test]
fn a_prefix_computed_twice_at_once_is_kept_once() {
    let scope = scope();
    let mut kv = KvCache::new(8, BLOCK_SIZE, true);
    let tokens = [1, 2, 3, 4, 5];
    let hashes = hashes(&scope, &tokens);
    let prefix = Prefix { scope: &scope, tokens: &tokens, hashes: &hashes };
    let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
    for table in [&mut first, &mut second] {
        kv.grow(table, 0, 5, [&mut Vec::new(), &mut Vec::new()]);
    }
    assert_eq!(kv.counts().held, 6);
    kv.register(&mut first, prefix, 2);
    kv.register(&mut second, prefix, 2);
    assert_eq!(kv.counts().held, 4, "two shared, one partial block each");
    assert_eq!(first.blocks()[..2], second.blocks()[..2]);
}

#[test]
fn a_shared_block_is_copied_before_it_is_written() {
    let mut kv = KvCache::new(4, BLOCK_SIZE, true);
    let mut first = BlockTable::default();
    kv.grow(&mut first, 0, 3, [&mut Vec::new(), &mut Vec::new()]);
    let mut second = kv.fork(&first);
    let mut copies = Vec::new();
    assert_eq!(kv.grow(&mut second, 3, 4, [&mut copies, &mut Vec::new()]), 4);
    assert_eq!(copies, [BlockCopy { from: first.blocks()[1], to: second.blocks()[1] }]);
    assert_eq!(kv.grow(&mut first, 3, 4, [&mut copies, &mut Vec::new()]), 4);
    assert_eq!(copies.len(), 1, "the last holder writes in place");
    kv.release(first);
    kv.release(second);
    assert_eq!(kv.counts().held, 0);
}

#[test]
fn truncations_and_stores_keep_their_order() {
    let scope = scope();
    let mut kv = KvCache::new(3, BLOCK_SIZE, true);
    for tokens in [[1, 1, 1, 1, 1], [2, 2, 2, 2, 2]] {
        let table = compute(&mut kv, &scope, &tokens).expect("it fits");
        kv.release(table);
    }
    let (one, two) = (hashes(&scope, &[1; 5]), hashes(&scope, &[2; 5]));
    let changes = kv.take_changes();
    assert_eq!(changes.len(), 2);
    assert_eq!(changes[0].stored, [RunStored { handle: 1, parent: 0, depth: 0, hashes: one }]);
    // One of three blocks was blank; the second run took it and both of the first run's, leaf first.
    assert_eq!(changes[1].truncated, [RunTruncated { handle: 1, new_end: 0 }]);
    assert_eq!(changes[1].stored, [RunStored { handle: 2, parent: 0, depth: 0, hashes: two }]);
    assert_eq!(kv.snapshot().len(), 1);
}
