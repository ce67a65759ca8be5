//! What a router is told at start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Effective settings of one router process.
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// Where HTTP and gRPC are served, one port for both (HTTP/1.1 and h2c).
    pub listen: SocketAddr,
    /// Hugging Face directory with tokenizer.json, chat template and generation_config.json.
    pub model: PathBuf,
    /// Names clients may use; the first is the one answered with.
    pub served_model_names: Vec<String>,
    /// Keys that open the API; empty = open to all.
    pub api_keys: Vec<String>,
    /// Admission bounds.
    pub admission: AdmissionConfig,
    /// Bounds on what one client may send.
    pub limits: RequestLimits,
    /// Moves of one request to another worker before it ends with an error.
    pub migration_limit: u32,
    /// How long a drain may take before running streams are ended with an error.
    pub shutdown_timeout: Duration,
    /// When a worker counts as lost, and what its streams do then.
    pub recovery: RecoveryConfig,
}

/// Default of [`RouterConfig::migration_limit`].
const MIGRATION_LIMIT: u32 = 3;
/// Default of [`RouterConfig::shutdown_timeout`].
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(120);

impl RouterConfig {
    /// A router open to all, on a loopback port that the system chooses.
    pub fn new(
        model: impl Into<PathBuf>,
        served_model_names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            listen: ([127, 0, 0, 1], 0).into(),
            model: model.into(),
            served_model_names: served_model_names.into_iter().map(Into::into).collect(),
            api_keys: Vec::new(),
            admission: AdmissionConfig::default(),
            limits: RequestLimits::default(),
            migration_limit: MIGRATION_LIMIT,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            recovery: RecoveryConfig::default(),
        }
    }
}

/// When a worker counts as lost, and how long things are kept and waited for meanwhile.
#[derive(Debug, Clone)]
pub struct RecoveryConfig {
    /// A worker from which nothing was heard for this long is lost: its streams move. Workers report every second.
    pub worker_timeout: Duration,
    /// A worker whose step counter stands still this long while it has work is lost. `None` = five seconds, longer
    /// where its measured rates say that one step may take longer.
    pub wedge_timeout: Option<Duration>,
    /// How long a stream goes on at its worker, and can be taken up again, when its reader is gone without a word;
    /// zero = it ends at once.
    pub stream_linger: Duration,
    /// How long an accepted request waits for a worker while none is ready.
    pub patience: Duration,
    /// Memory that the prefix index may take, bytes.
    pub max_index_bytes: usize,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            worker_timeout: Duration::from_secs(5),
            wedge_timeout: None,
            stream_linger: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            max_index_bytes: crate::fleet::prefix_index::DEFAULT_MAX_BYTES,
        }
    }
}

/// Bounds of what waits in this router and its workers.
#[derive(Debug, Clone)]
pub struct AdmissionConfig {
    /// Requests running or waiting, in all.
    pub max_num_queued_reqs: u32,
    /// Uncached prompt tokens plus expected output tokens of all those.
    pub max_num_queued_tokens: u64,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self { max_num_queued_reqs: 1024, max_num_queued_tokens: 4_000_000 }
    }
}

/// Bounds on one request.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// HTTP body, bytes.
    pub body_bytes: usize,
    /// Prompts in one completions call.
    pub prompts: usize,
    /// `n`.
    pub n: u32,
    /// Stop strings, and bytes in each.
    pub stop_strings: usize,
    /// Bytes in one stop string.
    pub stop_string_bytes: usize,
    /// `stop_token_ids`.
    pub stop_token_ids: usize,
    /// Entries of `logit_bias`.
    pub logit_bias: usize,
    /// `top_logprobs`, `logprobs`.
    pub logprobs: u32,
    /// Time a request may take when it brings no deadline of its own.
    pub request_timeout: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            body_bytes: 8 * 1024 * 1024,
            prompts: 128,
            n: 16,
            stop_strings: 16,
            stop_string_bytes: 256,
            stop_token_ids: 128,
            logit_bias: 1024,
            logprobs: 20,
            request_timeout: Duration::from_secs(3600),
        }
    }
}
