//! Files of saved results.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::SavedError;
use crate::plot::Request;

/// Reads a JSON file written by `command`, which must contain `key`.
///
/// # Errors
/// If the file cannot be read or is not such a result.
pub fn read_json(path: &Path, key: &str, command: &'static str) -> Result<Value, SavedError> {
    let wrong = |reason: String| SavedError::Unreadable { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let result: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let is_result = !result[key].is_null();
    is_result.then_some(result).ok_or_else(|| SavedError::NoResult { path: path.to_owned(), command })
}

/// Name of a file in tables and legends.
pub fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// One saved result.
#[derive(Debug, Clone)]
pub struct Saved {
    pub(super) name: String,
    pub(super) result: Value,
}

impl Saved {
    /// Wraps a result that has just been measured.
    pub fn new(name: String, result: Value) -> Self {
        Self { name, result }
    }

    /// Reads a file that `--save-result` wrote.
    ///
    /// # Errors
    /// If the file cannot be read or is not such a result.
    pub fn read(path: &Path) -> Result<Self, SavedError> {
        let result = read_json(path, "request_throughput", "skein bench serve --save-result")?;
        Ok(Self::new(stem(path), result))
    }

    /// Number under `key`, if there is one.
    pub(super) fn number(&self, key: &str) -> Option<f64> {
        self.result[key].as_f64()
    }

    /// Name in the legend, without the rate.
    pub(super) fn label(&self) -> String {
        self.result["label"].as_str().or(self.result["model_id"].as_str()).unwrap_or(&self.name).to_owned()
    }

    /// Requests sent per second; the throughput if all were sent at once.
    pub(super) fn rate(&self) -> f64 {
        self.number("request_rate").or_else(|| self.number("request_throughput")).unwrap_or(0.0)
    }

    /// Numbers of the array under `key`, if there is one.
    pub(super) fn column(&self, key: &str) -> Option<Vec<f64>> {
        self.result[key].as_array().map(|values| values.iter().filter_map(Value::as_f64).collect())
    }

    /// The individual requests, if the result was saved with `--save-detailed`.
    pub(super) fn requests(&self) -> Option<Vec<Request>> {
        let (sent, ttfts) = (self.column("start_times")?, self.column("ttfts")?);
        let (gaps, errors) = (self.result["itls"].as_array()?, self.result["errors"].as_array()?);
        let one = |index: usize| {
            let (sent, ttft) = (*sent.get(index)?, *ttfts.get(index)?);
            let decoding: f64 = gaps.get(index)?.as_array()?.iter().filter_map(Value::as_f64).sum();
            let failed = errors.get(index)?.as_str().is_some_and(|error| !error.is_empty());
            let first_token = (ttft > 0.0).then_some(sent + ttft);
            Some(Request { sent, first_token, end: sent + ttft + decoding, failed })
        };
        (0..sent.len()).map(one).collect()
    }
}

/// Reads all `paths`.
///
/// # Errors
/// The first file that is not a saved result.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Saved>, SavedError> {
    paths.iter().map(|path| Saved::read(path)).collect()
}
