//! Models on a CUDA device: the operations queue kernels on a stream.
//!
//! The residual stream is f32, all other activations are `T`. A projection's output stays in `delta` until
//! the next normalisation adds it to the residual stream, so both take one pass over memory.

mod activations;
pub mod adapter;
pub mod attention;
pub mod cache;
pub mod dummy;
pub mod exchange;
pub mod experts;
pub mod latent;
mod latent_attention;
mod mixture;
mod model;
pub mod network;
pub mod origin;
pub mod packed;
pub mod place;
pub mod rank_tensor;
pub mod stage;
mod step;
pub mod weights;

pub use activations::{Activations, StepRows, Workspace};
pub use model::{LogitRows, Model, Ops, launches, launches_of_adapters};
