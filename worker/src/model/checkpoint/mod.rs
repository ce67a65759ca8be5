//! A checkpoint: a model's weights as somebody stored them. This room knows files, not what the tensors in them are for.

mod safetensors;

pub use safetensors::Weights;
