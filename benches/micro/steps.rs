//! Whole steps of a model: prefill and decode, with the time of each part.

use std::path::Path;
use std::sync::Arc;

use skein_bench::best_of;
use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::packed::Format;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::on_cpu::profile::Part;
use skein_node::clock;
use skein_proto::sampling::SamplingParams;
use skein_worker::BlockId;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};
use skein_worker::backend::{Batch, BatchSequence, SampleRow, Want};

const BLOCK_SIZE: u32 = 16;
const CONTEXT: u32 = 256;
const STEPS: u32 = 16;

/// `numbers` changed by one of the worker's flags; `None` if the flag or its value is unknown.
pub fn numbers(numbers: NumberTypes, flag: &str, value: &str) -> Option<NumberTypes> {
    match (flag, value) {
        ("--dtype", "float32") => Some(NumberTypes { bf16: false, ..numbers }),
        ("--dtype", "bfloat16") => Some(NumberTypes { bf16: true, ..numbers }),
        ("--kv-cache-dtype", kind) => {
            let kv = match kind {
                "float32" => KvType::F32,
                "bfloat16" => KvType::Bf16,
                "float16" => KvType::F16,
                "int8" => KvType::Int8,
                "fp8" => KvType::Fp8,
                _ => return None,
            };
            Some(NumberTypes { kv, ..numbers })
        }
        ("--quantization", "int8") => Some(NumberTypes { weights: Some(Format::INT8_GROUP), ..numbers }),
        ("--quantization", "int4") => Some(NumberTypes { weights: Some(Format::INT4), ..numbers }),
        _ => None,
    }
}

/// Measures decode steps at several batch sizes, and the prefill of one chunk.
pub fn measure(dir: &Path, threads: usize, bandwidth: f64, numbers: NumberTypes) {
    let options = CpuOptions {
        threads,
        kv_blocks: 64 * CONTEXT / BLOCK_SIZE,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: 512,
        numbers,
    };
    let mut bytes = 0;
    let start = clock::now();
    let mut model = match CpuModel::load(dir, options, &PackedCache::none(), &mut |_, total| bytes = total) {
        Ok(model) => model,
        Err(error) => return println!("{error}"),
    };
    println!("{}: {:.2} GB, loaded in {:.2?}", dir.display(), bytes as f64 / 1e9, clock::now().since(start));
    println!("{numbers:?}");
    let greedy = Arc::new(SamplingParams::default());
    for rows in [128, 512] {
        // Sequences of 128 tokens each, from the start.
        let batch = batch(rows / 128, 0, 128, &greedy);
        run(&mut model, &batch);
        model.profile();
        let seconds = best_of(1, || run(&mut model, &batch));
        println!("prefill of {rows}: {:.0} tokens/s{}", f64::from(rows) / seconds, parts(&mut model));
    }
    for sequences in [1, 8, 32] {
        let mut best = f64::INFINITY;
        // The system allocates pages of the cache on first use.
        run(&mut model, &batch(sequences, CONTEXT - 1, 1, &greedy));
        model.profile();
        for step in 0..STEPS {
            let batch = batch(sequences, CONTEXT - STEPS + step, 1, &greedy);
            best = best.min(best_of(1, || run(&mut model, &batch)));
        }
        println!(
            "decode of {sequences} at {CONTEXT} tokens: {:.1} ms a step, {:.1} tokens/s, weights at {:.0}% of read{}",
            best * 1e3,
            f64::from(sequences) / best,
            100.0 * bytes as f64 / best / 1e9 / bandwidth,
            parts(&mut model)
        );
    }
    let warm = SamplingParams { temperature: 1.0, top_k: 50, top_p: 0.9, ..SamplingParams::default() };
    let nucleus = SamplingParams { top_k: 0, ..warm.clone() };
    for (name, params) in [("top-k 50 and top-p 0.9", warm), ("top-p 0.9", nucleus)] {
        let batch = batch(32, CONTEXT - 1, 1, &Arc::new(params));
        run(&mut model, &batch);
        model.profile();
        (0..STEPS).for_each(|_| run(&mut model, &batch));
        println!("decode of 32 with {name}{}", parts(&mut model));
    }
}

/// Runs one step.
fn run(model: &mut CpuModel, batch: &Batch) {
    if let Err(error) = model.run(batch) {
        println!("{error}");
    }
}

/// Formats the time of each part since the last call.
fn parts(model: &mut CpuModel) -> String {
    let profile = model.profile();
    let total = profile.total().as_secs_f64();
    let mut text = format!("\n    {:.1}% beyond products:", 100.0 * profile.share_beyond_products());
    for part in Part::ALL {
        let share = 100.0 * profile.time(part).as_secs_f64() / total;
        text.push_str(&format!(" {} {share:.1}%", part.name()));
    }
    text
}

/// The next `count` tokens of each sequence after `computed` ones, with one sample per sequence.
fn batch(sequences: u32, computed: u32, count: u32, params: &Arc<SamplingParams>) -> Batch {
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
            adapter: None,
        });
        batch.wants.push(Want::Sample(SampleRow {
            row: row + count - 1,
            params: Arc::clone(params),
            sample_index: 0,
            position: context_len,
            forbid_stop: false,
            history: 0..0,
            prompt_len: 0,
            mask: None,
        }));
    }
    batch
}
