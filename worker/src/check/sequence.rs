//! Sequences that are run on a backend by hand, without a scheduler.

use std::sync::Arc;

use skein_node::random::SplitMix64;
use skein_proto::sampling::SamplingParams;

use crate::BlockId;
use crate::backend::{Batch, BatchSequence, BatchState, Carried, SampleRow, StateId, Want};

/// Tokens in a block.
pub const BLOCK_SIZE: u32 = 16;

/// A sequence with its own blocks, partly computed.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// All known tokens.
    pub tokens: Vec<u32>,
    /// Known tokens that have been computed.
    pub computed: usize,
    /// Its block table.
    pub blocks: Vec<BlockId>,
    block_size: u32,
    /// Slot of its state, if the model has recurrent layers.
    state: StateId,
}

/// How to draw a token.
#[derive(Debug, Clone, Copy, Default)]
pub struct Draw {
    /// Index of the sample.
    pub index: u32,
    /// Index of the previous step's want that draws this sequence's last token, if it is not known yet.
    pub carried: Option<u32>,
    /// Whether stop tokens are excluded.
    pub forbid_stop: bool,
    /// Length of the prompt, which some penalties leave out.
    pub prompt_len: u32,
}

impl Sequence {
    /// The `index`-th of several sequences with `blocks` blocks of `block_size` tokens each. Its
    /// blocks are scattered.
    pub fn new(tokens: Vec<u32>, index: u32, blocks: u32, block_size: u32) -> Self {
        assert!(!blocks.is_multiple_of(7), "blocks are distinct only if 7 does not divide their number");
        let blocks = (0..blocks).rev().map(|i| BlockId(i * 7 % blocks + index * blocks)).collect();
        Self { tokens, computed: 0, blocks, block_size, state: StateId(index) }
    }

    /// Known tokens not computed yet.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Adds the next `count` tokens to `batch`.
    pub fn put(&mut self, batch: &mut Batch, count: usize) {
        self.put_carried(batch, count, None);
    }

    /// Adds the next `count` tokens; an unknown one is drawn by want `carried` of the previous step.
    pub fn put_carried(&mut self, batch: &mut Batch, count: usize, carried: Option<u32>) {
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
            let (block, offset) = (position as u32 / self.block_size, position as u32 % self.block_size);
            batch.slots.push(self.blocks[block as usize].0 * self.block_size + offset);
        }
        self.computed += count;
        let blocks = batch.block_tables.len() as u32;
        let used = (self.computed as u32).div_ceil(self.block_size) as usize;
        batch.block_tables.extend_from_slice(&self.blocks[..used]);
        batch.sequences.push(BatchSequence {
            rows: start..batch.tokens.len() as u32,
            context_len: self.computed as u32,
            blocks: blocks..batch.block_tables.len() as u32,
            adapter: None,
        });
        batch.states.push(BatchState { slot: self.state, ..BatchState::alone() });
    }

    /// Adds a draw of the token after this sequence's last row, which must be the last row of `batch`.
    pub fn sample(&self, batch: &mut Batch, params: &Arc<SamplingParams>, draw: Draw) {
        let start = batch.history.len() as u32;
        if params.needs_history() {
            let known = self.tokens.len().min(self.computed);
            batch.history.extend_from_slice(&self.tokens[..known]);
            if known < self.computed {
                let want = draw.carried.expect("only the last token is not known");
                batch.carried_history.push(Carried { at: batch.history.len() as u32, want });
                batch.history.push(0);
            }
        }
        batch.wants.push(Want::Sample(SampleRow {
            row: batch.tokens.len() as u32 - 1,
            params: Arc::clone(params),
            sample_index: draw.index,
            position: self.computed as u32,
            forbid_stop: draw.forbid_stop,
            history: start..batch.history.len() as u32,
            prompt_len: draw.prompt_len,
            mask: None,
        }));
    }
}

/// `len` tokens below `vocab`, drawn from `seed`.
pub fn prompt(seed: u64, len: usize, vocab: u32) -> Vec<u32> {
    let mut random = SplitMix64::new(seed);
    (0..len).map(|_| random.below(vocab as usize) as u32).collect()
}
