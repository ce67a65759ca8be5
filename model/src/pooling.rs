//! How a model makes one vector of a prompt, where it generates no tokens.

use skein_proto::pooling::{PooledKind, PooledModel};

/// What happens to the hidden states of a prompt after the last norm.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingSpec {
    /// Rows that the vector is made of.
    pub rows: PooledRows,
    /// Whether a token attends to those after it, too.
    pub is_bidirectional: bool,
    /// Values of the vector, after the head.
    pub width: u32,
    /// Meaning of the values.
    pub kind: PooledKind,
    /// With scores: names of the values; empty = none are known.
    pub labels: Vec<String>,
}

/// Rows of a prompt that its vector is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PooledRows {
    /// The first.
    First,
    /// The last.
    Last,
    /// The mean of all.
    Mean,
}

impl PoolingSpec {
    /// Whether all rows of a prompt have to be in one step. Otherwise a prompt can be computed in chunks, and
    /// its beginning found in the prefix cache.
    pub fn reads_whole(&self) -> bool {
        self.is_bidirectional || self.rows != PooledRows::Last
    }

    /// The model's vectors, as routers know them.
    pub fn described(&self) -> PooledModel {
        PooledModel { width: self.width, kind: self.kind, labels: self.labels.clone() }
    }
}
