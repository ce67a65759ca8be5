//! Models in GGUF files written by the `gguf` package: tests/golden/gguf.

use std::path::PathBuf;

use serde_json::Value;
use skein_model::LoadError;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_worker::backend::Batch;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};

use crate::batches::{BLOCK_SIZE, golden, sequence_of};
use crate::golden::Golden;
use crate::goldens::check_model;

/// Golden models that also exist as GGUF files.
const NAMES: [&str; 37] = [
    "llama-gqa",
    "llama3-rope",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2-tied-v5",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3-long",
    "granite",
    "olmo2",
    "olmoe",
    "qwen2-moe",
    "smollm3",
    "gpt-oss",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "glm",
    "glm4-v5",
    "glm4-moe",
    "granite-moe",
    "starcoder2",
    "cohere",
    "cohere2-v5",
    "olmo3",
    "seed-oss",
    "exaone4",
    "ernie4-5",
    "ernie4-5-moe",
    "minimax-m2",
    "glm4-moe-lite",
    "gemma4",
    "gemma4-moe",
    "gemma4-per-layer",
    "ministral3",
];
/// Part of the mixed model that the test opens.
const MIXED: &str = "mixed/mixed-00001-of-00002.gguf";
/// Largest difference from transformers with activations rounded the same way: root mean square, relative to
/// the logits'. A code rounded differently would exceed it.
const SAME_ROUNDING: f64 = 1e-4;
/// The same where codes are decoded and no activation is rounded.
const NOT_ROUNDED: f64 = 1e-5;
/// Expected change of this model's logits by rounding activations to 8 bits; random networks amplify it.
const ROUNDING: std::ops::Range<f64> = 0.005..0.03;

fn file(name: &str) -> PathBuf {
    skein_golden::path(format!("gguf/models/{name}"))
}

fn try_load(name: &str, threads: usize) -> Result<CpuModel, LoadError> {
    try_load_in(NumberTypes::STORED, name, threads)
}

fn try_load_in(numbers: NumberTypes, name: &str, threads: usize) -> Result<CpuModel, LoadError> {
    let options = CpuOptions {
        threads,
        kv_blocks: 4096 / BLOCK_SIZE,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: 64,
        numbers,
    };
    CpuModel::load(&file(name), options, &PackedCache::none(), &mut |_, _| {})
}

fn load(name: &str, threads: usize) -> CpuModel {
    try_load(name, threads).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Names, permuted rows, norm offsets, rope factors, fused and stacked matrices must all be right to
/// reproduce transformers' logits.
#[test]
fn the_golden_models_in_gguf_agree_with_transformers() {
    for name in NAMES {
        check_model(name, &Golden::read(&golden(name)), load(&format!("{name}/{name}.gguf"), 2));
    }
}

/// Logits at some positions of a prompt, with 3 as the last token.
fn logits_of(
    file: &str,
    threads: usize,
    prompt: &[u32],
    positions: &[u32],
    chunks: &[usize],
) -> Vec<Vec<f32>> {
    logits_with(load(file, threads), prompt, positions, chunks)
}

fn logits_with(mut model: CpuModel, prompt: &[u32], positions: &[u32], chunks: &[usize]) -> Vec<Vec<f32>> {
    let mut sequence = sequence_of(prompt.to_vec(), 3, BLOCK_SIZE);
    let (mut first, mut logits) = (0u32, Vec::new());
    for rows in chunks {
        let mut batch = Batch::default();
        sequence.put(&mut batch, *rows);
        let end = first + *rows as u32;
        let wanted: Vec<u32> =
            positions.iter().filter(|at| (first..end).contains(*at)).map(|at| at - first).collect();
        if wanted.is_empty() {
            model.logits(&batch, &[0]);
        } else {
            logits.extend(model.logits(&batch, &wanted));
        }
        first = end;
    }
    logits
}

#[test]
fn quantised_types_agree_with_transformers_with_activations_in_8_bits() {
    let json: Value = serde_json::from_slice(&std::fs::read(file("mixed/mixed.json")).unwrap()).unwrap();
    let list = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
    };
    let (prompt, positions) = (list("prompt"), list("positions"));
    let golden = |key: &str| -> Vec<f64> {
        let rows = json[key].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        rows.map(|logit| logit.as_f64().unwrap()).collect()
    };
    let logits = logits_of(MIXED, 2, &prompt, &positions, &[24]);
    let off_of = |logits: &[Vec<f32>], key: &str| {
        let got: Vec<f64> = logits.iter().flatten().map(|logit| f64::from(*logit)).collect();
        let expected = golden(key);
        assert_eq!(got.len(), expected.len());
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
        let off = square(&mut got.iter().zip(&expected).map(|(got, expected)| got - expected));
        (off / square(&mut expected.iter().copied())).sqrt()
    };
    let (rounded, exact) = (off_of(&logits, "rounded_logits"), off_of(&logits, "logits"));
    println!("off by {rounded:.6} of the logits' size with the same rounding, {exact:.4} without");
    assert!(rounded <= SAME_ROUNDING && ROUNDING.contains(&exact), "{rounded} {exact}");
    let decoded = try_load_in(NumberTypes::EXACT, MIXED, 2).unwrap();
    let decoded = off_of(&logits_with(decoded, &prompt, &positions, &[24]), "logits");
    assert!(decoded <= NOT_ROUNDED, "{decoded} where nothing is rounded");
    // Chunks and threads change no bit.
    for (threads, chunks) in [(1, &[24][..]), (3, &[1, 7, 16]), (2, &[5, 19])] {
        assert_eq!(logits_of(MIXED, threads, &prompt, &positions, chunks), logits, "{threads} {chunks:?}");
    }
}

#[test]
fn latents_in_blocks_agree_with_their_values() {
    let prompt: Vec<u32> = (0..24).map(|at| at * 37 % 128).collect();
    let (positions, chunks) = ([0, 7, 15, 23], [24]);
    let logits = |file: &str| logits_of(file, 2, &prompt, &positions, &chunks).concat();
    let values = logits("latent/latent-f32.gguf");
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    for file in ["latent/latent-q8.gguf", "latent/latent-old.gguf"] {
        let off = square(&mut logits(file).iter().zip(&values).map(|(got, expected)| got - expected));
        let off = (off / square(&mut values.iter().copied())).sqrt();
        println!("{file} is off by {off:.4} of the logits' size");
        assert!(off > 0.0 && off < 0.05, "{file}: {off}; activations are rounded to 8 bits");
    }
}

#[test]
fn a_missing_part_and_a_damaged_file_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("mixed-00001-of-00002.gguf");
    std::fs::copy(file(MIXED), &copy).unwrap();
    let refused = |path: &std::path::Path| {
        let numbers = NumberTypes::STORED;
        let options = CpuOptions {
            threads: 1,
            kv_blocks: 4,
            window_blocks: None,
            state_slots: 16,
            block_size: BLOCK_SIZE,
            max_rows: 8,
            numbers,
        };
        match CpuModel::load(path, options, &PackedCache::none(), &mut |_, _| {}) {
            Ok(_) => panic!("{} is loaded", path.display()),
            Err(error) => error.to_string(),
        }
    };
    assert!(refused(&copy).contains("mixed-00002-of-00002.gguf"));
    let whole = std::fs::read(file("qwen2/qwen2.gguf")).unwrap();
    let cut = directory.path().join("cut.gguf");
    for len in [0, 3, 24, 1000, whole.len() / 2, whole.len() - 64] {
        std::fs::write(&cut, &whole[..len]).unwrap();
        let said = refused(&cut);
        assert!(said.contains("damaged") && said.contains("cut.gguf"), "{len}: {said}");
    }
    // A vocabulary alone is not a model.
    let said = refused(&file("spm-vocab.gguf"));
    assert!(said.contains("llama.attention.head_count") || said.contains("llama.embedding_length"), "{said}");
}
