//! Structure of a model: its sizes and the variant of each part. A family creates the spec from its
//! configuration, [`super::tensors`] lists its weights, and a device runs it.

use skein_kernels::cpu::experts::Routing;
use skein_kernels::cpu::rope::{Rotation, Temperature};
use skein_kernels::gate::Gate;

use super::pooled_head::PooledHead;
use super::role::Role;
use super::state_spec::{Mixer, StateSpec};

/// A decoder-only transformer, or an encoder: one whose tokens attend to those after them, too.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Rows of the embedding table; token ids are below this.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Factor of embedding rows.
    pub embedding_scale: f32,
    /// Whether that factor is first rounded to the type of the embedding rows.
    pub rounds_embedding_scale: bool,
    /// Rows that are added to the embeddings by position, if positions are learned.
    pub position_table: Option<PositionTable>,
    /// Number of kinds of text that tokens are of, each with a row that is added to the embeddings; 0 = none.
    pub token_types: usize,
    /// Whether embeddings are normalised.
    pub has_embedding_norm: bool,
    /// Whether a token attends to those after it, too: to all, or with a window to as many as before it. A
    /// step has all rows of a sequence then.
    pub is_bidirectional: bool,
    /// Attention of every layer that attends, or of those without a window. Layers of one shape share a
    /// cache.
    pub attention: AttentionSpec,
    /// Attention of the layers with a window, if it has another shape; see [`Spec::attention_of`]. It has as
    /// many query heads.
    pub windowed_attention: Option<AttentionSpec>,
    /// Longest sequence in which attention reads all positions, if it selects some in longer ones. Only such
    /// sequences are served.
    pub dense_up_to: Option<u32>,
    /// States of the layers that have one instead; one shape. `None` if all layers attend.
    pub state: Option<StateSpec>,
    /// Rotations of queries and keys that layers select from.
    pub rotations: Vec<Rotation>,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
    /// Norm variant of all layers and the head.
    pub norm: NormSpec,
    /// Whether a layer's attention and feed-forward network read the same rows and are both added to them.
    pub is_parallel: bool,
    /// Inputs that layers have besides the residual stream.
    pub layer_inputs: Option<LayerInputSpec>,
    /// Whether each layer multiplies the residual stream by a factor at its end.
    pub has_layer_scales: bool,
    /// Whether the head is the embedding table.
    pub is_tied: bool,
    /// Factor of the logits, before the softcap; multiplied into the last norm's weights.
    pub logits_scale: f32,
    /// Logits become `softcap * tanh(logit / softcap)`.
    pub logits_softcap: Option<f32>,
    /// What it computes instead of logits, if it gives vectors of prompts.
    pub pooled: Option<PooledHead>,
    /// Names of tensors in the checkpoint; see [`super::tensors`].
    pub names: Names,
    /// The form that adapters are made for, if the checkpoint has another.
    pub published: Option<Published>,
}

/// Learned positions (Gehring et al. 2017).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionTable {
    /// Rows of the table.
    pub rows: usize,
    /// Row of position 0.
    pub first: usize,
}

/// How the published checkpoint of a converted model names its tensors and orders its heads.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// Names of tensors.
    pub names: Names,
    /// Which values of a head are rotated together.
    pub pairs: HeadPairs,
    /// How it stores states.
    pub state: Option<StateSpec>,
}

impl Spec {
    /// The spec of the published checkpoint, whose names and heads adapters have.
    pub fn as_published(&self) -> Self {
        let mut spec = self.clone();
        if let Some(Published { names, pairs, state }) = self.published {
            (spec.names, spec.attention.pairs, spec.state) = (names, pairs, state);
        }
        spec
    }
}

/// Names of a role's tensor in checkpoints for [`super::tensors`]; the first that exists is used.
pub type Names = fn(Role) -> &'static [&'static str];

/// Grouped-query attention (Ainslie et al. 2023) with rotary positions (Su et al. 2021).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values per cached key, and so per query; even.
    pub head_dim: usize,
    /// Latent attention: all heads read one key, the layer's latent.
    pub latent: Option<LatentSpec>,
    /// Factor of the attention scores.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Whether queries, keys and values have biases.
    pub has_bias: bool,
    /// Whether the output projection has a bias.
    pub has_output_bias: bool,
    /// Whether queries and keys are normalised before rotation.
    pub qk_norm: QkNorm,
    /// Whether values are normalised head by head, without weights.
    pub has_value_norm: bool,
    /// Whether values have the matrix of the keys.
    pub has_keys_as_values: bool,
    /// Which values of a head are rotated together.
    pub pairs: HeadPairs,
    /// Whether each query head has a sink, a logit without a value that takes part in the softmax (Xiao et
    /// al. 2023).
    pub has_sinks: bool,
    /// Whether each head's output is multiplied by the sigmoid of a gate. The checkpoint's query projection
    /// has the gate of each head after its query.
    pub has_gate: bool,
}

/// Multi-head latent attention (DeepSeek-AI 2024). A token's keys and values of all heads are products of one
/// latent vector, besides a part of the key that is rotated and the same for all heads. Latent and rotated
/// part are the only cached key. Queries are multiplied by the heads' key matrices instead, and what they
/// attend to by the heads' value matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentSpec {
    /// Width of the normalised vector from which queries are projected; `None` = the layer's input.
    pub query_rank: Option<usize>,
    /// Width of the latent vector.
    pub rank: usize,
    /// Values of a query that are not rotated.
    pub plain: usize,
    /// Values of a query that are rotated; even.
    pub rotated: usize,
    /// Values of a head's output.
    pub value_dim: usize,
    /// Added to the mean square in the norms of latent and query vector.
    pub eps: f32,
}

impl LatentSpec {
    /// Values of a head's query as projected.
    pub fn query_dim(&self) -> usize {
        self.plain + self.rotated
    }

    /// Width of a row of `[latent | rotated key | queries of `heads` heads, or the vector from which they are
    /// projected]`.
    pub fn input_width(&self, heads: usize) -> usize {
        self.rank + self.rotated + self.query_rank.unwrap_or(heads * self.query_dim())
    }

    /// Index in the checkpoint of each value of `plain` values and the rotated ones after them; `None` if the
    /// order is the same.
    pub fn order(&self, plain: usize, is_interleaved: bool) -> Option<Vec<usize>> {
        let pairs = HeadPairs { rotated: self.rotated, is_interleaved };
        let rotated = pairs.order(self.rotated)?;
        Some((0..plain).chain(rotated.into_iter().map(|i| plain + i)).collect())
    }
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// Queries and keys are not normalised.
    None,
    /// One norm per head, with weights shared by all heads.
    Heads,
    /// One norm per head without weights, in layers that rotate.
    Unweighted,
    /// One norm over all heads of a row.
    Row,
}

/// Which values of the checkpoint's heads are rotated together. Devices rotate value `i` with value `i +
/// head_dim / 2`, so heads in other layouts are reordered at load. Scores do not change, because queries and
/// keys are reordered alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPairs {
    /// Number of values at the start of a head that are rotated; even.
    pub rotated: usize,
    /// Whether pairs are adjacent; otherwise they are `rotated / 2` apart.
    pub is_interleaved: bool,
}

impl HeadPairs {
    /// Index in the checkpoint's head of each value of a device's head; `None` if the order is the same.
    pub fn order(self, head_dim: usize) -> Option<Vec<usize>> {
        let Self { rotated, is_interleaved } = self;
        if rotated == head_dim && !is_interleaved {
            return None;
        }
        let (pairs, half) = (rotated / 2, head_dim / 2);
        let first = |pair: usize| match pair {
            _ if pair >= pairs => rotated + pair - pairs,
            _ if is_interleaved => 2 * pair,
            _ => pair,
        };
        let second = |pair: usize| match pair {
            _ if pair >= pairs => rotated + half - pairs + pair - pairs,
            _ if is_interleaved => 2 * pair + 1,
            _ => pairs + pair,
        };
        Some((0..half).map(first).chain((0..half).map(second)).collect())
    }
}

/// Properties that vary by layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// Whether its input is normalised before attention, in models that normalise inputs.
    pub has_attention_norm: bool,
    /// What mixes its tokens. Window, temperature and rotation are of attention only.
    pub mixer: Mixer,
    /// A token attends to itself and the `window - 1` tokens before it; `None` = to all before it. In a
    /// bidirectional model likewise to those after it.
    pub window: Option<u32>,
    /// Whether windows do not slide: a token attends to those from the last multiple of the window on.
    pub is_chunked: bool,
    /// Scale of queries by their position (Nakanishi 2025), if any.
    pub temperature: Option<Temperature>,
    /// Index of the layer's rotation in [`Spec::rotations`].
    pub rotation: usize,
    /// Earlier layer of the same shape and window whose keys and values it reads, instead of its own.
    pub cache_of: Option<usize>,
    /// Feed-forward network of the layer; see [`FeedForwardSpec::NONE`].
    pub feed_forward: FeedForwardSpec,
}

impl LayerSpec {
    /// Whether it writes keys and values, or a state.
    pub(crate) fn has_memory(&self) -> bool {
        self.mixer != Mixer::None && self.cache_of.is_none()
    }
}

/// A feed-forward network: gated, `down(activation(gate(x)) * up(x))` (Shazeer 2020), or ungated,
/// `down(activation(up(x)))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardSpec {
    /// Activation of the gate, or of `up` without a gate.
    pub activation: Gate,
    /// Whether the network has a gate.
    pub is_gated: bool,
    /// Outputs of gate and up; 0 if there is no network.
    pub inner_size: usize,
    /// Whether gate and up have biases.
    pub has_bias: bool,
    /// Whether down has a bias.
    pub has_output_bias: bool,
    /// Whether up comes before the gate in a tensor that holds both.
    pub is_up_first: bool,
    /// Mixture of such networks, of which each row uses some; `None` = a single network.
    pub experts: Option<ExpertsSpec>,
}

impl FeedForwardSpec {
    /// That of a layer which has only a mixer.
    pub const NONE: Self = Self {
        activation: Gate::Silu,
        is_gated: false,
        inner_size: 0,
        has_bias: false,
        has_output_bias: false,
        is_up_first: false,
        experts: None,
    };

    /// The same with biases of all matrices, or none.
    pub fn with_bias(self, has_bias: bool) -> Self {
        Self { has_bias, has_output_bias: has_bias, ..self }
    }

    /// Whether there is a network.
    pub fn exists(&self) -> bool {
        self.inner_size > 0
    }
}

/// Sparse mixture of feed-forward networks (Shazeer et al. 2017).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Selection and weighting of a row's experts.
    pub routing: Routing,
    /// Whether scores are corrected before the selection.
    pub has_correction: bool,
    /// Whether the router and the experts' matrices have biases.
    pub has_bias: bool,
    /// Order of values in a tensor that holds all experts.
    pub fused: Fused,
    /// Shared network that all rows use besides their experts.
    pub shared: Option<SharedSpec>,
    /// Width of the projection of a row that experts read, and of what they add up to before it is projected
    /// back; `None` = they read and write whole rows. The router and the shared network read whole rows.
    pub latent: Option<usize>,
    /// Whether router, experts and shared network each have a norm of their inputs, and experts and shared
    /// network one of their outputs. The chosen experts' weights are multiplied by a factor each, and the
    /// router's norm has the factor `hidden_size^-0.5`.
    pub has_own_norms: bool,
}

/// Inputs of layers besides the residual stream (Gemma 3n): for each token and layer a looked-up row, and as
/// many values projected from the token's embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerInputSpec {
    /// Values of an input.
    pub width: usize,
    /// Rows of the table; not fewer than the vocabulary has.
    pub vocab_size: usize,
}

/// Order of values in a tensor that holds the matrices of all experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fused {
    /// Rows are outputs; those of the gate come before those of up.
    Outputs,
    /// Rows are inputs; columns of the gate come before those of up.
    Inputs,
    /// Rows are inputs, and columns of gate and up alternate. In quantised checkpoints rows are outputs and
    /// alternate likewise.
    Alternating,
}

/// Shared network of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedSpec {
    /// Outputs of gate and up.
    pub inner_size: usize,
    /// Whether its output is multiplied by the sigmoid of a logit per row.
    pub is_weighted: bool,
}

/// Norms of attention, feed-forward networks and head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Formula of the norm.
    pub kind: NormKind,
    /// Added to the mean square or to the variance.
    pub eps: f32,
    /// Added to the stored weights before use.
    pub offset: f32,
    /// Which values of a layer are normalised.
    pub place: NormPlace,
}

/// Formula of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// RMS normalisation (Zhang & Sennrich 2019).
    Rms,
    /// Layer normalisation (Ba et al. 2016).
    Layer {
        /// Whether it has biases.
        has_bias: bool,
    },
}

/// Which values of attention and feed-forward network are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlace {
    /// Only the inputs of both parts.
    Inputs,
    /// Outputs only, before they are added to the residual stream.
    Outputs,
    /// Inputs and outputs.
    Both,
    /// What a part's output was added to: the residual stream is normalised after each part (Vaswani et al.
    /// 2017), and not again at the end.
    Sums,
}

impl NormPlace {
    /// Whether inputs are normalised.
    pub fn has_inputs(self) -> bool {
        matches!(self, Self::Inputs | Self::Both)
    }

    /// Whether outputs are normalised.
    pub fn has_outputs(self) -> bool {
        matches!(self, Self::Outputs | Self::Both)
    }
}

impl AttentionSpec {
    /// Width of a row's queries over all heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of a row's keys, and of its values, over all KV heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Values of a head's output, before the output projection.
    pub fn value_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.value_dim)
    }

    /// Values of a head's query as projected.
    pub fn query_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.query_dim())
    }

    /// Pairs of values that a rotation has angles for.
    pub fn pairs(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.rotated) / 2
    }

    /// Width of a row's gates of outputs.
    pub fn gate_width(&self) -> usize {
        if self.has_gate { self.q_width() } else { 0 }
    }

    /// Width of a row's queries, keys, values and gates, which are stored one after the other; with latent
    /// attention [`LatentSpec::input_width`].
    pub fn qkv_width(&self) -> usize {
        match &self.latent {
            None => self.q_width() + 2 * self.kv_width() + self.gate_width(),
            Some(latent) => latent.input_width(self.heads),
        }
    }

    /// Cached rows of a head and token: key and value, or only the key, whose start is the value.
    pub fn cached_rows(&self) -> usize {
        if self.latent.is_some() { 1 } else { 2 }
    }
}

impl Spec {
    /// Whether rows are normalised after the last layer.
    pub fn has_last_norm(&self) -> bool {
        self.norm.place != NormPlace::Sums
    }

    /// Most positions of a sequence, if the tables limit them.
    pub fn most_positions(&self) -> Option<u32> {
        let by_table = self.position_table.map(|table| (table.rows - table.first) as u32);
        self.dense_up_to.into_iter().chain(by_table).min()
    }

    /// Tokens after its own that a token of `layer` attends to, as far as there are any.
    pub fn ahead_of(&self, layer: usize) -> u32 {
        match (self.is_bidirectional, self.layers[layer].window) {
            (false, _) => 0,
            (true, None) => u32::MAX,
            (true, Some(window)) => window - 1,
        }
    }

    /// Width of the widest feed-forward network.
    pub fn inner_size(&self) -> usize {
        self.layers.iter().map(|layer| layer.feed_forward.inner_size).max().unwrap_or_default()
    }

    /// Attention of a layer that attends.
    pub fn attention_of(&self, layer: usize) -> &AttentionSpec {
        self.attention_of_layer(&self.layers[layer])
    }

    /// Like [`attention_of`](Self::attention_of).
    pub(crate) fn attention_of_layer(&self, layer: &LayerSpec) -> &AttentionSpec {
        self.windowed_attention.as_ref().filter(|_| layer.window.is_some()).unwrap_or(&self.attention)
    }

    /// The shapes of attention that layers have.
    pub fn attention_shapes(&self) -> impl Iterator<Item = &AttentionSpec> {
        std::iter::once(&self.attention).chain(&self.windowed_attention)
    }

    /// Width of the values that a layer projects from its input rows: a layer that reads another's cache has
    /// only queries.
    pub fn qkv_width_of(&self, layer: usize) -> usize {
        let attention = self.attention_of(layer);
        if self.layers[layer].cache_of.is_some() { attention.q_width() } else { attention.qkv_width() }
    }

    /// Angles of a row in the rotations before this one; of all with the number of rotations.
    pub fn angles_before(&self, rotation: usize) -> usize {
        self.rotations[..rotation].iter().map(|rotation| rotation.frequencies.len()).sum()
    }

    /// Layers that write keys and values to a cache.
    pub(crate) fn caching_layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().filter(|layer| layer.mixer == Mixer::Attention && layer.cache_of.is_none())
    }

    /// Number of layers that write to a KV cache.
    pub fn attention_layers(&self) -> usize {
        self.caching_layers().count()
    }

    /// Number of layers with a state.
    pub fn state_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.mixer == Mixer::State).count()
    }

    /// Number of layers with a window that write to a KV cache.
    pub fn windowed_layers(&self) -> usize {
        self.caching_layers().filter(|layer| layer.window.is_some()).count()
    }

    /// The longest window of any layer; `None` if no layer has one.
    pub fn longest_window(&self) -> Option<u32> {
        self.layers.iter().filter_map(|layer| layer.window).max()
    }

    /// Width of the widest expert's inputs and outputs; 0 without experts.
    pub(crate) fn expert_width(&self) -> usize {
        let experts = self.layers.iter().filter_map(|layer| layer.feed_forward.experts);
        experts.map(|experts| experts.latent.unwrap_or(self.hidden_size)).max().unwrap_or_default()
    }

    /// Most experts in a layer, and most per row; both 0 without experts.
    pub fn experts(&self) -> (usize, usize) {
        let experts = self.layers.iter().filter_map(|layer| layer.feed_forward.experts);
        experts.fold((0, 0), |(count, per_token), experts| {
            (experts.count.max(count), experts.routing.per_token.max(per_token))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rotated: usize, is_interleaved: bool, expected: Option<&[usize]>) {
        assert_eq!(HeadPairs { rotated, is_interleaved }.order(8).as_deref(), expected);
    }

    #[test]
    fn rotated_pairs_come_first_and_lie_half_a_head_apart() {
        check(8, false, None);
        check(8, true, Some(&[0, 2, 4, 6, 1, 3, 5, 7]));
        check(4, false, Some(&[0, 1, 4, 5, 2, 3, 6, 7]));
        check(4, true, Some(&[0, 2, 4, 5, 1, 3, 6, 7]));
        check(6, false, Some(&[0, 1, 2, 6, 3, 4, 5, 7]));
    }
}
