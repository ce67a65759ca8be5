//! Any number of ranks and stages produces the bits of one rank, for every family, number type and format.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use skein_kernels::collective::Threads;
use skein_kernels::collective::link::{Inlet, Outlet, between_threads};
use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::packed::Format;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::tensors;
use skein_worker::backend::Batch;
use skein_worker::backend::Connections;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};
use skein_worker::check::prompt;

use crate::batches::{BLOCK_SIZE, golden, sample, sequence_of};

/// Longest wait for another rank.
const TIMEOUT: Duration = Duration::from_secs(60);
/// More than a rank's 64 rows of the vocabulary and not a multiple of them; with eight ranks, three have
/// none.
const VOCAB: u32 = 300;
/// Upper bound of prompt tokens, which all models here have.
const IDS: u32 = 128;

/// Model like the golden `name`, large enough for eight ranks, with random weights.
pub fn make(name: &str, stored: Dtype, changes: Value) -> tempfile::TempDir {
    let text = std::fs::read_to_string(golden(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let size = json!({"hidden_size": 64, "intermediate_size": 512, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCAB, "num_hidden_layers": 2});
    for (field, value) in size.as_object().unwrap().iter().chain(changes.as_object().unwrap()) {
        config[field] = value.clone();
    }
    if let Some(of_inputs) = config.get_mut("vocab_size_per_layer_input") {
        *of_inputs = json!(VOCAB);
    }
    if changes.get("layer_types").is_none() {
        config.as_object_mut().unwrap().remove("layer_types"); // as many as layers
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    write_weights(directory.path(), stored);
    directory
}

fn write_weights(directory: &Path, stored: Dtype) {
    let spec = ModelConfig::from_dir(directory).unwrap().spec;
    let mut names = BTreeSet::new();
    let data: Vec<_> = tensors::all(&spec)
        .into_iter()
        .filter(|tensor| names.insert(tensor.name.clone())) // fused ones are listed several times
        .enumerate()
        .map(|(seed, tensor)| {
            let noise = |i: usize| {
                let hash = (i as u32 ^ (seed as u32) << 20).wrapping_mul(0x9E37_79B1).rotate_left(13);
                (hash.wrapping_mul(0x85EB_CA6B) >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            let values = (0..tensor.shape().iter().product()).map(|i| noise(i) * 0.3);
            let bytes: Vec<u8> = match stored {
                Dtype::BF16 => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
                Dtype::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
                _ => values.flat_map(f32::to_le_bytes).collect(),
            };
            (tensor, bytes)
        })
        .collect();
    let views = data.iter().map(|(tensor, bytes)| {
        (tensor.name.clone(), TensorView::new(stored, tensor.shape(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
}

pub fn options(numbers: NumberTypes) -> CpuOptions {
    CpuOptions {
        threads: 1,
        kv_blocks: 4096 / BLOCK_SIZE,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: 64,
        numbers,
    }
}

/// Connections of `tensor` ranks in each of `stages` stages, last stage first.
pub fn connected(tensor: usize, stages: usize) -> Vec<Connections> {
    let mut all = Vec::new();
    let mut befores: Vec<Option<Box<dyn Inlet>>> = (0..tensor).map(|_| None).collect();
    for stage in 0..stages {
        let mut next = Vec::new();
        let ranks = Threads::new(tensor, TIMEOUT).into_iter().zip(befores);
        let of_stage: Vec<_> = ranks
            .map(|(ranks, before)| {
                let (outlet, inlet) = between_threads([stage, stage + 1], 2, TIMEOUT);
                let is_last = stage + 1 == stages;
                next.push((!is_last).then(|| Box::new(inlet) as Box<dyn Inlet>));
                let after = (!is_last).then(|| Box::new(outlet) as Box<dyn Outlet>);
                Connections { stage, stages, before, after, ..ranks.into() }
            })
            .collect();
        all.splice(0..0, of_stage);
        befores = next;
    }
    all
}

/// Runs `work` on each of `tensor` ranks in each of `stages` stages; returns the last stage's results in
/// order, then the others'.
fn on_ranks<T: Send>(
    directory: &Path,
    numbers: NumberTypes,
    (tensor, stages): (usize, usize),
    work: impl Fn(&mut CpuModel) -> T + Sync,
) -> Vec<T> {
    let options = options(numbers);
    std::thread::scope(|scope| {
        let ranks = connected(tensor, stages).into_iter().map(|rank| {
            let work = &work;
            scope.spawn(move || {
                let (cache, model) = (PackedCache::none(), (directory, None));
                work(&mut CpuModel::load_rank(model, options, &cache, rank, &mut |_, _| {}).unwrap())
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    logits.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// Prompts in interleaved chunks, a prompt whose first block is shared, then decode steps.
fn steps(model: &mut CpuModel) -> Vec<Vec<u32>> {
    let mut sequences: Vec<_> =
        (0..3).map(|i| sequence_of(prompt(u64::from(i), 60, IDS), i, BLOCK_SIZE)).collect();
    let prefix = sequences[0].tokens[..BLOCK_SIZE as usize].to_vec();
    sequences[2].tokens[..BLOCK_SIZE as usize].copy_from_slice(&prefix);
    let mut all = Vec::new();
    for counts in [[40, 0, 0], [1, 17, 0], [1, 30, 20], [1, 1, 1], [1, 1, 1]] {
        let (mut batch, mut rows) = (Batch::default(), Vec::new());
        if counts[2] == 20 {
            let first = sequences[0].blocks[0];
            (sequences[2].blocks[0], sequences[2].computed) = (first, BLOCK_SIZE as usize);
        }
        for (sequence, count) in sequences.iter_mut().zip(counts).filter(|(_, count)| *count > 0) {
            sequence.put(&mut batch, count);
            rows.push(batch.tokens.len() as u32 - 1);
        }
        all.extend(bits(&model.logits(&batch, &rows)));
    }
    // A prompt with every row wanted, and a drawn token.
    let mut sequence = sequence_of(prompt(9, 33, IDS), 4, BLOCK_SIZE);
    let mut batch = Batch::default();
    sequence.put(&mut batch, 33);
    all.extend(bits(&model.logits(&batch, &(0..33).collect::<Vec<_>>())));
    sample(&sequence, &mut batch, &Default::default(), 33);
    let answers = format!("{:?}", model.run(&batch).unwrap().answers);
    all.push(answers.bytes().map(u32::from).collect());
    all
}

/// Checks that every rank of the last stage has the logits of a single rank, bit for bit, for each number of
/// ranks and stages.
fn check(directory: &Path, numbers: NumberTypes, what: &str, shapes: &[(usize, usize)]) {
    let expected = on_ranks(directory, numbers, (1, 1), steps).remove(0);
    let logits = &expected[..expected.len() - 1];
    assert!(logits.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()), "{what}");
    for &(tensor, stages) in shapes {
        let all = on_ranks(directory, numbers, (tensor, stages), steps);
        assert_eq!(all.len(), tensor * stages);
        for (rank, got) in all.into_iter().take(tensor).enumerate() {
            assert!(
                got == expected,
                "{what}, {numbers:?}: rank {rank} of {tensor} x {stages} has other bits"
            );
        }
    }
}

/// Shapes with several ranks and one stage.
fn wide(counts: &[usize]) -> Vec<(usize, usize)> {
    counts.iter().map(|count| (*count, 1)).collect()
}

#[test]
fn every_family_gives_the_same_bits_on_any_number_of_ranks() {
    let mistral = json!({"sliding_window": 24, "num_key_value_heads": 8});
    // Eight ranks of three query heads; a KV head has four, so some are on two ranks.
    let uneven = json!({"num_attention_heads": 24, "num_key_value_heads": 6, "attention_bias": true, "mlp_bias": true});
    for (name, stored, changes) in [
        ("llama-gqa", Dtype::F32, json!({})),
        ("llama3-rope", Dtype::BF16, uneven),
        ("mistral-window", Dtype::BF16, mistral),
        ("qwen2", Dtype::F16, json!({"num_key_value_heads": 1})),
        ("qwen3-bias-v5", Dtype::F16, json!({})),
        ("gemma2", Dtype::BF16, json!({})),
    ] {
        let model = make(name, stored, changes);
        check(model.path(), NumberTypes::STORED, name, &wide(&[2, 4, 8]));
    }
}

#[test]
fn later_families_give_the_same_bits_too() {
    let rope = json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75});
    let moe = json!({"num_key_value_heads": 8, "num_experts": 6, "num_local_experts": 6,
        "num_experts_per_tok": 3, "moe_intermediate_size": 96, "intermediate_size_mlp": 512});
    // A KV head for each query head means that attention is not grouped; all ranks cache the latent.
    let latent = json!({"num_key_value_heads": 8, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "v_head_dim": 32, "moe_intermediate_size": 96, "first_k_dense_replace": 1});
    for (name, changes) in [
        ("phi3-v5", json!({"rope_parameters": rope})),
        ("gemma3", json!({})),
        ("glm", json!({})),
        ("glm4-v5", json!({})),
        ("granite", json!({})),
        ("smollm3", json!({})),
        ("olmo2", json!({"num_key_value_heads": 4})),
        ("starcoder2", json!({})),
        ("cohere", json!({})),
        ("cohere2-v5", json!({})),
        ("mixtral", moe.clone()),
        ("olmoe", moe.clone()),
        ("qwen3-moe", moe.clone()),
        ("gpt-oss", moe.clone()),
        ("llama4", moe.clone()),
        ("deepseek-v2", latent.clone()),
        ("deepseek-v3-v5", latent.clone()),
        ("glm4-moe-lite", latent),
        ("ministral3-v5", json!({"tie_word_embeddings": false})),
        ("olmo3", json!({"num_key_value_heads": 4, "num_hidden_layers": 4})),
        ("seed-oss-v5", json!({})),
        ("exaone4", json!({})),
        ("ernie4-5-v5", json!({})),
        ("ernie4-5-moe", moe.clone()),
        ("minimax-m2", moe.clone()),
    ] {
        let mut changes = changes;
        changes["hidden_size"] = json!(256); // some families derive head_dim from it
        let model = make(name, Dtype::BF16, changes);
        check(model.path(), NumberTypes::STORED, name, &[(2, 1), (4, 1), (1, 2), (2, 2)]);
    }
}

#[test]
fn heads_of_two_sizes_and_shared_keys_give_the_same_bits_too() {
    let ranks = [(2, 1), (4, 1)];
    let check = |name, changes, stages: &[(usize, usize)]| {
        let model = make(name, Dtype::BF16, changes);
        check(model.path(), NumberTypes::STORED, name, &[&ranks[..], stages].concat());
    };
    check("gemma4-per-layer", json!({"num_hidden_layers": 12, "hidden_size_per_layer_input": 24}), &[]);
    let moe = json!({"num_hidden_layers": 6, "num_experts": 6, "top_k_experts": 3});
    check("gemma4-moe", moe, &[(1, 2), (2, 2)]);
    // The last two layers read those of layers 4 and 5, which are in the same stage.
    let shared = json!({"num_hidden_layers": 8, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 0,
        "use_double_wide_mlp": false});
    check("gemma4-per-layer", shared, &[(1, 2), (2, 2)]);
}

#[test]
fn stages_give_the_bits_of_one() {
    for (name, tied) in [("qwen2-tied-v5", true), ("gemma2", true), ("llama-gqa", false)] {
        let changes = json!({"num_hidden_layers": 5, "tie_word_embeddings": tied, "num_key_value_heads": 4});
        let model = make(name, Dtype::BF16, changes);
        let shapes: Vec<_> =
            [1, 2, 4].into_iter().flat_map(|tensor| (1..=4).map(move |stages| (tensor, stages))).collect();
        let bf16 = NumberTypes { bf16: true, kv: KvType::Bf16, weights: None };
        let numbers = if name == "gemma2" { NumberTypes::STORED } else { bf16 };
        check(model.path(), numbers, name, &shapes[1..]);
    }
    let model = make("qwen2", Dtype::BF16, json!({"num_hidden_layers": 4}));
    let int8 = NumberTypes { weights: Some(Format::INT8), kv: KvType::Int8, ..NumberTypes::STORED };
    check(model.path(), int8, "int8", &[(1, 4), (2, 2)]);
}

#[test]
fn every_number_type_and_format_gives_the_same_bits_on_any_number_of_ranks() {
    let model = make("qwen2-tied-v5", Dtype::BF16, json!({}));
    let kv = [KvType::F32, KvType::Bf16, KvType::F16, KvType::Int8];
    let numbers = kv.map(|kv| NumberTypes { kv, bf16: kv != KvType::F32, weights: None });
    let formats = [Format::INT8, Format::INT8_GROUP, Format::INT4, Format::INT4_ZERO];
    let rounded = formats.map(|format| NumberTypes { weights: Some(format), ..NumberTypes::STORED });
    for numbers in numbers.into_iter().chain(rounded) {
        check(model.path(), numbers, "qwen2", &wide(&[2, 8]));
    }
}

/// A quantised golden model.
fn quantised(name: &str) -> std::path::PathBuf {
    skein_golden::path(format!("quantised/{name}"))
}

#[test]
fn quantised_checkpoints_give_the_same_bits_on_several_ranks_and_stages() {
    for name in ["w8a8", "w4a16", "nf4", "fp8-channel", "gptq-4", "awq"] {
        check(&quantised(name), NumberTypes::STORED, name, &[(2, 1), (1, 2), (2, 2)]);
    }
    check(&quantised("gptq-4-experts"), NumberTypes::STORED, "experts", &[(2, 1)]);
}

#[test]
fn inputs_in_activation_order_are_not_divided_among_ranks() {
    let model = (&*quantised("gptq-4-act-order"), None);
    for rank in connected(2, 1) {
        let options = options(NumberTypes::STORED);
        let loaded = CpuModel::load_rank(model, options, &PackedCache::none(), rank, &mut |_, _| {});
        let said = loaded.err().expect("it is refused").to_string();
        assert!(said.contains("o_proj") && said.contains("activation order"), "{said}");
    }
    check(model.0, NumberTypes::STORED, "stages", &[(1, 2)]);
}

#[test]
fn the_shipped_model_gives_the_same_bits_on_two_ranks() {
    let shipped = skein_golden::shipped();
    check(
        &shipped,
        NumberTypes { bf16: true, kv: KvType::Bf16, weights: None },
        "skein-7m",
        &[(2, 1), (1, 2), (2, 2)],
    );
}

#[test]
fn a_rank_has_the_keys_and_values_of_its_own_heads_only() {
    let model = make("llama-gqa", Dtype::F32, json!({"num_key_value_heads": 8}));
    let whole = on_ranks(model.path(), NumberTypes::STORED, (1, 1), |model| model.kv_bytes()).remove(0);
    for count in [2, 4, 8] {
        let own = on_ranks(model.path(), NumberTypes::STORED, (count, 1), |model| model.kv_bytes());
        assert_eq!(own, vec![whole / count as u64; count], "{count} ranks");
    }
}

#[test]
fn a_lost_rank_ends_the_others_steps_with_its_number() {
    let model = make("llama-gqa", Dtype::F32, json!({}));
    let options = options(NumberTypes::STORED);
    let [first, second] = <[_; 2]>::try_from(Threads::new(2, TIMEOUT)).unwrap();
    let load = |rank: Threads| {
        let (none, model) = (PackedCache::none(), (model.path(), None));
        CpuModel::load_rank(model, options, &none, rank.into(), &mut |_, _| {}).unwrap()
    };
    let (mut left, gone) = (load(first), load(second));
    drop(gone);
    let mut sequence = sequence_of(prompt(1, 5, VOCAB), 0, BLOCK_SIZE);
    let mut batch = Batch::default();
    sequence.put(&mut batch, 5);
    sample(&sequence, &mut batch, &Default::default(), 5);
    let said = left.run(&batch).unwrap_err().to_string();
    assert!(said.contains("the group has failed: rank 1 ended"), "{said}");
}
