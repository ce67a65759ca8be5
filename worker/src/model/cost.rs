//! What a model asks of any device at least: what measurements are held against.

use super::config::ModelConfig;

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
