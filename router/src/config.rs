//! Settings of a router.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use skein_choice::policy::Policy;
use skein_node::supervisor::Secret;
use skein_text::sources::TextSources;
use skein_tls::PortTls;

use crate::stored::StoredResponses;
use crate::tenants::KeysFile;
use crate::tenants::usage_log::UsageLog;

use crate::limits::{ConnectionLimits, MAX_CONNECTIONS};

/// Effective settings of one router process.
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// Address of HTTP and gRPC, one port for both (HTTP/1.1 and HTTP/2).
    pub listen: SocketAddr,
    /// Hugging Face directory with tokenizer.json, chat template and generation_config.json.
    pub model: PathBuf,
    /// Sources of the model's text that replace its own files.
    pub text: TextSources,
    /// Names that clients may use for the model; answers carry the first.
    pub served_model_names: Vec<String>,
    /// A path below which the API is served too, for a proxy that passes it on; empty = none.
    pub root_path: String,
    /// A port of its own for metrics and health, in plain HTTP without keys; `None` = both are on `listen`.
    pub metrics: Option<SocketAddr>,
    /// TLS of that port.
    pub tls: PortTls,
    /// Secret of the cluster, by which gateways are known; `None` = there is none.
    pub cluster_secret: Option<Secret>,
    /// Keys that open the API; an empty list opens it to all.
    pub api_keys: Vec<String>,
    /// Key that also opens what changes the server for all clients. Without one, only a server without keys
    /// lets clients do this.
    pub admin_api_key: Option<String>,
    /// Keys of a file, which also open the API, each to what its entry allows.
    pub keys_file: Option<KeysFile>,
    /// Takes a line for each request.
    pub usage_log: Option<UsageLog>,
    /// Bounds on all requests together.
    pub admission: AdmissionConfig,
    /// Bounds on what one client may send.
    pub limits: RequestLimits,
    /// Refuse request fields that no API has, rather than list them in `x-ignored-params`.
    pub refuse_unknown_fields: bool,
    /// Origins whose web pages may call the API; `*` = all.
    pub allowed_origins: Vec<String>,
    /// Whether clients may load and unload adapters.
    pub runtime_adapters: bool,
    /// Whether clients may replace the model.
    pub runtime_swaps: bool,
    /// Whether this process serves other models beside this one; then the metrics of the process are apart.
    pub is_one_of_several: bool,
    /// Directory of clients' files and batches; `None` = none are stored.
    pub batch_dir: Option<PathBuf>,
    /// Bounds on that directory.
    pub batch_limits: BatchLimits,
    /// Answers of the Responses API that clients come back to; `None` = none are stored.
    pub responses: Option<StoredResponses>,
    /// Port of the endpoints that this process returns to Envoy as an endpoint picker; `None` = it is not
    /// one.
    pub endpoint_port: Option<u16>,
    /// Whether to run requests on the worker that an endpoint picker names in a header.
    pub follow_picks: bool,
    /// How a worker is chosen for a request.
    pub policy: Policy,
    /// Most consecutive moves of a request without progress before it fails.
    pub migration_limit: u32,
    /// Threads that serve connections, each with an event loop of its own; 0 = the runtime that accepts them.
    pub shards: usize,
    /// How long a connection without a request stays open.
    pub idle_timeout: Duration,
    /// Most connections of clients at once.
    pub max_connections: usize,
    /// Most connections of one client's address; `None` = no limit.
    pub max_connections_per_ip: Option<usize>,
    /// How long a shutdown waits for running streams before it ends them with an error.
    pub shutdown_timeout: Duration,
    /// When a worker counts as lost, and how its streams recover.
    pub recovery: RecoveryConfig,
}

/// Default of [`RouterConfig::migration_limit`].
const MIGRATION_LIMIT: u32 = 3;
/// Default of [`RouterConfig::idle_timeout`], as nginx' `keepalive_timeout`: longer than the 60 s for which
/// proxies keep connections to the servers behind them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Default of [`RouterConfig::shutdown_timeout`].
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(120);

impl RouterConfig {
    /// Whether orders to the cluster can be told from requests: there are keys, or only this computer can
    /// send any.
    pub fn has_operator(&self) -> bool {
        let has_keys = !self.api_keys.is_empty() || self.admin_api_key.is_some() || self.keys_file.is_some();
        has_keys || self.listen.ip().is_loopback()
    }

    /// A router without keys on a loopback port chosen by the system.
    pub fn new(
        model: impl Into<PathBuf>,
        served_model_names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            listen: ([127, 0, 0, 1], 0).into(),
            model: model.into(),
            served_model_names: served_model_names.into_iter().map(Into::into).collect(),
            text: TextSources::default(),
            root_path: String::new(),
            metrics: None,
            tls: PortTls::default(),
            cluster_secret: None,
            api_keys: Vec::new(),
            admin_api_key: None,
            keys_file: None,
            usage_log: None,
            admission: AdmissionConfig::default(),
            limits: RequestLimits::default(),
            refuse_unknown_fields: false,
            allowed_origins: Vec::new(),
            runtime_adapters: false,
            runtime_swaps: false,
            is_one_of_several: false,
            batch_dir: None,
            batch_limits: BatchLimits::default(),
            responses: None,
            endpoint_port: None,
            follow_picks: false,
            policy: Policy::default(),
            migration_limit: MIGRATION_LIMIT,
            shards: 0,
            idle_timeout: IDLE_TIMEOUT,
            max_connections: MAX_CONNECTIONS,
            max_connections_per_ip: None,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            recovery: RecoveryConfig::default(),
        }
    }

    /// Bounds on the connections of the port, within the descriptors that this process may have.
    pub fn connection_limits(&self) -> ConnectionLimits {
        let limits = ConnectionLimits {
            total: self.max_connections,
            per_address: self.max_connections_per_ip,
            idle_timeout: self.idle_timeout,
        };
        limits.within(skein_sys::descriptors::limit().unwrap_or(u64::MAX))
    }
}

impl RouterConfig {
    /// Whether clients need a key.
    pub fn has_keys(&self) -> bool {
        !self.api_keys.is_empty() || self.keys_file.is_some()
    }
}

/// Bounds on clients' files and batches. Results of a batch are always stored, and count.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Most uploaded files of one API key.
    pub files_per_key: u64,
    /// Most batches of one API key. Ended ones make room for others.
    pub batches_per_key: u64,
    /// Most bytes in the files of one API key.
    pub bytes_per_key: u64,
    /// Most bytes in the files of all.
    pub bytes: u64,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self { files_per_key: 2_000, batches_per_key: 2_000, bytes_per_key: 20 << 30, bytes: 100 << 30 }
    }
}

/// When a worker counts as lost, and how long streams and requests wait.
#[derive(Debug, Clone)]
pub struct RecoveryConfig {
    /// A worker that is silent for this long is lost and its streams move. Workers report every second.
    pub worker_timeout: Duration,
    /// A worker whose step counter does not move for this long while it has work is lost. `None` = five
    /// seconds, or longer if its measured rates allow a longer step.
    pub wedge_timeout: Option<Duration>,
    /// How long a stream continues at its worker, and can be resumed, after its reader disconnected without a
    /// release; zero = it ends at once.
    pub stream_linger: Duration,
    /// How long a request waits while no worker is ready. A new request waits only if one was ready before.
    pub queue_timeout: Duration,
    /// Memory limit of the prefix index, bytes.
    pub max_index_bytes: usize,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            worker_timeout: Duration::from_secs(5),
            wedge_timeout: None,
            stream_linger: Duration::from_secs(10),
            queue_timeout: Duration::from_secs(30),
            max_index_bytes: skein_choice::prefix_index::DEFAULT_MAX_BYTES,
        }
    }
}

/// Bounds on the requests that run or wait in this router and its workers.
#[derive(Debug, Clone)]
pub struct AdmissionConfig {
    /// Number of requests.
    pub max_num_queued_reqs: u32,
    /// Sum of their uncached prompt tokens and expected output tokens.
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
    /// Size of the HTTP body, bytes.
    pub body_bytes: usize,
    /// Prompts in one completions call.
    pub prompts: usize,
    /// Prompts times `n` in one call.
    pub choices: usize,
    /// Largest `n` of a request.
    pub n: u32,
    /// Number of stop strings.
    pub stop_strings: usize,
    /// Length of one stop string, bytes.
    pub stop_string_bytes: usize,
    /// Number of `stop_token_ids`.
    pub stop_token_ids: usize,
    /// Number of tokens in `logit_bias`.
    pub logit_bias: usize,
    /// Largest `top_logprobs` and `logprobs`.
    pub logprobs: u32,
    /// Time limit of a request; a shorter one in the request takes precedence.
    pub request_timeout: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            body_bytes: 8 * 1024 * 1024,
            prompts: 128,
            choices: 2048,
            n: 128,
            stop_strings: 16,
            stop_string_bytes: 256,
            stop_token_ids: 128,
            logit_bias: 1024,
            logprobs: 20,
            request_timeout: Duration::from_secs(3600),
        }
    }
}
