//! Weights in codes: checkpoints of other libraries (tests/golden/quantised), GGUF (tests/golden/gguf), and
//! `--quantization int8` and `int4`.
//!
//! Dequantised weights are read from the device by products with the unit matrix, and must have the bits of
//! the CPU's, which are those of the format's own library. Logits are compared with transformers' on the
//! dequantised weights.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use skein_golden::{gguf, path};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::packed::{Format, Layout, Packed, pack_rows};
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{Linear, LinearOptions, LinearWeight, WeightValues};
use skein_kernels::cuda::ops::packed::{EmbedPacked, EmbedPackedRows, PackedProducts};
use skein_kernels::cuda::{Device, DeviceBuffer, DeviceSlice, Kernels, Stream};
use skein_model::checkpoint::Weights;
use skein_model::config::ModelConfig;
use skein_model::on_cuda::network::Network;
use skein_model::on_cuda::weights::{DeviceWeights, forms};
use skein_model::shard::Shard;
use skein_model::tensors::{self, Kind, StoredMatrix, Tensor};
use skein_model::weight_source::WeightSource;
use skein_node::random::SplitMix64;
use skein_proto::logprobs::TokenLogprobs;
use skein_worker::backend::cuda::{self, CudaOptions, Fp8, NotUsable, check_model};
use skein_worker::config::CudaConfig;

use crate::golden::Golden;
use crate::goldens::{MOST, log_softmax};
use crate::invariance::bits;
use crate::models::{LLAMA, MIXTURES, Tiny};
use crate::runs::{BLOCK_SIZE, eager, limits, on_cpu, on_cuda, on_cuda_rounded};
use crate::scores::{TOLERANCE, compare, scores, scores_of};

/// Limit for the mean difference of log-probabilities in half precision, which has three bits more than
/// bfloat16 and thus an eighth of its error; the mean is that of few positions.
const IN_HALF: f32 = TOLERANCE / 3.0;
/// The first part of a model of mixed types.
const MIXED: &str = "gguf/models/mixed/mixed-00001-of-00002.gguf";

/// The quantised checkpoints that the kernels can run, and those that they refuse.
pub fn goldens() -> (Vec<PathBuf>, Vec<String>) {
    let names = skein_golden::names("quantised").into_iter();
    let mut all: Vec<_> = names.map(|name| path(format!("quantised/{name}"))).collect();
    assert!(all.len() >= 20, "{all:?}");
    let mut refused = Vec::new();
    all.retain(|path| {
        let (config, weights) = (ModelConfig::from_dir(path).unwrap(), Weights::open(path).unwrap());
        let why = match check_model(&config, 16) {
            Ok(()) => {
                match forms::<bf16>(
                    &config.spec,
                    &Shard::whole(&config.spec),
                    WeightSource::without_adapter(&weights),
                    None,
                ) {
                    Ok(_) => return true,
                    Err(error) => error.to_string(),
                }
            }
            Err(NotUsable::Part { part, .. }) => part.to_owned(),
            Err(error) => panic!("{}: {error}", path.display()),
        };
        refused.push(format!("{}: {why}", path.file_name().unwrap().display()));
        false
    });
    (all, refused)
}

/// The weights of a matrix as the CPU dequantises them, row by row; `None` if they are not quantised.
fn on_host(tensor: &Tensor, weights: &Weights, leaves: usize) -> Option<Vec<Vec<f32>>> {
    let found = tensor.find_matrix(weights).unwrap();
    if !found.is_quantised() {
        return None;
    }
    let (rows, cols) = (found.rows(), found.cols());
    Some(match found {
        StoredMatrix::Numbers(numbers) => {
            let mut values = vec![0.0; cols];
            let numbers = tensor.in_order(numbers);
            let row = |row| {
                numbers.widen_row(row, &mut values);
                values.clone()
            };
            (0..rows).map(row).collect()
        }
        StoredMatrix::Codes(codes) => {
            let layout = Layout {
                leaves: codes.leaves(leaves),
                ..Layout::new(codes.format(leaves).unwrap(), rows, cols)
            };
            let mut bytes = vec![0; layout.bytes()];
            pack_rows(&mut Cpu::new(1), &codes.in_order(|row| tensor.stored_row(row)), layout, &mut bytes)
                .unwrap();
            let packed = Packed::new(layout, bytes.into());
            let row = |row| {
                let (mut sorted, mut values) = (vec![0.0; cols], vec![0f32; cols]);
                packed.widen_row(row, &mut sorted);
                for (i, value) in sorted.iter().enumerate() {
                    values[codes.order().map_or(i, |order| order[i] as usize)] = *value;
                }
                values
            };
            (0..rows).map(row).collect()
        }
        StoredMatrix::Columns(_) => unreachable!("heads' matrices are not packed"),
    })
}

/// The device.
struct Emulated {
    kernels: Kernels,
    stream: Stream,
}

impl Emulated {
    fn new() -> Self {
        let device = Device::open(0).unwrap();
        Self { kernels: Kernels::load(&device).unwrap(), stream: Stream::new(&device).unwrap() }
    }

    fn memory<E: skein_kernels::cuda::memory::Element>(&self, len: usize) -> DeviceBuffer<E> {
        DeviceBuffer::new(self.kernels.device(), len).unwrap()
    }

    /// `[n, k]`: the weights of a packed matrix, by a product with the unit matrix.
    fn dequantised<T: Activation + BlasElement>(&self, weight: &LinearWeight<T>) -> Vec<f32> {
        let (n, k) = (weight.n, weight.k);
        let unit: Vec<T> = (0..k * k).map(|i| T::from_f32(f32::from(u8::from(i / k == i % k)))).collect();
        let x = DeviceBuffer::from_slice(self.kernels.device(), &self.stream, &unit).unwrap();
        let (out, workspace) =
            (self.memory::<f32>(k * n), self.memory(PackedProducts::<T>::workspace_bytes(k, k)));
        let linear = Linear::<T>::new(&self.kernels, None, LinearOptions::default()).unwrap();
        let weight = LinearWeight { bias: DeviceSlice::NONE, ..*weight };
        linear.launch_f32(&self.stream, *out, *x, &weight, k, *workspace).unwrap();
        let columns = out.read(&self.stream).unwrap();
        (0..n * k).map(|i| columns[i % k * n + i / k]).collect()
    }

    /// `[n, k]`: the rows of a packed table.
    fn looked_up<T: Activation>(&self, table: &LinearWeight<T>) -> Vec<f32> {
        let tokens: Vec<u32> = (0..table.n as u32).collect();
        let tokens = DeviceBuffer::from_slice(self.kernels.device(), &self.stream, &tokens).unwrap();
        let out = self.memory::<f32>(table.n * table.k);
        let rows = EmbedPackedRows { out: *out, table, tokens: *tokens, rows: table.n, scale: 1.0 };
        EmbedPacked::<T>::new(&self.kernels).unwrap().launch(&self.stream, rows).unwrap();
        out.read(&self.stream).unwrap()
    }

    /// Checks that all quantised matrices of `model` have the CPU's bits on the device; returns how many.
    fn check<T: Activation + BlasElement>(&self, model: &Path) -> usize {
        let config = ModelConfig::from_dir(model).unwrap();
        let (spec, weights) = (config.spec, Weights::open(model).unwrap());
        let shard = Shard::whole(&spec);
        let forms = forms::<T>(&spec, &shard, WeightSource::without_adapter(&weights), None).unwrap();
        let memory = self.memory::<u8>(16 << 20);
        let placed = DeviceWeights::<T>::place(&spec, &shard, &forms, None, &mut Carver::new(*memory));
        let mut count = 0;
        for copy in
            placed.packed_sources(&spec, &shard, WeightSource::without_adapter(&weights), None).unwrap()
        {
            let (_, shape) = copy.place();
            let middle = shape.octets() / 2;
            for octets in [0..middle, middle..shape.octets()] {
                copy.write(&self.stream, octets.start, &copy.arrange(octets).unwrap()).unwrap();
            }
            count += copy.from.len();
        }
        let mut expected = Vec::new();
        let list = tensors::all(&spec);
        for (index, layer) in placed.layers.iter().enumerate() {
            let matrices = [Network::Layer, Network::Experts, Network::Shared]
                .into_iter()
                .flat_map(|network| tensors::Product::WITH_LATENT.map(|product| (network, product)));
            for (network, product) in matrices.filter(|(_, product)| !product.is_of_heads()) {
                let is_of = |tensor: &&Tensor| {
                    let is_same = tensor.layer == Some(index) && Network::of(tensor) == network;
                    is_same && matches!(tensor.kind, Kind::Matrix(of, _) if of == product)
                };
                let stacked: Vec<Tensor> = list.iter().filter(is_of).cloned().collect();
                if !stacked.is_empty() {
                    let mixture = layer.experts.as_ref().and_then(|experts| experts.matrix(network, product));
                    let weight = mixture.unwrap_or_else(|| layer.product(product));
                    expected.push((format!("{index} {network:?} {product:?}"), *weight, stacked));
                }
            }
        }
        expected.push(("head".into(), placed.head, vec![tensors::head(&list).clone()]));
        for (name, weight, stacked) in expected {
            // Experts are whole on one rank.
            let leaves = |tensor: &Tensor| if tensor.expert.is_some() { 1 } else { tensor.leaves(&spec) };
            let host: Vec<Option<Vec<Vec<f32>>>> =
                stacked.iter().map(|tensor| on_host(tensor, &weights, leaves(tensor))).collect();
            let is_packed = matches!(weight.values, WeightValues::Packed(_));
            assert!(host.iter().all(|rows| rows.is_some() == is_packed), "{}: {name}", model.display());
            if is_packed {
                let host: Vec<f32> = host.into_iter().flatten().flatten().flatten().collect();
                let got = self.dequantised(&weight);
                let wrong = got.iter().zip(&host).position(|(got, host)| got != host);
                assert_eq!((got.len(), wrong), (host.len(), None), "{}: {name}", model.display());
            }
        }
        if matches!(placed.embedding.values, WeightValues::Packed(_)) {
            let host = on_host(&tensors::embedding(&spec), &weights, 1).unwrap().concat();
            assert!(self.looked_up(&placed.embedding) == host, "{}: the table", model.display());
        }
        count
    }
}

#[test]
fn dequantised_weights_have_the_bits_of_the_cpus() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let device = Emulated::new();
    let mixed = path(MIXED);
    let (run, _) = goldens();
    // Its matrices are like others', though its family has a part without a kernel.
    let asymmetric = path("quantised/w4a16-asymmetric");
    let oss = [path("models/gpt-oss-mxfp4"), gguf("gpt-oss-mxfp4")];
    for path in run.iter().filter(|path| **path != asymmetric).chain([&asymmetric, &mixed]).chain(&oss) {
        let (in_bf16, in_f16) = (device.check::<bf16>(path), device.check::<f16>(path));
        assert!(in_bf16 >= 7 && in_bf16 == in_f16, "{}: {in_bf16} {in_f16}", path.display());
    }
}

/// Compares log-probabilities of `tokens` with those of golden logits at some positions; on average they
/// differ by at most `most`.
fn check_scores(name: &str, model: &Path, tokens: &[u32], golden: &[(usize, Vec<f32>)], most: f32) {
    let chunks = [tokens.len() / 2, 1, tokens.len() - tokens.len() / 2 - 1];
    let got = scores_of(&mut on_cuda(model, eager()), tokens, &chunks, false);
    let (mut largest, mut sum, mut count) = (0f32, 0.0, 0.0);
    for (position, logits) in golden.iter().filter(|(position, _)| position + 1 < tokens.len()) {
        let expected = log_softmax(logits, tokens[position + 1] as usize);
        let difference = (got[*position].logprob - expected).abs();
        assert!(difference <= MOST, "{name}, position {position}: {:?} is not {expected}", got[*position]);
        largest = largest.max(difference);
        (sum, count) = (sum + difference, count + 1.0);
    }
    println!("{name}: log-probabilities differ by {:.4} on average, by at most {largest:.4}", sum / count);
    assert!(count >= 4.0 && sum / count <= most, "{name}: {}", sum / count);
}

fn list(json: &Value, key: &str) -> Vec<u32> {
    json[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn quantised_checkpoints_agree_with_transformers_or_are_refused() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let (run, refused) = goldens();
    assert!(run.len() >= 23 && refused.is_empty(), "{refused:?}");
    for path in run {
        let json = json(&path.join("goldens.json"));
        let bytes = std::fs::read(path.join("goldens.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = file.tensor("exact_logits").unwrap();
        let values: Vec<f32> =
            tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let positions = list(&json, "positions").into_iter().map(|position| position as usize);
        let logits = positions.zip(values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec)).collect::<Vec<_>>();
        let config = self::json(&path.join("config.json"));
        let is_half = config["torch_dtype"] == "float16" || config["dtype"] == "float16";
        let most = if is_half { IN_HALF } else { MOST / 2.0 };
        check_scores(&path.display().to_string(), &path, &list(&json, "prompt"), &logits, most);
    }
}

#[test]
fn gguf_files_agree_with_transformers() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for name in ["llama-gqa", "llama3-rope", "qwen2-tied-v5", "qwen3", "gemma2", "phi3-long"] {
        let golden_of = Golden::read(&path(format!("models/{name}")));
        let positions = golden_of.prompt_positions.iter().map(|position| *position as usize);
        let logits: Vec<_> = positions.zip(golden_of.prompt_logits).collect();
        let model = gguf(name);
        check_scores(name, &model, &golden_of.prompt, &logits, TOLERANCE);
    }
    // With tensors of turned keys and of values, without blocks.
    for name in ["deepseek-v2-lite", "deepseek-v2"] {
        let golden_of = Golden::read(&path(format!("models/{name}")));
        let positions = golden_of.prompt_positions.iter().map(|position| *position as usize);
        let logits: Vec<_> = positions.zip(golden_of.prompt_logits).collect();
        let model = gguf(name);
        check_scores(name, &model, &golden_of.prompt, &logits, MOST);
    }
    // Experts in blocks.
    let golden_of = Golden::read(&path("models/gpt-oss-mxfp4"));
    let positions = golden_of.prompt_positions.iter().map(|position| *position as usize);
    let logits: Vec<_> = positions.zip(golden_of.prompt_logits).collect();
    let model = gguf("gpt-oss-mxfp4");
    check_scores("gpt-oss-mxfp4", &model, &golden_of.prompt, &logits, TOLERANCE);
    // Blocks of every type, also mixed within a product, and a table in blocks.
    let mixed = json(&path("gguf/models/mixed/mixed.json"));
    let rows = mixed["logits"].as_array().unwrap().iter();
    let row = |row: &Value| row.as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect();
    let positions = list(&mixed, "positions").into_iter().map(|position| position as usize);
    let logits: Vec<(usize, Vec<f32>)> = positions.zip(rows.map(row)).collect();
    let model = path(MIXED);
    check_scores("mixed", &model, &list(&mixed, "prompt"), &logits, TOLERANCE);
}

/// With tensors of turned keys and of values in Q8_0, and with one tensor of both, whose keys are turned when
/// they are decoded.
#[test]
fn latents_in_blocks_agree_with_their_values() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let tokens: Vec<u32> = (0..40).map(|at| at * 37 % 128).collect();
    let file = |name: &str| path(format!("gguf/models/latent/latent-{name}.gguf"));
    let expected = scores_of(&mut on_cpu(&file("f32")), &tokens, &[39], false);
    for name in ["f32", "q8", "old"] {
        let got = scores_of(&mut on_cuda(&file(name), eager()), &tokens, &[7, 1, 20, 1, 10], false);
        compare(&format!("latent-{name}"), &got, &expected, TOLERANCE);
    }
}

#[test]
fn weights_quantised_at_load_stay_near() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dense = [("llama", LLAMA)];
    for (name, tiny) in dense.into_iter().chain(MIXTURES) {
        let dir = tiny.make(7);
        let expected = scores(&mut on_cpu(dir.path()), &[39], false);
        // Other weights may choose other experts.
        let more = if name == "llama" { 1.0 } else { 3.0 };
        for (format, most) in [(Format::INT8, 0.03), (Format::INT4_ZERO, 0.3)] {
            let mut backend = on_cuda_rounded(dir.path(), eager(), Some(format)).unwrap();
            let got = scores(&mut backend, &[20, 19], true);
            let differences = got.iter().zip(&expected).map(|(a, b)| (a.logprob - b.logprob).abs());
            let mean = differences.sum::<f32>() / 39.0;
            println!("{name}, {format:?}: log-probabilities differ by {mean:.4} on average");
            assert!(mean < most * more && mean > 0.0, "{name}, {format:?}: {mean}");
        }
    }
    let dir = LLAMA.make(7);
    Tiny::spoil(dir.path(), "model.layers.1.mlp.up_proj.weight");
    for format in [Format::INT8, Format::INT4_ZERO] {
        let error = on_cuda_rounded(dir.path(), eager(), Some(format)).err().map(|error| error.to_string());
        let said = error.unwrap_or_else(|| panic!("a NaN was taken, {format:?}"));
        assert!(
            said.contains("layers.1.mlp.up_proj") && said.contains("output 0 and input 0 is NaN"),
            "{said}"
        );
    }
}

#[test]
fn the_plan_counts_codes() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in [("llama", LLAMA)].into_iter().chain(MIXTURES) {
        check_plan(name, tiny);
    }
}

fn check_plan(name: &str, tiny: Tiny) {
    let dir = tiny.make(7);
    let config = ModelConfig::from_dir(dir.path()).unwrap();
    let opened = cuda::open(0, &config, BLOCK_SIZE).unwrap();
    let [sixteen, eight, four] = [None, Some(Format::INT8), Some(Format::INT4_ZERO)].map(|rounded| {
        let (fp8, cuda, limits) = (Fp8::default(), eager(), limits());
        let kv_cache_memory_bytes = Some(4 << 20);
        let options = CudaOptions {
            cuda,
            fp8,
            rounded,
            limits,
            kv_cache_memory_bytes,
            window_blocks: false,
            readers: 1,
            merged: None,
            served: None,
        };
        let shards = [Shard::whole(&config.spec)];
        let (bytes, _) =
            cuda::plan_ranks(cuda::ModelDir { dir: dir.path(), config: &config }, &opened, &options, &shards)
                .unwrap();
        bytes[0].weights as f64
    });
    let of_layer = |tensor: &&Tensor| {
        tensor.layer.is_some() && tensor.cols > 1 && Network::of(tensor) != Network::Router
    };
    let layers: usize = tensors::all(&config.spec).iter().filter(of_layer).map(Tensor::len).sum();
    // Leaves of this model, and inner sizes of experts, are shorter than a block, and so half of some codes
    // is padding.
    let saved = [eight, four].map(|bytes| (sixteen - bytes) / (2 * layers) as f64);
    println!("{name}: of the layers' bytes, 8 bits save {:.2}, 4 bits {:.2}", saved[0], saved[1]);
    assert!((0.25..0.5).contains(&saved[0]) && (0.5..0.75).contains(&saved[1]), "{name}: {saved:?}");
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_with_codes() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in [("llama", LLAMA)].into_iter().chain(MIXTURES) {
        let made = tiny.make(11);
        let config = CudaConfig { batch_invariant: true, ..eager() };
        let backend = &mut on_cuda_rounded(made.path(), config, Some(Format::INT4_ZERO)).unwrap();
        let expected = bits(backend, |_| 40, 0);
        for (i, chunks) in [1, 17].into_iter().enumerate() {
            assert!(bits(backend, |_| chunks, i as u32 + 1) == expected, "{name}, chunks of {chunks}");
        }
    }
}

/// A copy of the model in `from` whose experts have their inputs in orders of their own, gate and up in one.
fn with_orders(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("config.json"), copy.path().join("config.json")).unwrap();
    let file = std::fs::read(from.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let shuffled = |seed: u64, data: &[u8]| {
        let mut groups = data.as_chunks::<4>().0.to_vec();
        let mut random = SplitMix64::new(seed);
        (1..groups.len()).rev().for_each(|i| groups.swap(i, random.next_u64() as usize % (i + 1)));
        groups.concat()
    };
    let values: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| {
            let of_expert = name.split_once(".experts.").and_then(|(_, rest)| rest.split_once(".g_idx"));
            let data = of_expert.map_or(tensor.data().to_vec(), |(matrix, _)| {
                let (expert, role) = matrix.split_once('.').unwrap();
                let seed = expert.parse::<u64>().unwrap() * 2 + u64::from(role == "w2");
                shuffled(seed, tensor.data())
            });
            (name.to_owned(), tensor.dtype(), tensor.shape().to_vec(), data)
        })
        .collect();
    let views = values.iter().map(|(name, dtype, shape, data)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(copy.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    copy
}

/// A copy of the model in `from` whose matrices have the values that the CPU dequantises.
fn dequantised(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut config = json(&from.join("config.json"));
    config.as_object_mut().unwrap().remove("quantization_config").expect("it is quantised");
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let (spec, weights) = (ModelConfig::from_dir(from).unwrap().spec, Weights::open(from).unwrap());
    let mut values: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for tensor in tensors::all(&spec).iter().filter(|tensor| matches!(tensor.kind, Kind::Matrix(..))) {
        if let Some(rows) = on_host(tensor, &weights, 1) {
            let bytes = rows.concat().into_iter().flat_map(f32::to_le_bytes).collect();
            values.push((tensor.name.clone(), Dtype::F32, tensor.shape(), bytes));
        }
    }
    let file = std::fs::read(from.join("model.safetensors")).unwrap();
    let is_code =
        |name: &str| [".qweight", ".qzeros", ".scales", ".g_idx"].iter().any(|end| name.ends_with(end));
    for (name, tensor) in SafeTensors::deserialize(&file).unwrap().iter().filter(|(name, _)| !is_code(name)) {
        values.push((name.to_owned(), tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()));
    }
    let views = values.iter().map(|(name, dtype, shape, data)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(copy.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    copy
}

/// The CPU would multiply codes by activations in 8 bits. It gets dequantised weights, so that only the
/// device rounds.
#[test]
fn each_expert_may_have_its_inputs_in_an_order_of_its_own() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let model = path("quantised/gptq-4-experts");
    let copy = with_orders(&model);
    let tokens = list(&json(&model.join("goldens.json")), "prompt");
    let chunks = [tokens.len() / 2, 1, tokens.len() - tokens.len() / 2 - 1];
    let exact = dequantised(copy.path());
    let expected = scores_of(&mut on_cpu(exact.path()), &tokens, &[tokens.len() - 1], false);
    let got = scores_of(&mut on_cuda(copy.path(), eager()), &tokens, &chunks, false);
    let as_stored = scores_of(&mut on_cuda(&model, eager()), &tokens, &chunks, false);
    let mean = |others: &[TokenLogprobs]| {
        let differences = got.iter().zip(others).map(|(a, b)| (a.logprob - b.logprob).abs());
        differences.sum::<f32>() / got.len().min(others.len()) as f32
    };
    let (same, other) = (mean(&expected), mean(&as_stored));
    println!("log-probabilities differ by {same:.4} on average, by {other:.4} without the orders");
    assert!(same < IN_HALF && other > 5.0 * IN_HALF, "{same} {other}");
}
