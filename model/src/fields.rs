//! Reads a JSON object field by field. Errors name file, field, value and what is allowed.

use std::path::Path;

use serde_json::{Map, Value};
use skein_node::python_json::with_named_non_finite;
use skein_sys::regular_file;

use super::LoadError;

/// Most positions: up to here they are exact in f32, the type of rotary angles.
pub(super) const MAX_POSITIONS: usize = 1 << 24;

/// Field that holds the text model's configuration in a model that also takes images.
pub(super) const TEXT_CONFIG: &str = "text_config";

/// A JSON object whose fields are validated when read. null counts as absent, except in flags.
pub struct Fields<'a> {
    /// File name for messages.
    pub(super) file: &'static str,
    /// Fields by name.
    pub(super) object: &'a Map<String, Value>,
}

impl Fields<'_> {
    pub(super) fn get(&self, field: &str) -> Option<&Value> {
        self.object.get(field)
    }

    pub(super) fn is_absent(&self, field: &str) -> bool {
        self.get(field).is_none_or(Value::is_null)
    }

    pub(super) fn wrong(&self, field: &str, allowed: String) -> LoadError {
        let mut got = self.get(field).map_or("missing".to_owned(), Value::to_string);
        if let Some((cut, _)) = got.char_indices().nth(200) {
            got.truncate(cut);
            got.push('…');
        }
        LoadError::Field { file: self.file, field: field.to_owned(), got, allowed }
    }

    /// The longest sequence.
    pub(super) fn max_positions(&self) -> Result<u32, LoadError> {
        Ok(self.size("max_position_embeddings", MAX_POSITIONS, None)? as u32)
    }

    /// Result of `read`, or `None` if `field` is null. Unlike for other fields, null does not stand for
    /// transformers' default here.
    pub(super) fn unless_null<T>(
        &self,
        field: &str,
        read: impl FnOnce() -> Result<T, LoadError>,
    ) -> Result<Option<T>, LoadError> {
        if self.get(field).is_some_and(Value::is_null) { Ok(None) } else { read().map(Some) }
    }

    /// Reads a whole number from 1 to `most`.
    pub(super) fn size(&self, field: &str, most: usize, default: Option<usize>) -> Result<usize, LoadError> {
        let value = match (self.is_absent(field), default) {
            (true, Some(default)) => Some(default),
            _ => self.get(field).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok()),
        };
        // Other fields may rule the default out.
        let value = value.filter(|value| (1..=most).contains(value));
        value.ok_or_else(|| self.wrong(field, format!("a whole number from 1 to {most}")))
    }

    /// Reads a whole number from 0 to `most`.
    pub(super) fn count(&self, field: &str, most: usize, default: usize) -> Result<usize, LoadError> {
        let value = match self.is_absent(field) {
            true => Some(default),
            false => self.get(field).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok()),
        };
        let value = value.filter(|value| *value <= most);
        value.ok_or_else(|| self.wrong(field, format!("a whole number from 0 to {most}")))
    }

    pub(super) fn number(
        &self,
        field: &str,
        range: std::ops::RangeInclusive<f64>,
        default: Option<f64>,
    ) -> Result<f64, LoadError> {
        let value = match (self.is_absent(field), default) {
            (true, Some(default)) => return Ok(default),
            _ => self.get(field).and_then(Value::as_f64).filter(|value| range.contains(value)),
        };
        value.ok_or_else(|| self.wrong(field, format!("a number from {} to {}", range.start(), range.end())))
    }

    /// Reads a flag. null is false, as in Python.
    pub(super) fn flag(&self, field: &str, default: bool) -> Result<bool, LoadError> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Null) => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(field, "true or false".into())),
        }
    }

    pub(super) fn one_of(
        &self,
        field: &str,
        allowed: &[&str],
        default: Option<&str>,
    ) -> Result<String, LoadError> {
        let value = match (self.is_absent(field), default) {
            (true, Some(default)) => Some(default),
            _ => self.get(field).and_then(Value::as_str).filter(|value| allowed.contains(value)),
        };
        value.map(str::to_owned).ok_or_else(|| self.wrong(field, allowed.join(", ")))
    }
}

/// Largest configuration or index file that is read.
pub(super) const MAX_JSON_BYTES: u64 = 64 << 20;

/// The JSON object in the file at `path`.
///
/// # Errors
/// If it cannot be read, is too large, or holds something else.
pub fn read_object(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let text = read_json(path)?;
    let parsed = serde_json::from_slice(&text).or_else(|error| {
        // Python writes Infinity. It must not become null, which stands for a default.
        serde_json::from_slice(&with_named_non_finite(&text)).map_err(|_| error)
    });
    parsed.map_err(|error| LoadError::Damaged {
        path: path.to_owned(),
        reason: format!("not a JSON object: {error}"),
    })
}

/// The content of the JSON file at `path`.
///
/// # Errors
/// If it cannot be read, or is too large.
pub(super) fn read_json(path: &Path) -> Result<Vec<u8>, LoadError> {
    regular_file::read(path, MAX_JSON_BYTES)
        .map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::adapter::Adapter;
    use crate::checkpoint::Weights;
    use crate::config::ModelConfig;
    use crate::fingerprint::fingerprint;

    /// What puts something at a path.
    type Put = fn(&Path);

    fn pipe(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    fn endless(path: &Path) {
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    }

    /// Reads everything of a directory that is a model and an adapter.
    fn read_all(directory: &Path) -> Result<(), LoadError> {
        ModelConfig::from_dir(directory)?;
        Weights::open(directory)?;
        fingerprint(directory)?;
        let adapter = Adapter::open(directory)?;
        adapter.fingerprint()?;
        adapter.id().map(drop)
    }

    fn copy(from: &Path, to: &Path) {
        for entry in fs::read_dir(from).unwrap().flatten() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    #[test]
    fn no_file_of_a_model_or_an_adapter_that_is_endless_or_a_pipe_is_read() {
        for file in [
            "config.json",
            "generation_config.json",
            "quantize_config.json",
            "quant_config.json",
            "hf_quant_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "model-00001-of-00001.safetensors",
            "adapter_config.json",
            "adapter_model.safetensors",
        ] {
            for (put, why) in [(pipe as Put, "it is a named pipe"), (endless, "it is a device")] {
                let directory = tempfile::tempdir().unwrap();
                copy(&skein_golden::path("models/qwen3"), directory.path());
                copy(&skein_golden::path("adapters/llama-all"), directory.path());
                read_all(directory.path()).unwrap();
                if file.starts_with("model-") || file.ends_with(".index.json") {
                    fs::remove_file(directory.path().join("model.safetensors")).unwrap();
                    let index = r#"{"weight_map": {"a": "model-00001-of-00001.safetensors"}}"#;
                    fs::write(directory.path().join("model.safetensors.index.json"), index).unwrap();
                }
                let path = directory.path().join(file);
                let _ = fs::remove_file(&path);
                put(&path);
                let error = read_all(directory.path()).unwrap_err().to_string();
                assert!(error.contains(&format!("cannot read {}: {why}", path.display())), "{error}");
            }
        }
    }

    #[test]
    fn a_json_file_beyond_the_bound_is_refused_with_its_size_and_the_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("adapter_config.json");
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read_object(&path).unwrap_err().to_string();
        let expected = "it has 1099511627776 bytes, and at most 67108864 bytes are read";
        assert!(error.contains(expected) && error.contains(&path.display().to_string()), "{error}");
    }
}
