//! Random weights whose activations have outliers like those of trained models.
//!
//! With random weights, the largest input of a product is 3 to 4 times the root mean square of its row. In
//! SmolLM2-135M it is 6 to 17 times at the median of each kind of matrix, and up to 39 times
//! (findings/activation-outliers.sh). What rounding of inputs costs is not seen without them.

use skein_model::tensors::{Kind, Product, Role, Tensor};

/// One of so many channels is an outlier.
const CHANNELS: usize = 64;
/// Factor of an outlier channel.
const FACTOR: f32 = 16.0;
/// One of so many tokens has a massive activation (arXiv 2402.17762): one channel of its embedding is far
/// larger than all others.
const TOKENS: usize = 64;
/// Factor of a massive activation.
const MASSIVE: f32 = 64.0;

/// Factors of a model's weights. Channels are larger before a product and its weights smaller, so that the
/// function of a channel stays the same: gains of norms, rows of up and of value projections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outliers {
    /// Chooses the channels.
    pub seed: u64,
    /// Added to the stored gain of a norm.
    pub norm_offset: f32,
    /// Values of an attention head.
    pub head_dim: usize,
    /// Whether the embedding is the head, too.
    pub is_tied: bool,
}

impl Outliers {
    /// Factor of the value at `index` of a tensor.
    pub(crate) fn factor(&self, tensor: &Tensor, index: usize) -> f32 {
        let (row, col) = (index / tensor.cols, index % tensor.cols);
        let smaller = |is_outlier: bool| if is_outlier { 1.0 / FACTOR } else { 1.0 };
        let of_inputs = match tensor.kind {
            Kind::Matrix(Product::Qkv | Product::GateUp | Product::Router, _) => {
                smaller(self.is_outlier(col, tensor.cols))
            }
            Kind::Matrix(Product::Logits, _) if !self.is_tied => smaller(self.is_outlier(col, tensor.cols)),
            Kind::Matrix(Product::AttentionOutput, _) => smaller(self.is_outlier_of_head(col)),
            Kind::Matrix(Product::Down, _) => smaller(self.is_outlier(col, tensor.cols)),
            _ => 1.0,
        };
        // A stored gain is 1, and the norm adds its offset.
        let gain = FACTOR * (1.0 + self.norm_offset) - self.norm_offset;
        let is_larger = match tensor.role {
            Role::AttentionNorm | Role::FeedForwardNorm if self.is_outlier(row, tensor.rows) => return gain,
            Role::LastNorm if !self.is_tied && self.is_outlier(row, tensor.rows) => return gain,
            Role::Value => self.is_outlier_of_head(row),
            Role::Up | Role::ExpertUp => self.is_outlier(row, tensor.rows),
            Role::Embedding if row.is_multiple_of(TOKENS) && col == self.massive(tensor.cols) => {
                return MASSIVE;
            }
            _ => false,
        };
        of_inputs * if is_larger { FACTOR } else { 1.0 }
    }

    fn is_outlier(&self, channel: usize, channels: usize) -> bool {
        channel % CHANNELS == self.seed as usize % channels.min(CHANNELS)
    }

    fn is_outlier_of_head(&self, channel: usize) -> bool {
        self.is_outlier(channel % self.head_dim, self.head_dim)
    }

    fn massive(&self, channels: usize) -> usize {
        (self.seed as usize + 1) % channels
    }
}
