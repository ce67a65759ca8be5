//! Quantises a model's weights, layer by layer, and writes a directory that other programs read, too.
//!
//! GPTQ and AWQ measure activations on calibration text. The rows that enter a layer come from the layers
//! before it *as quantised*, and lie in a file between two layers, so that memory holds one layer: its packed
//! weights, its statistics, and one matrix in single precision at a time. Finished layers are not repeated.

mod encode;
mod error;
mod job;
mod layer;
pub mod maths;
mod original;
mod output;
mod passes;
mod request;
mod scheme;
mod smooth;
mod statistics;

use std::path::Path;

pub use error::QuantizeError;
use job::Job;
use original::Original;
pub use request::{Phase, Progress, Report, Request};
pub use scheme::{Layout, Method, Scheme};

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
