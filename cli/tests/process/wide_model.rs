//! A small model with random weights that up to eight ranks can share, with the shipped model's tokenizer.

use std::path::Path;

use serde_json::{Map, Value, json};
use skein_model::config::ModelConfig;
use skein_model::tensors;
use skein_tests::process::shipped_model;

/// Writes the model to a directory, which is deleted when the returned value is dropped.
pub fn write() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for file in std::fs::read_dir(shipped_model()).expect("the shipped model is there").flatten() {
        let name = file.file_name();
        if !name.to_string_lossy().ends_with(".safetensors") {
            std::fs::copy(file.path(), directory.path().join(name)).expect("it can be copied");
        }
    }
    let path = directory.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("it was copied");
    let mut config: Map<String, Value> = serde_json::from_str(&text).expect("it is JSON");
    for (field, value) in [
        ("hidden_size", json!(128)),
        ("intermediate_size", json!(512)),
        ("num_hidden_layers", json!(4)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!(32)),
    ] {
        config.insert(field.into(), value);
    }
    std::fs::write(&path, Value::from(config).to_string()).expect("it can be written");
    write_weights(directory.path());
    directory
}

/// Random weights in the safetensors format: the length of a JSON header, the header, the values.
fn write_weights(directory: &Path) {
    let spec = ModelConfig::from_dir(directory).expect("the configuration is valid").spec;
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (seed, tensor) in tensors::all(&spec).into_iter().enumerate() {
        let start = data.len();
        for i in 0..tensor.len() {
            let hash = (i as u32 ^ (seed as u32) << 20).wrapping_mul(0x9E37_79B1).rotate_left(13);
            let noise = (hash.wrapping_mul(0x85EB_CA6B) >> 8) as f32 / (1 << 23) as f32 - 1.0;
            data.extend((noise * 0.3).to_le_bytes());
        }
        let entry = json!({"dtype": "F32", "shape": tensor.shape(), "data_offsets": [start, data.len()]});
        header.insert(tensor.name, entry);
    }
    let mut header = Value::from(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(directory.join("model.safetensors"), bytes).expect("it can be written");
}
