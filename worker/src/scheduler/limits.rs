//! Limits of the scheduler.

/// Limits fixed at start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Tokens in a block.
    pub block_size: u32,
    /// Tokens of the longest sequence.
    pub max_model_len: u32,
    /// Most samples running at once.
    pub max_num_seqs: u32,
    /// Most rows in a step.
    pub max_num_batched_tokens: u32,
    /// Most waiting sequences.
    pub max_waiting: u32,
    /// Pipeline stages that a step passes; see [`Scheduler::set_stages`].
    pub stages: u32,
}
