//! Models on the CPU: weights packed for its kernels, and the operations on them.

pub mod adapter;
mod beside_embedding;
pub mod caches;
pub mod capture;
mod exchange;
mod feed_forward;
mod forward;
mod latent;
mod layer_inputs;
mod layers;
mod load;
mod model;
pub mod pack;
pub mod packed_cache;
mod pooled;
mod products;
pub mod profile;
mod residual;
mod state;
mod step;
mod widened;

pub use load::{check_embeddings, matrices};
pub use model::Model;
pub use step::{Activations, ForwardStep, Located};
