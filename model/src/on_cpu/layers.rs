//! Weights of a layer, by role.

use std::collections::HashMap;
use std::ops::Range;

use skein_kernels::cpu::layer_norm::LayerNorm;
use skein_kernels::cpu::matmul::Linear;
use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cpu::packed::Packed;

use crate::LoadError;
use crate::checkpoint::Weights;
use crate::shard::Shard;
use crate::spec::{ExpertsSpec, FeedForwardSpec, NormPlace, QkNorm, Spec};
use crate::state_spec::{Mixer, SpaceSpec, StateSpec};
use crate::tensors::{Kind, Role, Tensor};

/// One layer's weights.
pub(super) struct Layer {
    /// `None` if the input is not normalised.
    pub attention_norm: Option<Norm>,
    pub inputs: AttentionInputs,
    /// Norms of queries and keys: `[head_dim]` each for a norm per head, or the width of all heads. That of
    /// the keys is empty in a layer without keys.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// Norm of values: ones, `[head_dim]`.
    pub v_norm: Option<Vec<f32>>,
    /// A logit without a value for each query head.
    pub sinks: Option<Vec<f32>>,
    /// `None` if nothing mixes tokens.
    pub o: Option<Projection>,
    /// Norm of the output before it is added to the residual stream.
    pub o_norm: Option<Vec<f32>>,
    /// Norm of the residual stream after attention, in models that normalise sums.
    pub attention_sum_norm: Option<Norm>,
    /// `None` if the input is not normalised or shares the attention's norm.
    pub feed_forward_norm: Option<Norm>,
    pub feed_forward: FeedForward,
    /// Norm of the output before it is added to the residual stream.
    pub down_norm: Option<Vec<f32>>,
    /// Norm of the residual stream after the feed-forward network, likewise.
    pub feed_forward_sum_norm: Option<Norm>,
    /// What reads the layer's own input.
    pub input: Option<LayerInputWeights>,
    /// Factor of the residual stream at the layer's end.
    pub scale: Option<f32>,
}

/// Weights of what a layer adds for its own input.
pub(super) struct LayerInputWeights {
    pub gate: Projection,
    pub output: Projection,
    /// Norm of the output before it is added to the residual stream.
    pub norm: Vec<f32>,
}

/// Weights of what mixes a layer's tokens, before the output projection.
pub(super) enum AttentionInputs {
    /// Queries, keys, values.
    Heads(Box<[Projection; 3]>),
    /// The same and the gates of outputs.
    GatedHeads(Box<[Projection; 4]>),
    /// Only queries, for the keys and values of another layer.
    Queries(Box<[Projection; 1]>),
    Latent(Box<Latent>),
    State(Box<State>),
    /// The layer has only a feed-forward network.
    None,
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

/// Weights of a layer with a state, before the output projection.
pub(super) struct State {
    /// What a row is projected to, in the order of the kernel: first what a state remembers and the gates of
    /// outputs, then `rates` logits of how it changes.
    pub inputs: Vec<Projection>,
    pub rates: usize,
    /// Projections of gates and of decays, if the last of the inputs and of the rates are the vectors that
    /// they are projected from.
    pub from_vectors: Option<[Projection; 2]>,
    /// Whether one product can have all of them: their weights have one form.
    pub is_one_product: bool,
    /// `[channels, taps]`
    pub taps: Vec<f32>,
    /// `[channels]`, or empty.
    pub taps_bias: Vec<f32>,
    /// What only states of its kind have.
    pub rule: Rule,
}

/// How the rows of a layer change its state.
pub(super) enum Rule {
    Delta(Delta),
    KeyedDelta(Delta),
    Space(Space),
    Convolution,
}

/// Weights of a gated delta network.
pub(super) struct Delta {
    /// `[value_heads]`
    pub decay_rate: Vec<f32>,
    /// As many as logits of decays.
    pub decay_bias: Vec<f32>,
    /// `[value_dim]`
    pub norm: Vec<f32>,
}

/// Weights of a state space.
pub(super) struct Space {
    /// `[heads]`
    pub decay_rate: Vec<f32>,
    /// `[heads]`
    pub time_bias: Vec<f32>,
    /// `[heads]`
    pub skip: Vec<f32>,
    /// `[values]`
    pub norm: Vec<f32>,
    /// Values that are normalised together.
    pub norm_width: usize,
    pub time_limits: (f32, f32),
    pub eps: f32,
}

/// Weights of a feed-forward network.
pub(super) enum FeedForward {
    Dense(Box<NetworkWeights>),
    Experts(Box<Mixture>),
    /// The layer has none.
    None,
}

/// A mixture of experts.
pub(super) struct Mixture {
    pub router: Projection,
    /// Correction added to the experts' scores before the choice.
    pub correction: Option<Vec<f32>>,
    /// Projections to what experts read and from what they add up to, if they read no whole rows; complete on
    /// every rank.
    pub latent: Option<(Projection, Projection)>,
    /// Experts on this rank.
    pub networks: Vec<Option<NetworkWeights>>,
    /// Shared network and the projection for its weight; complete on every rank.
    pub shared: Option<(NetworkWeights, Option<Projection>)>,
    pub own_norms: Option<MixtureNorms>,
}

/// Norms of a mixture whose parts have their own, and factors of the chosen experts' weights.
pub(super) struct MixtureNorms {
    pub router: Norm,
    pub expert_scales: Vec<f32>,
    pub expert_inputs: Norm,
    pub expert_outputs: Vec<f32>,
    pub shared_outputs: Vec<f32>,
}

/// Weights of one network.
pub(super) struct NetworkWeights {
    /// `None` in an ungated network.
    pub gate: Option<Projection>,
    pub up: Projection,
    pub down: Projection,
}

impl NetworkWeights {
    /// The two matrices that read its input; of an ungated network the same twice.
    pub fn inputs(&self) -> [Linear<'_>; 2] {
        [self.gate.as_ref().unwrap_or(&self.up), &self.up].map(Projection::linear)
    }
}

/// Weights that make the inputs of all layers.
pub(super) struct LayerInputTable {
    /// `[vocab, layers * width]`
    pub table: WeightMatrix,
    /// `[layers * width, hidden]`
    pub projection: Projection,
    /// `[width]`
    pub norm: Vec<f32>,
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
    /// Assembles a layer of the model of `spec` from `parts` of it, those in `shard`.
    pub fn new(parts: &mut Parts, spec: &Spec, shard: &Shard, layer: usize) -> Self {
        let inputs = AttentionInputs::new(parts, spec, shard, layer);
        let mut vector = |role| parts.vector(layer, role);
        let (attention, has_keys) = (spec.attention_of(layer), spec.layers[layer].cache_of.is_none());
        let key_norm = vector(Role::KeyNorm).or_else(|| (!has_keys).then(Vec::new));
        let mut qk_norm = vector(Role::QueryNorm).zip(key_norm);
        let rotation = &spec.rotations[spec.layers[layer].rotation];
        let ones = vec![1.0; attention.head_dim];
        if attention.qk_norm == QkNorm::Unweighted && rotation.is_any() {
            qk_norm = Some((ones.clone(), ones.clone()));
        }
        let output = match spec.layers[layer].mixer {
            Mixer::Attention => Some(Role::AttentionOutput),
            Mixer::State => Some(Role::StateOutput),
            Mixer::None => None,
        };
        let sums = spec.norm.place == NormPlace::Sums;
        let output_norms = [Role::AttentionOutputNorm, Role::FeedForwardOutputNorm];
        let [attention_sum_norm, feed_forward_sum_norm] =
            output_norms.map(|role| if sums { parts.norm(Some(layer), role) } else { None });
        let [o_norm, down_norm] = output_norms.map(|role| parts.vector(layer, role));
        Self {
            attention_norm: parts.norm(Some(layer), Role::AttentionNorm),
            inputs,
            qk_norm,
            v_norm: (attention.has_value_norm && has_keys).then_some(ones),
            sinks: parts.vector(layer, Role::Sinks),
            o: output.map(|role| parts.projection(layer, role)),
            o_norm,
            attention_sum_norm,
            feed_forward_norm: parts.norm(Some(layer), Role::FeedForwardNorm),
            feed_forward: FeedForward::new(parts, spec, layer),
            down_norm,
            feed_forward_sum_norm,
            input: spec.layer_inputs.map(|_| LayerInputWeights {
                gate: parts.projection(layer, Role::LayerInputGate),
                output: parts.projection(layer, Role::LayerInputOutput),
                norm: parts.listed(layer, Role::LayerInputOutputNorm),
            }),
            scale: parts.vector(layer, Role::LayerScale).map(|scale| scale[0]),
        }
    }
}

impl AttentionInputs {
    fn new(parts: &mut Parts, spec: &Spec, shard: &Shard, layer: usize) -> Self {
        if spec.layers[layer].mixer == Mixer::None {
            return Self::None;
        }
        if let (Mixer::State, Some(state)) = (spec.layers[layer].mixer, &spec.state) {
            return Self::State(Box::new(State::new(parts, state, &shard.state_units, layer)));
        }
        if spec.layers[layer].cache_of.is_some() {
            return Self::Queries(Box::new([parts.projection(layer, Role::Query)]));
        }
        if spec.attention.has_gate {
            let roles = [Role::Query, Role::Key, Role::Value, Role::QueryGate];
            return Self::GatedHeads(Box::new(roles.map(|role| parts.projection(layer, role))));
        }
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

impl State {
    /// The part of a state of `spec` with these `units`.
    fn new(parts: &mut Parts, spec: &StateSpec, units: &Range<usize>, layer: usize) -> Self {
        let (inputs, rates): (&[Role], &[Role]) = match spec {
            StateSpec::Delta(_) => (
                &[Role::StateQuery, Role::StateKey, Role::StateValue, Role::StateGate],
                &[Role::StateBeta, Role::StateDecay],
            ),
            StateSpec::KeyedDelta(_) => (
                &[Role::StateQuery, Role::StateKey, Role::StateValue, Role::StateGateDown],
                &[Role::StateBeta, Role::StateDecayDown],
            ),
            StateSpec::Space(_) => {
                (&[Role::StateGate, Role::StateValue, Role::StateKey, Role::StateQuery], &[Role::StateDecay])
            }
            StateSpec::Convolution(_) => (&[Role::StateInputGate, Role::StateGate, Role::StateValue], &[]),
        };
        let all = inputs.iter().chain(rates);
        let inputs: Vec<Projection> = all.map(|role| parts.projection(layer, *role)).collect();
        let form = |of: &Projection| {
            let format = of.weights.layout().format;
            (format.is_integer().then_some(format), of.weights.order().cloned())
        };
        let is_one_product = inputs.iter().all(|other| form(other) == form(&inputs[0]));
        let (taps, from_vectors) = match spec {
            StateSpec::KeyedDelta(_) => {
                let roles = [Role::StateQueryTaps, Role::StateKeyTaps, Role::StateValueTaps];
                let taps = roles.map(|role| parts.listed(layer, role)).concat();
                let of = [Role::StateGate, Role::StateDecay].map(|role| parts.projection(layer, role));
                (taps, Some(of))
            }
            _ => (parts.listed(layer, Role::StateTaps), None),
        };
        let bias = parts.vector(layer, Role::StateTapsBias).unwrap_or_default();
        let rule = match spec {
            StateSpec::Delta(delta) => Rule::Delta(Delta::new(parts, delta.stored.has_negative_rates, layer)),
            StateSpec::KeyedDelta(delta) => {
                Rule::KeyedDelta(Delta::new(parts, delta.has_negative_rates, layer))
            }
            StateSpec::Space(space) => Rule::Space(Space::new(parts, space, layer)),
            StateSpec::Convolution(_) => Rule::Convolution,
        };
        Self {
            inputs,
            rates: rates.len(),
            from_vectors,
            is_one_product,
            taps: own_channels(spec, units, &taps, spec.taps()),
            taps_bias: if bias.is_empty() { bias } else { own_channels(spec, units, &bias, 1) },
            rule,
        }
    }
}

/// Those of `values`, `each` of every channel, that belong to these `units`.
fn own_channels(spec: &StateSpec, units: &Range<usize>, values: &[f32], each: usize) -> Vec<f32> {
    let (mut first, mut own) = (0, Vec::new());
    for wide in spec.channel_runs() {
        let channels = first + units.start * wide..first + units.end * wide;
        own.extend_from_slice(&values[channels.start * each..channels.end * each]);
        first += spec.units() * wide;
    }
    own
}

impl Delta {
    fn new(parts: &mut Parts, has_negative_rates: bool, layer: usize) -> Self {
        Self {
            decay_rate: parts.decay_rates(layer, has_negative_rates),
            decay_bias: parts.listed(layer, Role::StateDecayBias),
            norm: parts.listed(layer, Role::StateNorm),
        }
    }
}

impl Space {
    fn new(parts: &mut Parts, spec: &SpaceSpec, layer: usize) -> Self {
        Self {
            decay_rate: parts.decay_rates(layer, spec.has_negative_rates),
            time_bias: parts.listed(layer, Role::StateDecayBias),
            skip: parts.listed(layer, Role::StateSkip),
            norm: parts.listed(layer, Role::StateNorm),
            norm_width: spec.heads_of_group() * spec.head_dim,
            time_limits: spec.time_limits,
            eps: spec.eps,
        }
    }
}

impl FeedForward {
    fn new(parts: &mut Parts, of: &Spec, layer: usize) -> Self {
        let spec = &of.layers[layer].feed_forward;
        if !spec.exists() {
            return Self::None;
        }
        if let Some(experts) = spec.experts {
            let own_norms = experts.has_own_norms.then(|| MixtureNorms::new(parts, of.hidden_size, layer));
            return Self::Experts(Box::new(Mixture {
                own_norms,
                ..Mixture::new(parts, spec, experts, layer)
            }));
        }
        Self::Dense(Box::new(NetworkWeights {
            gate: spec.is_gated.then(|| parts.projection(layer, Role::Gate)),
            up: parts.projection(layer, Role::Up),
            down: parts.projection(layer, Role::Down),
        }))
    }
}

impl Mixture {
    fn new(parts: &mut Parts, network: &FeedForwardSpec, spec: ExpertsSpec, layer: usize) -> Self {
        let expert = |expert| {
            let at = |role| (Some(layer), Some(expert), role);
            if !parts.has_matrix(at(Role::ExpertUp)) {
                return None; // on another rank
            }
            let mut take = |role| parts.projection_at(at(role));
            let gate = network.is_gated.then(|| take(Role::ExpertGate));
            Some(NetworkWeights { gate, up: take(Role::ExpertUp), down: take(Role::ExpertDown) })
        };
        let networks = (0..spec.count).map(expert).collect();
        let mut take = |role| parts.projection(layer, role);
        let shared = spec.shared.map(|shared| {
            let gate = network.is_gated.then(|| take(Role::SharedGate));
            let network = NetworkWeights { gate, up: take(Role::SharedUp), down: take(Role::SharedDown) };
            (network, shared.is_weighted.then(|| take(Role::SharedRouter)))
        });
        let latent = spec.latent.map(|_| (take(Role::ExpertLatent), take(Role::ExpertLatentOutput)));
        let router = take(Role::Router);
        let correction = parts.vector(layer, Role::RouterCorrection);
        Self { router, latent, networks, shared, correction, own_norms: None }
    }
}

impl MixtureNorms {
    fn new(parts: &mut Parts, hidden_size: usize, layer: usize) -> Self {
        let mut norm = |role| parts.listed(layer, role);
        // The router's rows have length 1.
        let of_length = (hidden_size as f32).powf(-0.5);
        let router = norm(Role::RouterScale).into_iter().map(|scale| scale * of_length).collect();
        Self {
            router: Norm { weight: router, bias: None },
            expert_scales: norm(Role::ExpertScales),
            expert_inputs: Norm { weight: norm(Role::ExpertNorm), bias: None },
            expert_outputs: norm(Role::ExpertOutputNorm),
            shared_outputs: norm(Role::SharedOutputNorm),
        }
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

    /// A vector of a layer, if the model has it.
    pub fn vector(&mut self, layer: usize, role: Role) -> Option<Vec<f32>> {
        self.norms.remove(&(Some(layer), None, role))
    }

    /// A vector of a layer that exists, because [`crate::tensors::all`] lists it.
    pub fn listed(&mut self, layer: usize, role: Role) -> Vec<f32> {
        self.vector(layer, role).unwrap_or_else(|| unreachable!("the list of tensors contains it"))
    }

    /// Rates at which a layer's states decay. Checkpoints store their logarithms, or the rates, negated.
    pub fn decay_rates(&mut self, layer: usize, is_negated: bool) -> Vec<f32> {
        let rate = |stored: f32| if is_negated { -stored } else { f64::from(stored).exp() as f32 };
        self.listed(layer, Role::StateDecayRate).into_iter().map(rate).collect()
    }

    /// A projection outside the layers.
    pub fn outer_projection(&mut self, role: Role) -> Projection {
        self.projection_at((None, None, role))
    }

    pub fn projection(&mut self, layer: usize, role: Role) -> Projection {
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
