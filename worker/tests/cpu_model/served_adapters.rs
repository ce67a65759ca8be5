//! LoRA adapters served beside the model: as PEFT computes them, and the same bits in any batch.

use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use skein_kernels::collective::Alone;
use skein_kernels::cpu::packed::Format;
use skein_model::adapter::Adapter;
use skein_model::adapter_changes;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::adapter::AdapterWeights;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::served_adapter::HeldAdapter;
use skein_model::shard::Shard;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};
use skein_worker::backend::{Batch, LoadedAdapter};
use skein_worker::check::Sequence;

use crate::adapters::{changed, golden, load, read};
use crate::batches::{BLOCK_SIZE, golden as model, sequence_of};

fn served(base: &Path, directory: &Path) -> Result<Arc<LoadedAdapter>, String> {
    let adapter = Adapter::open(directory).map_err(|error| error.to_string())?;
    let spec = ModelConfig::from_dir(base).unwrap().spec;
    adapter_changes::check(&adapter, &spec, 8).map_err(|error| error.to_string())?;
    let shard = Shard::whole(&spec);
    let weights = AdapterWeights::new(&adapter, &spec, &shard, 8).map_err(|error| error.to_string())?;
    assert!(weights.bytes() > 0 && weights.bytes() <= AdapterWeights::most_bytes(&spec, &shard, 8));
    let held = Arc::new(HeldAdapter::Cpu(weights));
    Ok(Arc::new(LoadedAdapter::new(adapter.id().unwrap(), Some(held), Arc::default())))
}

fn load_with(base: &Path, numbers: NumberTypes) -> CpuModel {
    let options = CpuOptions {
        threads: 2,
        kv_blocks: 4096 / BLOCK_SIZE,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: 64,
        numbers,
    };
    let none = PackedCache::none();
    CpuModel::load_rank((base, None), options, &none, Alone.into(), &mut |_, _| {}).unwrap()
}

fn put(sequence: &mut Sequence, batch: &mut Batch, count: usize, adapter: Option<&Arc<LoadedAdapter>>) {
    sequence.put(batch, count);
    batch.sequences.last_mut().unwrap().adapter = adapter.cloned();
}

#[test]
fn served_adapters_agree_with_peft() {
    // GGUF files name tensors differently, and may order the rows of heads differently.
    for (name, base) in [
        ("llama-all", None),
        ("llama-all", Some("llama-gqa")),
        ("phi3-fused", None),
        ("glm-rotated", None),
        ("glm-rotated", Some("glm")),
        ("nemotron-parts", None),
        ("nemotron-parts", Some("nemotron-h")),
        ("qwen3-5-served", None),
        ("lfm2-served", None),
        ("granite-hybrid-served", None),
    ] {
        let (json, expected) = read(name, "logits");
        let base = base.map_or_else(|| model(json["model"].as_str().unwrap()), skein_golden::gguf);
        let adapter = served(&base, &golden(name)).unwrap();
        let list = |key: &str| -> Vec<u32> { serde_json::from_value(json[key].clone()).unwrap() };
        let prompt = list("prompt");
        let (mut sequence, mut batch) = (sequence_of(prompt.clone(), 3, BLOCK_SIZE), Batch::default());
        put(&mut sequence, &mut batch, prompt.len(), Some(&adapter));
        let got = load(&base, None).unwrap().logits(&batch, &list("positions"));
        let pairs = got.iter().flatten().zip(expected.iter().flatten());
        let worst = pairs.map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
        println!("{name} on {}: {worst} from PEFT's", base.display());
        assert!(worst <= 1e-4, "{name}: off by {worst}");
    }
}

/// Logits after each of the last tokens of `prompt`, and the tokens with the highest ones.
fn continued(
    model: &mut CpuModel,
    prompt: &[u32],
    adapter: Option<&Arc<LoadedAdapter>>,
    count: usize,
) -> Vec<u32> {
    let mut sequence = sequence_of(prompt.to_vec(), 3, BLOCK_SIZE);
    for _ in 0..count {
        let (mut batch, left) = (Batch::default(), sequence.left());
        put(&mut sequence, &mut batch, left, adapter);
        let row = model.logits(&batch, &[left as u32 - 1]).remove(0);
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        sequence.tokens.push(best as u32);
    }
    sequence.tokens.split_off(prompt.len())
}

#[test]
fn merged_and_served_adapters_give_the_same_tokens() {
    let base = model("llama-gqa");
    let adapter = served(&base, &golden("llama-all")).unwrap();
    let (mut merged, mut plain) =
        (load(&base, Some(&golden("llama-all"))).unwrap(), load(&base, None).unwrap());
    for seed in 0..8u32 {
        let prompt: Vec<u32> = (0..20).map(|i| (i * 37 + seed * 11) % 250 + 2).collect();
        let expected = continued(&mut merged, &prompt, None, 40);
        assert_eq!(continued(&mut plain, &prompt, Some(&adapter), 40), expected, "prompt {seed}");
        assert_ne!(continued(&mut plain, &prompt, None, 40), expected, "the adapter matters");
    }
}

/// A change to the keys changes the values, too.
#[test]
fn merged_and_served_adapters_of_keys_used_as_values_give_the_same_tokens() {
    let base = model("gemma4");
    let directory = attention_adapter("1.self_attn.k_proj", 64, 48);
    let adapter = served(&base, directory.path()).unwrap();
    let (mut merged, mut plain) = (load(&base, Some(directory.path())).unwrap(), load(&base, None).unwrap());
    let prompt: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 120 + 2).collect();
    let expected = continued(&mut merged, &prompt, None, 20);
    assert_eq!(continued(&mut plain, &prompt, Some(&adapter), 20), expected);
    assert_ne!(continued(&mut plain, &prompt, None, 20), expected, "the adapter matters");
}

#[test]
fn no_bit_of_a_sequence_depends_on_the_adapters_of_others() {
    let models = [
        ("llama-gqa", "llama-all"),
        ("phi3-v5", "phi3-fused"),
        ("glm", "glm-rotated"),
        ("nemotron-h", "nemotron-parts"),
        ("qwen3-5", "qwen3-5-served"),
        ("lfm2", "lfm2-served"),
        ("granite-hybrid", "granite-hybrid-served"),
    ];
    let rounded = |format| NumberTypes { weights: Some(format), ..NumberTypes::STORED };
    let bf16 = NumberTypes { bf16: true, ..NumberTypes::STORED };
    let kinds = [NumberTypes::STORED, bf16, rounded(Format::INT8), rounded(Format::INT4)];
    for (name, of) in models {
        for numbers in kinds {
            let base = model(name);
            let other = changed(of, |config| config["lora_alpha"] = serde_json::json!(3));
            let adapters = [golden(of), other.path().to_owned()].map(|path| served(&base, &path).unwrap());
            let of_sequence = [Some(&adapters[0]), None, Some(&adapters[1]), Some(&adapters[0]), None];
            let mut model = load_with(&base, numbers);
            let prompts: Vec<Vec<u32>> = (0..of_sequence.len() as u32)
                .map(|nth| (0..30 + nth).map(|i| (i * 31 + nth * 7) % 120 + 2).collect())
                .collect();
            let mut alone = Vec::new();
            for (nth, prompt) in prompts.iter().enumerate() {
                let (mut sequence, mut batch) =
                    (sequence_of(prompt.clone(), 3, BLOCK_SIZE), Batch::default());
                put(&mut sequence, &mut batch, prompt.len(), of_sequence[nth]);
                alone.push(model.logits(&batch, &[prompt.len() as u32 - 1]).remove(0));
            }
            assert!(alone[0] != alone[1] && alone[0] != alone[2]);
            // Together, in chunks of different lengths.
            let mut sequences: Vec<Sequence> = (0..)
                .zip(&prompts)
                .map(|(nth, prompt)| sequence_of(prompt.clone(), nth, BLOCK_SIZE))
                .collect();
            let mut together = vec![Vec::new(); prompts.len()];
            for chunk in [9usize, 1, 14, 64] {
                let (mut batch, mut wanted) = (Batch::default(), Vec::new());
                for (nth, sequence) in sequences.iter_mut().enumerate() {
                    let count = (chunk + nth).min(sequence.left());
                    if count > 0 {
                        put(sequence, &mut batch, count, of_sequence[nth]);
                        wanted.push((nth, batch.tokens.len() as u32 - 1));
                    }
                }
                let rows: Vec<u32> = wanted.iter().map(|(_, row)| *row).collect();
                for ((nth, _), logits) in wanted.iter().zip(model.logits(&batch, &rows)) {
                    together[*nth] = logits;
                }
            }
            for (nth, (alone, together)) in alone.iter().zip(&together).enumerate() {
                assert!(alone == together, "{name}, sequence {nth}, {numbers:?}");
            }
        }
    }
}

/// With `--max-loras 1` a request for another adapter would otherwise wait for a step that nobody asks for.
#[test]
fn a_step_that_has_ended_holds_no_adapter() {
    let base = model("llama-gqa");
    let adapter = served(&base, &golden("llama-all")).unwrap();
    let mut model = load(&base, None).unwrap();
    for asks_for_logits in [true, false] {
        let (mut sequence, mut batch) = (sequence_of(vec![5, 9, 12], 3, BLOCK_SIZE), Batch::default());
        put(&mut sequence, &mut batch, 3, Some(&adapter));
        if asks_for_logits {
            assert_eq!(model.logits(&batch, &[2]).len(), 1);
        } else {
            model.run(&batch).unwrap();
        }
        drop(batch);
        assert_eq!(Arc::strong_count(&adapter), 1, "only the test has it");
    }
}

/// Writes an adapter of rank 4 for the attention of a model with `width` inputs.
fn attention_adapter(module: &str, width: usize, outputs: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let config = serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).unwrap();
    let values = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|i| (((i * 71 % 997) as f32 - 498.0) * 0.0004).to_le_bytes()).collect()
    };
    let (a, b) = (values(4 * width), values(outputs * 4));
    let name = |kind: &str| format!("base_model.model.model.layers.{module}.lora_{kind}.weight");
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
    let tensors = [(name("A"), view(&[4, width], &a[..])), (name("B"), view(&[outputs, 4], &b[..]))];
    let path = directory.path().join("adapter_model.safetensors");
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    directory
}

#[test]
fn quantised_checkpoints_are_served_with_adapters() {
    // The adapter reads inputs that are neither rounded to 8 bits nor reordered.
    let dense = model("llama-gqa");
    let json = read("llama-all", "logits").0;
    let prompt: Vec<u32> = serde_json::from_value(json["prompt"].clone()).unwrap();
    // Ids that the smallest of the vocabularies has.
    let prompt: Vec<u32> = prompt.into_iter().map(|id| id % 128).collect();
    let last = |base: &Path, adapter: Option<&Arc<LoadedAdapter>>| {
        let mut model = load_with(base, NumberTypes::STORED);
        let (mut sequence, mut batch) = (sequence_of(prompt.clone(), 3, BLOCK_SIZE), Batch::default());
        put(&mut sequence, &mut batch, prompt.len(), adapter);
        model.logits(&batch, &[39]).remove(0)
    };
    let coded = ["w8a16", "gptq-4-act-order", "fp8-block"];
    let coded = coded.map(|name| skein_golden::path(format!("quantised/{name}")));
    for base in coded.into_iter().chain([dense]) {
        let attention = ModelConfig::from_dir(&base).unwrap().spec;
        let outputs = attention.attention.q_width();
        let directory = attention_adapter("0.self_attn.q_proj", attention.hidden_size, outputs);
        let adapter = served(&base, directory.path()).unwrap();
        let (plain, with) = (last(&base, None), last(&base, Some(&adapter)));
        let change = plain.iter().zip(&with).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{}: changes logits by {change}", base.display());
        assert!(change > 1e-3 && change < 10.0, "{}: {change}", base.display());
    }
}

#[test]
fn adapters_that_cannot_be_served_are_refused_by_name() {
    let check = |base: &Path, adapter: &Path, words: &[&str]| {
        let said = served(base, adapter).expect_err("it is refused");
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    check(&model("mistral"), &golden("llama-all"), &["lora_B", "expected F16, BF16 or F32"]);
    check(&model("llama-mha-tied"), &golden("llama-all"), &["lora_"]);
    for (name, module) in [
        ("qwen3-5", "layers.0.linear_attn.in_proj_qkv"),
        ("qwen3-next", "layers.0.linear_attn.in_proj_qkvz"),
        ("lfm2", "layers.0.conv.in_proj"),
        ("granite-hybrid", "layers.0.mamba.in_proj"),
    ] {
        let adapter = if name == "qwen3-next" { "qwen3-next-fused".into() } else { format!("{name}-all") };
        check(&model(name), &golden(&adapter), &[module, "nothing in layers with states"]);
    }
    let gated = attention_adapter("2.self_attn.q_proj", 64, 256);
    check(&model("qwen3-5"), gated.path(), &["layers.2.self_attn.q_proj", "no queries with gates"]);
    let dora = changed("llama-all", |config| config["use_dora"] = serde_json::json!(true));
    check(&model("llama-gqa"), dora.path(), &["use_dora"]);
    let spec = ModelConfig::from_dir(&model("llama-gqa")).unwrap().spec;
    let adapter = Adapter::open(&golden("llama-all")).unwrap();
    let said = adapter_changes::check(&adapter, &spec, 3).err().unwrap().to_string();
    assert!(said.contains("rank 4") && said.contains("--max-lora-rank is 3"), "{said}");
}
