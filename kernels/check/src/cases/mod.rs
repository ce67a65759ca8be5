//! Every kernel against its CPU reference: random inputs, poisoned outputs, a grid of shapes. The same cases
//! run on the emulation (in tests) and on a real device (`skein gpu-check`).

mod activation;
mod attention;
mod attention_sm90;
mod blaslt;
mod block_copy;
mod case;
mod embed;
mod experts;
mod heads;
mod inputs;
mod latent;
mod linear;
mod low_rank;
mod mma;
mod norm;
mod packed;
mod quantize;
mod random;
mod ranks;
mod roofline;
mod rope;
mod sample;
mod sm90;
mod softcap;

pub use case::{Bench, Outcome, Report};

use skein_kernels::cuda::{CudaError, Device};
use std::sync::Arc;

/// Runs every case whose name contains `filter`; calls `on_outcome` after each.
///
/// At [`Scale::Full`], if a case's reference would take minutes, a random part of its results is compared,
/// and the others are only checked to have been written.
pub fn run(
    device: &Arc<Device>,
    scale: Scale,
    seed: u64,
    filter: &str,
    on_outcome: fn(&Outcome),
) -> Result<Report, CudaError> {
    let mut bench = Bench::new(device, scale, seed, filter, on_outcome)?;
    mma::run(&mut bench)?;
    norm::run(&mut bench)?;
    inputs::run(&mut bench)?;
    roofline::run(&mut bench)?;
    embed::run(&mut bench)?;
    rope::run(&mut bench)?;
    sample::run(&mut bench)?;
    softcap::run(&mut bench)?;
    activation::run(&mut bench)?;
    block_copy::run(&mut bench)?;
    random::run(&mut bench)?;
    quantize::run(&mut bench)?;
    blaslt::run(&mut bench)?;
    linear::run(&mut bench)?;
    heads::run(&mut bench)?;
    latent::run(&mut bench)?;
    low_rank::run(&mut bench)?;
    experts::run(&mut bench)?;
    packed::run(&mut bench)?;
    ranks::run(&mut bench)?;
    sm90::run(&mut bench)?;
    attention::run(&mut bench)?;
    attention_sm90::run(&mut bench)?;
    Ok(bench.finish())
}

/// Size of the shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// For the emulation: each case takes milliseconds.
    Small,
    /// Shapes of real models.
    Full,
}
