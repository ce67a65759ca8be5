//! Checkpoints quantised by other libraries: tests/golden/quantised.
//!
//! Dequantised values must have the bits of the format's own library. Logits are compared twice: with
//! transformers' on the dequantised weights, and, for formats multiplied as integers, with transformers'
//! after the inputs of quantised matrices were rounded to 8 bits like the CPU's.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::packed::{Layout, Packed, pack_rows};
use skein_model::checkpoint::Weights;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::tensors::{self, Columns, ColumnsOf, StoredMatrix, Tensor};
use skein_worker::backend::Batch;
use skein_worker::backend::cpu::{CpuModel, CpuOptions, NumberTypes};
use xxhash_rust::xxh3::xxh3_64;

use crate::batches::{BLOCK_SIZE, sequence_of};

/// Largest difference of a logit if both sides compute the same.
const TOLERANCE: f32 = 1e-4;
/// If both sides round activations to 8 bits, a value between two codes may round to either, because sums
/// have another order, and later values follow. Root mean square difference, relative to that of the
/// rounding.
const FLIPS: f32 = 0.25;
/// Largest change of a logit by rounding activations to 8 bits, in standard deviations of the logits; these
/// random models amplify it. The largest measured is 0.34, for 2 bits.
const ROUNDING: f32 = 0.4;

fn golden(name: &str) -> PathBuf {
    skein_golden::path(format!("quantised/{name}"))
}

fn goldens() -> Vec<String> {
    let names = skein_golden::names("quantised");
    assert!(names.len() >= 20, "{names:?}");
    names
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("goldens.json")).unwrap()).unwrap()
}

fn options(threads: usize) -> CpuOptions {
    let (kv_blocks, max_rows) = (4096 / BLOCK_SIZE, 64);
    CpuOptions {
        threads,
        kv_blocks,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows,
        numbers: NumberTypes::STORED,
    }
}

fn load(directory: &Path, threads: usize) -> CpuModel {
    CpuModel::load(directory, options(threads), &PackedCache::none(), &mut |_, _| {}).unwrap()
}

/// Error for the model in `directory`.
fn refusal(directory: &Path) -> String {
    let loaded = CpuModel::load(directory, options(1), &PackedCache::none(), &mut |_, _| {});
    loaded.err().expect("it is refused").to_string()
}

/// Values of a matrix in codes in the checkpoint's order of outputs and inputs, as `dtype`; of a turned one,
/// the stored rows.
fn dequantised(tensor: &Tensor, weights: &Weights, leaves: usize, dtype: &str) -> Option<Vec<Vec<u8>>> {
    let (StoredMatrix::Codes(codes) | StoredMatrix::Columns(Columns { stored: ColumnsOf::Codes(codes), .. })) =
        tensor.find_matrix(weights).unwrap()
    else {
        return None;
    };
    let (rows, cols, leaves_of) = (codes.rows(), codes.cols(), codes.leaves(leaves));
    let layout = Layout { leaves: leaves_of, ..Layout::new(codes.format(leaves).unwrap(), rows, cols) };
    let mut bytes = vec![0; layout.bytes()];
    pack_rows(&mut Cpu::new(2), &codes.in_order(|row| row), layout, &mut bytes).unwrap();
    let packed = Packed::new(layout, bytes.into());
    let row_bytes = |row| {
        let (mut sorted, mut values) = (vec![0.0; cols], vec![0f32; cols]);
        packed.widen_row(row, &mut sorted);
        for (i, value) in sorted.iter().enumerate() {
            values[codes.order().map_or(i, |order| order[i] as usize)] = *value;
        }
        let bytes = values.iter().flat_map(|value| match dtype {
            "float16" => half::f16::from_f32(*value).to_le_bytes().to_vec(),
            "bfloat16" => half::bf16::from_f32(*value).to_le_bytes().to_vec(),
            "float32" => value.to_le_bytes().to_vec(),
            other => panic!("{other}"),
        });
        bytes.collect()
    };
    Some((0..rows).map(row_bytes).collect())
}

#[test]
fn dequantised_weights_have_the_bits_of_the_formats_own_library() {
    for name in goldens() {
        let (json, directory) = (json(&name), golden(&name));
        let (spec, weights) =
            (ModelConfig::from_dir(&directory).unwrap().spec, Weights::open(&directory).unwrap());
        let hashes = json["dequantised"].as_object().unwrap();
        let mut found: Vec<String> = Vec::new();
        // Fused matrices: the parts of one stored tensor are consecutive.
        let (mut bytes, mut fused): (Vec<u8>, Option<String>) = (Vec::new(), None);
        let mut finish = |base: Option<String>, bytes: &mut Vec<u8>| {
            let Some(base) = base else { return };
            let [_, hash] = [0, 1].map(|i| hashes[&base][i].as_str().unwrap());
            assert_eq!(format!("{:016x}", xxh3_64(bytes)), hash, "{name}: {base}");
            bytes.clear();
            found.push(base);
        };
        for tensor in tensors::all(&spec) {
            let stored = tensor
                .stored
                .iter()
                .find(|stored| hashes.contains_key(stored.name.strip_suffix(".weight").unwrap_or_default()));
            let Some(stored) = stored else { continue };
            let base = stored.name.strip_suffix(".weight").unwrap().to_owned();
            if fused.as_ref() != Some(&base) {
                finish(fused.take(), &mut bytes);
            }
            let dtype = hashes[&base][0].as_str().unwrap();
            let rows = dequantised(&tensor, &weights, tensor.leaves(&spec), dtype);
            let Some(rows) = rows else { continue };
            bytes.extend(rows.concat());
            fused = Some(base);
        }
        finish(fused.take(), &mut bytes);
        assert_eq!(found.len(), hashes.len(), "{name}: all quantised matrices are found");
    }
}

/// As latent attention has them on a GPU: as they are, or turned.
#[test]
fn matrices_in_codes_are_decoded_to_the_same_values_also_turned() {
    for name in goldens() {
        let (spec, weights) =
            (ModelConfig::from_dir(&golden(&name)).unwrap().spec, Weights::open(&golden(&name)).unwrap());
        let mut count = 0;
        for tensor in tensors::all(&spec) {
            let Some(rows) = dequantised(&tensor, &weights, 1, "float32") else { continue };
            let found = tensor.find_matrix(&weights).unwrap();
            let (StoredMatrix::Codes(codes)
            | StoredMatrix::Columns(Columns { stored: ColumnsOf::Codes(codes), .. })) = found
            else {
                unreachable!("it has codes")
            };
            let cpu = &mut Cpu::new(1);
            let whole = StoredMatrix::Codes(codes.clone()).numbers(cpu).unwrap();
            assert!(rows.iter().enumerate().all(|(row, values)| whole.row(row) == values), "{name}");
            let (first, every, count_of) = (3, 2, 5);
            let columns = Columns { stored: ColumnsOf::Codes(codes), first, every, count: count_of };
            let turned = StoredMatrix::Columns(columns).numbers(cpu).unwrap();
            assert_eq!((turned.rows(), turned.cols()), (count_of, rows.len()), "{name}");
            for output in 0..count_of {
                let column = |row: &Vec<u8>| row[4 * (first + output * every)..][..4].to_vec();
                assert!(turned.row(output) == rows.iter().flat_map(column).collect::<Vec<_>>(), "{name}");
            }
            count += 1;
        }
        assert!(count >= 7, "{name}: {count} matrices in codes");
    }
}

/// Logits at the golden file's positions.
fn logits(model: &mut CpuModel, json: &Value) -> Vec<Vec<f32>> {
    let list = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
    };
    let prompt = list("prompt");
    let mut sequence = sequence_of(prompt.clone(), 3, BLOCK_SIZE);
    let mut batch = Batch::default();
    sequence.put(&mut batch, prompt.len());
    model.logits(&batch, &list("positions"))
}

/// Golden logits named `key`, if present.
fn expected(name: &str, key: &str) -> Option<Vec<Vec<f32>>> {
    let bytes = std::fs::read(golden(name).join("goldens.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(key).ok()?;
    let values: Vec<f32> = tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Some(values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec).collect())
}

fn worst(got: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let pairs = got.iter().flatten().zip(expected.iter().flatten());
    pairs.map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max)
}

/// Root of the mean squared difference.
fn rms(got: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let pairs = got.iter().flatten().zip(expected.iter().flatten());
    let squares: Vec<f32> = pairs.map(|(got, expected)| (got - expected).powi(2)).collect();
    (squares.iter().sum::<f32>() / squares.len() as f32).sqrt()
}

fn deviation(values: &[Vec<f32>]) -> f32 {
    let count = values.iter().flatten().count() as f32;
    let mean = values.iter().flatten().sum::<f32>() / count;
    (values.iter().flatten().map(|value| (value - mean).powi(2)).sum::<f32>() / count).sqrt()
}

#[test]
fn logits_agree_with_transformers_on_the_dequantised_weights() {
    for name in goldens() {
        let json = json(&name);
        let got = logits(&mut load(&golden(&name), 2), &json);
        let exact = expected(&name, "exact_logits").unwrap();
        let from_exact = worst(&got, &exact);
        println!("{name}: {from_exact} from exact, {} deviations", from_exact / deviation(&exact));
        if json["is_integer"] == Value::Bool(true) {
            assert!(from_exact <= ROUNDING * deviation(&exact), "{name}: off by {from_exact}");
        } else {
            assert!(from_exact <= TOLERANCE, "{name}: off by {from_exact}");
        }
        if let Some(encoded) = expected(&name, "encoded_logits") {
            let (first, all) = (worst(&got[..1], &encoded[..1]), rms(&got, &encoded));
            println!("{name}: {first} at first, {all} in all, from the same rounding; {}", rms(&got, &exact));
            assert!(first <= TOLERANCE, "{name}: off by {first} with 8-bit inputs");
            assert!(all <= FLIPS * rms(&got, &exact), "{name}: off by {all} with 8-bit inputs");
        }
    }
}

/// `--dtype float32` and the reference of `bench perplexity`: no activation is rounded.
#[test]
fn decoded_codes_give_the_logits_of_transformers() {
    for name in goldens() {
        let options = CpuOptions { numbers: NumberTypes::EXACT, ..options(2) };
        let model = CpuModel::load(&golden(&name), options, &PackedCache::none(), &mut |_, _| {});
        let off =
            worst(&logits(&mut model.unwrap(), &json(&name)), &expected(&name, "exact_logits").unwrap());
        assert!(off <= TOLERANCE, "{name}: off by {off}");
    }
}

#[test]
fn batches_chunks_and_threads_change_no_bit_of_quantised_models() {
    for name in ["gptq-4-act-order", "w4a16", "w8a8", "fp8-block", "nf4-nested", "gptq-4-experts"] {
        let json = json(name);
        let whole = logits(&mut load(&golden(name), 2), &json);
        let prompt: Vec<u32> =
            json["prompt"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect();
        for (threads, chunk) in [(1, 1), (3, 7)] {
            let mut model = load(&golden(name), threads);
            let mut sequence = sequence_of(prompt.clone(), 3, BLOCK_SIZE);
            let (mut done, mut got) = (0, Vec::new());
            while done < prompt.len() {
                let mut batch = Batch::default();
                let rows = chunk.min(prompt.len() - done);
                sequence.put(&mut batch, rows);
                let wanted: Vec<u32> = json["positions"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(|position| {
                        let row = (position.as_u64().unwrap() as usize).checked_sub(done)?;
                        (row < rows).then_some(row as u32)
                    })
                    .collect();
                let step_rows = if wanted.is_empty() { vec![0] } else { wanted.clone() };
                let logits = model.logits(&batch, &step_rows);
                got.extend(logits.into_iter().take(wanted.len()));
                done += rows;
            }
            assert!(got == whole, "{name}: {threads} threads, {chunk} rows a step");
        }
    }
}

/// Copy of a golden model with its configuration and tensors changed.
fn changed(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>),
) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read(golden(name).join("config.json")).unwrap();
    let mut object: Value = serde_json::from_slice(&text).unwrap();
    config(&mut object);
    std::fs::write(directory.path().join("config.json"), object.to_string()).unwrap();
    let bytes = std::fs::read(golden(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    tensors(&mut all);
    let views = all.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &directory.path().join("model.safetensors")).unwrap();
    directory
}

/// Checks that a golden model with a changed tensor ending in `suffix` is refused with all of `words`.
fn check_tensor(
    name: &str,
    suffix: &str,
    change: impl FnOnce(&mut (String, safetensors::Dtype, Vec<usize>, Vec<u8>)),
    words: &[&str],
) {
    let directory = changed(
        name,
        |_| {},
        |all| change(all.iter_mut().find(|(name, ..)| name.ends_with(suffix)).expect("there is one")),
    );
    let said = refusal(directory.path());
    words.iter().for_each(|word| assert!(said.contains(word), "{name} {suffix}: {said:?} says {word:?}"));
}

fn check_config(name: &str, field: &str, value: Value, words: &[&str]) {
    let change = |config: &mut Value| *config.pointer_mut(field).expect("a field of it") = value.clone();
    let said = refusal(changed(name, change, |_| {}).path());
    words.iter().for_each(|word| assert!(said.contains(word), "{name} {field}: {said:?} says {word:?}"));
}

#[test]
fn hostile_tensors_are_refused_by_name() {
    let q = "layers.0.self_attn.q_proj";
    let set = |at: usize, value: i32| {
        move |tensor: &mut (String, _, _, Vec<u8>)| {
            tensor.3[4 * at..][..4].copy_from_slice(&value.to_le_bytes());
        }
    };
    // Group indices outside the scales, below zero, or of a group that is full.
    check_tensor("gptq-4-act-order", &format!("{q}.g_idx"), set(5, 2), &["g_idx", "input 5", "group 2"]);
    check_tensor("gptq-4-act-order", &format!("{q}.g_idx"), set(5, i32::MIN), &["g_idx", "-2147483648"]);
    check_tensor("gptq-4", &format!("{q}.g_idx"), set(0, 1), &["g_idx", "groups must have 32 inputs"]);
    let shrunk = |tensor: &mut (String, _, Vec<usize>, Vec<u8>)| {
        let (rows, kept) = (tensor.2[0], tensor.2[0] / 2);
        tensor.3.truncate(tensor.3.len() / rows * kept);
        tensor.2[0] = kept;
    };
    for (name, suffix) in [
        ("gptq-4", "q_proj.qweight"),
        ("gptq-4", "q_proj.scales"),
        ("gptq-4", "q_proj.qzeros"),
        ("gptq-4", "q_proj.g_idx"),
        ("awq", "q_proj.qweight"),
        ("awq", "q_proj.scales"),
        ("awq", "q_proj.qzeros"),
        ("w4a16", "qkv_proj.weight_packed"),
        ("w4a16", "qkv_proj.weight_scale"),
        ("w4a16-asymmetric", "q_proj.weight_zero_point"),
        ("w8a8", "q_proj.weight"),
        ("w8a8", "q_proj.weight_scale"),
        ("fp8-block", "q_proj.weight"),
        ("fp8-block", "q_proj.weight_scale_inv"),
        ("nf4-nested", "q_proj.weight"),
        ("nf4-nested", "q_proj.weight.absmax"),
        ("nf4-nested", "q_proj.weight.quant_map"),
        ("nf4-nested", "q_proj.weight.nested_absmax"),
        ("nf4-nested", "q_proj.weight.nested_quant_map"),
    ] {
        check_tensor(name, suffix, shrunk, &[suffix, "expected"]);
    }
    let retyped =
        |tensor: &mut (String, safetensors::Dtype, Vec<usize>, Vec<u8>)| tensor.1 = safetensors::Dtype::U32;
    check_tensor("gptq-4", "q_proj.qweight", retyped, &["q_proj.qweight", "U32"]);
    // NaN as a code of FP8, and as a scale.
    let nan = |tensor: &mut (String, _, _, Vec<u8>)| tensor.3[3] = 0x7f;
    check_tensor("fp8-block", "q_proj.weight", nan, &["q_proj.weight", "output 0 and input 3 is NaN"]);
    let infinite = |tensor: &mut (String, _, _, Vec<u8>)| tensor.3[..2].copy_from_slice(&[0x00, 0x7c]);
    check_tensor("gptq-4", "q_proj.scales", infinite, &["q_proj.weight", "inf"]);
    // A JSON object inside a tensor.
    let garbled = |tensor: &mut (String, _, _, Vec<u8>)| tensor.3.fill(b'{');
    check_tensor(
        "nf4-nested",
        "q_proj.weight.quant_state.bitsandbytes__nf4",
        garbled,
        &["not a JSON object"],
    );
    // A missing tensor.
    let said =
        refusal(changed("awq", |_| {}, |all| all.retain(|it| !it.0.ends_with("q_proj.scales"))).path());
    assert!(said.contains("q_proj.scales") && said.contains("is in no weight file"), "{said}");
}

#[test]
fn unsupported_schemes_are_refused_with_the_nearest_supported_one() {
    let q = "/quantization_config";
    let field = |name: &str| format!("{q}/{name}");
    check_config("gptq-4", &field("bits"), 5.into(), &["config.json: bits is 5", "2, 3, 4 or 8"]);
    check_config("gptq-4", &field("group_size"), 0.into(), &["group_size is 0"]);
    check_config("gptq-4", &field("checkpoint_format"), "marlin".into(), &["marlin", "gptq, gptq_v2"]);
    check_config("gptq-4", &field("quant_method"), "aqlm".into(), &["quant_method", "aqlm", "GPTQ, AWQ"]);
    check_config("gptq-4", q, Value::from(7), &["quantization_config is 7", "an object"]);
    check_config("awq", &field("version"), "gemv".into(), &["version", "gemv", "gemm"]);
    check_config("awq", &field("bits"), 8.into(), &["bits is 8", "4"]);
    check_config("w4a16", &field("format"), "marlin-24".into(), &["format", "marlin-24", "pack-quantized"]);
    let bits = field("config_groups/group_0/weights/num_bits");
    check_config("w4a16", &bits, 3.into(), &["num_bits is 3", "compressed-tensors W4A16"]);
    check_config("w4a16", &field("config_groups"), Value::from("all"), &["config_groups", "an object"]);
    check_config("nf4", &field("load_in_4bit"), false.into(), &["load_in_4bit is false", "NF4"]);
    check_config(
        "fp8-block",
        &field("weight_block_size"),
        serde_json::json!([0, 128]),
        &["weight_block_size"],
    );
    // Group sizes that no packed format supports.
    let odd =
        |config: &mut Value| config["quantization_config"]["weight_block_size"] = serde_json::json!([64, 16]);
    let directory = changed("fp8-block", odd, |all| {
        let scale =
            all.iter_mut().find(|it| it.0.ends_with("layers.0.self_attn.q_proj.weight_scale_inv")).unwrap();
        scale.2[1] *= 4;
        scale.3 = scale.3.repeat(4);
    });
    let said = refusal(directory.path());
    assert!(said.contains("groups of 16 inputs"), "{said}");
}

#[test]
fn matrices_of_one_product_must_be_stored_alike() {
    // The value projection as numbers, beside queries and keys as codes.
    let directory = changed(
        "gptq-4",
        |_| {},
        |all| {
            let base = "model.layers.0.self_attn.v_proj";
            all.retain(|(name, ..)| !name.starts_with(base));
            let bytes = half::f16::from_f32(0.5).to_le_bytes().repeat(32 * 64);
            all.push((format!("{base}.weight"), safetensors::Dtype::F16, vec![32, 64], bytes));
        },
    );
    let said = refusal(directory.path());
    assert!(said.contains("q_proj") && said.contains("v_proj") && said.contains("16 or 32 bits"), "{said}");
}

#[test]
fn a_file_of_its_own_says_the_same_as_the_configuration() {
    let take = |config: &mut Value| {
        config.as_object_mut().unwrap().remove("quantization_config");
    };
    let directory = changed("gptq-4", take, |_| {});
    assert!(refusal(directory.path()).contains("q_proj"), "without it, the matrices are missing");
    let own = serde_json::json!({"bits": 4, "group_size": 32, "desc_act": false});
    std::fs::write(directory.path().join("quantize_config.json"), own.to_string()).unwrap();
    let json = json("gptq-4");
    assert!(logits(&mut load(directory.path(), 2), &json) == logits(&mut load(&golden("gptq-4"), 2), &json));
}

/// One matrix's tensors in a file: name, type, shape and bytes.
type Stored = (String, safetensors::Dtype, Vec<usize>, Vec<u8>);

/// Checks that a golden model gives the same logits after both changes, bit for bit.
fn check_same(
    name: &str,
    what: &str,
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut Vec<Stored>),
) {
    let (json, directory) = (json(name), changed(name, config, tensors));
    let [got, before] = [directory.path(), &golden(name)].map(|path| logits(&mut load(path, 2), &json));
    assert!(got == before, "{name}, {what}: off by {}", worst(&got, &before));
}

#[test]
fn other_spellings_of_the_same_codes_give_the_same_logits() {
    // `bnb_4bit_quant_storage`: the same bytes under another type.
    for (storage, dtype, size) in [
        ("bfloat16", safetensors::Dtype::BF16, 2),
        ("float16", safetensors::Dtype::F16, 2),
        ("float32", safetensors::Dtype::F32, 4),
    ] {
        let of_config = |config: &mut Value| {
            config["quantization_config"]["bnb_4bit_quant_storage"] = storage.into();
        };
        check_same("nf4-nested", storage, of_config, |all| {
            let coded: Vec<String> = all.iter().map(|it| format!("{}.quant_map", it.0)).collect();
            let is_coded: Vec<bool> = coded.iter().map(|map| all.iter().any(|it| it.0 == *map)).collect();
            for (tensor, _) in all.iter_mut().zip(is_coded).filter(|(_, is_coded)| *is_coded) {
                (tensor.1, tensor.2) = (dtype, vec![tensor.3.len() / size, 1]);
            }
        });
    }
    check_same(
        "mxfp4",
        "powers of two",
        |_| {},
        |all| {
            for scale in all.iter_mut().filter(|it| it.0.ends_with("weight_scale")) {
                assert_eq!(scale.1, safetensors::Dtype::U8, "{}", scale.0);
                scale.1 = safetensors::Dtype::F8_E8M0;
            }
        },
    );
    // AutoRound writes GPTQ's tensors without an order of inputs, or AWQ's.
    let auto_round = |packing: &'static str, extra: Value| {
        move |config: &mut Value| {
            let scheme = config["quantization_config"].as_object_mut().unwrap();
            scheme.retain(|field, _| ["bits", "group_size"].contains(&&**field));
            scheme.insert("quant_method".into(), "auto-round".into());
            scheme.insert("packing_format".into(), packing.into());
            if !extra.is_null() {
                (scheme["bits"], scheme["group_size"]) = (4.into(), 128.into());
                scheme.insert("extra_config".into(), extra);
            }
        }
    };
    let without_order = |all: &mut Vec<Stored>| all.retain(|it| !it.0.ends_with("g_idx"));
    let packing = "auto_round:auto_gptq";
    check_same("gptq-4", packing, auto_round(packing, Value::Null), without_order);
    let of_layers = serde_json::json!({".*layers.*": {"bits": 8, "group_size": 64}});
    check_same("gptq-8", "mixed bits", auto_round(packing, of_layers), without_order);
    let packing = "auto_round:auto_awq";
    check_same("awq", packing, auto_round(packing, Value::Null), |_| {});
    let of_layers = serde_json::json!({".*layers.*": {"group_size": 64}});
    check_same("awq", "other groups", auto_round(packing, of_layers), |_| {});
}

#[test]
fn scales_that_are_powers_of_two_take_a_byte() {
    let is_scale = |tensor: &&mut Stored| tensor.0.ends_with("weight_scale_inv");
    let exponents = |bytes: &[u8]| -> Vec<u8> {
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|value| (f32::from_le_bytes(*value).to_bits() >> 23) as u8)
            .collect()
    };
    let of = |in_a_byte: bool| {
        changed(
            "fp8-block",
            |_| {},
            |all| {
                for tensor in all.iter_mut().filter(is_scale) {
                    assert_eq!(tensor.1, safetensors::Dtype::F32, "{}", tensor.0);
                    let exponents = exponents(&tensor.3);
                    let words =
                        exponents.iter().flat_map(|exponent| (u32::from(*exponent) << 23).to_le_bytes());
                    tensor.3 = words.collect();
                    if in_a_byte {
                        (tensor.1, tensor.3) = (safetensors::Dtype::F8_E8M0, exponents);
                    }
                }
            },
        )
    };
    let json = json("fp8-block");
    let [wide, narrow] = [of(false), of(true)].map(|directory| logits(&mut load(directory.path(), 2), &json));
    assert!(wide == narrow, "off by {}", worst(&wide, &narrow));
}
