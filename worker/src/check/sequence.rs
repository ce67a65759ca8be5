//! Sequences that go to a backend by hand, without a scheduler.

use std::sync::Arc;

use skein_proto::sampling::SamplingParams;

use crate::BlockId;
use crate::backend::{Batch, BatchSequence, Carried, SampleRow, Want};

/// Tokens of a block.
pub const BLOCK_SIZE: u32 = 16;

/// A sequence with blocks of its own, some of whose tokens have been computed.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Those that are known.
    pub tokens: Vec<u32>,
    /// How many of them have been computed.
    pub computed: usize,
    /// Its block table.
    pub blocks: Vec<BlockId>,
}

impl Sequence {
    /// The `index`-th sequence of those that have `blocks` blocks each, a power of two; they lie scattered.
    pub fn new(tokens: Vec<u32>, index: u32, blocks: u32) -> Self {
        let blocks = (0..blocks).rev().map(|i| BlockId(i * 5 % blocks + index * blocks)).collect();
        Self { tokens, computed: 0, blocks }
    }

    /// Tokens that are known and not computed.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Adds the next `count` tokens to `batch`. A token past those that are known is the one that want `carried` of
    /// the step before draws.
    pub fn put(&mut self, batch: &mut Batch, count: usize, carried: Option<u32>) {
        let start = batch.tokens.len() as u32;
        for position in self.computed..self.computed + count {
            match (self.tokens.get(position), carried) {
                (Some(token), _) => batch.tokens.push(*token),
                (None, Some(want)) => {
                    batch.carried.push(Carried { at: batch.tokens.len() as u32, want });
                    batch.tokens.push(0);
                }
                (None, None) => panic!("position {position} has a token"),
            }
            batch.positions.push(position as u32);
            let (block, offset) = (position as u32 / BLOCK_SIZE, position as u32 % BLOCK_SIZE);
            batch.slots.push(self.blocks[block as usize].0 * BLOCK_SIZE + offset);
        }
        self.computed += count;
        let blocks = batch.block_tables.len() as u32;
        let used = (self.computed as u32).div_ceil(BLOCK_SIZE) as usize;
        batch.block_tables.extend_from_slice(&self.blocks[..used]);
        batch.sequences.push(BatchSequence {
            rows: start..batch.tokens.len() as u32,
            context_len: self.computed as u32,
            blocks: blocks..batch.block_tables.len() as u32,
        });
    }

    /// Asks `batch` for the token after this sequence's last row, which must have been put last.
    pub fn sample(&self, batch: &mut Batch, params: &Arc<SamplingParams>) {
        batch.wants.push(Want::Sample(SampleRow {
            row: batch.tokens.len() as u32 - 1,
            params: Arc::clone(params),
            sample_index: 0,
            position: self.computed as u32,
            forbid_stop: false,
            history: 0..0,
            prompt_len: 1,
        }));
    }
}

/// `len` tokens below `vocab`, by SplitMix64 (Steele et al. 2014) of `seed`.
pub fn prompt(seed: u64, len: usize, vocab: u32) -> Vec<u32> {
    let mut random = Random(seed);
    (0..len).map(|_| random.below(vocab as usize) as u32).collect()
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * end as u128) >> 64) as usize
    }
}
