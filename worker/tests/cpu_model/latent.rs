//! Latent attention with quantised weights: the heads' key matrices are used turned, so their codes are
//! decoded.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use skein_worker::backend::Batch;

use crate::batches::{BLOCK_SIZE, golden, load, sequence_of};

/// Outputs and inputs of a block that shares a scale.
const BLOCK: usize = 32;
/// Largest difference of a logit: sums have another order.
const TOLERANCE: f32 = 1e-4;

/// Type, shape and bytes by name.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The number that an E4M3 code stands for; NaN is not used here.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

fn nearest(value: f32) -> u8 {
    let off = |code: &u8| (e4m3(*code) - value.abs()).abs();
    let best = (0..0x7f).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap();
    if value < 0.0 { best | 0x80 } else { best }
}

/// Codes, scales of blocks, and the numbers that they stand for.
fn quantised(values: &[f32], cols: usize) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let (rows, across) = (values.len() / cols, cols.div_ceil(BLOCK));
    let mut scales = vec![0f32; rows.div_ceil(BLOCK) * across];
    let block = |i: usize| i / cols / BLOCK * across + i % cols / BLOCK;
    for (i, value) in values.iter().enumerate() {
        scales[block(i)] = scales[block(i)].max(value.abs() / 448.0);
    }
    let codes: Vec<u8> =
        values.iter().enumerate().map(|(i, value)| nearest(value / scales[block(i)])).collect();
    let decoded = codes.iter().enumerate().map(|(i, code)| e4m3(*code) * scales[block(i)]).collect();
    (codes, scales, decoded)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Writes the golden model with its layers' matrices in FP8 to `coded`, and with the numbers that the codes
/// stand for to `plain`.
fn write(name: &str, coded: &Path, plain: &Path) {
    let file = std::fs::read(golden(name).join("model.safetensors")).unwrap();
    let mut tensors: [Tensors; 2] = Default::default();
    for (tensor, view) in SafeTensors::deserialize(&file).unwrap().tensors() {
        let halves = view.data().as_chunks::<2>().0.iter();
        let values: Vec<f32> = halves.map(|half| bf16::from_le_bytes(*half).to_f32()).collect();
        let shape = view.shape().to_vec();
        if shape.len() == 2 && tensor.contains("_proj") {
            let (codes, scales, decoded) = quantised(&values, shape[1]);
            let blocks = shape.iter().map(|size| size.div_ceil(BLOCK)).collect();
            tensors[0].insert(format!("{tensor}_scale_inv"), (Dtype::F32, blocks, bytes(&scales)));
            tensors[0].insert(tensor.clone(), (Dtype::F8_E4M3, shape.clone(), codes));
            tensors[1].insert(tensor, (Dtype::F32, shape, bytes(&decoded)));
        } else {
            for tensors in &mut tensors {
                tensors.insert(tensor.clone(), (Dtype::BF16, shape.clone(), view.data().to_vec()));
            }
        }
    }
    let text = std::fs::read_to_string(golden(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (directory, tensors) in [plain, coded].into_iter().zip(tensors.iter().rev()) {
        std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
        let block = [BLOCK, BLOCK];
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": block});
    }
}

#[test]
fn codes_give_the_logits_of_the_numbers_that_they_stand_for() {
    for name in ["deepseek-v3", "deepseek-v2-lite"] {
        let [coded, plain] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        write(name, coded.path(), plain.path());
        let logits = [coded.path(), plain.path()].map(|directory| {
            let mut model = load(directory.to_str().unwrap(), 2, BLOCK_SIZE);
            let tokens = (0..40).map(|i| (i * i + 7 * i) % 250 + 2).collect();
            let (mut sequence, mut batch) = (sequence_of(tokens, 3, BLOCK_SIZE), Batch::default());
            sequence.put(&mut batch, 40);
            model.logits(&batch, &(0..40).collect::<Vec<_>>()).concat()
        });
        let [coded, plain] = &logits;
        let worst = coded.iter().zip(plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= TOLERANCE, "{name}: logits differ by {worst}");
        let spread = plain.iter().map(|logit| logit.abs()).fold(0.0, f32::max);
        assert!(spread > 1.0, "{name}: logits up to {spread}");
    }
}
