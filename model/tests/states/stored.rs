//! Weights that are stored in codes or changed by an adapter, also where a tensor holds the inputs of a state
//! or the gates of attention head by head.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use skein_kernels::collective::Alone;
use skein_model::adapter::Adapter;
use skein_model::adapter_changes;
use skein_model::config::ModelConfig;
use skein_model::shard::Shard;

use crate::instance::{EXACT, Instance, tokens};
use crate::random;

/// Tensors by name: type, shape, bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The numbers of a random model, in 32 bits.
fn numbers(directory: &Path) -> Tensors {
    let bytes = std::fs::read(directory.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let widened = |tensor: TensorView<'_>| {
        let halves = tensor.data().as_chunks::<2>().0;
        let values = halves.iter().map(|half| half::bf16::from_le_bytes(*half).to_f32());
        (Dtype::F32, tensor.shape().to_vec(), values.flat_map(f32::to_le_bytes).collect())
    };
    file.tensors().into_iter().map(|(name, tensor)| (name, widened(tensor))).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn bytes_of(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Pseudo-random bytes.
fn noise(i: usize) -> u8 {
    ((i as u32).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B) >> 24) as u8
}

fn worst(got: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let differences = got.iter().flatten().zip(expected.iter().flatten()).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

/// FP8 numbers and their values.
fn fp8(count: usize) -> (Vec<u8>, Vec<f32>) {
    let code = |i| noise(i) & 0xaf | 0x08; // exponents of five bits at most, no NaN
    let value = |code: u8| {
        let bits = u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7;
        half::f16::from_bits(bits).to_f32() * 256.0
    };
    let codes: Vec<u8> = (0..count).map(code).collect();
    (codes.clone(), codes.into_iter().map(value).collect())
}

#[test]
fn codes_of_grouped_tensors_are_found() {
    for name in ["qwen3-5", "qwen3-next"] {
        let directory = random::make(name);
        let (mut plain, ends) =
            (numbers(directory.path()), ["qkvz", "qkv", "_z", "q_proj", "k_proj", "v_proj"]);
        let mut coded = plain.clone();
        for (name, (_, shape, bytes)) in &mut plain {
            let Some(module) = name.strip_suffix(".weight") else { continue };
            if !ends.iter().any(|end| module.ends_with(end)) {
                continue;
            }
            let (codes, decoded) = fp8(shape[0] * shape[1]);
            // A scale an output, of a power of two.
            let scale = |row: usize| 0.5f32.powi(3 + (row % 3) as i32);
            let scaled = decoded.iter().enumerate().map(|(i, value)| value * scale(i / shape[1]));
            *bytes = bytes_of(scaled);
            coded.insert(name.clone(), (Dtype::F8_E4M3, shape.clone(), codes));
            let scales = bytes_of((0..shape[0]).map(scale));
            coded.insert(format!("{module}.weight_scale"), (Dtype::F32, vec![shape[0], 1], scales));
        }
        let prompt = tokens(40, 4);
        write(&directory.path().join("model.safetensors"), &plain);
        let expected = Instance::whole(directory.path(), 2, EXACT).prompt(0, &prompt, 40);
        write(&directory.path().join("model.safetensors"), &coded);
        let path = directory.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config["quantization_config"] = json!({"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float",
                "strategy": "channel", "symmetric": true}}}});
        std::fs::write(path, config.to_string()).unwrap();
        let got = Instance::whole(directory.path(), 2, EXACT).prompt(0, &prompt, 40);
        let spread = expected.iter().flatten().fold(0f32, |most, logit| most.max(logit.abs()));
        assert!(worst(&got, &expected) <= 1e-4 && spread > 0.3, "{name}: {}", worst(&got, &expected));
    }
}

/// An adapter of rank 2 for these modules with their outputs and inputs.
fn adapter(modules: &[(&str, usize, usize)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]});
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).unwrap();
    let number = |i: usize| f32::from(noise(i)) / 512.0 - 0.25;
    let pair = |(module, outputs, inputs): &(&str, usize, usize)| {
        [("A", 2, *inputs, 3), ("B", *outputs, 2, 1000)].map(|(kind, rows, cols, first)| {
            let values = bytes_of((0..rows * cols).map(|i| number(first + i)));
            (format!("base_model.model.{module}.lora_{kind}.weight"), (Dtype::F32, vec![rows, cols], values))
        })
    };
    write(&directory.path().join("adapter_model.safetensors"), &modules.iter().flat_map(pair).collect());
    directory
}

#[test]
fn adapters_are_merged_into_grouped_tensors() {
    let directory = random::make("qwen3-next");
    let mut tensors = numbers(directory.path());
    write(&directory.path().join("model.safetensors"), &tensors);
    let (gated, grouped, out) = (
        "model.layers.1.self_attn.q_proj",
        "model.layers.0.linear_attn.in_proj_qkvz",
        "model.layers.0.linear_attn.out_proj",
    );
    let shape = |module: &str| tensors[&format!("{module}.weight")].1.clone();
    let modules = [gated, grouped, out].map(|module| (module, shape(module)[0], shape(module)[1]));
    let adapter = adapter(&modules);
    let prompt = tokens(40, 6);
    let spec = ModelConfig::from_dir(directory.path()).unwrap().spec;
    let before = Instance::whole(directory.path(), 1, EXACT).prompt(0, &prompt, 40);
    let opened = Adapter::open(adapter.path()).unwrap();
    let shard = Shard::whole(&spec);
    let mut merged = Instance::with_adapter(directory.path(), shard, Box::new(Alone), Some(&opened));
    let got = merged.prompt(0, &prompt, 40);
    let change = numbers_of(&adapter.path().join("adapter_model.safetensors"));
    for (module, outputs, inputs) in modules {
        let matrix = |kind| &change[&format!("base_model.model.{module}.lora_{kind}.weight")];
        let (a, b) = (matrix("A"), matrix("B"));
        let bytes = &mut tensors.get_mut(&format!("{module}.weight")).unwrap().2;
        let mut weights = values(bytes);
        for (row, col) in (0..outputs).flat_map(|row| (0..inputs).map(move |col| (row, col))) {
            let product: f32 = (0..2).map(|i| b[row * 2 + i] * a[i * inputs + col]).sum();
            weights[row * inputs + col] += 2.0 * product;
        }
        *bytes = bytes_of(weights);
    }
    write(&directory.path().join("model.safetensors"), &tensors);
    let expected = Instance::whole(directory.path(), 1, EXACT).prompt(0, &prompt, 40);
    assert!(worst(&got, &expected) <= 1e-5, "they differ by {}", worst(&got, &expected));
    assert!(worst(&before, &expected) > 0.1, "the adapter changes much");
}

fn numbers_of(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensors().into_iter().map(|(name, tensor)| (name, values(tensor.data()))).collect()
}

#[test]
fn beside_the_model_adapters_change_neither_states_nor_gates() {
    let directory = random::make("qwen3-5");
    let spec = ModelConfig::from_dir(directory.path()).unwrap().spec;
    let check = |module: &str, outputs| {
        let adapter = adapter(&[(module, outputs, 64)]);
        adapter_changes::check(&Adapter::open(adapter.path()).unwrap(), &spec, 8)
            .map_err(|why| why.to_string())
    };
    assert_eq!(check("model.layers.1.self_attn.k_proj", 64), Ok(()));
    assert_eq!(check("model.layers.0.mlp.up_proj", 256), Ok(()));
    for module in ["self_attn.q_proj", "linear_attn.in_proj_qkv", "linear_attn.in_proj_b"] {
        let layer = usize::from(module.starts_with("self"));
        let outputs = match module {
            "self_attn.q_proj" => 512,
            "linear_attn.in_proj_qkv" => 224,
            _ => 8,
        };
        let why = check(&format!("model.layers.{layer}.{module}"), outputs).unwrap_err();
        assert!(why.contains(module) && why.contains("cannot be changed beside the model"), "{why}");
    }
}
