//! Agreement with transformers in float32: tests/golden.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;

use crate::instance::{Chunk, EXACT, Instance};

/// Largest difference of a logit.
const TOLERANCE: f32 = 1e-4;
const MODELS: [&str; 15] = [
    "qwen3-5",
    "qwen3-5-v5",
    "qwen3-5-moe",
    "qwen3-next",
    "lfm2",
    "lfm2-v5",
    "lfm2-moe",
    "lfm2-moe-v5",
    "granite-hybrid",
    "granite-hybrid-v5",
    "nemotron-h",
    "nemotron-h-moe",
    "nemotron-h-latent",
    "kimi-linear",
    "kimi-linear-v5",
];

struct Golden {
    json: Value,
    logits: Vec<u8>,
}

impl Golden {
    fn read(directory: &Path) -> Self {
        let json = serde_json::from_slice(&std::fs::read(directory.join("goldens.json")).unwrap()).unwrap();
        Self { json, logits: std::fs::read(directory.join("goldens.safetensors")).unwrap() }
    }

    fn list(&self, key: &str) -> Vec<usize> {
        let list = self.json[key].as_array().unwrap();
        list.iter().map(|value| value.as_u64().unwrap() as usize).collect()
    }

    fn tokens(&self, key: &str) -> Vec<u32> {
        self.list(key).into_iter().map(|token| token as u32).collect()
    }

    fn rows(&self, key: &str) -> Vec<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.logits).unwrap();
        let tensor = tensors.tensor(key).unwrap();
        let words = tensor.data().as_chunks::<4>().0;
        let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec).collect()
    }
}

fn directory(name: &str) -> PathBuf {
    skein_golden::path(format!("models/{name}"))
}

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    let worst = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE && got.len() == expected.len(), "{what}: logits differ by {worst}");
}

#[test]
fn prompts_and_greedy_tokens_agree_with_transformers() {
    for name in MODELS {
        check(name, &directory(name));
    }
}

#[test]
fn gguf_files_agree_with_transformers() {
    let hybrids = [
        "qwen3-5",
        "qwen3-5-moe",
        "qwen3-next",
        "lfm2",
        "lfm2-moe",
        "granite-hybrid",
        "nemotron-h",
        "nemotron-h-latent",
        "kimi-linear",
    ];
    for name in hybrids {
        check(name, &skein_golden::gguf(name));
    }
}

/// Compares the model in `path` with the golden files of `name`.
fn check(name: &str, path: &Path) {
    let (golden, mut model) = (Golden::read(&directory(name)), Instance::whole(path, 2, EXACT));
    let (prompt, greedy) = (golden.tokens("prompt"), golden.tokens("greedy"));
    let got = model.prompt(1, &prompt, prompt.len());
    for (position, expected) in golden.list("prompt_positions").into_iter().zip(golden.rows("prompt_logits"))
    {
        assert_close(&got[position], &expected, &format!("{name}, position {position}"));
    }
    let (steps, kept) = (golden.list("greedy_steps"), golden.rows("greedy_logits"));
    let mut logits = got[prompt.len() - 1].clone();
    for (step, token) in greedy.iter().enumerate() {
        if let Some(at) = steps.iter().position(|kept| *kept == step) {
            assert_close(&logits, &kept[at], &format!("{name}, greedy step {step}"));
        }
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        assert_eq!(best, *token as usize, "{name}, greedy step {step}");
        let (position, tokens) = (prompt.len() + step, std::slice::from_ref(token));
        let chunk = Chunk { sequence: 1, position, tokens, drafts: 0, wanted: 0..1 };
        logits = model.run(&[chunk]).remove(0);
    }
}
