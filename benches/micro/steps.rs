//! Whole steps of a model: prefill and decode.

use std::path::Path;

use skein_node::clock;
use skein_worker::BlockId;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, Numbers};
use skein_worker::backend::{Batch, BatchSequence};
use skein_worker::model::packed_cache::PackedCache;

use super::best_of;

const BLOCK_SIZE: u32 = 16;
const CONTEXT: u32 = 256;
const STEPS: u32 = 16;

/// Measures decode steps at several batch sizes, and prefill of one chunk.
pub fn measure(dir: &Path, threads: usize, bandwidth: f64) {
    let options = CpuOptions {
        threads,
        kv_blocks: 64 * CONTEXT / BLOCK_SIZE,
        block_size: BLOCK_SIZE,
        max_rows: 512,
        numbers: Numbers::EXACT,
    };
    let mut bytes = 0;
    let start = clock::now();
    let mut model = match CpuModel::load(dir, options, &PackedCache::none(), &mut |_, total| bytes = total) {
        Ok(model) => model,
        Err(error) => return println!("{error}"),
    };
    println!("{}: {:.2} GB, loaded in {:.2?}", dir.display(), bytes as f64 / 1e9, clock::now().since(start));
    for rows in [128, 512] {
        // Sequences of 128 tokens each, from the start.
        let batch = batch(rows / 128, 0, 128);
        model.logits(&batch, &[0]);
        let start = clock::now();
        model.logits(&batch, &[0]);
        println!(
            "prefill of {rows}: {:.0} tokens/s",
            f64::from(rows) / clock::now().since(start).as_secs_f64()
        );
    }
    for sequences in [1, 8, 32] {
        let mut best = f64::INFINITY;
        for step in 0..STEPS {
            let batch = batch(sequences, CONTEXT - STEPS + step, 1);
            let rows: Vec<u32> = (0..sequences).collect();
            best = best.min(best_of(1, || drop(model.logits(&batch, &rows))));
        }
        println!(
            "decode of {sequences} at {CONTEXT} tokens: {:.1} ms a step, {:.1} tokens/s, weights at {:.0}% of read",
            best * 1e3,
            f64::from(sequences) / best,
            100.0 * bytes as f64 / best / 1e9 / bandwidth
        );
    }
}

/// The next `count` tokens of each sequence, after `computed` ones.
fn batch(sequences: u32, computed: u32, count: u32) -> Batch {
    let mut batch = Batch::default();
    for sequence in 0..sequences {
        let first = sequence * (CONTEXT / BLOCK_SIZE);
        let (row, table) = (batch.tokens.len() as u32, batch.block_tables.len() as u32);
        for position in computed..computed + count {
            batch.tokens.push((sequence * 31 + position * 7) % 1000);
            batch.positions.push(position);
            batch.slots.push(first * BLOCK_SIZE + position);
        }
        let context_len = computed + count;
        batch.block_tables.extend((first..first + context_len.div_ceil(BLOCK_SIZE)).map(BlockId));
        batch.sequences.push(BatchSequence {
            rows: row..row + count,
            context_len,
            blocks: table..batch.block_tables.len() as u32,
        });
    }
    batch
}
