//! Quantises a model's weights, layer by layer, and writes a directory that other programs read, too.
//!
//! GPTQ and AWQ measure activations on calibration text. The rows that enter a layer come from the layers
//! before it *as quantised*, and lie in a file between two layers, so that memory holds one layer: its packed
//! weights, its statistics, and one matrix in single precision at a time. Finished layers are not repeated.

mod encode;
mod job;
mod layer;
pub mod maths;
mod original;
mod output;
mod passes;
mod scheme;
mod smooth;
mod statistics;

use std::path::{Path, PathBuf};

use super::LoadError;
use job::Job;
use original::Original;
pub use scheme::{Layout, Method, Scheme};

/// Why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The model cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model, the scheme or the output directory is unsuitable.
    #[error("{0}")]
    Refused(String),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The layer runs over the calibration text, as stored.
    Calibrate,
    /// Its matrices are quantised.
    Quantise,
    /// It runs over the text once more, as quantised.
    Propagate,
}

/// Progress within a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Layer, from 0.
    pub layer: usize,
    /// Number of layers.
    pub layers: usize,
    /// What is being done to it.
    pub phase: Phase,
    /// Windows or matrices done.
    pub done: usize,
    /// All of them.
    pub of: usize,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Layers quantised by this run.
    pub layers: usize,
    /// Layers that an earlier run had finished.
    pub found: usize,
    /// Total size of the weight files before, in bytes.
    pub before: u64,
    /// Total size of the written weight files, in bytes.
    pub after: u64,
}

/// A model to quantise.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Directory of the model, in safetensors.
    pub model: &'a Path,
    /// Directory to write, new or of an earlier run.
    pub out: &'a Path,
    /// How to quantise.
    pub scheme: &'a Scheme,
    /// Windows of calibration tokens; unused by methods without calibration.
    pub calibration: &'a [Vec<u32>],
    /// Most memory for the Hessians that GPTQ measures in one pass over the text, in bytes; a layer with more
    /// has several passes. `None` = half of what is free. It changes no bit.
    pub hessian_bytes: Option<u64>,
}

/// The largest usual group size that divides the inputs of all matrices of `model`: 128, 64 or 32 inputs.
///
/// # Errors
/// If the model cannot be read.
pub fn default_group(model: &Path) -> Result<Option<usize>, QuantizeError> {
    Original::open(model)?.default_group()
}

/// Quantises a model.
///
/// # Errors
/// If the model or the scheme is unsuitable, or a file cannot be read or written. What is finished by then
/// stays, and another call goes on from there.
pub fn quantise(request: &Request<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Report, QuantizeError> {
    if let Some(why) = request.scheme.contradiction() {
        return Err(QuantizeError::Refused(why));
    }
    let source = Original::open(request.model)?;
    source.check_shapes(request.scheme)?;
    Job::new(request, &source)?.run(progress)
}
