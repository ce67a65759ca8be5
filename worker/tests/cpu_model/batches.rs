//! Batches by hand, over one pool of blocks.

use std::path::PathBuf;
use std::sync::Arc;

use skein_proto::sampling::SamplingParams;
use skein_worker::BlockId;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, Numbers};
use skein_worker::backend::{Batch, BatchSequence, SampleRow, Want};
use skein_worker::model::on_cpu::packed_cache::PackedCache;

pub const BLOCK_SIZE: u32 = 16;

/// A model directory of the repository's goldens.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models").join(name)
}

pub fn load(name: &str, threads: usize, block_size: u32) -> CpuModel {
    let options = CpuOptions {
        threads,
        kv_blocks: 4096 / block_size,
        block_size,
        max_rows: 64,
        numbers: Numbers::EXACT,
    };
    CpuModel::load(&golden(name), options, &PackedCache::none(), &mut |_, _| {}).unwrap()
}

/// A sequence with its own blocks, some of whose tokens have been computed.
#[derive(Clone)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub computed: usize,
    pub blocks: Vec<BlockId>,
    block_size: u32,
}

impl Sequence {
    /// The `index`-th sequence of up to 128 tokens; its blocks lie scattered.
    pub fn new(tokens: Vec<u32>, index: u32, block_size: u32) -> Self {
        let count = 128u32.div_ceil(block_size);
        let blocks = (0..count).rev().map(|i| BlockId(i * 7 % count + index * count)).collect();
        Self { tokens, computed: 0, blocks, block_size }
    }

    /// Adds the next `count` tokens to `batch`.
    pub fn put(&mut self, batch: &mut Batch, count: usize) {
        let start = batch.tokens.len() as u32;
        for position in self.computed..self.computed + count {
            batch.tokens.push(self.tokens[position]);
            batch.positions.push(position as u32);
            let (block, offset) = (position as u32 / self.block_size, position as u32 % self.block_size);
            batch.slots.push(self.blocks[block as usize].0 * self.block_size + offset);
        }
        self.computed += count;
        let blocks = batch.block_tables.len() as u32;
        batch
            .block_tables
            .extend_from_slice(&self.blocks[..self.computed.div_ceil(self.block_size as usize)]);
        batch.sequences.push(BatchSequence {
            rows: start..batch.tokens.len() as u32,
            context_len: self.computed as u32,
            blocks: blocks..batch.block_tables.len() as u32,
        });
    }

    /// Asks `batch` for the token after this sequence's last row, which must have been put last.
    pub fn sample(&self, batch: &mut Batch, params: &Arc<SamplingParams>, prompt_len: u32) {
        let start = batch.history.len() as u32;
        if params.needs_history() {
            batch.history.extend_from_slice(&self.tokens[..self.computed]);
        }
        batch.wants.push(Want::Sample(SampleRow {
            row: batch.tokens.len() as u32 - 1,
            params: Arc::clone(params),
            sample_index: 0,
            position: self.computed as u32,
            forbid_stop: false,
            history: start..batch.history.len() as u32,
            prompt_len,
        }));
    }
}
