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
    /// Whether all rows of a prompt must be in one step; see [`Scheduler::set_whole_prompts`].
    pub whole_prompts: bool,
    /// Pipeline stages that a step passes; see [`Scheduler::set_stages`].
    pub stages: u32,
}

impl Limits {
    /// Positions that rows `start..end` of a sequence attend to.
    pub fn attended(&self, start: u32, end: u32) -> u64 {
        if self.whole_prompts { u64::from(end - start) * u64::from(end) } else { attended(start, end) }
    }
}

/// Positions that rows `start..end` of a sequence attend to: each attends to all before it and itself.
pub(super) fn attended(start: u32, end: u32) -> u64 {
    (u64::from(start) + 1 + u64::from(end)) * u64::from(end - start) / 2
}
