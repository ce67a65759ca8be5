//! What a model computes: its sizes and the variant of each part. A family makes a spec from its
//! configuration, [`super::tensors`] lists its weights, and a device runs it.

use skein_kernels::cpu::rope::RopeScaling;
use skein_kernels::gate::Gate;

use super::tensors::Role;

/// A decoder-only transformer.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Rows of the embedding table; token ids are below it.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Factor for embedding rows, itself rounded to their type.
    pub embedding_scale: f32,
    /// Attention of every layer: cache and rotary angles have one shape.
    pub attention: AttentionSpec,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
    /// Shared by all normalisations.
    pub norm: NormSpec,
    /// Whether the head is the embedding table.
    pub is_tied: bool,
    /// Logits become `softcap * tanh(logit / softcap)`.
    pub logits_softcap: Option<f32>,
    /// The checkpoint's name of a tensor, without `.weight` or `.bias`, and without the prefix of its layer.
    pub name: fn(Role) -> &'static str,
}

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
    /// Whether each head's query and key are normalised before rotation.
    pub has_qk_norm: bool,
    /// The rotary position embedding.
    pub rope: Rope,
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling for long contexts.
    pub scaling: RopeScaling,
}

/// Properties that may differ between layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// A token attends to itself and the `window - 1` before it; `None` = to all before it. The cache keeps
    /// all of them.
    pub window: Option<u32>,
    /// The feed-forward network.
    pub feed_forward: FeedForwardSpec,
}

/// A gated network (Shazeer 2020): `down(activation(gate(x)) * up(x))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardSpec {
    /// Activation of the gate.
    pub activation: Gate,
    /// Outputs of gate and up.
    pub inner_size: usize,
    /// Whether its matrices have biases.
    pub has_bias: bool,
}

/// RMS normalisation (Zhang & Sennrich 2019) of the inputs of attention, feed-forward networks and head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Added to the mean square.
    pub eps: f32,
    /// Added to the stored weights before rows are multiplied by them.
    pub offset: f32,
    /// Whether the outputs of attention and feed-forward networks are normalised, too.
    pub is_sandwich: bool,
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
}
