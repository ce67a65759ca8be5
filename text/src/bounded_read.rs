//! Reads a model's files up to a limit.

use std::path::Path;

use serde_json::Value;
use skein_node::python_json::without_non_finite;
use skein_sys::regular_file;

use super::error::TextError;

/// Largest other file, in bytes.
pub(super) const MAX_CONFIG_BYTES: u64 = 8 * 1024 * 1024;

/// The whole file, if it has at most `limit` bytes.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, TextError> {
    regular_file::read(path, limit).map_err(|reason| TextError::Unreadable { path: path.to_owned(), reason })
}

/// The same; `None` if there is no such file.
pub(super) fn read_if_there(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
    regular_file::read_if_there(path, limit)
        .map_err(|reason| TextError::Unreadable { path: path.to_owned(), reason })
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::model_text::ModelText;
    use super::*;

    /// What puts something at a path.
    type Put = fn(&Path);

    fn pipe(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    fn endless(path: &Path) {
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    }

    fn huge(path: &Path) {
        fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
    }

    #[test]
    fn no_text_file_that_is_endless_or_a_pipe_is_read() {
        let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m"));
        for file in
            ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
        {
            for (put, why) in [
                (pipe as Put, "it is a named pipe"),
                (endless, "it is a device"),
                (huge, "it has 1099511627776 bytes, and at most"),
            ] {
                let directory = tempfile::tempdir().unwrap();
                fs::copy(shipped.join("tokenizer.json"), directory.path().join("tokenizer.json")).unwrap();
                let path = directory.path().join(file);
                let _ = fs::remove_file(&path);
                put(&path);
                let error = ModelText::load(directory.path(), &[]).err().unwrap().to_string();
                assert!(error.contains(&format!("cannot read {}: {why}", path.display())), "{error}");
            }
        }
    }
}
