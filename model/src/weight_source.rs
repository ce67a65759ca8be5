//! Where a device takes a model's matrices from.

use super::adapter::Adapter;
use super::checkpoint::Weights;

/// The weights of a checkpoint, with the adapter that is merged into them, if any.
#[derive(Clone, Copy)]
pub struct WeightSource<'a> {
    /// Tensors as stored.
    pub weights: &'a Weights,
    /// Changes to the matrices.
    pub adapter: Option<&'a Adapter>,
}

impl<'a> WeightSource<'a> {
    /// The weights as they are.
    pub fn without_adapter(weights: &'a Weights) -> Self {
        Self { weights, adapter: None }
    }
}
