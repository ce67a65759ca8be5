//! What is asked of a run, and what it reports.

use std::path::Path;

use super::scheme::Scheme;

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
