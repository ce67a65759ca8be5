//! Adapters with random matrices, in PEFT's format.

use std::collections::BTreeSet;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;
use skein_model::config::ModelConfig;
use skein_model::tensors::{self, Kind};
use skein_node::random::SplitMix64;

/// Writes an adapter with `rank` components for every matrix of a dense model that one may change.
pub fn make(model: &Path, seed: u64, rank: usize) -> tempfile::TempDir {
    let spec = ModelConfig::from_dir(model).unwrap().spec;
    let directory = tempfile::tempdir().unwrap();
    let config = json!({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank});
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).unwrap();
    let mut random = SplitMix64::new(seed);
    let mut values = |count: usize, spread: f32| -> Vec<u8> {
        let value = |random: &mut SplitMix64| (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..count).flat_map(|_| (value(&mut random) * spread).to_le_bytes()).collect()
    };
    let (mut names, mut data) = (BTreeSet::new(), Vec::new());
    for tensor in tensors::all(&spec) {
        // Fused matrices are listed several times.
        if matches!(tensor.kind, Kind::Matrix(..)) && names.insert(tensor.name.clone()) {
            let module = tensor.name.strip_suffix(".weight").unwrap();
            let name = |kind: &str| format!("base_model.model.{module}.lora_{kind}.weight");
            let a = values(rank * tensor.cols, (3.0 / tensor.cols as f32).sqrt());
            data.push((name("A"), vec![rank, tensor.cols], a));
            let outputs = tensor.shape()[0];
            data.push((name("B"), vec![outputs, rank], values(outputs * rank, 0.3)));
        }
    }
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    serialize_to_file(views, None, &directory.path().join("adapter_model.safetensors")).unwrap();
    directory
}
