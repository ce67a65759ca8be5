//! Minimum work that a model requires of any device, as a reference for measurements.

use skein_kernels::cpu::kv_cache::KvType;

use super::role::Role;
use super::spec::{LayerSpec, Spec};
use super::tensors::{self, Kind, Tensor};

/// Bytes and operations that no implementation can avoid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Bytes of weights read in every step; for mixtures of experts, in a step of one token.
    pub weight_bytes: u64,
    /// Weights that every drawn token is multiplied with: two operations each.
    pub weights: u64,
    /// Weights of the head, which are multiplied only for drawn tokens.
    pub head_weights: u64,
    /// Bytes of one token's keys and values over all layers.
    pub kv_bytes_per_token: u64,
    /// Kind of multiplication with the weights.
    pub product: Product,
}

impl StepCost {
    /// Operations on weights for `tokens` tokens of which `drawn` are drawn from. Excludes attention, which
    /// depends on the context and is small for short ones.
    pub fn operations(&self, tokens: u64, drawn: u64) -> u64 {
        2 * ((self.weights - self.head_weights) * tokens + self.head_weights * drawn)
    }
}

/// Kind of multiplication; each has its own hardware ceiling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Product {
    /// `f32` by `f32`; 16-bit weights are widened first.
    #[default]
    F32,
    /// bfloat16 by bfloat16.
    Bf16,
    /// 8-bit codes by codes of 8 or 4 bits.
    Int8,
}

impl Product {
    /// Kind used by the CPU for bfloat16 or `packed` weights.
    pub fn on_cpu(bf16: bool, packed: bool) -> Self {
        match (packed, bf16) {
            (true, _) => Self::Int8,
            (false, true) => Self::Bf16,
            (false, false) => Self::F32,
        }
    }

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// Bytes per value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueBytes {
    /// Size of a layer's weight.
    pub layers: u64,
    /// Size of a weight of the head.
    pub head: u64,
    /// Size of a cached key or value.
    pub kv: u64,
}

impl Spec {
    /// Bytes of one token in the CPU backend's KV cache.
    pub fn kv_bytes_per_token(&self, kind: KvType) -> u64 {
        self.caching_layers().map(|layer| self.kv_bytes_of(layer, kind)).sum()
    }

    /// Bytes of one token in the layers with a window.
    pub fn windowed_kv_bytes_per_token(&self, kind: KvType) -> u64 {
        let windowed = self.caching_layers().filter(|layer| layer.window.is_some());
        windowed.map(|layer| self.kv_bytes_of(layer, kind)).sum()
    }

    fn kv_bytes_of(&self, layer: &LayerSpec, kind: KvType) -> u64 {
        let attention = self.attention_of_layer(layer);
        (attention.cached_rows() * attention.kv_heads * kind.head_bytes(attention.head_dim)) as u64
    }

    /// Bytes of all products' weights at `bits_per_weight`. A table for lookups stays in its file.
    pub fn cpu_weight_bytes(&self, bits_per_weight: u64) -> u64 {
        let tensors = tensors::all(self);
        let in_layers = tensors.iter().filter(|tensor| is_of_layers(tensor));
        let weights: u64 =
            in_layers.chain(tensors::logits_head(self, &tensors)).map(|tensor| tensor.len() as u64).sum();
        weights.saturating_mul(bits_per_weight) / 8
    }

    /// The cost on the CPU if a step reads `weight_bytes` bytes of weights.
    pub fn cpu_cost(&self, weight_bytes: u64, kv: KvType) -> StepCost {
        let kv_bytes_per_token = self.kv_bytes_per_token(kv);
        StepCost { weight_bytes, kv_bytes_per_token, ..self.cost(ValueBytes { layers: 0, head: 0, kv: 0 }) }
    }

    /// The cost with values of these sizes. Norms, biases and looked-up embedding rows are left
    /// out as negligible.
    pub fn cost(&self, bytes: ValueBytes) -> StepCost {
        let tensors = tensors::all(self);
        // A token uses only some experts; all are equally large.
        let is_used = |tensor: &&Tensor| {
            let experts = tensor.layer.and_then(|layer| self.layers[layer].feed_forward.experts);
            let used = experts.map_or(usize::MAX, |experts| experts.routing.per_token);
            tensor.expert.is_none_or(|expert| expert < used)
        };
        let used = tensors.iter().filter(|tensor| is_of_layers(tensor)).filter(is_used);
        let in_layers: u64 = used.map(|tensor| tensor.len() as u64).sum();
        let in_head = tensors::logits_head(self, &tensors).map_or(0, |head| head.len() as u64);
        StepCost {
            weight_bytes: in_layers * bytes.layers + in_head * bytes.head,
            weights: in_layers + in_head,
            head_weights: in_head,
            kv_bytes_per_token: self.cached_values() * bytes.kv,
            product: Product::default(),
        }
    }

    /// Cached values of a token in all layers.
    fn cached_values(&self) -> u64 {
        let of = |layer| self.attention_of_layer(layer);
        self.caching_layers().map(|layer| (of(layer).cached_rows() * of(layer).kv_width()) as u64).sum()
    }
}

/// Whether it is a matrix that every token is multiplied with.
fn is_of_layers(tensor: &Tensor) -> bool {
    matches!(tensor.kind, Kind::Matrix(..)) && tensor.role != Role::Head
}
