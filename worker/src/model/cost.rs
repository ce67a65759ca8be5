//! What a model asks of any device at least: what measurements are held against.

use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::packed::{Format, Layout};

use super::config::ModelConfig;
use super::pack::head_format;

/// Bytes and operations that no implementation can save.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Bytes of weights that every step reads.
    pub weight_bytes: u64,
    /// Weights that every token is multiplied with: two operations each.
    pub weights: u64,
    /// Bytes of keys and values of one token, all layers.
    pub kv_bytes_per_token: u64,
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

impl ModelConfig {
    /// The cost on the CPU, with weights stored in `stored` bytes each or packed, and such a cache. Scales are counted in.
    pub fn cpu_cost(&self, stored: u64, packed: Option<Format>, kv: KvType) -> StepCost {
        let bytes = |format: Option<Format>, rows: usize, cols: usize| match format {
            Some(format) => Layout { format, rows, cols }.bytes() as u64,
            None => (rows * cols) as u64 * stored,
        };
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (q, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let shapes = [
            (q, hidden),
            (kv_width, hidden),
            (kv_width, hidden),
            (hidden, q),
            (inner, hidden),
            (inner, hidden),
            (hidden, inner),
        ];
        let layer: u64 = shapes.iter().map(|(rows, cols)| bytes(packed, *rows, *cols)).sum();
        StepCost {
            weight_bytes: self.layers as u64 * layer
                + bytes(packed.map(head_format), self.vocab_size as usize, hidden),
            kv_bytes_per_token: self.kv_bytes_per_token(kv),
            ..self.cost(ValueBytes { layers: stored, head: stored, kv: 0 })
        }
    }

    /// The cost with values of such sizes. Norms, biases and the rows of an embedding are left out: they are few.
    pub fn cost(&self, bytes: ValueBytes) -> StepCost {
        let (hidden, inner) = (self.hidden_size as u64, self.intermediate_size as u64);
        let (q, kv) = ((self.heads * self.head_dim) as u64, (self.kv_heads * self.head_dim) as u64);
        let layers = self.layers as u64;
        let in_layers = layers * hidden * (2 * q + 2 * kv + 3 * inner);
        let in_head = u64::from(self.vocab_size) * hidden;
        StepCost {
            weight_bytes: in_layers * bytes.layers + in_head * bytes.head,
            weights: in_layers + in_head,
            kv_bytes_per_token: 2 * layers * kv * bytes.kv,
        }
    }
}
