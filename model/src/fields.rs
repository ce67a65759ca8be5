//! Reads a JSON object field by field. Errors name file, field, value and what is allowed.

use std::path::Path;

use serde_json::{Map, Value};

use skein_node::python_json::without_non_finite;

use super::LoadError;

/// Most positions: up to here they are exact in f32, the type of rotary angles.
pub(super) const MAX_POSITIONS: usize = 1 << 24;

/// Field that holds the text model's configuration in a model that also takes images.
pub(super) const TEXT_CONFIG: &str = "text_config";

/// A JSON object whose fields are validated when read. null counts as absent.
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
            (true, Some(default)) => return Ok(default),
            _ => self.get(field).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok()),
        };
        let value = value.filter(|value| (1..=most).contains(value));
        value.ok_or_else(|| self.wrong(field, format!("a whole number from 1 to {most}")))
    }

    /// Reads a whole number from 0 to `most`.
    pub(super) fn count(&self, field: &str, most: usize, default: usize) -> Result<usize, LoadError> {
        if self.get(field).and_then(Value::as_u64) == Some(0) {
            return Ok(0);
        }
        self.size(field, most, Some(default))
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

    pub(super) fn flag(&self, field: &str, default: bool) -> Result<bool, LoadError> {
        if self.is_absent(field) {
            return Ok(default);
        }
        self.get(field).and_then(Value::as_bool).ok_or_else(|| self.wrong(field, "true or false".into()))
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
    let read_error = |source| LoadError::Read { path: path.to_owned(), source };
    let damaged = |reason| LoadError::Damaged { path: path.to_owned(), reason };
    let bytes = std::fs::metadata(path).map_err(read_error)?.len();
    if bytes > MAX_JSON_BYTES {
        return Err(damaged(format!("{bytes} bytes, at most {MAX_JSON_BYTES} are read")));
    }
    let text = std::fs::read(path).map_err(read_error)?;
    let parsed = serde_json::from_slice(&text).or_else(|error| {
        serde_json::from_slice(&without_non_finite(&text)).map_err(|_| error) // Python writes Infinity
    });
    parsed.map_err(|error| damaged(format!("not a JSON object: {error}")))
}
