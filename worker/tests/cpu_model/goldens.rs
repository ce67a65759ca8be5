//! Agreement with Hugging Face transformers in float32: tests/golden.

use serde_json::Value;
use skein_kernels::cpu::packed::Format;
use skein_worker::backend::Batch;
use skein_worker::backend::cpu::{CpuBackend, CpuModel, CpuOptions, NumberTypes};

use crate::batches::{BLOCK_SIZE, golden, goldens, load, load_from, sequence_of};
use crate::golden::Golden;

/// Largest difference of a logit; the logits of these models range over several units.
const TOLERANCE: f32 = 1e-4;

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "{what}: logits differ by {worst}");
}

fn check(name: &str) {
    check_model(name, &Golden::read(&golden(name)), load(name, 2, BLOCK_SIZE));
}

/// Checks prompt logits, then 64 greedy tokens and the logits that chose them.
pub fn check_model(name: &str, golden: &Golden, mut model: CpuModel) {
    let mut sequence = sequence_of(golden.prompt.clone(), 3, BLOCK_SIZE);
    let mut batch = Batch::default();
    sequence.put(&mut batch, golden.prompt.len());
    let got = model.logits(&batch, &golden.prompt_positions);
    for ((got, expected), position) in got.iter().zip(&golden.prompt_logits).zip(&golden.prompt_positions) {
        assert_close(got, expected, &format!("{name}, prompt position {position}"));
    }
    let mut logits = model.logits(&batch, &[golden.prompt.len() as u32 - 1]);
    for (step, expected) in golden.greedy.iter().enumerate() {
        if let Some(kept) = golden.greedy_steps.iter().position(|kept| *kept as usize == step) {
            assert_close(&logits[0], &golden.greedy_logits[kept], &format!("{name}, greedy step {step}"));
        }
        let best = (0..logits[0].len()).max_by(|a, b| logits[0][*a].total_cmp(&logits[0][*b]).then(b.cmp(a)));
        assert_eq!(best, Some(*expected as usize), "{name}, greedy step {step}");
        sequence.tokens.push(*expected);
        let mut batch = Batch::default();
        sequence.put(&mut batch, 1);
        logits = model.logits(&batch, &[0]);
    }
}

#[test]
fn every_model_agrees_with_transformers() {
    goldens().iter().for_each(|name| check(name));
}

/// Directories written by `tests/golden/saved_again.py`, if there are any.
#[test]
fn models_saved_again_by_transformers_agree() {
    let Some(directory) = std::env::var_os("TEST_SAVED_AGAIN") else {
        println!("skipped: TEST_SAVED_AGAIN names no directory");
        return;
    };
    for entry in std::fs::read_dir(directory).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let (golden, mut model) = (Golden::read(&path), load_from(&path, 2, BLOCK_SIZE));
        let mut sequence = sequence_of(golden.prompt.clone(), 3, BLOCK_SIZE);
        let mut batch = Batch::default();
        sequence.put(&mut batch, golden.prompt.len());
        let got = model.logits(&batch, &golden.prompt_positions);
        let [got, expected] = [&got, &golden.prompt_logits].map(|rows| log_probabilities(rows));
        let worst =
            got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max);
        println!("{}: log-probabilities differ by {worst:.1e}", name.display());
        check_model(&name.to_string_lossy(), &golden, model);
    }
}

pub fn log_probabilities(rows: &[Vec<f32>]) -> Vec<f64> {
    let of_row = |row: &Vec<f32>| {
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        row.iter().map(|logit| f64::from(*logit) - sum.ln()).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of_row).collect()
}

/// A golden model as one that also takes images, its head tied as the outer or the inner configuration says.
#[test]
fn text_models_of_models_with_images_agree_with_transformers() {
    let [tied, own] = ["llama-mha-tied", "llama-gqa"];
    for (name, prefix, head, outer, inner) in [
        (own, "model.text_model.", "lm_head", Some(false), false),
        (own, "model.language_model.", "lm_head", Some(false), true),
        (own, "language_model.model.", "language_model.lm_head", Some(true), false),
        (own, "language_model.model.", "language_model.lm_head", None, false),
        (tied, "model.text_model.", "lm_head", Some(true), false),
        (tied, "language_model.model.", "language_model.lm_head", None, true),
    ] {
        let directory = with_images(name, &|module| match module.strip_prefix("model.") {
            Some(rest) => format!("{prefix}{rest}"),
            None => module.replace("lm_head", head),
        });
        let path = directory.path().join("config.json");
        let mut text: Value =
            serde_json::from_slice(&std::fs::read(golden(name).join("config.json")).unwrap()).unwrap();
        text["tie_word_embeddings"] = inner.into();
        let mut config = serde_json::json!({"architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm",
            "text_config": text});
        outer.inspect(|outer| config["tie_word_embeddings"] = (*outer).into());
        std::fs::write(path, config.to_string()).unwrap();
        let what = format!("{name} as {prefix}, outer {outer:?}, inner {inner}");
        check_model(&what, &Golden::read(&golden(name)), load_from(directory.path(), 2, BLOCK_SIZE));
    }
}

/// Weights of a golden model in one file, under other names.
fn with_images(name: &str, renamed: &dyn Fn(&str) -> String) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let is_weights = |path: &std::path::PathBuf| {
        path.extension().is_some_and(|end| end == "safetensors") && !path.ends_with("goldens.safetensors")
    };
    let files =
        std::fs::read_dir(golden(name)).unwrap().map(|entry| entry.unwrap().path()).filter(is_weights);
    let files: Vec<Vec<u8>> = files.map(|path| std::fs::read(path).unwrap()).collect();
    let opened: Vec<_> =
        files.iter().map(|bytes| safetensors::SafeTensors::deserialize(bytes).unwrap()).collect();
    let tensors = opened.iter().flat_map(|file| file.tensors()).map(|(name, view)| (renamed(&name), view));
    safetensors::serialize_to_file(tensors, None, &directory.path().join("model.safetensors")).unwrap();
    directory
}

/// The shipped model against `tests/golden/skein-7m.json`. Regenerate that file when the model changes.
#[test]
fn the_shipped_model() {
    let json: Value =
        serde_json::from_slice(&std::fs::read(skein_golden::path("skein-7m.json")).unwrap()).unwrap();
    let list = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
    };
    let cases = json["cases"].as_array().unwrap();
    assert!(cases.len() >= 5);
    for case in cases {
        let ids = list(&case["ids"]);
        let mut model = load_from(&skein_golden::shipped(), 2, BLOCK_SIZE);
        let mut sequence = sequence_of(ids.clone(), 3, BLOCK_SIZE);
        let mut rows = ids.len();
        let greedy = list(&case["greedy"]);
        assert!(!greedy.is_empty());
        for (step, expected) in greedy.iter().enumerate() {
            let mut batch = Batch::default();
            sequence.put(&mut batch, rows);
            let logits = model.logits(&batch, &[rows as u32 - 1]).remove(0);
            if step == 0 {
                let top = &case["first_logits_top5"];
                for (id, logit) in list(&top["ids"]).iter().zip(top["logits"].as_array().unwrap()) {
                    assert_close(&[logits[*id as usize]], &[logit.as_f64().unwrap() as f32], "first logits");
                }
            }
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
            assert_eq!(best, Some(*expected as usize), "{}, greedy step {step}", case["name"]);
            sequence.tokens.push(*expected);
            rows = 1;
        }
    }
}

#[test]
fn nan_and_infinite_weights_are_refused_at_load() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("llama-gqa").join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let tensor = "model.layers.0.self_attn.q_proj.weight";
    let [start, end] = [0, 1].map(|i| data + header[tensor]["data_offsets"][i].as_u64().unwrap() as usize);
    bytes[start..end].fill(0xff); // NaN in f32
    std::fs::write(&path, bytes).unwrap();
    let rounded = NumberTypes { weights: Some(Format::INT8), ..NumberTypes::STORED };
    // Unusable weights are refused before quantisation, with the name of their tensor.
    for (numbers, expected) in [
        (NumberTypes::STORED, format!("tensor {tensor} has the value NaN in row 0, column 0")),
        (rounded, format!("tensor {tensor}: the weight of output 0")),
    ] {
        let options = CpuOptions {
            threads: 1,
            kv_blocks: 4,
            window_blocks: None,
            state_slots: 16,
            block_size: BLOCK_SIZE,
            max_rows: 8,
            numbers,
        };
        let Err(error) = CpuBackend::load(dir.path(), options, &mut |_, _| {}) else { panic!("loaded") };
        assert!(error.to_string().contains(&expected), "{error}");
    }
}
