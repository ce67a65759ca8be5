//! Ends of a pipeline stage. The first stage looks up embeddings, the last one computes logits; between two
//! stages, the residual stream `[rows, hidden]` in f32 is all that travels.

use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::{CudaError, DeviceSlice, Stream};

use super::activations::Activations;
use super::model::Model;
use super::step::Delta;
use super::weights::NormWeights;
use crate::shard::Shard;
use crate::tensors::Role;

/// Which ends of a model a stage has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageEnds {
    /// Whether it looks up embeddings.
    pub is_first: bool,
    /// Whether it computes logits.
    pub is_last: bool,
}

impl StageEnds {
    /// Ends that the stage of `shard` has.
    pub fn of(shard: &Shard) -> Self {
        Self { is_first: shard.is_first(), is_last: shard.is_last() }
    }
}

impl<T: Activation> Activations<T> {
    /// Residual stream of the first `rows` rows: `[rows, hidden]`.
    pub fn residual(&self, rows: usize, hidden: usize) -> DeviceSlice<f32> {
        self.residual.slice(0..rows * hidden)
    }
}

impl<T: Activation + BlasElement, K: KvElement> Model<T, K> {
    /// Queues the addition of the last layer's output to the residual stream, in the order in which the next
    /// layer's norm would add it.
    pub(super) fn complete_residual(
        &self,
        stream: &Stream,
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        if self.adds_at_the_end() {
            return Ok(()); // the last layer has added it
        }
        let delta = Delta { values: a.delta, ..Delta::NONE };
        self.normalise(stream, a.residual, delta, self.end_norm(), rows, a)
    }

    /// Weights of the norm after the stage's last layer. Before other stages nothing reads its result, only
    /// the residual stream, so any weights do.
    pub(super) fn end_norm(&self) -> NormWeights {
        let weights = &self.weights;
        if self.ends.is_last { weights.norm } else { weights.layers[0].norm(Role::AttentionNorm) }
    }
}
