//! Cost of quantisation: perplexity of the shipped model on text outside its training data, for each format
//! of weights and KV cache, relative to exact arithmetic. `models/skein-7m/held_out.py` creates the text.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::OnceLock;

use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::packed::Format;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_worker::BlockId;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};
use skein_worker::backend::{Batch, BatchSequence, BatchState, ScoreRow, Want};

const BLOCK_SIZE: u32 = 16;
/// Tokens per window in `held_out.bin`; the first one is not predicted.
const WINDOW: usize = 513;
/// Rows per step. Each window is computed in two chunks, so that the KV cache matters.
const CHUNK: usize = 256;

/// Largest increase of perplexity over exact arithmetic, in percent, by format.
const BF16_PERCENT: f64 = 0.1;
const INT8_PERCENT: f64 = 0.5;
const INT4_PERCENT: f64 = 3.0;
const KV_BF16_PERCENT: f64 = 0.1;
const KV_F16_PERCENT: f64 = 0.05;
const KV_INT8_PERCENT: f64 = 0.25;

fn shipped() -> PathBuf {
    skein_golden::shipped()
}

fn windows() -> Vec<Vec<u32>> {
    let bytes = std::fs::read(shipped().join("held_out.bin")).unwrap();
    let (tokens, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty() && tokens.len().is_multiple_of(WINDOW), "{} bytes", bytes.len());
    let ids = |window: &[[u8; 2]]| window.iter().map(|id| u32::from(u16::from_le_bytes(*id))).collect();
    tokens.chunks(WINDOW).map(ids).collect()
}

/// exp of the mean loss per token, in nats, without the first token of each window.
fn perplexity(numbers: NumberTypes) -> f64 {
    let options = CpuOptions {
        threads: 2,
        kv_blocks: WINDOW.div_ceil(BLOCK_SIZE as usize) as u32,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: CHUNK as u32,
        numbers,
    };
    let mut model = CpuModel::load(&shipped(), options, &PackedCache::none(), &mut |_, _| {}).unwrap();
    let (mut nats, mut count) = (0.0, 0);
    for window in windows() {
        let scored = window.len() - 1;
        for first in (0..scored).step_by(CHUNK) {
            let batch = chunk(&window, first, scored.min(first + CHUNK), model.kv_blocks());
            let output = model.run(&batch).unwrap();
            nats -= output.scores().map(|score| f64::from(score.logprob)).sum::<f64>();
            count += output.answers.len();
        }
    }
    assert_eq!(count, windows().len() * (WINDOW - 1));
    (nats / count as f64).exp()
}

/// Tokens `first..end` of a window; each row scores the next token.
fn chunk(window: &[u32], first: usize, end: usize, blocks: u32) -> Batch {
    let positions: Vec<u32> = (first as u32..end as u32).collect();
    let score = |at: usize| ScoreRow { row: (at - first) as u32, target: window[at + 1], top: 0 };
    Batch {
        tokens: window[first..end].to_vec(),
        slots: positions.clone(), // the blocks lie in order
        positions,
        sequences: vec![BatchSequence {
            rows: 0..(end - first) as u32,
            context_len: end as u32,
            blocks: 0..blocks,
            adapter: None,
        }],
        block_tables: (0..blocks).map(BlockId).collect(),
        states: vec![BatchState::alone()],
        wants: (first..end).map(score).map(Want::Score).collect(),
        ..Batch::default()
    }
}

/// Perplexity without rounding.
fn exact() -> f64 {
    static EXACT: OnceLock<f64> = OnceLock::new();
    *EXACT.get_or_init(|| {
        let exact = perplexity(NumberTypes::STORED);
        println!("{:<24}{exact:.4}", "exact");
        exact
    })
}

/// Each format may cost at most `percent`. A small decrease is noise and allowed.
fn check(cases: &[(&str, NumberTypes, f64)]) {
    let mut failed = Vec::new();
    for (name, numbers, percent) in cases {
        let rounded = perplexity(*numbers);
        let more = 100.0 * (rounded / exact() - 1.0);
        println!("{name:<24}{rounded:.4}  {more:+.3}%  (at most {percent}%)");
        if more.abs() > *percent {
            failed.push(*name);
        }
    }
    assert!(failed.is_empty(), "{failed:?} cost too much");
}

#[test]
fn the_text_is_the_models_kind_and_bf16_activations_cost_nearly_nothing() {
    let exact = exact();
    assert!((11.0..16.0).contains(&exact), "{exact}: README.md of the model says 12.96 to 15.01");
    check(&[("bf16 activations", NumberTypes { bf16: true, ..NumberTypes::STORED }, BF16_PERCENT)]);
}

#[test]
fn rounded_weights_cost_little() {
    let weights = |format| NumberTypes { weights: Some(format), ..NumberTypes::STORED };
    check(&[
        ("int8", weights(Format::INT8), INT8_PERCENT),
        ("int8 by groups", weights(Format::INT8_GROUP), INT8_PERCENT),
        ("int4", weights(Format::INT4), INT4_PERCENT),
        ("int4 with zero points", weights(Format::INT4_ZERO), INT4_PERCENT),
    ]);
}

#[test]
fn rounded_keys_and_values_cost_little() {
    let cached = |kv| NumberTypes { kv, ..NumberTypes::STORED };
    check(&[
        ("bf16 KV", cached(KvType::Bf16), KV_BF16_PERCENT),
        ("f16 KV", cached(KvType::F16), KV_F16_PERCENT),
        ("int8 KV", cached(KvType::Int8), KV_INT8_PERCENT),
        (
            "int8 and int8 KV",
            NumberTypes { weights: Some(Format::INT8), ..cached(KvType::Int8) },
            INT8_PERCENT + KV_INT8_PERCENT,
        ),
    ]);
}
