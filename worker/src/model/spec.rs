//! What a model computes: its sizes and the variant of each part. A family makes a spec from its
//! configuration, [`super::tensors`] lists its weights, and a device runs it.

use skein_kernels::cpu::experts::Routing;
use skein_kernels::cpu::rope::Rotation;
use skein_kernels::gate::Gate;

use super::tensors::Role;

/// A decoder-only transformer.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Rows of the embedding table; token ids are below it.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Factor for embedding rows.
    pub embedding_scale: f32,
    /// Whether that factor is rounded to the type of the embedding rows first.
    pub rounds_embedding_scale: bool,
    /// Attention of every layer: the cache has one shape.
    pub attention: AttentionSpec,
    /// The rotations of queries and keys that layers choose from.
    pub rotations: Vec<Rotation>,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
    /// Shared by all normalisations.
    pub norm: NormSpec,
    /// Whether attention and feed-forward network of a layer read the same rows, and both are added to them.
    pub is_parallel: bool,
    /// Whether the head is the embedding table.
    pub is_tied: bool,
    /// Factor for logits, applied before the softcap; multiplied into the last normalisation's weights.
    pub logits_scale: f32,
    /// Logits become `softcap * tanh(logit / softcap)`.
    pub logits_softcap: Option<f32>,
    /// The checkpoint's names of a tensor; see [`super::tensors`].
    pub names: Names,
}

/// Names of a role's tensor in checkpoints, as [`super::tensors`] reads them; the first that exists is used.
pub type Names = fn(Role) -> &'static [&'static str];

/// Grouped-query attention (Ainslie et al. 2023) with rotary positions (Su et al. 2021).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values in a head; even.
    pub head_dim: usize,
    /// Factor for the scores.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Whether queries, keys and values have biases.
    pub has_bias: bool,
    /// Whether the output projection has a bias.
    pub has_output_bias: bool,
    /// Whether queries and keys are normalised before rotation.
    pub qk_norm: QkNorm,
    /// Which values of a head are rotated together.
    pub pairs: HeadPairs,
}

/// Normalisation of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head on its own, all with the same weights.
    Heads,
    /// All heads of a row together.
    Row,
}

/// The pairs of values in a checkpoint's heads that are rotated. Devices rotate value `i` with value `i +
/// head_dim / 2`, so heads of other layouts are reordered at load. Scores do not change: queries and keys
/// have the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPairs {
    /// Values at the start of a head that are rotated; even.
    pub rotated: usize,
    /// Whether pairs are adjacent; otherwise they are `rotated / 2` apart.
    pub is_interleaved: bool,
}

impl HeadPairs {
    /// Index in the checkpoint's head of each value of a head on the device; `None` if they have the same
    /// order.
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

/// Properties that may differ between layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// A token attends to itself and the `window - 1` before it; `None` = to all before it. The cache keeps
    /// all of them.
    pub window: Option<u32>,
    /// Index of its rotation among [`Spec::rotations`].
    pub rotation: usize,
    /// The feed-forward network.
    pub feed_forward: FeedForwardSpec,
}

/// A feed-forward network: gated, `down(activation(gate(x)) * up(x))` (Shazeer 2020), or `down(activation(up
/// (x)))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardSpec {
    /// Activation of the gate, or of up if there is none.
    pub activation: Gate,
    /// Whether it has a gate.
    pub is_gated: bool,
    /// Outputs of gate and up.
    pub inner_size: usize,
    /// Whether its matrices have biases.
    pub has_bias: bool,
    /// If there are several such networks, of which each row uses some.
    pub experts: Option<ExpertsSpec>,
}

/// A sparse mixture of feed-forward networks (Shazeer et al. 2017).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsSpec {
    /// Number of networks.
    pub count: usize,
    /// Choice and weights of a row's networks.
    pub routing: Routing,
    /// Whether scores are corrected before the choice.
    pub has_correction: bool,
    /// The network that all rows use beside their experts.
    pub shared: Option<SharedSpec>,
}

/// A network beside the experts that every row uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedSpec {
    /// Outputs of gate and up.
    pub inner_size: usize,
    /// Whether its output is multiplied by the sigmoid of a logit of the row.
    pub is_weighted: bool,
}

/// Normalisation of the inputs of attention, feed-forward networks and head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// What is computed.
    pub kind: NormKind,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
    /// Added to the stored weights before rows are multiplied by them.
    pub offset: f32,
    /// What is normalised in a layer.
    pub place: NormPlace,
}

/// A kind of normalisation.
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

/// What is normalised in a layer, of attention and feed-forward network alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlace {
    /// Their inputs.
    Inputs,
    /// Their outputs, before they are added to the residual stream.
    Outputs,
    /// Both.
    Both,
}

impl NormPlace {
    /// Whether inputs are normalised.
    pub fn has_inputs(self) -> bool {
        self != Self::Outputs
    }

    /// Whether outputs are normalised.
    pub fn has_outputs(self) -> bool {
        self != Self::Inputs
    }
}

impl AttentionSpec {
    /// Width of a row's queries, all heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of a row's keys, and of its values, all KV heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Width of a row's queries, keys and values, which are stored one after the other.
    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }
}

impl Spec {
    /// Width of the widest feed-forward network.
    pub fn inner_size(&self) -> usize {
        self.layers.iter().map(|layer| layer.feed_forward.inner_size).max().unwrap_or_default()
    }

    /// Most experts of a layer, and most of them for one row; 0 and 0 if there are none.
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
