//! Reads a model's files up to a limit.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::Value;
use skein_node::python_json::without_non_finite;

use super::error::TextError;

/// Largest other file, in bytes.
pub(super) const MAX_CONFIG_BYTES: u64 = 8 * 1024 * 1024;

/// The whole file, if it has at most `limit` bytes.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, TextError> {
    let unreadable = |reason| TextError::Unreadable { path: path.to_owned(), reason };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = file.metadata().map_err(unreadable)?.len();
    let mut content = Vec::with_capacity(bytes.min(limit) as usize);
    if bytes <= limit {
        // A pipe says no length, and a device may have no end.
        file.take(limit + 1).read_to_end(&mut content).map_err(unreadable)?;
        bytes = content.len() as u64;
    }
    if bytes > limit {
        return Err(TextError::TooLarge { path: path.to_owned(), bytes, limit });
    }
    Ok(content)
}

/// The same; `None` if there is no such file.
pub(super) fn read_if_there(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
    match read(path, limit) {
        // `NotADirectory`: the model is a GGUF file.
        Err(TextError::Unreadable { reason, .. })
            if matches!(reason.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// A JSON file of a model's directory; null if it does not exist.
pub(super) fn read_json(directory: &Path, file: &'static str) -> Result<Value, TextError> {
    match read_if_there(&directory.join(file), MAX_CONFIG_BYTES)? {
        None => Ok(Value::Null),
        Some(bytes) => serde_json::from_slice(&bytes)
            .or_else(|error| serde_json::from_slice(&without_non_finite(&bytes)).map_err(|_| error))
            .map_err(|error| TextError::Malformed { file, reason: error.to_string() }),
    }
}
