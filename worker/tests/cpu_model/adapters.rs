//! LoRA adapters created by PEFT, merged at load: tests/golden/adapters.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Value, json};
use skein_kernels::collective::Alone;
use skein_model::adapter::Adapter;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_worker::backend::Batch;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};

use crate::batches::{BLOCK_SIZE, golden as model, sequence_of};

pub fn golden(name: &str) -> PathBuf {
    skein_golden::path(format!("adapters/{name}"))
}

pub fn load(base: &Path, adapter: Option<&Path>) -> Result<CpuModel, String> {
    let (kv_blocks, max_rows, numbers) = (4096 / BLOCK_SIZE, 64, NumberTypes::STORED);
    let options = CpuOptions {
        threads: 2,
        kv_blocks,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows,
        numbers,
    };
    let none = PackedCache::none();
    let loaded = CpuModel::load_rank((base, adapter), options, &none, Alone.into(), &mut |_, _| {});
    loaded.map_err(|error| error.to_string())
}

pub fn read(name: &str, key: &str) -> (Value, Vec<Vec<f32>>) {
    let json = serde_json::from_slice(&std::fs::read(golden(name).join("goldens.json")).unwrap()).unwrap();
    let bytes = std::fs::read(golden(name).join("goldens.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(key).unwrap();
    let values: Vec<f32> = tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (json, values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec).collect())
}

pub fn logits(model: &mut CpuModel, json: &Value) -> Vec<Vec<f32>> {
    let list = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
    };
    let prompt = list("prompt");
    let mut sequence = sequence_of(prompt.clone(), 3, BLOCK_SIZE);
    let mut batch = Batch::default();
    sequence.put(&mut batch, prompt.len());
    model.logits(&batch, &list("positions"))
}

#[test]
fn merged_adapters_agree_with_peft() {
    // 32-bit matrices are merged without loss. 16-bit ones are rounded once more, a few of them differently
    // because sums have another order.
    for (name, key, tolerance) in [
        ("llama-all", "logits", 1e-4),
        ("phi3-fused", "rounded_logits", 2e-3),
        ("glm-rotated", "rounded_logits", 2e-3),
        ("nemotron-parts", "rounded_logits", 2e-3),
        ("qwen3-5-all", "rounded_logits", 2e-3),
        ("qwen3-next-fused", "rounded_logits", 2e-3),
        ("lfm2-all", "rounded_logits", 2e-3),
        ("granite-hybrid-all", "rounded_logits", 2e-3),
    ] {
        let (json, expected) = read(name, key);
        let base = model(json["model"].as_str().unwrap());
        let plain = logits(&mut load(&base, None).unwrap(), &json);
        let got = logits(&mut load(&base, Some(&golden(name))).unwrap(), &json);
        let worst = |of: &[Vec<f32>]| {
            let pairs = of.iter().flatten().zip(expected.iter().flatten());
            pairs.map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max)
        };
        println!("{name}: {} from PEFT's, {} without the adapter", worst(&got), worst(&plain));
        assert!(worst(&got) <= tolerance, "{name}: off by {}", worst(&got));
        assert!(worst(&plain) > 1.0, "{name}: the adapter matters");
    }
}

/// Copy of an adapter with its configuration changed by `change`.
pub fn changed(name: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read(golden(name).join("adapter_config.json")).unwrap();
    let mut config = serde_json::from_slice(&text).unwrap();
    change(&mut config);
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).unwrap();
    let tensors = "adapter_model.safetensors";
    std::fs::copy(golden(name).join(tensors), directory.path().join(tensors)).unwrap();
    directory
}

/// Copy of an adapter whose tensors have other names, with the model's `lm_head` times `factor`, as PEFT
/// saves it.
fn with_head(name: &str, base: &Path, factor: f32, renamed: &dyn Fn(&str) -> String) -> tempfile::TempDir {
    let directory = changed(name, |_| {});
    let path = directory.path().join("adapter_model.safetensors");
    let (bytes, own) =
        (std::fs::read(&path).unwrap(), std::fs::read(base.join("model.safetensors")).unwrap());
    let (adapter, own) = (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::deserialize(&own).unwrap());
    let head = own.tensor("lm_head.weight").unwrap();
    let values = head.data().as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value) * factor);
    let values: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let head = safetensors::tensor::TensorView::new(head.dtype(), head.shape().to_vec(), &values).unwrap();
    let head = (renamed("base_model.model.lm_head.base_layer.weight"), head);
    let tensors = adapter.tensors().into_iter().map(|(name, view)| (renamed(&name), view)).chain([head]);
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    directory
}

#[test]
fn the_models_head_in_an_adapter_changes_nothing_if_it_is_a_copy() {
    let (json, expected) = read("llama-all", "logits");
    let base = model("llama-gqa");
    // Names of PEFT on the text model alone, and within models that also take images.
    for prefix in ["", "language_model.", "of images"] {
        let directory = with_head("llama-all", &base, 1.0, &|name| match prefix {
            "of images" => name.replace("model.model.layers", "model.model.language_model.layers"),
            prefix => name.replace("base_model.model.", &format!("base_model.model.{prefix}")),
        });
        let got = logits(&mut load(&base, Some(directory.path())).unwrap(), &json);
        let pairs = got.iter().flatten().zip(expected.iter().flatten());
        let worst = pairs.map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-4, "{prefix}: off by {worst}");
        Adapter::open(directory.path()).unwrap().check_copies_in(&base).unwrap();
    }
    let directory = with_head("llama-all", &base, 1.5, &str::to_owned);
    let merged = load(&base, Some(directory.path())).err().unwrap();
    let served = Adapter::open(directory.path()).unwrap().check_copies_in(&base).unwrap_err().to_string();
    for said in [merged, served] {
        assert!(said.contains("lm_head.base_layer.weight") && said.contains("other weights"), "{said}");
    }
}

#[test]
fn adapters_that_cannot_be_merged_are_refused_by_name() {
    let check = |base: &Path, adapter: &Path, words: &[&str]| {
        let said = load(base, Some(adapter)).err().expect("it is refused");
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    let base = model("llama-gqa");
    for (field, value) in [
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("bias", json!("all")),
        ("peft_type", json!("IA3")),
        ("lora_alpha", json!("high")),
        ("alpha_pattern", json!({"(?=layers)": 3})),
        ("init_lora_weights", json!("pissa_niter_4")),
    ] {
        let directory = changed("llama-all", |config| config[field] = value);
        check(&base, directory.path(), &["adapter_config.json", field]);
    }
    // Adapters for other shapes, other names, a tied head, and a quantised model.
    check(&model("mistral"), &golden("llama-all"), &["lora_B", "expected F16, BF16 or F32"]);
    check(&base, &golden("phi3-fused"), &["gate_up_proj", "is the adapter for a different model?"]);
    check(&model("llama-mha-tied"), &golden("llama-all"), &["lora_"]);
    let quantised = skein_golden::path("quantised/w8a16");
    check(&quantised, &golden("llama-all"), &["lora_A"]);
    check(&base, Path::new("/nowhere"), &["adapter_config.json", "cannot read"]);
}

#[test]
fn another_adapter_is_another_fingerprint() {
    let of = |path: &Path| Adapter::open(path).unwrap().fingerprint().unwrap();
    let original = of(&golden("llama-all"));
    assert_eq!(original, of(&golden("llama-all")));
    let directory = changed("llama-all", |config| config["lora_alpha"] = json!(9));
    assert_ne!(original, of(directory.path()));
}
