//! A checkpoint: a model's weights in files. This room knows files, but not what their tensors are for.

pub mod quantised;
mod safetensors;

pub use safetensors::Weights;
