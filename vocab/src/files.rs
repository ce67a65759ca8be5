//! Reads the files of a tokenizer, each up to a limit.

use std::path::Path;

use serde_json::Value;
use skein_node::python_json::without_non_finite;
use skein_sys::regular_file;

use crate::error::VocabError;

/// Largest vocabulary that is read, in bytes; public models have up to about 35 MB.
pub const MAX_VOCABULARY_BYTES: u64 = 64 << 20;
/// Largest other file, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// The whole file, if it has at most `limit` bytes; `None` if there is no such file.
pub(crate) fn read_if_there(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, VocabError> {
    regular_file::read_if_there(path, limit)
        .map_err(|reason| VocabError::Unreadable { path: path.to_owned(), reason })
}

/// A JSON file; null if it does not exist.
pub(crate) fn read_json(path: &Path) -> Result<Value, VocabError> {
    match read_if_there(path, MAX_CONFIG_BYTES)? {
        None => Ok(Value::Null),
        Some(bytes) => serde_json::from_slice(&bytes)
            .or_else(|error| serde_json::from_slice(&without_non_finite(&bytes)).map_err(|_| error))
            .map_err(|error| VocabError::malformed(path, error.to_string())),
    }
}
