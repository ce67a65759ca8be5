//! What a model computes, as far as the implementation has to know: sizes, and which of the variants of each part. A family
//! makes one from its configuration; [`super::tensors`] lists its weights, and a device runs it.

use skein_kernels::cpu::rope::RopeScaling;
use skein_kernels::gate::Gate;

use super::tensors::Role;

/// A decoder.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Rows of the embedding table; token ids are below.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Factor of embedded tokens, before it is rounded as they are.
    pub embedding_scale: f32,
    /// Of every layer: the cache and the rotary angles have one shape.
    pub attention: AttentionSpec,
    /// In order.
    pub layers: Vec<LayerSpec>,
    /// Of every normalisation.
    pub norm: NormSpec,
    /// Whether the head is the embedding table.
    pub is_tied: bool,
    /// Logits become `softcap * tanh(logit / softcap)`.
    pub logits_softcap: Option<f32>,
    /// The checkpoint's name of a tensor, without `.weight` or `.bias`; a layer's after the layer's prefix.
    pub name: fn(Role) -> &'static str,
}

/// Grouped-query attention (Ainslie et al. 2023) with rotary positions (Su et al. 2021).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values of a head; even.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Whether queries, keys and values have biases.
    pub has_bias: bool,
    /// Whether the output has one.
    pub has_output_bias: bool,
    /// Whether each head's query and key are normalised before they are rotated.
    pub has_qk_norm: bool,
    /// How positions rotate queries and keys.
    pub rope: Rope,
}

/// Rotary positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are stretched.
    pub scaling: RopeScaling,
}

/// What layers may differ in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    /// A token sees itself and the `window - 1` before it; `None`: all before it. The cache keeps all of them.
    pub window: Option<u32>,
    /// The network behind the attention.
    pub feed_forward: FeedForwardSpec,
}

/// A gated network (Shazeer 2020): `down(activation(gate(x)) * up(x))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardSpec {
    /// What the gate goes through.
    pub activation: Gate,
    /// Outputs of gate and up.
    pub inner_size: usize,
    /// Whether its matrices have biases.
    pub has_bias: bool,
}

/// RMS normalisation (Zhang & Sennrich 2019) of what attention, feed-forward networks and the head read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Added to the mean square.
    pub eps: f32,
    /// Rows are multiplied by the stored weights and this much.
    pub offset: f32,
    /// Whether what a layer adds to the residual stream is normalised, too.
    pub is_sandwich: bool,
}

impl AttentionSpec {
    /// Values of a row's queries: all heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of a row's keys, and of its values: all KV heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Values of a row's queries, keys and values, which lie one behind the other.
    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }
}

impl Spec {
    /// Values of the widest row inside a feed-forward network.
    pub fn inner_size(&self) -> usize {
        self.layers.iter().map(|layer| layer.feed_forward.inner_size).max().unwrap_or_default()
    }
}
