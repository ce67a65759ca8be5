//! What a worker is told at start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Effective settings of one worker process.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Hugging Face model directory.
    pub model: PathBuf,
    /// Name in block hashes and in `Info`; the directory's name by default.
    pub served_model_name: String,
    /// Where the gRPC service listens; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Which backend computes.
    pub backend: BackendKind,
    /// Compute threads; 0 = all processors this process may use.
    pub threads: usize,
    /// Scheduler limits.
    pub scheduler: SchedulerConfig,
    /// Bytes of KV cache; `None` = what holds `max_num_seqs` sequences of moderate length, within free memory.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Workers that start on this machine together and share what memory is free; at least 1.
    pub memory_sharers: u32,
    /// How long a drain may take before running requests are cut (their routers resume them elsewhere).
    pub shutdown_timeout: Duration,
}

/// Which backend computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// The CPU kernels.
    Cpu,
    /// No model: tokens are a hash of what the KV cache holds. For tests.
    Fake,
}

/// Limits of the scheduler and the KV cache. vLLM's names.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Longest sequence, prompt and output together; `None` = the model's, or what the KV cache holds if less.
    pub max_model_len: Option<u32>,
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Token budget of one step.
    pub max_num_batched_tokens: u32,
    /// Requests that wait here before a router is told to go elsewhere.
    pub max_num_queued_reqs: u32,
    /// Reuse the blocks of equal prefixes.
    pub enable_prefix_caching: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            max_model_len: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            max_num_queued_reqs: 1024,
            enable_prefix_caching: true,
        }
    }
}
