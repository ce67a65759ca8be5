//! A model: its configuration, its weights, its forward pass. Knows batches, but no requests and no scheduling.
//!
//! Everything read from a model directory is checked here, and what is wrong is said with file, field, value and
//! what would be right: a directory is input like any other.

pub mod checkpoint;
pub mod config;
pub mod cost;
pub mod families;
mod fields;
pub mod fingerprint;
pub mod on_cpu;
pub mod on_cuda;
pub mod operations;
pub mod spec;
pub mod tensors;

use std::path::PathBuf;

use skein_kernels::cpu::packed;

/// Why a model directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that should be there cannot be read.
    #[error("cannot read {}: {source}; is this a Hugging Face model directory, completely downloaded?", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{} is damaged: {reason}; download it again", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A setting of the model that cannot be served.
    #[error("{file}: {field} is {got}; allowed: {allowed}")]
    Field {
        /// config.json or generation_config.json.
        file: &'static str,
        /// Which field.
        field: String,
        /// Its value as JSON, or "missing".
        got: String,
        /// What would be right.
        allowed: String,
    },
    /// A weight is nowhere.
    #[error("tensor {tensor} {expected} is in no weight file of {}; is the download complete?", dir.display())]
    MissingTensor {
        /// Its name.
        tensor: String,
        /// Its shape.
        expected: String,
        /// The model directory.
        dir: PathBuf,
    },
    /// A weight is not what the configuration says.
    #[error("tensor {tensor} in {} is {got}, but config.json makes it {expected}", path.display())]
    WrongTensor {
        /// Its name.
        tensor: String,
        /// The file it is in.
        path: PathBuf,
        /// Type and shape there.
        got: String,
        /// Types and shape that would be right.
        expected: String,
    },
    /// Weights that their format has no room for, or that would be rounded and are no numbers.
    #[error("tensor {tensor}: {source}")]
    UnpackedTensor {
        /// Its name.
        tensor: String,
        /// Which weights.
        source: packed::PackError,
    },
    /// There is no room for packed weights.
    #[error(
        "cannot set {bytes} bytes aside for packed weights: {source}; free some memory, or serve a smaller model"
    )]
    Packing {
        /// Of all of them.
        bytes: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The KV cache does not fit the address space.
    #[error("cannot set {bytes} bytes of KV cache aside: {source}; give --kv-cache-memory-bytes less")]
    KvCache {
        /// Its size.
        bytes: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The weights give numbers that are none.
    #[error("{}: the model's logits are not finite; its weights are damaged, or overflow in float32", dir.display())]
    NotFinite {
        /// The model directory.
        dir: PathBuf,
    },
    /// The compute thread could not be started.
    #[error("cannot start the compute thread: {0}")]
    Thread(std::io::Error),
}
