//! Limits on requests that workers set.

use skein_proto::info::WorkerInfo;

/// Limits set by the workers, not by configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Most tokens of a sequence, prompt and output together.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Most sequences at once, which bounds the samples of a prompt.
    pub max_num_seqs: u32,
    /// Whether the model computes vectors of prompts instead of tokens.
    pub pools: bool,
}

impl ModelLimits {
    /// The limits of one worker.
    pub fn of(info: &WorkerInfo) -> Self {
        let WorkerInfo { max_model_len, vocab_size, max_num_seqs, .. } = *info;
        Self { max_model_len, vocab_size, max_num_seqs, pools: info.pooled.is_some() }
    }

    /// The limits that hold on both workers.
    pub fn and(self, other: Self) -> Self {
        Self {
            max_model_len: self.max_model_len.min(other.max_model_len),
            vocab_size: self.vocab_size.min(other.vocab_size),
            max_num_seqs: self.max_num_seqs.min(other.max_num_seqs),
            pools: self.pools || other.pools,
        }
    }
}
