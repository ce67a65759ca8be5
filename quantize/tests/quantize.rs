//! `skein quantize`: what is written is read back, costs what it should, and is finished after an
//! interruption.
#![allow(clippy::unwrap_used)] // a test may fail

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Map, Value, json};
use skein_model::config::ModelConfig;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::tensors::{self, Kind};
use skein_quantize::maths::gptq::ActOrder;
use skein_quantize::{Layout, Method, QuantizeError, Report, Request, Scheme};
use skein_worker::BlockId;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};
use skein_worker::backend::{Batch, BatchSequence, BatchState};
use skein_worker::config::Precision;
use skein_worker::quality::{Scored, ScoredSize, measure};

/// Tokens per window in `held_out.bin`.
const WINDOW: usize = 513;
const SIZE: ScoredSize = ScoredSize { window: WINDOW, threads: 2 };

fn shipped() -> PathBuf {
    skein_golden::shipped()
}

fn held_out() -> Vec<Vec<u32>> {
    let bytes = fs::read(shipped().join("held_out.bin")).unwrap();
    let ids = |window: &[[u8; 2]]| window.iter().map(|id| u32::from(u16::from_le_bytes(*id))).collect();
    bytes.as_chunks::<2>().0.chunks(WINDOW).map(ids).collect()
}

fn run(model: &Path, out: &Path, scheme: &Scheme, calibration: &[Vec<u32>]) -> Result<Report, QuantizeError> {
    skein_quantize::quantise(&Request { model, out, scheme, calibration, hessian_bytes: None }, &mut |_| {})
}

/// Numbers that look random.
fn noise(count: usize, seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

/// Configurations that differ in what a quantiser has to know.
fn families() -> Vec<(&'static str, Value)> {
    let with = |name: &'static str, over: Value| {
        let mut config = json!({
            "model_type": name, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 1,
        });
        config.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        (name, config)
    };
    vec![
        with("llama", json!({"tie_word_embeddings": false})),
        with("qwen2", json!({"use_sliding_window": false})),
        with("qwen3", json!({"head_dim": 32})),
        with("phi3", json!({"pad_token_id": 0})),
        with(
            "gemma2",
            json!({"hidden_activation": "gelu_pytorch_tanh", "head_dim": 32,
            "query_pre_attn_scalar": 24, "attn_logit_softcapping": 10.0, "final_logit_softcapping": 12.0,
            "sliding_window": 24}),
        ),
        with("cohere", json!({"layer_norm_eps": 1e-5, "logit_scale": 1.0})),
        with(
            "starcoder2",
            json!({"hidden_act": "gelu_pytorch_tanh", "use_bias": true, "norm_epsilon": 1e-5}),
        ),
        with("olmo2", json!({})),
        with("exaone4", json!({"sliding_window": 24, "sliding_window_pattern": 2})),
        with("ernie4_5", json!({"use_bias": true, "head_dim": 32, "tie_word_embeddings": true})),
    ]
}

/// Configurations with experts.
fn mixtures() -> Vec<(&'static str, Value)> {
    let (_, llama) = families().remove(0);
    let with = |name: &'static str, over: Value| {
        let mut config = llama.clone();
        config["model_type"] = json!(name);
        config.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        (name, config)
    };
    let sizes = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32});
    let mut shared = sizes.clone();
    shared["shared_expert_intermediate_size"] = json!(64);
    vec![
        with("mixtral", json!({"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": null})),
        with("qwen3_moe", sizes),
        with("qwen2_moe", shared),
        with(
            "ernie4_5_moe",
            json!({"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 0}),
        ),
        with(
            "minimax_m2",
            json!({"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16}),
        ),
    ]
}

/// Writes a model with random weights in bfloat16. Some inputs of each layer are much larger than others.
fn make(dir: &Path, config: &Value) {
    make_stored(dir, config, false);
}

/// The same with all experts of a layer in one tensor, if `is_fused`.
fn make_stored(dir: &Path, config: &Value, is_fused: bool) {
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let spec = ModelConfig::from_dir(dir).unwrap().spec;
    let mut stored: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (seed, tensor) in tensors::all(&spec).iter().enumerate() {
        let first = &tensor.stored[0];
        let (count, cols) = (first.shape.iter().product(), *first.shape.last().unwrap());
        let in_all = tensor.stored.iter().find(|it| is_fused && it.shape.len() == 3);
        let values = noise(count, seed as u64 + 1).enumerate().map(|(i, value)| match tensor.kind {
            Kind::Matrix(..) | Kind::Table => value * (3.0 / cols as f32).sqrt(),
            Kind::Norm => (if i % 17 == 3 { 8.0 } else { 1.0 + 0.3 * value }) - spec.norm.offset,
            _ => 0.1 * value,
        });
        let bytes: Vec<u8> = values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect();
        if let Some(all) = in_all {
            let size = 2 * all.shape.iter().product::<usize>();
            let (_, to) = stored.entry(all.name.clone()).or_insert((all.shape.clone(), vec![0; size]));
            to[2 * all.first_row * cols..][..bytes.len()].copy_from_slice(&bytes);
            continue;
        }
        stored.entry(first.name.clone()).or_insert((first.shape.clone(), bytes));
    }
    let views = stored
        .iter()
        .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}

/// Windows of random tokens.
fn random_windows(count: u64) -> Vec<Vec<u32>> {
    let token = |value: f32| ((value + 1.0) * 127.0) as u32;
    (0..count).map(|i| noise(64, 100 + i).map(token).collect()).collect()
}

fn logits(dir: &Path, tokens: &[u32]) -> Vec<f32> {
    let blocks = tokens.len().div_ceil(16) as u32;
    let options = CpuOptions {
        threads: 2,
        kv_blocks: blocks,
        window_blocks: None,
        state_slots: 16,
        block_size: 16,
        max_rows: 64,
        numbers: NumberTypes::STORED,
    };
    let mut model = CpuModel::load(dir, options, &PackedCache::none(), &mut |_, _| {}).unwrap();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let batch = Batch {
        tokens: tokens.to_vec(),
        slots: positions.clone(),
        positions: positions.clone(),
        sequences: vec![BatchSequence {
            rows: 0..tokens.len() as u32,
            context_len: tokens.len() as u32,
            blocks: 0..blocks,
            adapter: None,
        }],
        block_tables: (0..blocks).map(BlockId).collect(),
        states: vec![BatchState::alone()],
        ..Batch::default()
    };
    model.logits(&batch, &positions).concat()
}

/// Root mean square difference, in standard deviations of `exact`.
fn distance(exact: &[f32], got: &[f32]) -> f64 {
    let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / exact.len() as f64;
    let mean = sum(&mut exact.iter().map(|it| f64::from(*it)));
    let variance = sum(&mut exact.iter().map(|it| (f64::from(*it) - mean).powi(2)));
    let square = sum(&mut exact.iter().zip(got).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)));
    (square / variance).sqrt()
}

fn scheme(method: Method, group: usize) -> Scheme {
    let group = (!matches!(method, Method::Int8 | Method::Fp8)).then_some(group);
    Scheme::of(method, group)
}

#[test]
fn every_method_serves_every_kind_of_model() {
    let windows = random_windows(24);
    for (name, config) in families() {
        let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make(dir.path(), &config);
        let tokens = &random_windows(30)[29];
        let exact = logits(dir.path(), tokens);
        let mut distances: BTreeMap<String, f64> = BTreeMap::new();
        let plain_awq = Scheme { layout: Layout::Awq, is_symmetric: false, ..scheme(Method::Rtn, 32) };
        let compressed = Scheme { layout: Layout::CompressedTensors, ..scheme(Method::Gptq, 32) };
        let in_order = Scheme { order: ActOrder::Group, ..scheme(Method::Gptq, 32) };
        for (label, scheme) in [
            ("int8", scheme(Method::Int8, 0)),
            ("fp8", scheme(Method::Fp8, 0)),
            ("rtn", scheme(Method::Rtn, 32)),
            ("rtn, 8 bits", Scheme { bits: 8, ..scheme(Method::Rtn, 32) }),
            ("rtn as awq", plain_awq),
            ("gptq", scheme(Method::Gptq, 32)),
            ("gptq, groups in order", in_order),
            ("gptq as compressed-tensors", compressed),
            ("gptq in order as compressed-tensors", Scheme { order: ActOrder::Group, ..compressed }),
            ("awq", scheme(Method::Awq, 32)),
        ] {
            let out = out.path().join(label);
            let report =
                run(dir.path(), &out, &scheme, &windows).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((report.layers, report.found), (2, 0));
            assert!(!out.join(".skein-quantize").exists(), "nothing unfinished is left");
            let of = distance(&exact, &logits(&out, tokens));
            println!("{name:<12}{label:<36}{of:.4}");
            distances.insert(label.to_owned(), of);
        }
        // The integer formats round activations, too; these random models amplify that.
        for (label, most) in
            [("int8", 0.3), ("fp8", 0.4), ("rtn, 8 bits", 0.3), ("rtn", 1.0), ("rtn as awq", 1.0)]
        {
            assert!(distances[label] < most, "{name}, {label}: {}", distances[label]);
        }
        for label in distances.keys().filter(|label| label.starts_with("gptq")) {
            // Random weights and 1,500 tokens: the shipped model, below, shows what is gained.
            assert!(distances[label] < 1.25 * distances["rtn"], "{name}, {label}: {distances:?}");
        }
        assert!(distances["awq"] < 1.1 * distances["rtn as awq"], "{name}: {distances:?}");
    }
}

#[test]
fn every_method_serves_experts_alone_or_in_one_tensor() {
    let windows = random_windows(24);
    for (name, config) in mixtures() {
        let (alone, fused) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make(alone.path(), &config);
        make_stored(fused.path(), &config, true);
        let tokens = &random_windows(30)[29];
        let exact = logits(alone.path(), tokens);
        assert_eq!(exact, logits(fused.path(), tokens), "{name}: it is one model");
        let compressed = Scheme { layout: Layout::CompressedTensors, ..scheme(Method::Gptq, 32) };
        for (label, scheme) in [
            ("int8", scheme(Method::Int8, 0)),
            ("fp8", scheme(Method::Fp8, 0)),
            ("rtn, 8 bits", Scheme { bits: 8, ..scheme(Method::Rtn, 32) }),
            ("gptq, 8 bits", Scheme { bits: 8, ..scheme(Method::Gptq, 32) }),
            ("gptq", scheme(Method::Gptq, 32)),
            ("gptq, groups in order", Scheme { order: ActOrder::Group, ..scheme(Method::Gptq, 32) }),
            ("gptq as compressed-tensors", compressed),
            ("awq", scheme(Method::Awq, 32)),
        ] {
            let out = tempfile::tempdir().unwrap();
            let [of_alone, of_fused] = [alone.path(), fused.path()].map(|model| {
                let out = out.path().join(if model == alone.path() { "alone" } else { "fused" });
                let done = run(model, &out, &scheme, &windows);
                done.unwrap_or_else(|error| panic!("{name}, {label}: {error}"));
                out
            });
            let weights = |dir: &Path| {
                let mut all = files(dir);
                all.retain(|name, _| name.ends_with(".safetensors") || name.ends_with("config.json"));
                all.into_iter().map(|(name, (bytes, _))| (name, bytes)).collect::<BTreeMap<_, _>>()
            };
            assert!(weights(&of_alone) == weights(&of_fused), "{name}, {label}: the same files");
            let of = distance(&exact, &logits(&of_alone, tokens));
            println!("{name:<12}{label:<36}{of:.4}");
            // Another choice of experts changes a row at once.
            let most = if label.contains("8") { 0.6 } else { 1.3 };
            assert!(of < most, "{name}, {label}: {of}");
        }
    }
}

#[test]
fn eight_bits_cost_half_a_percent_and_four_less_with_calibration_than_without() {
    let out = tempfile::tempdir().unwrap();
    let held_out = held_out();
    let (calibration, judged) = held_out.split_at(8);
    let mut exact = Scored::exact(&shipped(), SIZE).unwrap();
    let perplexity = measure(&mut exact, None, judged, &mut |_| {}).unwrap().perplexity();
    // Increase of perplexity in percent, and divergence, which has less noise.
    let mut cost = |label: &str, scheme: Scheme| {
        let out = out.path().join(label);
        run(&shipped(), &out, &scheme, calibration).unwrap();
        let mut model = Scored::load(&out, Precision::default(), SIZE).unwrap();
        let found = measure(&mut model, Some(&mut exact), judged, &mut |_| {}).unwrap();
        let more = 100.0 * (found.perplexity() / perplexity - 1.0);
        println!("{label:<12}{more:+.3}%  {:.5}", found.mean_divergence());
        (more, found.mean_divergence())
    };
    assert_eq!(skein_quantize::default_group(&shipped()).unwrap(), Some(64));
    for (label, method) in [("int8", Method::Int8), ("fp8", Method::Fp8)] {
        assert!(cost(label, scheme(method, 0)).0.abs() < 0.5, "{label}");
    }
    let (_, rtn) = cost("rtn", scheme(Method::Rtn, 64));
    let (_, gptq) = cost("gptq", scheme(Method::Gptq, 64));
    assert!(gptq < 0.8 * rtn, "{gptq} {rtn}");
    let plain = Scheme { layout: Layout::Awq, is_symmetric: false, ..scheme(Method::Rtn, 64) };
    let (_, plain) = cost("rtn as awq", plain);
    let (_, awq) = cost("awq", scheme(Method::Awq, 64));
    assert!(awq < 0.95 * plain, "{awq} {plain}");
}

/// Bytes and inode of each file.
fn files(dir: &Path) -> BTreeMap<String, (Vec<u8>, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file());
    let file = |entry: fs::DirEntry| {
        let (bytes, inode) = (fs::read(entry.path()).unwrap(), entry.metadata().unwrap().ino());
        (entry.file_name().into_string().unwrap(), (bytes, inode))
    };
    entries.map(file).collect()
}

#[test]
fn an_interrupted_run_goes_on_and_gives_the_same_bytes() {
    for (name, mut config) in [families().remove(0), mixtures().remove(0)] {
        config["num_hidden_layers"] = json!(4);
        check_interrupted(name, &config);
    }
}

fn check_interrupted(name: &str, config: &Value) {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), config);
    let windows = random_windows(6);
    for method in [Method::Gptq, Method::Awq, Method::Rtn] {
        let (scheme, out) = (scheme(method, 32), tempfile::tempdir().unwrap());
        let whole = out.path().join("whole");
        run(dir.path(), &whole, &scheme, &windows).unwrap();
        let cut = out.path().join("cut");
        for stop in 1..4 {
            let request = Request {
                model: dir.path(),
                out: &cut,
                scheme: &scheme,
                calibration: &windows,
                hessian_bytes: Some(1 << 12), // several passes; the memory given does not count as an option
            };
            // A panic at any step is the same for the files as a kill.
            let ended = std::panic::catch_unwind(|| {
                let mut steps = 0;
                let _ = skein_quantize::quantise(&request, &mut |progress| {
                    steps += usize::from(progress.layer == stop);
                    assert!(steps < 2 + stop, "interrupted");
                });
            });
            assert!(ended.is_err(), "it was interrupted");
            assert!(!cut.join("config.json").exists(), "an unfinished directory is no model");
        }
        let before = files(&cut);
        assert_eq!(before.len(), 3, "three layers are finished: {:?}", before.keys());
        let report = run(dir.path(), &cut, &scheme, &windows).unwrap();
        assert_eq!((report.layers, report.found), (1, 3));
        let after = files(&cut);
        assert!(before.iter().all(|(name, (_, inode))| after[name].1 == *inode), "they were not done again");
        let bytes = |of: BTreeMap<String, (Vec<u8>, u64)>| {
            of.into_iter().map(|(name, (bytes, _))| (name, bytes)).collect::<BTreeMap<_, _>>()
        };
        assert!(bytes(after) == bytes(files(&whole)), "{name}, {method:?}");
    }
}

#[test]
fn what_cannot_be_quantised_is_refused_by_name() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(dir.path(), &families().remove(0).1);
    let windows = random_windows(2);
    let refusal = |model: &Path, out: &Path, scheme: Scheme, windows: &[Vec<u32>]| {
        run(model, out, &scheme, windows).unwrap_err().to_string()
    };
    let to = |name: &str| out.path().join(name);
    let rtn = scheme(Method::Rtn, 32);
    let check = |said: String, words: &[&str]| {
        words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
    };
    check(
        refusal(dir.path(), &to("a"), scheme(Method::Rtn, 128), &[]),
        &["q_proj", "64 inputs", "--group-size 128"],
    );
    check(refusal(dir.path(), &to("a"), scheme(Method::Gptq, 32), &[]), &["no tokens"]);
    check(refusal(dir.path(), &to("a"), scheme(Method::Gptq, 32), &[vec![256]]), &["token 256"]);
    check(refusal(dir.path(), &to("a"), Scheme { bits: 5, ..rtn }, &[]), &["[2, 3, 4, 8] bits, not 5"]);
    check(
        refusal(dir.path(), &to("a"), Scheme { layout: Layout::Gptq, ..scheme(Method::Awq, 32) }, &[]),
        &["awq", "gptq"],
    );
    let gemma4 = skein_golden::path("models/gemma4-moe");
    check(refusal(&gemma4, &to("a"), rtn, &[]), &["gemma4_text", "not quantised yet"]);
    let kimi = skein_golden::path("models/kimi-linear");
    check(refusal(&kimi, &to("a"), rtn, &[]), &["kimi_linear", "not quantised yet", "latent attention"]);
    check(refusal(&dir.path().join("model.safetensors"), &to("a"), rtn, &[]), &["not a directory"]);
    assert!(!to("a").exists(), "nothing is written before all is checked");
    fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    run(dir.path(), &to("b"), &rtn, &windows).unwrap();
    check(refusal(dir.path(), &to("b"), rtn, &[]), &["not empty"]);
    check(refusal(&to("b"), &to("c"), rtn, &[]), &["already quantised with GPTQ"]);
    assert!(to("b").join("tokenizer.json").exists(), "other files are copied");
    // An unfinished run with other options.
    let request =
        Request { model: dir.path(), out: &to("d"), scheme: &rtn, calibration: &[], hessian_bytes: None };
    let ended = std::panic::catch_unwind(|| {
        let _ = skein_quantize::quantise(&request, &mut |progress| assert_eq!(progress.layer, 0));
    });
    assert!(ended.is_err());
    check(refusal(dir.path(), &to("d"), scheme(Method::Fp8, 0), &[]), &["begun", "other options"]);
    let mut bad = fs::read(dir.path().join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bad[..8].try_into().unwrap()) as usize;
    let (_, metadata) = SafeTensors::read_metadata(&bad).unwrap();
    let at = metadata.info("model.layers.1.mlp.up_proj.weight").unwrap().data_offsets.0 + 8 + header;
    bad[at..at + 2].copy_from_slice(&half::bf16::NAN.to_le_bytes());
    fs::write(dir.path().join("model.safetensors"), bad).unwrap();
    check(
        refusal(dir.path(), &to("e"), rtn, &[]),
        &["layers.1.mlp.up_proj.weight", "output 0 and input 0 is NaN"],
    );
}

#[test]
fn the_configuration_names_what_was_done() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(dir.path(), &families().remove(0).1);
    let config = |label: &str, scheme: Scheme| -> Map<String, Value> {
        let out = out.path().join(label);
        run(dir.path(), &out, &scheme, &random_windows(1)).unwrap();
        let all: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(all["model_type"], "llama", "the rest stays");
        all["quantization_config"].as_object().unwrap().clone()
    };
    let gptq = config("gptq", Scheme { order: ActOrder::Group, ..scheme(Method::Gptq, 32) });
    assert_eq!(gptq["quant_method"], "gptq");
    assert_eq!([&gptq["bits"], &gptq["group_size"]], [4, 32]);
    assert_eq!([&gptq["desc_act"], &gptq["sym"], &gptq["lm_head"]], [true, true, false]);
    let awq = config("awq", scheme(Method::Awq, 32));
    assert_eq!([&awq["quant_method"], &awq["version"]], ["awq", "gemm"]);
    let int8 = config("int8", scheme(Method::Int8, 0));
    let group = &int8["config_groups"]["group_0"];
    assert_eq!(
        [&group["weights"]["strategy"], &group["input_activations"]["strategy"]],
        ["channel", "token"]
    );
    assert_eq!(int8["ignore"], json!(["lm_head"]));
}
