//! What a choice reads: a request's cost, and each worker's state. Pure.

use crate::ledger::CurrentLoad;
use crate::worker_id::WorkerId;

/// Output tokens assumed per sequence; fewer if its limit is lower.
pub const EXPECTED_OUTPUT_TOKENS: u32 = 256;

/// A request's cost at any worker.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Tokens to process, or find in the cache, before the first new one.
    pub prompt_tokens: u32,
    /// Tokens it will probably generate, over all samples.
    pub expected_output_tokens: u32,
    /// Samples that run at once.
    pub sequences: u32,
}

impl Demand {
    /// For a request with `prompt_tokens` to prefill and at most `output_tokens_left` for each of its
    /// sequences.
    pub fn new(prompt_tokens: usize, output_tokens_left: u32, sequences: u32) -> Self {
        let each = output_tokens_left.min(EXPECTED_OUTPUT_TOKENS);
        Self {
            prompt_tokens: prompt_tokens as u32,
            expected_output_tokens: each.saturating_mul(sequences),
            sequences,
        }
    }
}

/// State of a worker that may be picked.
#[derive(Debug, Clone, Copy)]
pub struct WorkerView {
    /// Id of the worker.
    pub id: WorkerId,
    /// Hash of the worker's name, equal in every router.
    pub name_hash: u64,
    /// Prompt tokens that it caches or is about to cache.
    pub hit_tokens: u32,
    /// Its estimated load now.
    pub load: CurrentLoad,
    /// Most sequences that it runs at once.
    pub max_num_seqs: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Whether it must read the request's adapter from disk first.
    pub reads_adapter: bool,
}
