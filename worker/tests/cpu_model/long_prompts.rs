//! Prompts of thousands of tokens against transformers, run by hand: `tests/golden/long_prompts.py` writes
//! the models and the expected log-probabilities.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;
use skein_worker::backend::Batch;
use skein_worker::check::Sequence;

use crate::batches::{BLOCK_SIZE, load_from};
use crate::goldens::log_probabilities;

/// Rows of a step.
const ROWS: usize = 64;
/// Largest difference of a log-probability.
const TOLERANCE: f64 = 1e-4;

#[test]
fn long_prompts_agree_with_transformers() {
    let Some(directory) = std::env::var_os("TEST_LONG_PROMPTS") else {
        println!("skipped: TEST_LONG_PROMPTS names no directory");
        return;
    };
    let mut worst: f64 = 0.0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let [ours, theirs, own] = differences(&path);
        let name = path.file_name().unwrap().to_string_lossy();
        println!(
            "{name}: log-probabilities differ from transformers in 32 bits by {ours:.1e}; from 64 bits by {own:.1e}, and \
             transformers in 32 bits by {theirs:.1e}"
        );
        worst = worst.max(ours);
    }
    assert!(worst <= TOLERANCE, "{worst}");
}

/// Largest differences: ours from 32 bits, 32 bits from 64 bits, ours from 64 bits.
fn differences(path: &Path) -> [f64; 3] {
    let json: Value = serde_json::from_slice(&std::fs::read(path.join("long.json")).unwrap()).unwrap();
    let list = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
    };
    let (prompt, positions) = (list("prompt"), list("positions"));
    let bytes = std::fs::read(path.join("long.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let rows = |key: &str| -> Vec<f64> {
        let words = tensors.tensor(key).unwrap().data().as_chunks::<4>().0.to_vec();
        words.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect()
    };
    let (single, double) = (rows("single"), rows("double"));
    let mut model = load_from(path, 2, BLOCK_SIZE);
    let blocks = (prompt.len() as u32).div_ceil(BLOCK_SIZE);
    let mut sequence = Sequence::new(prompt.clone(), 0, blocks, BLOCK_SIZE);
    let mut got = Vec::new();
    for first in (0..prompt.len()).step_by(ROWS) {
        let end = (first + ROWS).min(prompt.len());
        let mut batch = Batch::default();
        sequence.put(&mut batch, end - first);
        let wanted = positions.iter().filter(|at| (first..end).contains(&(**at as usize)));
        let wanted: Vec<u32> = wanted.map(|at| at - first as u32).collect();
        let none = wanted.is_empty();
        let logits = model.logits(&batch, if none { &[0] } else { &wanted });
        got.extend(logits.into_iter().filter(|_| !none));
    }
    let got = log_probabilities(&got);
    let most = |a: &[f64], b: &[f64]| {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    [most(&got, &single), most(&single, &double), most(&got, &double)]
}
