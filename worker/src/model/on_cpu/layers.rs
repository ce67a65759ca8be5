//! A layer's weights, by role.

use std::collections::HashMap;

use skein_kernels::cpu::matmul::Linear;
use skein_kernels::cpu::packed::Packed;

use crate::model::LoadError;
use crate::model::checkpoint::Weights;
use crate::model::spec::Spec;
use crate::model::tensors::{Kind, Role, Tensor};
use crate::shard::Shard;

/// One layer's weights.
pub(super) struct Layer {
    pub attention_norm: Vec<f32>,
    pub q: Projection,
    pub k: Projection,
    pub v: Projection,
    /// `[head_dim]` each: normalise queries and keys head by head.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    pub o: Projection,
    /// Normalises the output before it is added to the residual stream.
    pub o_norm: Option<Vec<f32>>,
    pub feed_forward_norm: Vec<f32>,
    pub gate: Projection,
    pub up: Projection,
    pub down: Projection,
    /// Normalises the output before it is added to the residual stream.
    pub down_norm: Option<Vec<f32>>,
}

/// A matrix and its bias.
pub(super) struct Projection {
    weights: Packed,
    bias: Option<Vec<f32>>,
}

impl Projection {
    pub fn linear(&self) -> Linear<'_> {
        Linear { weights: &self.weights, bias: self.bias.as_deref() }
    }
}

impl Layer {
    /// Takes the layer's weights out of `parts`.
    pub fn new(parts: &mut Parts, layer: usize) -> Self {
        let at = Some(layer);
        let qk_norm = parts.optional_norm(at, Role::QueryNorm).zip(parts.optional_norm(at, Role::KeyNorm));
        Self {
            attention_norm: parts.norm(at, Role::AttentionNorm),
            q: parts.projection(layer, Role::Query),
            k: parts.projection(layer, Role::Key),
            v: parts.projection(layer, Role::Value),
            qk_norm,
            o: parts.projection(layer, Role::AttentionOutput),
            o_norm: parts.optional_norm(at, Role::AttentionOutputNorm),
            feed_forward_norm: parts.norm(at, Role::FeedForwardNorm),
            gate: parts.projection(layer, Role::Gate),
            up: parts.projection(layer, Role::Up),
            down: parts.projection(layer, Role::Down),
            down_norm: parts.optional_norm(at, Role::FeedForwardOutputNorm),
        }
    }
}

/// A layer, `None` outside the layers, and a role.
type At = (Option<usize>, Role);

/// Weights that were read but not yet assigned to a layer.
pub(super) struct Parts {
    matrices: HashMap<At, Packed>,
    biases: HashMap<At, Vec<f32>>,
    norms: HashMap<At, Vec<f32>>,
}

impl Parts {
    /// Reads the rank's part of all vectors among `tensors`.
    pub fn read(
        spec: &Spec,
        shard: &Shard,
        tensors: &[Tensor],
        weights: &Weights,
    ) -> Result<Self, LoadError> {
        let mut parts = Self { matrices: HashMap::new(), biases: HashMap::new(), norms: HashMap::new() };
        for tensor in tensors {
            let to = match tensor.kind {
                Kind::Table | Kind::Matrix(..) => continue,
                Kind::Bias(..) => &mut parts.biases,
                Kind::Norm => &mut parts.norms,
            };
            let values = tensor.read(spec, weights)?[shard.part(spec, tensor).rows].to_vec();
            to.insert((tensor.layer, tensor.role), values);
        }
        Ok(parts)
    }

    /// Adds the packed form of `tensors`.
    pub fn add(&mut self, tensors: &[&Tensor], packed: Vec<Packed>) {
        self.matrices.extend(tensors.iter().map(|tensor| (tensor.layer, tensor.role)).zip(packed));
    }

    pub fn matrix(&mut self, layer: Option<usize>, role: Role) -> Packed {
        listed(self.matrices.remove(&(layer, role)))
    }

    pub fn norm(&mut self, layer: Option<usize>, role: Role) -> Vec<f32> {
        listed(self.optional_norm(layer, role))
    }

    fn optional_norm(&mut self, layer: Option<usize>, role: Role) -> Option<Vec<f32>> {
        self.norms.remove(&(layer, role))
    }

    fn projection(&mut self, layer: usize, role: Role) -> Projection {
        let weights = self.matrix(Some(layer), role);
        Projection { weights, bias: self.biases.remove(&(Some(layer), role)) }
    }
}

/// Unwraps a part that every model has, because [`crate::model::tensors::all`] lists it.
fn listed<T>(part: Option<T>) -> T {
    part.unwrap_or_else(|| unreachable!("it is in the list of tensors"))
}
