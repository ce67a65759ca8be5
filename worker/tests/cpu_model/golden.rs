//! Reference values computed by transformers; see `tests/golden/README.md`.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

pub struct Golden {
    pub prompt: Vec<u32>,
    pub prompt_positions: Vec<u32>,
    pub greedy: Vec<u32>,
    pub greedy_steps: Vec<u32>,
    pub prompt_logits: Vec<Vec<f32>>,
    pub greedy_logits: Vec<Vec<f32>>,
}

impl Golden {
    /// Reads the files beside the model in `dir`.
    pub fn read(dir: &Path) -> Self {
        let json: Value = serde_json::from_slice(&std::fs::read(dir.join("goldens.json")).unwrap()).unwrap();
        let list = |key: &str| -> Vec<u32> {
            json[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
        };
        let bytes = std::fs::read(dir.join("goldens.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let rows = |key: &str| -> Vec<Vec<f32>> {
            let tensor = tensors.tensor(key).unwrap();
            let values: Vec<f32> =
                tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec).collect()
        };
        Self {
            prompt: list("prompt"),
            prompt_positions: list("prompt_positions"),
            greedy: list("greedy"),
            greedy_steps: list("greedy_steps"),
            prompt_logits: rows("prompt_logits"),
            greedy_logits: rows("greedy_logits"),
        }
    }
}
