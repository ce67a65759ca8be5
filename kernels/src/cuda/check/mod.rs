//! Every kernel against its CPU reference: fresh random inputs, poisoned outputs, a grid of shapes. The same cases run
//! under the emulation (in tests) and on a real device (`skein gpu-check`).

mod case;
mod norm;

pub use case::{Bench, Outcome, Report};

use crate::cuda::{CudaError, Device};
use std::sync::Arc;

/// Runs every case whose name contains `filter`.
pub fn run(device: &Arc<Device>, scale: Scale, seed: u64, filter: &str) -> Result<Report, CudaError> {
    let mut bench = Bench::new(device, scale, seed, filter)?;
    norm::run(&mut bench)?;
    Ok(bench.finish())
}

/// How large the shapes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// For the emulation: each case takes milliseconds.
    Small,
    /// Shapes of real models.
    Full,
}
