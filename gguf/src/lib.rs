//! GGUF files: a model's metadata and tensors in one file or several.
//!
//! [`Header`] parses a file's index and trusts nothing in it. [`GgufModel`] maps a model's files and converts
//! their metadata to the files of a Hugging Face directory: config.json, tokenizer.json and so on. Routers
//! and workers therefore read both kinds of models with the same code. Weights remain bytes here; the kernels
//! interpret them.

mod config;
mod conversion;
mod cursor;
mod header;
mod metadata;
mod model;
#[cfg(test)]
mod sample;
mod special_tokens;
pub mod spm;
mod tensor_type;
mod tokenizer;
pub mod tokenizer_json;
pub mod word_rules;

use std::path::PathBuf;

pub use config::{ROTATES_ADJACENT, SUPPORTED};
pub use header::{Header, TensorInfo};
pub use metadata::{Array, Value};
pub use model::{GgufModel, is_gguf};
pub use tensor_type::TensorType;
pub use tokenizer::MAX_TOKENS;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// I/O error of the operating system.
        source: std::io::Error,
    },
    /// The content is malformed.
    #[error("{} is damaged: {reason}; download it again", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Fault in the content.
        reason: Fault,
    },
    /// A valid file uses a feature that is not supported.
    #[error("{} cannot be served: {what}", path.display())]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// Unsupported feature, and the supported ones.
        what: String,
    },
}

/// Fault in a file's content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Fault {
    #[error("it does not start with GGUF")]
    Magic,
    #[error("its format has the version {0}; supported: 2 and 3")]
    Version(u32),
    #[error("it is big-endian; supported: little-endian")]
    BigEndian,
    #[error("{what} extends past the end of the file: {needed} bytes at {at} of {len}")]
    Truncated { what: &'static str, at: usize, needed: u64, len: usize },
    #[error("{count} {what}; the limit is {most}")]
    TooMany { what: &'static str, count: u64, most: u64 },
    #[error("{what} is not UTF-8")]
    NotUtf8 { what: &'static str },
    #[error("{key} has the unknown type {kind}")]
    ValueType { key: String, kind: u32 },
    #[error("{key} is an array of arrays")]
    NestedArray { key: String },
    #[error("{0} occurs twice")]
    Twice(String),
    #[error("general.alignment is {0}, not a power of two from 8 to 65536")]
    Alignment(String),
    #[error(
        "tensor {tensor} has the type {kind}, which ggml has withdrawn or this version of Skein does not know"
    )]
    TensorType { tensor: String, kind: u32 },
    #[error("tensor {tensor} has the shape {dims:?}, which does not divide into whole blocks of {kind}")]
    Shape { tensor: String, dims: Vec<u64>, kind: &'static str },
    #[error("tensor {tensor} starts at {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: usize },
    #[error("tensors {0} and {1} overlap")]
    Overlap(String, String),
    #[error("{key} is {got}; allowed: {allowed}")]
    Field { key: String, got: String, allowed: String },
    #[error("it is part {got} of {count}, but its name says part {expected} of {named}")]
    Part { got: u64, count: u64, expected: u64, named: u64 },
}

impl Fault {
    /// The error of the file at `path`. What a valid file of another version may have is no damage: the same
    /// file would come from a second download.
    pub(crate) fn of_file(self, path: PathBuf) -> GgufError {
        match self {
            Self::Version(_) | Self::BigEndian | Self::TensorType { .. } => {
                GgufError::Unsupported { path, what: self.to_string() }
            }
            reason => GgufError::Damaged { path, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_file_may_have_is_no_damage() {
        let text = |fault: Fault| fault.of_file("m.gguf".into()).to_string();
        let newer = text(Fault::TensorType { tensor: "a".into(), kind: 43 });
        assert!(newer.starts_with("m.gguf cannot be served: tensor a has the type 43"), "{newer}");
        assert!(text(Fault::Version(4)).contains("cannot be served: its format has the version 4"));
        assert!(text(Fault::BigEndian).contains("cannot be served"));
        assert!(text(Fault::Magic).contains("is damaged"));
    }
}
