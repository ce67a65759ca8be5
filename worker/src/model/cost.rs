//! What a model asks of any device at least: what measurements are held against.

use skein_kernels::cpu::kv_cache::KvType;

use super::spec::{AttentionSpec, Spec};
use super::tensors::{self, Kind, Tensor};

/// Bytes and operations that no implementation can save.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Bytes of weights that every step reads.
    pub weight_bytes: u64,
    /// Weights that every drawn token is multiplied with: two operations each.
    pub weights: u64,
    /// Those of them that only drawn tokens meet, and no other token of a prompt: the head's.
    pub head_weights: u64,
    /// Bytes of keys and values of one token, all layers.
    pub kv_bytes_per_token: u64,
    /// What the weights are multiplied by.
    pub product: Product,
}

impl StepCost {
    /// Operations on the weights for so many tokens, of which so many are drawn from. Attention's are not counted: they
    /// depend on the context, and are few where it is short.
    pub fn operations(&self, tokens: u64, drawn: u64) -> u64 {
        2 * ((self.weights - self.head_weights) * tokens + self.head_weights * drawn)
    }
}

/// A kind of multiplication, each with a ceiling of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Product {
    /// `f32` by `f32`, weights of 16 bits widened first.
    #[default]
    F32,
    /// bfloat16 by bfloat16.
    Bf16,
    /// 8-bit codes by codes of 8 or 4 bits.
    Int8,
}

impl Product {
    /// What the CPU does when activations meet weights in bfloat16, or `packed` ones.
    pub fn on_cpu(bf16: bool, packed: bool) -> Self {
        match (packed, bf16) {
            (true, _) => Self::Int8,
            (false, true) => Self::Bf16,
            (false, false) => Self::F32,
        }
    }

    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// Bytes of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueBytes {
    /// Of the layers' weights.
    pub layers: u64,
    /// Of the head's.
    pub head: u64,
    /// Of cached keys and values.
    pub kv: u64,
}

impl Spec {
    /// Bytes one token takes in the CPU backend's KV cache.
    pub fn kv_bytes_per_token(&self, kind: KvType) -> u64 {
        let AttentionSpec { kv_heads, head_dim, .. } = self.attention;
        (2 * self.layers.len() * kv_heads * kind.head_bytes(head_dim)) as u64
    }

    /// The cost on the CPU, where a step reads so many bytes of weights, with such a cache.
    pub fn cpu_cost(&self, weight_bytes: u64, kv: KvType) -> StepCost {
        let kv_bytes_per_token = self.kv_bytes_per_token(kv);
        StepCost { weight_bytes, kv_bytes_per_token, ..self.cost(ValueBytes { layers: 0, head: 0, kv: 0 }) }
    }

    /// The cost with values of such sizes. Norms, biases and the rows of an embedding are left out: they are few.
    pub fn cost(&self, bytes: ValueBytes) -> StepCost {
        let tensors = tensors::all(self);
        let is_in_layer =
            |tensor: &&Tensor| tensor.layer.is_some() && matches!(tensor.kind, Kind::Matrix(..));
        let in_layers: u64 = tensors.iter().filter(is_in_layer).map(|tensor| tensor.len() as u64).sum();
        let in_head = tensors::head(&tensors).len() as u64;
        StepCost {
            weight_bytes: in_layers * bytes.layers + in_head * bytes.head,
            weights: in_layers + in_head,
            head_weights: in_head,
            kv_bytes_per_token: (2 * self.layers.len() * self.attention.kv_width()) as u64 * bytes.kv,
            product: Product::default(),
        }
    }
}
