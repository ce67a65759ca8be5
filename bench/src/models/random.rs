//! Writes models of real sizes with random weights, directly to disk as safetensors, so that memory use does
//! not grow with the model.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use skein_model::config::ModelConfig;
use skein_model::spec::Spec;
use skein_model::tensors::{self, Kind, Tensor};
use skein_node::random::SplitMix64;

use super::configuration::{config, generation_config};
use super::dtype::Dtype;
use super::error::MakeModelError;
use super::outliers::Outliers;
use super::quantised_form::QuantisedForm;
use super::shapes::ModelShape;

/// Spread of the weights: a uniform distribution of this half-width has the usual 0.02 standard deviation.
const HALF_WIDTH: f32 = 0.034_641;
/// Values per write.
const CHUNK_VALUES: usize = 1 << 16;
/// Files copied from another model.
const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"];

/// Weights of a model to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomWeights {
    /// Element type.
    pub dtype: Dtype,
    /// Seed of the values.
    pub seed: u64,
    /// Whether a few channels and tokens have much larger activations than the others, as in trained models.
    pub has_outliers: bool,
}

/// Size of a created model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of weights.
    pub bytes: u64,
}

/// Checks that `dir` contains no model.
///
/// # Errors
/// If `dir` already contains a model's configuration or weights.
pub fn check_free(dir: &Path) -> Result<(), MakeModelError> {
    let mut files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_model = |path: PathBuf| {
        path.ends_with("config.json") || path.extension().is_some_and(|end| end == "safetensors")
    };
    if files.any(is_model) { Err(MakeModelError::Occupied(dir.to_owned())) } else { Ok(()) }
}

/// Writes a model of `shape` to the directory `out`. Calls `progress` with the fraction of bytes written, 0
/// to 1. Replaces existing files one by one, so that a worker that has mapped the old weights keeps them. The
/// configuration is written last: without it, an incomplete directory is not a model.
///
/// # Errors
/// If a file cannot be written, or `tokenizer_from` has no tokenizer.
pub fn make_model(
    shape: &ModelShape,
    random: RandomWeights,
    tokenizer_from: &Path,
    out: &Path,
    mut progress: impl FnMut(f64),
) -> Result<Made, MakeModelError> {
    let RandomWeights { dtype, seed, has_outliers } = random;
    let spec = spec(shape, dtype)?;
    let tensors = tensors::all(&spec);
    make_tokenizer(tokenizer_from, out)?;
    let outliers = has_outliers.then_some(Outliers {
        seed,
        norm_offset: spec.norm.offset,
        head_dim: shape.head_dim,
        is_tied: shape.tied,
    });
    let weights = out.join("model.safetensors");
    replace(&weights, |to| write_weights(to, &tensors, random, outliers, &mut progress))?;
    make_configuration(shape, dtype, None, out)?;
    let parameters = parameters(&tensors);
    Ok(Made { parameters, bytes: parameters * dtype.bytes() as u64 })
}

/// The same without weights, for workers that generate their own (`--load-format dummy`): a few kilobytes.
/// `form`: the codes that they generate, if not 16 bits.
///
/// # Errors
/// As for [`make_model`].
pub fn make_without_weights(
    shape: &ModelShape,
    dtype: Dtype,
    form: Option<&QuantisedForm>,
    tokenizer_from: &Path,
    out: &Path,
) -> Result<Made, MakeModelError> {
    let parameters = parameters(&tensors(shape, dtype)?);
    make_tokenizer(tokenizer_from, out)?;
    make_configuration(shape, dtype, form, out)?;
    Ok(Made { parameters, bytes: 0 })
}

fn make_tokenizer(tokenizer_from: &Path, out: &Path) -> Result<(), MakeModelError> {
    if !tokenizer_from.join("tokenizer.json").is_file() {
        return Err(MakeModelError::NoTokenizer(tokenizer_from.to_owned()));
    }
    std::fs::create_dir_all(out).map_err(|source| MakeModelError::Write { path: out.to_owned(), source })?;
    for name in TOKENIZER_FILES {
        let from = tokenizer_from.join(name);
        if from.is_file() {
            replace(&out.join(name), |to| std::fs::copy(&from, to).map(drop))?;
        }
    }
    Ok(())
}

fn make_configuration(
    shape: &ModelShape,
    dtype: Dtype,
    form: Option<&QuantisedForm>,
    out: &Path,
) -> Result<(), MakeModelError> {
    let mut config = config(shape, dtype);
    if let Some(form) = form {
        config["quantization_config"] = form.config();
    }
    for (name, value) in [("generation_config.json", generation_config()), ("config.json", config)] {
        replace(&out.join(name), |to| std::fs::write(to, format!("{value:#}\n")))?;
    }
    Ok(())
}

/// Creates a file with `write` under a temporary name and renames it once complete.
fn replace(path: &Path, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), MakeModelError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.partial"));
    write(&partial).and_then(|()| std::fs::rename(&partial, path)).map_err(|source| {
        // The incomplete file is useless, and failing to remove it matters less than the original error.
        let _ = std::fs::remove_file(&partial);
        MakeModelError::Write { path: path.to_owned(), source }
    })
}

/// All tensors of the model, as listed by the worker that will serve it.
fn tensors(shape: &ModelShape, dtype: Dtype) -> Result<Vec<Tensor>, MakeModelError> {
    spec(shape, dtype).map(|spec| tensors::all(&spec))
}

fn spec(shape: &ModelShape, dtype: Dtype) -> Result<Spec, MakeModelError> {
    let object = |value: Value| match value {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    let model = ModelConfig::parse(&object(config(shape, dtype)), &object(generation_config()));
    Ok(model.map_err(MakeModelError::Shape)?.spec)
}

/// Total number of values.
fn parameters(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.len() as u64).sum()
}

fn write_weights(
    path: &Path,
    tensors: &[Tensor],
    random: RandomWeights,
    outliers: Option<Outliers>,
    progress: &mut impl FnMut(f64),
) -> std::io::Result<()> {
    let RandomWeights { dtype, seed, .. } = random;
    let mut file = BufWriter::new(File::create(path)?);
    let tensors = stored(tensors);
    let (header, total) = header(&tensors, dtype);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut random = SplitMix64::new(seed);
    let mut written = 0;
    let mut bytes = Vec::with_capacity(CHUNK_VALUES * dtype.bytes());
    for tensor in tensors {
        let is_norm = tensor.kind == Kind::Norm;
        let len = stored_len(tensor);
        let mut left = len;
        while left > 0 {
            bytes.clear();
            let (count, first) = (left.min(CHUNK_VALUES), len - left);
            for index in first..first + count {
                let value = if is_norm { 1.0 } else { noise(&mut random) };
                let factor = outliers.map_or(1.0, |outliers| outliers.factor(tensor, index));
                dtype.push(value * factor, &mut bytes);
            }
            file.write_all(&bytes)?;
            left -= count;
            written += bytes.len();
            progress(written as f64 / total as f64);
        }
    }
    file.flush()
}

/// Tensors as they are stored: of those that are parts of one, only the first.
fn stored(tensors: &[Tensor]) -> Vec<&Tensor> {
    let mut seen = HashSet::new();
    tensors.iter().filter(|tensor| seen.insert(&tensor.name)).collect()
}

/// Number of values with all parts.
fn stored_len(tensor: &Tensor) -> usize {
    tensor.shape().iter().product()
}

/// The safetensors header, padded to eight bytes so that tensors are aligned, and the bytes that follow it.
fn header(tensors: &[&Tensor], dtype: Dtype) -> (String, usize) {
    let mut map = Map::new();
    map.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + stored_len(tensor) * dtype.bytes();
        let entry = json!({"dtype": dtype.names().0, "shape": tensor.shape(), "data_offsets": [offset, end]});
        map.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut text = Value::Object(map).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    (text, offset)
}

/// Uniform in ±[`HALF_WIDTH`].
fn noise(random: &mut SplitMix64) -> f32 {
    let unit = (random.next_u64() >> 40) as f32 / (1_u64 << 24) as f32;
    (2.0 * unit - 1.0) * HALF_WIDTH
}

#[cfg(test)]
mod tests {
    use super::super::shapes::SHAPES;
    use super::*;

    const PLAIN: RandomWeights = RandomWeights { dtype: Dtype::Bf16, seed: 1, has_outliers: false };

    #[test]
    fn created_models_read_back_as_safetensors() {
        for (shape, dtype) in [
            ("tiny-llama", Dtype::Bf16),
            ("tiny-qwen2", Dtype::F32),
            ("tiny-qwen2", Dtype::F16),
            ("tiny-qwen3.5", Dtype::Bf16),
        ] {
            let shape = SHAPES.iter().find(|known| known.name == shape).expect("a known shape");
            let dir = std::env::temp_dir().join(format!(
                "skein-made-{}-{}-{dtype:?}",
                std::process::id(),
                shape.name
            ));
            let from = dir.join("from");
            std::fs::create_dir_all(&from).expect("a directory");
            std::fs::write(from.join("tokenizer.json"), "{}").expect("a file");
            let mut last = 0.0;
            let made = make_model(shape, RandomWeights { dtype, ..PLAIN }, &from, &dir, |share| last = share)
                .expect("it is written");
            let bytes = std::fs::read(dir.join("model.safetensors")).expect("weights");
            let parsed = safetensors::SafeTensors::deserialize(&bytes).expect("a valid file");
            let values: usize =
                parsed.tensors().iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
            assert_eq!(values as u64, made.parameters);
            assert_eq!(last, 1.0);
            // Queries of the shape with states have gates.
            let (layer, rows) = if shape.delta.is_some() { (3, 2 * 4 * shape.head_dim) } else { (1, 64) };
            let q = parsed.tensor(&format!("model.layers.{layer}.self_attn.q_proj.weight"));
            assert_eq!(q.expect("it is there").shape(), [rows, 64]);
            assert_eq!(parsed.tensor("lm_head.weight").is_ok(), !shape.tied);
            assert_eq!(parsed.tensor("model.layers.0.self_attn.k_proj.bias").is_ok(), shape.qkv_bias);
            assert!(dir.join("tokenizer.json").is_file() && dir.join("config.json").is_file());
            std::fs::remove_dir_all(&dir).expect("it is ours");
        }
    }

    #[test]
    fn outliers_are_in_activations_and_change_no_channels_function() {
        let dir = std::env::temp_dir().join(format!("skein-outliers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("tokenizer.json"), "{}").expect("a file");
        let [plain, outliers] = [false, true].map(|has_outliers| {
            let random = RandomWeights { dtype: Dtype::F32, has_outliers, ..PLAIN };
            make_model(&SHAPES[0], random, &dir, &dir, |_| {}).expect("it is written");
            let bytes = std::fs::read(dir.join("model.safetensors")).expect("weights");
            move |name: &str| -> Vec<f32> {
                let parsed = safetensors::SafeTensors::deserialize(&bytes).expect("a valid file");
                let tensor = parsed.tensor(&format!("{name}.weight")).expect("it is there");
                let values = tensor.data().chunks_exact(4);
                values.map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
            }
        });
        let peak = |row: &[f32]| {
            let mean = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
            row.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / mean.sqrt()
        };
        let gains = outliers("model.layers.0.input_layernorm");
        let inputs = |embedding: Vec<f32>| -> Vec<f32> {
            let rows = embedding.chunks_exact(gains.len());
            let row = |row: &[f32]| peak(&row.iter().zip(&gains).map(|(a, b)| a * b).collect::<Vec<_>>());
            let mut peaks: Vec<f32> = rows.map(row).collect();
            peaks.sort_by(f32::total_cmp);
            peaks
        };
        let peaks = inputs(outliers("model.embed_tokens"));
        let median = peaks[peaks.len() / 2];
        assert!((4.0..8.0).contains(&median), "64 columns allow at most 8: {median}");
        assert!(plain("model.embed_tokens").chunks_exact(64).all(|row| peak(row) < 2.5));
        let massive = outliers("model.embed_tokens").chunks_exact(64).filter(|row| peak(row) > 6.0).count();
        // The value itself is random, and small in some of the 64 rows.
        assert!((50..=64).contains(&massive), "{massive}");

        // A channel is a gain or a row of the inner tensor, and a column of the outer one.
        let same = |outer: &str, inner: &str, channels: usize| {
            let together = |of: &dyn Fn(&str) -> Vec<f32>| -> Vec<f32> {
                let [outer, inner] = [outer, inner].map(|name| of(&format!("model.layers.1.{name}")));
                let stride = inner.len() / channels;
                (0..outer.len()).map(|index| outer[index] * inner[index % channels * stride]).collect()
            };
            assert_eq!(together(&plain), together(&outliers), "{outer} after {inner}");
        };
        same("self_attn.q_proj", "input_layernorm", 64);
        same("mlp.gate_proj", "post_attention_layernorm", 64);
        same("mlp.down_proj", "mlp.up_proj", 176);
        std::fs::remove_dir_all(&dir).expect("it is ours");
    }

    #[test]
    fn a_model_that_is_being_served_is_not_overwritten_under_its_worker() {
        let dir = std::env::temp_dir().join(format!("skein-occupied-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        assert!(check_free(&dir).is_ok() && check_free(&dir.join("new")).is_ok());
        std::fs::write(dir.join("tokenizer.json"), "{}").expect("a file");
        let weights = dir.join("model.safetensors");
        std::fs::write(&weights, "mapped by a worker").expect("a file");
        assert!(check_free(&dir).is_err_and(|error| error.to_string().contains("--force")));
        let mut served = File::open(&weights).expect("it is there");
        make_model(&SHAPES[0], PLAIN, &dir, &dir, |_| {}).expect("it is replaced");
        let mut seen = String::new();
        std::io::Read::read_to_string(&mut served, &mut seen).expect("the old file lives on");
        assert_eq!(seen, "mapped by a worker");
        let mut names: Vec<_> =
            std::fs::read_dir(&dir).expect("it is ours").flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]);
        assert_eq!(std::fs::read(dir.join("tokenizer.json")).expect("copied onto itself"), b"{}");
        std::fs::remove_dir_all(&dir).expect("it is ours");
    }

    #[test]
    fn published_shapes_have_the_published_size() {
        let parameters = |name: &str| {
            let shape = SHAPES.iter().find(|shape| shape.name == name).expect("a known shape");
            parameters(&tensors(shape, Dtype::Bf16).expect("it can be served"))
        };
        assert_eq!(parameters("llama-3.2-1b"), 1_235_814_400);
        assert_eq!(parameters("llama-3.1-8b"), 8_030_261_248);
        assert_eq!(parameters("qwen2.5-0.5b"), 494_032_768);
        assert_eq!(parameters("qwen3-0.6b"), 596_049_920);
        assert_eq!(parameters("qwen3-4b"), 4_022_468_096);
        assert_eq!(parameters("olmoe-1b-7b"), 6_919_161_856);
        assert_eq!(parameters("gemma-3-1b"), 999_885_952);
        assert_eq!(parameters("qwen3.5-0.8b"), 752_393_024);
        assert_eq!(parameters("qwen3.5-4b"), 4_205_751_296);
        assert_eq!(parameters("qwen3.5-35b-a3b"), 34_660_610_688);
        assert_eq!(parameters("llama-3.1-70b"), 70_553_706_496);
    }
}
