//! Weights of a layer, by role.

use std::collections::HashMap;

use skein_kernels::cpu::layer_norm::LayerNorm;
use skein_kernels::cpu::matmul::Linear;
use skein_kernels::cpu::packed::Packed;

use crate::LoadError;
use crate::checkpoint::Weights;
use crate::shard::Shard;
use crate::spec::{ExpertsSpec, FeedForwardSpec, QkNorm, Spec};
use crate::tensors::{Kind, Role, Tensor};

/// One layer's weights.
pub(super) struct Layer {
    /// `None` if the input is not normalised.
    pub attention_norm: Option<Norm>,
    pub inputs: AttentionInputs,
    /// Norms of queries and keys: `[head_dim]` each for a norm per head, or the width of all heads.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// A logit without a value for each query head.
    pub sinks: Option<Vec<f32>>,
    pub o: Projection,
    /// Norm of the output before it is added to the residual stream.
    pub o_norm: Option<Vec<f32>>,
    /// `None` if the input is not normalised or shares the attention's norm.
    pub feed_forward_norm: Option<Norm>,
    pub feed_forward: FeedForward,
    /// Norm of the output before it is added to the residual stream.
    pub down_norm: Option<Vec<f32>>,
}

/// Weights of queries, keys and values.
pub(super) enum AttentionInputs {
    /// Queries, keys, values.
    Heads(Box<[Projection; 3]>),
    Latent(Box<Latent>),
}

/// Weights of latent attention.
pub(super) struct Latent {
    /// Latent with the rotated part of the key, then queries, or the vector from which they are projected.
    pub inputs: [Projection; 2],
    pub norm: Vec<f32>,
    /// Norm of that vector, and projection of the queries.
    pub query: Option<(Vec<f32>, Projection)>,
    /// The queries' matrices of this rank's heads.
    pub keys: Vec<Projection>,
    /// The outputs' matrices of this rank's heads.
    pub values: Vec<Projection>,
}

/// Weights of a feed-forward network.
pub(super) enum FeedForward {
    Gated(GatedNetwork),
    /// `up` and `down` of an ungated network.
    Plain(Projection, Projection),
    Experts(Box<Mixture>),
}

/// A mixture of experts.
pub(super) struct Mixture {
    pub router: Projection,
    /// Correction added to the experts' scores before the choice.
    pub correction: Option<Vec<f32>>,
    /// Experts on this rank.
    pub networks: Vec<Option<GatedNetwork>>,
    /// Shared network and the projection for its weight; complete on every rank.
    pub shared: Option<(GatedNetwork, Option<Projection>)>,
}

pub(super) struct GatedNetwork {
    pub gate: Projection,
    pub up: Projection,
    pub down: Projection,
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

/// Weights of a norm over rows.
pub(super) struct Norm {
    pub weight: Vec<f32>,
    /// Bias; only layer normalisation may have one.
    pub bias: Option<Vec<f32>>,
}

impl Norm {
    pub fn as_layer_norm(&self, eps: f32) -> LayerNorm<'_> {
        LayerNorm { weight: &self.weight, bias: self.bias.as_deref(), eps }
    }
}

impl Layer {
    /// Assembles a layer from `parts`.
    pub fn new(parts: &mut Parts, spec: &Spec, layer: usize) -> Self {
        let inputs = AttentionInputs::new(parts, spec, layer);
        let mut vector = |role| parts.vector(layer, role);
        let mut qk_norm = vector(Role::QueryNorm).zip(vector(Role::KeyNorm));
        let rotation = &spec.rotations[spec.layers[layer].rotation];
        if spec.attention.qk_norm == QkNorm::Unweighted && rotation.is_any() {
            let ones = vec![1.0; spec.attention.head_dim];
            qk_norm = Some((ones.clone(), ones));
        }
        let (o_norm, down_norm) = (vector(Role::AttentionOutputNorm), vector(Role::FeedForwardOutputNorm));
        Self {
            attention_norm: parts.norm(Some(layer), Role::AttentionNorm),
            inputs,
            qk_norm,
            sinks: parts.vector(layer, Role::Sinks),
            o: parts.projection(layer, Role::AttentionOutput),
            o_norm,
            feed_forward_norm: parts.norm(Some(layer), Role::FeedForwardNorm),
            feed_forward: FeedForward::new(parts, &spec.layers[layer].feed_forward, layer),
            down_norm,
        }
    }
}

impl AttentionInputs {
    fn new(parts: &mut Parts, spec: &Spec, layer: usize) -> Self {
        let Some(latent) = spec.attention.latent else {
            let roles = [Role::Query, Role::Key, Role::Value];
            return Self::Heads(Box::new(roles.map(|role| parts.projection(layer, role))));
        };
        let query = if latent.query_rank.is_some() { Role::QueryDown } else { Role::Query };
        let inputs = [Role::Latent, query].map(|role| parts.projection(layer, role));
        let norm = parts.vector(layer, Role::LatentNorm);
        let norm = norm.unwrap_or_else(|| unreachable!("the list of tensors contains it"));
        let query = parts.vector(layer, Role::QueryNorm);
        let query = query.map(|norm| (norm, parts.projection(layer, Role::QueryUp)));
        let mut of_heads = |role| -> Vec<Projection> {
            let at = |head| (Some(layer), Some(head), role);
            let own = (0..spec.attention.heads).filter(|head| parts.has_matrix(at(*head)));
            let own: Vec<usize> = own.collect();
            own.into_iter().map(|head| parts.projection_at(at(head))).collect()
        };
        let (keys, values) = (of_heads(Role::HeadKey), of_heads(Role::HeadValue));
        Self::Latent(Box::new(Latent { inputs, norm, query, keys, values }))
    }
}

impl FeedForward {
    fn new(parts: &mut Parts, spec: &FeedForwardSpec, layer: usize) -> Self {
        if let Some(experts) = spec.experts {
            return Self::Experts(Box::new(Mixture::new(parts, experts, layer)));
        }
        let (up, down) = (parts.projection(layer, Role::Up), parts.projection(layer, Role::Down));
        if spec.is_gated {
            Self::Gated(GatedNetwork { gate: parts.projection(layer, Role::Gate), up, down })
        } else {
            Self::Plain(up, down)
        }
    }
}

impl Mixture {
    fn new(parts: &mut Parts, spec: ExpertsSpec, layer: usize) -> Self {
        let expert = |expert| {
            let at = |role| (Some(layer), Some(expert), role);
            if !parts.has_matrix(at(Role::ExpertGate)) {
                return None; // on another rank
            }
            let mut take = |role| parts.projection_at(at(role));
            let (gate, up) = (take(Role::ExpertGate), take(Role::ExpertUp));
            Some(GatedNetwork { gate, up, down: take(Role::ExpertDown) })
        };
        let networks = (0..spec.count).map(expert).collect();
        let mut take = |role| parts.projection(layer, role);
        let shared = spec.shared.map(|shared| {
            let (gate, up) = (take(Role::SharedGate), take(Role::SharedUp));
            let network = GatedNetwork { gate, up, down: take(Role::SharedDown) };
            (network, shared.is_weighted.then(|| take(Role::SharedRouter)))
        });
        let router = take(Role::Router);
        Self { router, networks, shared, correction: parts.vector(layer, Role::RouterCorrection) }
    }
}

/// Layer (`None` outside layers), expert or head of a tensor that belongs to one, and role.
type At = (Option<usize>, Option<usize>, Role);

/// Weights that were read but are not yet assigned to a layer.
pub(super) struct Parts {
    matrices: HashMap<At, Packed>,
    biases: HashMap<At, Vec<f32>>,
    norms: HashMap<At, Vec<f32>>,
}

impl Parts {
    /// Reads this rank's part of all vectors in `tensors`.
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
                Kind::Bias(..) | Kind::NormBias => &mut parts.biases,
                Kind::Norm | Kind::Values => &mut parts.norms,
            };
            let part = shard.part(spec, tensor);
            if !part.is_empty() {
                to.insert(at(tensor), tensor.read(spec, weights)?[part.rows].to_vec());
            }
        }
        Ok(parts)
    }

    /// Adds the packed form of `tensors`.
    pub fn add<'a>(&mut self, tensors: impl Iterator<Item = &'a Tensor>, packed: Vec<Packed>) {
        self.matrices.extend(tensors.map(at).zip(packed));
    }

    fn has_matrix(&self, at: At) -> bool {
        self.matrices.contains_key(&at)
    }

    pub fn matrix(&mut self, layer: Option<usize>, role: Role) -> Packed {
        self.matrix_at((layer, None, role))
    }

    /// Weights of a norm, if the model has it.
    pub fn norm(&mut self, layer: Option<usize>, role: Role) -> Option<Norm> {
        let at = (layer, None, role);
        Some(Norm { weight: self.norms.remove(&at)?, bias: self.biases.remove(&at) })
    }

    fn vector(&mut self, layer: usize, role: Role) -> Option<Vec<f32>> {
        self.norms.remove(&(Some(layer), None, role))
    }

    fn projection(&mut self, layer: usize, role: Role) -> Projection {
        self.projection_at((Some(layer), None, role))
    }

    fn projection_at(&mut self, at: At) -> Projection {
        Projection { weights: self.matrix_at(at), bias: self.biases.remove(&at) }
    }

    /// A matrix that exists, because [`crate::tensors::all`] lists it.
    fn matrix_at(&mut self, at: At) -> Packed {
        self.matrices.remove(&at).unwrap_or_else(|| unreachable!("the list of tensors contains it"))
    }
}

fn at(tensor: &Tensor) -> At {
    (tensor.layer, tensor.expert.or(tensor.head), tensor.role)
}
