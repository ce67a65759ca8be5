//! GGUF files: a model's metadata and tensors in one file or several.
//!
//! [`Header`] reads a file's index; nothing in a file is trusted. [`GgufModel`] is a model's files, mapped,
//! and
//! says what the metadata means in the words of a Hugging Face directory: config.json, tokenizer.json and so
//! on. So routers and workers read both kinds of models by the same code. Weights stay bytes here: what their
//! types mean is the kernels' business.

mod config;
mod cursor;
mod header;
mod metadata;
mod model;
#[cfg(test)]
mod sample;
mod spm;
mod tensor_type;
mod tokenizer;

use std::path::PathBuf;

pub use config::{ROTATES_ADJACENT, SUPPORTED};
pub use header::{Header, TensorInfo};
pub use metadata::{Array, Value};
pub use model::{GgufModel, is_gguf};
pub use tensor_type::TensorType;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The content is not what a GGUF file has.
    #[error("{} is damaged: {reason}; download it again", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: Fault,
    },
    /// Something that a correct file may have, and that is not supported.
    #[error("{} cannot be served: {what}", path.display())]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// What is not supported, and what is.
        what: String,
    },
}

/// What is wrong with a file's content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Fault {
    #[error("it does not begin with GGUF")]
    Magic,
    #[error("version {0}, and 2 and 3 are read")]
    Version(u32),
    #[error("it is written for big-endian machines")]
    BigEndian,
    #[error("{what} ends after the file: {needed} bytes at {at} of {len}")]
    Truncated { what: &'static str, at: usize, needed: u64, len: usize },
    #[error("{count} {what}, at most {most} are read")]
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
    #[error("tensor {tensor} has the unknown type {kind}")]
    TensorType { tensor: String, kind: u32 },
    #[error("tensor {tensor} has the shape {dims:?}, which is no shape of whole blocks of {kind}")]
    Shape { tensor: String, dims: Vec<u64>, kind: &'static str },
    #[error("tensor {tensor} begins at {offset}, no multiple of the alignment {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: usize },
    #[error("tensors {0} and {1} overlap")]
    Overlap(String, String),
    #[error("{key} is {got}; allowed: {allowed}")]
    Field { key: String, got: String, allowed: String },
    #[error("it is part {got} of {count}, but its name says part {expected} of {named}")]
    Part { got: u64, count: u64, expected: u64, named: u64 },
}
