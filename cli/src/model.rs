//! Finds the model directory and reads what the banner shows. Only mistakes that should be reported at once
//! are checked here; the worker checks the rest.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
pub use skein_router::text::model_text::Facts;

use crate::exit::{Failure, MODEL};
#[cfg(feature = "worker")]
use crate::shipped;

/// Largest safetensors header that is read, bytes; larger ones are broken.
const MAX_HEADER_BYTES: u64 = 100 << 20;
/// Largest configuration file that is read, bytes.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The directory of the model `given`, or of the shipped model.
///
/// # Errors
/// If there is no such directory or it contains no model.
pub fn find(given: Option<&str>) -> Result<PathBuf, Failure> {
    let Some(given) = given else { return without_name() };
    let path = PathBuf::from(given);
    if !path.is_dir() {
        return Err(Failure::new(
            MODEL,
            format!(
                "`{given}` is not a directory. Give a Hugging Face model directory (config.json, *.safetensors, \
                 tokenizer.json); Skein downloads nothing. Without MODEL it serves the shipped model"
            ),
        ));
    }
    if !path.join("config.json").is_file() {
        return Err(Failure::new(
            MODEL,
            format!(
                "`{given}` has no config.json, so it is not a model directory; is the model one level further down?"
            ),
        ));
    }
    Ok(path)
}

#[cfg(feature = "worker")]
fn without_name() -> Result<PathBuf, Failure> {
    shipped::find()
}

/// A router's own binary carries no model.
#[cfg(not(feature = "worker"))]
fn without_name() -> Result<PathBuf, Failure> {
    let message = "name a model directory (config.json, tokenizer.json): this build carries no model";
    Err(Failure::new(MODEL, message.to_owned()))
}

/// The default name for clients: the directory's.
pub fn default_name(model: &Path) -> String {
    let full = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    full.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Reads a model's configuration and weight headers. What cannot be read stays empty; the worker reports it.
pub fn facts(model: &Path) -> Facts {
    let config: Value = read_bounded(&model.join("config.json"), MAX_CONFIG_BYTES)
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let mut facts =
        Facts { family: config["model_type"].as_str().unwrap_or("?").to_owned(), ..Facts::default() };
    let mut largest = 0;
    for path in weight_files(model) {
        for (name, tensor) in header(&path).as_ref().and_then(Value::as_object).into_iter().flatten() {
            if name == "__metadata__" {
                continue;
            }
            let shape = tensor["shape"].as_array().map(Vec::as_slice).unwrap_or_default();
            let count = shape.iter().filter_map(Value::as_u64).fold(1, u64::saturating_mul);
            let ends = (tensor["data_offsets"][0].as_u64(), tensor["data_offsets"][1].as_u64());
            facts.parameters = facts.parameters.saturating_add(count);
            let bytes = ends.1.unwrap_or(0).saturating_sub(ends.0.unwrap_or(0));
            facts.bytes = facts.bytes.saturating_add(bytes);
            if count > largest {
                largest = count;
                facts.dtype = tensor["dtype"].as_str().unwrap_or("?").to_lowercase();
            }
        }
    }
    facts
}

/// `vocab_size` of config.json, if present, to compare it with the tokenizer. The worker checks the file
/// itself.
pub fn vocab_size(model: &Path) -> Option<u32> {
    let config: Value =
        serde_json::from_slice(&read_bounded(&model.join("config.json"), MAX_CONFIG_BYTES)?).ok()?;
    let size = config["vocab_size"].as_u64().or_else(|| config["text_config"]["vocab_size"].as_u64());
    size.and_then(|size| u32::try_from(size).ok())
}

/// The weight files that a worker would read: the single file, or the shards that the index lists.
fn weight_files(model: &Path) -> Vec<PathBuf> {
    let single = model.join("model.safetensors");
    if single.exists() {
        return vec![single];
    }
    let index: Value = read_bounded(&model.join("model.safetensors.index.json"), MAX_CONFIG_BYTES)
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let names = index["weight_map"].as_object().into_iter().flatten().filter_map(|(_, file)| file.as_str());
    // An index must not point outside its directory.
    let names: BTreeSet<&str> = names.filter(|name| !name.contains('/')).collect();
    names.into_iter().map(|name| model.join(name)).collect()
}

/// The JSON header of a safetensors file.
fn header(path: &Path) -> Option<Value> {
    let mut file = File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return None;
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn read_bounded(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_from_the_headers_of_a_made_model() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("tokenizer.json"), "{}").expect("a file");
        let shape = &skein_bench::make_model::SHAPES[0];
        let out = dir.path().join("made");
        let made = skein_bench::make_model::make_model(
            shape,
            skein_bench::make_model::Dtype::Bf16,
            1,
            dir.path(),
            &out,
            |_| {},
        )
        .expect("it is made");
        let expected = Facts {
            family: "llama".into(),
            parameters: made.parameters,
            dtype: "bf16".into(),
            bytes: made.bytes,
        };
        assert_eq!(facts(&out), expected);
        assert_eq!(default_name(&out), "made");
        // The same weights under a second name, as some publishers add them, count once.
        let whole = out.join("model.safetensors");
        std::fs::copy(&whole, out.join("consolidated.safetensors")).expect("a copy");
        assert_eq!(facts(&out), expected);
        std::fs::rename(&whole, out.join("one.safetensors")).expect("it is ours");
        let index = r#"{"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "../made/one.safetensors"}}"#;
        std::fs::write(out.join("model.safetensors.index.json"), index).expect("a file");
        assert_eq!(facts(&out), expected, "each shard once, through the index");
    }

    #[test]
    fn a_header_with_false_sizes_does_not_panic() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let tensor = format!(r#"{{"dtype":"F32","shape":[{0},2],"data_offsets":[0,{0}]}}"#, u64::MAX);
        let header = format!(r#"{{"a":{tensor},"b":{tensor}}}"#);
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        std::fs::write(dir.path().join("model.safetensors"), file).expect("a file");
        let facts = facts(dir.path());
        assert_eq!((facts.parameters, facts.bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_missing_model_is_refused_with_a_next_step() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let check = |given: &str, expected: &str| {
            let failure = find(Some(given)).expect_err(given);
            assert_eq!(failure.code, MODEL);
            assert!(failure.message.contains(expected), "{failure}");
        };
        check("/nowhere/at/all", "is not a directory");
        check(&dir.path().display().to_string(), "has no config.json");
        assert!(find(None).is_ok(), "the shipped model is found from the source tree");
    }
}
