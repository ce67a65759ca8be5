//! Settings of a worker.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_node::supervisor::Secret;
use skein_tls::{ClusterFiles, PortTls};

use crate::backend::fake::StepCost;
use crate::draft::Speculate;

/// Effective settings of one worker process. A supervisor sends them to a worker, and a leader to its ranks,
/// as one value; secrets stay behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// Hugging Face model directory.
    #[serde(with = "crate::path")]
    pub model: PathBuf,
    /// Name in block hashes and in `Info`; by default that of the directory.
    pub served_model_name: String,
    /// Address of the gRPC service; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// A port of its own for metrics and health, in plain HTTP without certificates and secrets; `None` =
    /// `listen` has both.
    #[serde(skip)]
    pub metrics: Option<SocketAddr>,
    /// Bearer token that every call must carry; `None` = calls need no token.
    #[serde(skip)]
    pub secret: Option<Secret>,
    /// Whether health answers without the secret, for probes of Kubernetes, which cannot send one.
    #[serde(skip)]
    pub open_health: bool,
    /// TLS of the gRPC service.
    #[serde(skip)]
    pub tls: PortTls,
    /// The backend to use.
    pub backend: BackendKind,
    /// Number types, on any device.
    pub precision: Precision,
    /// Ranks that share the model.
    pub ranks: RanksConfig,
    /// Adapters served beside the model.
    pub adapters: AdaptersConfig,
    /// Adapter merged into the weights at load.
    pub merged_adapter: Option<AdapterConfig>,
    /// Settings of the CPU backend only.
    pub cpu: CpuConfig,
    /// Settings of CUDA backends only.
    pub cuda: CudaConfig,
    /// Settings of the fake backend.
    pub fake: FakeConfig,
    /// Compute threads; 0 = one for each core that this process may use. A GPU worker only reads
    /// weights with them.
    pub threads: usize,
    /// Limits of the scheduler; [`WorkerConfig::scheduler_on`] gives those for a device.
    pub scheduler: SchedulerConfig,
    /// Limits of `scheduler` left at their defaults, which a GPU therefore raises.
    pub unset: UnsetLimits,
    /// Bytes of KV cache. `None` = on the CPU, room for `max_num_seqs` sequences of moderate length, within
    /// free memory; on a GPU, whatever [`CudaConfig::memory_utilization`] leaves.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Workers that start on this machine together and share its free memory; at least 1.
    pub memory_sharers: u32,
    /// Memory of this machine that is already planned for other processes, in bytes: the version of the model
    /// that this one replaces.
    pub memory_beside: u64,
    /// When this version of the model was put into service, in milliseconds since 1970; `None` = at the
    /// start.
    pub serving_since_ms: Option<u64>,
    /// How long running requests may continue after the worker begins to stop. Whatever has not ended then
    /// is handed back, and its routers resume it elsewhere. 0 = hand back at once.
    pub drain_grace: Duration,
    /// Longest drain; streams still unread then are cut.
    pub shutdown_timeout: Duration,
}

impl WorkerConfig {
    /// A worker alone on its machine, on a loopback port that the system chooses.
    pub fn new(model: impl Into<PathBuf>, served_model_name: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            served_model_name: served_model_name.into(),
            listen: ([127, 0, 0, 1], 0).into(),
            metrics: None,
            secret: None,
            open_health: false,
            tls: PortTls::default(),
            backend: BackendKind::Auto,
            precision: Precision::default(),
            ranks: RanksConfig::default(),
            adapters: AdaptersConfig::default(),
            merged_adapter: None,
            cpu: CpuConfig::default(),
            cuda: CudaConfig::default(),
            fake: FakeConfig::default(),
            threads: 0,
            scheduler: SchedulerConfig::default(),
            unset: UnsetLimits::default(),
            kv_cache_memory_bytes: None,
            memory_sharers: 1,
            memory_beside: 0,
            serving_since_ms: None,
            drain_grace: DRAIN_GRACE,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
        }
    }

    /// These settings for the ranks of this worker's group, without secrets.
    pub fn for_ranks(&self) -> Self {
        let nodes =
            NodesConfig { secret: GroupSecret::default(), settings: Vec::new(), ..self.ranks.nodes.clone() };
        let ranks = RanksConfig { nodes, command: None, ..self.ranks.clone() };
        // Ranks get adapters by frames.
        let adapters = AdaptersConfig { modules: Vec::new(), ..self.adapters.clone() };
        Self { secret: None, tls: PortTls::default(), ranks, adapters, ..self.clone() }
    }

    /// The scheduler's limits on a device: a GPU computes larger steps in the time of small ones.
    pub fn scheduler_on(&self, device: DeviceKind) -> SchedulerConfig {
        let mut limits = self.scheduler.clone();
        if device == DeviceKind::Cuda {
            if self.unset.max_num_seqs {
                limits.max_num_seqs = CUDA_MAX_NUM_SEQS;
            }
            if self.unset.max_num_batched_tokens {
                limits.max_num_batched_tokens = CUDA_MAX_NUM_BATCHED_TOKENS;
            }
        }
        limits
    }
}

/// Limits that were not set and have their defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsetLimits {
    /// Whether [`SchedulerConfig::max_num_seqs`] is unset.
    pub max_num_seqs: bool,
    /// Whether [`SchedulerConfig::max_num_batched_tokens`] is unset.
    pub max_num_batched_tokens: bool,
}

/// Default of [`WorkerConfig::drain_grace`]: short requests finish, long ones move.
pub const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Default of [`WorkerConfig::shutdown_timeout`].
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(120);

/// Default of [`SchedulerConfig::max_num_seqs`] on a GPU.
pub const CUDA_MAX_NUM_SEQS: u32 = 256;
/// Default of [`SchedulerConfig::max_num_batched_tokens`] on a GPU.
pub const CUDA_MAX_NUM_BATCHED_TOKENS: u32 = 8192;

/// Number types, by vLLM's names. Not every device has every type; see `service::precision`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Precision {
    /// Type of the activations.
    pub dtype: Dtype,
    /// Conversion of the weights at load; `None` = as stored.
    pub quantization: Option<Quantization>,
    /// Type of cached keys and values.
    pub kv_cache_dtype: KvCacheDtype,
}

/// Type of the activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dtype {
    /// Type of the weights; on the CPU `f32` unless the weights are bfloat16.
    #[default]
    Auto,
    /// `f32`: nothing is rounded between two matrices.
    Float32,
    /// bfloat16 wherever activations are multiplied by bfloat16 weights.
    Bfloat16,
}

/// Ranks that share the model, one process each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RanksConfig {
    /// Number of ranks that share each layer.
    pub tensor_parallel: u32,
    /// Number of stages that divide the layers.
    pub pipeline_parallel: u32,
    /// Nodes on which the ranks run.
    pub nodes: NodesConfig,
    /// Command that starts the other ranks; not used with one rank. Each process knows its own.
    #[serde(skip)]
    pub command: Option<RankCommand>,
}

impl RanksConfig {
    /// Total number of ranks.
    pub fn count(&self) -> u32 {
        self.tensor_parallel.max(1) * self.pipeline_parallel.max(1)
    }

    /// Number of ranks on each node.
    pub fn on_node(&self) -> u32 {
        self.count().div_ceil(self.nodes.count.max(1))
    }
}

impl Default for RanksConfig {
    fn default() -> Self {
        Self { tensor_parallel: 1, pipeline_parallel: 1, nodes: NodesConfig::default(), command: None }
    }
}

/// Nodes of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesConfig {
    /// Number of nodes.
    pub count: u32,
    /// Number of this node; node 0 leads.
    pub rank: u32,
    /// Host and port of the leader; not used with one node.
    pub leader: String,
    /// Shared secret that admits nodes.
    pub secret: GroupSecret,
    /// This node's certificate, which encrypts the connections between nodes and admits them.
    pub tls: Option<ClusterFiles>,
    /// Settings that must be equal on all nodes.
    pub settings: Vec<Setting>,
}

impl Default for NodesConfig {
    fn default() -> Self {
        let (leader, secret) = (String::new(), GroupSecret::default());
        Self { count: 1, rank: 0, leader, secret, tls: None, settings: Vec::new() }
    }
}

/// Secret of a group, hidden in debug output.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSecret(pub String);

impl std::fmt::Debug for GroupSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GroupSecret(***)")
    }
}

/// Settings of the CPU backend only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuConfig {
    /// Directory that keeps packed weights for the next start; `None` = do not keep them.
    #[serde(with = "crate::path::optional")]
    pub packed_cache_dir: Option<PathBuf>,
    /// Smaller model that drafts tokens: a directory or a GGUF file.
    #[serde(with = "crate::path::optional")]
    pub draft_model: Option<PathBuf>,
}

/// Adapters served beside the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptersConfig {
    /// Whether any may be served.
    pub is_enabled: bool,
    /// Those served from the start.
    pub modules: Vec<AdapterConfig>,
    /// Most different adapters in use at once.
    pub max_loras: usize,
    /// Most adapters in memory.
    pub max_cpu_loras: usize,
    /// Highest rank that an adapter may have.
    pub max_lora_rank: usize,
    /// Whether routers may load and unload adapters.
    pub may_change: bool,
}

impl Default for AdaptersConfig {
    fn default() -> Self {
        Self {
            is_enabled: false,
            modules: Vec::new(),
            max_loras: 16,
            max_cpu_loras: 16,
            max_lora_rank: 16,
            may_change: false,
        }
    }
}

/// Adapter as specified by `--lora-modules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterConfig {
    /// Name under which clients request it.
    pub name: String,
    /// Directory in PEFT's format.
    #[serde(with = "crate::path")]
    pub directory: PathBuf,
}

/// Settings of the fake backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FakeConfig {
    /// Cost model of a step.
    pub cost: StepCost,
    /// Number of KV blocks; `None` = as many as for a small model.
    pub kv_blocks: Option<u32>,
}

impl FakeConfig {
    /// Whether it replaces a device in measurements and so must be cheap itself.
    pub fn is_clock(&self) -> bool {
        *self != Self::default()
    }
}

/// Settings of CUDA backends only, by vLLM's names if vLLM has the setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CudaConfig {
    /// Index among the visible devices.
    pub ordinal: u32,
    /// Workers that share the device; each takes its part of the memory.
    pub sharers: u32,
    /// Fraction of the device's memory that all its processes use together.
    pub memory_utilization: f64,
    /// Where the weights come from.
    pub load_format: LoadFormat,
    /// Makes logits independent of the rest of the batch.
    pub batch_invariant: bool,
    /// Disables CUDA graphs.
    pub enforce_eager: bool,
    /// Longest step; a longer one means that the device is stuck.
    pub step_timeout: Duration,
    /// Whether layers with a window have blocks apart where sequences can give them back.
    pub window_blocks: bool,
    /// Measures how long the device idles between steps, for benchmarks.
    pub times_gaps: bool,
    /// Sums between ranks through the memory of their GPUs.
    pub peers: PeerConfig,
}

/// Sums between ranks through the memory of their GPUs, instead of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerConfig {
    /// Leaves them to NCCL.
    pub is_disabled: bool,
    /// Most bytes of a rank's sums that go to all ranks at once.
    pub small_bytes: usize,
    /// Most bytes of a rank's sums that go by the owners of rows.
    pub large_bytes: usize,
    /// Random sums that are compared with the host's at the start.
    pub checks: usize,
    /// Timed launches of each size at the start; 0 = messages go as their sizes allow.
    pub timed: usize,
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self { is_disabled: false, small_bytes: 256 << 10, large_bytes: 8 << 20, checks: 1000, timed: 50 }
    }
}

impl Default for CudaConfig {
    fn default() -> Self {
        Self {
            ordinal: 0,
            sharers: 1,
            memory_utilization: 0.9,
            load_format: LoadFormat::Auto,
            batch_invariant: false,
            enforce_eager: false,
            step_timeout: Duration::from_secs(30),
            window_blocks: true,
            times_gaps: false,
            peers: PeerConfig::default(),
        }
    }
}

/// Type of cached keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvCacheDtype {
    /// Type of the activations; on the CPU bfloat16, unless the weights are `f32` or the activations were set
    /// to `f32`.
    #[default]
    Auto,
    /// `f32`. CPU only.
    Float32,
    /// bfloat16. CPU only.
    Bfloat16,
    /// IEEE half precision. CPU only.
    Float16,
    /// 8-bit integers with a scale for each head's key and value of each token. CPU only.
    Int8,
    /// FP8 e4m3: half the bytes; on the CPU with scales as for `Int8`.
    Fp8,
}

/// Where the weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadFormat {
    /// From the model directory.
    Auto,
    /// Random weights, generated on the device. The directory needs only its configuration and tokenizer.
    /// For performance work.
    Dummy,
}

/// How weights are converted at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quantization {
    /// FP8 e4m3 with a scale for each output channel. Embedding and head keep their type. GPU only.
    Fp8,
    /// 8-bit integers, on the CPU with a scale for each group of 32 inputs, on GPUs for each output channel.
    /// The embedding keeps its type; on GPUs the head does, too.
    Int8,
    /// 4-bit integers with a scale for each group of 32 inputs. The head has 8 bits; on GPUs it keeps its
    /// type. The embedding keeps its type.
    Int4,
}

/// The backend to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendKind {
    /// A CUDA device if one can run the model, otherwise the CPU.
    Auto,
    /// Always the CPU kernels.
    Cpu,
    /// Always a CUDA device.
    Cuda,
    /// No model: tokens are a hash of the KV cache's content. For tests.
    Fake,
}

/// The device that a worker computes on, once decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// The CPU backend.
    Cpu,
    /// A CUDA device.
    Cuda,
    /// None; see [`BackendKind::Fake`].
    Fake,
}

impl DeviceKind {
    /// Name in `Info` and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Fake => "fake",
        }
    }
}

/// Limits of the scheduler and the KV cache, by vLLM's names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Longest sequence, prompt and output together; `None` = the model's, or less if the KV
    /// cache holds less.
    pub max_model_len: Option<u32>,
    /// Most sequences running at once.
    pub max_num_seqs: u32,
    /// Token budget of one step.
    pub max_num_batched_tokens: u32,
    /// Most waiting requests; beyond it, requests are refused as `full`.
    pub max_num_queued_reqs: u32,
    /// Whether equal prefixes share blocks.
    pub enable_prefix_caching: bool,
    /// Sources of drafts, if the device can verify them.
    pub speculate: Speculate,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            max_model_len: None,
            max_num_seqs: 128,
            max_num_batched_tokens: 512,
            max_num_queued_reqs: 1024,
            enable_prefix_caching: true,
            speculate: Speculate::Auto,
        }
    }
}

/// Command that starts a rank process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCommand {
    /// Path of the executable.
    pub binary: PathBuf,
    /// Command-line arguments, without the executable.
    pub arguments: Vec<String>,
}

/// Setting that must be equal on all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name of the flag, without dashes.
    pub name: String,
    /// Value as JSON, which is compared.
    pub value: String,
    /// Value as given, for messages.
    pub shown: String,
    /// Whether this node's command line sets it; otherwise the leader's value applies.
    pub is_given: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_no_secret_and_adapters_only_by_frames() {
        let mut config = WorkerConfig::new("model", "m");
        config.secret = Some(Secret::draw().expect("the system has random bytes"));
        config.ranks.nodes.secret = GroupSecret("between nodes".into());
        let module = AdapterConfig { name: "a".into(), directory: "/a".into() };
        config.adapters.modules = vec![module; 100_000];
        let sent = serde_json::to_string(&config.for_ranks()).expect("plain values");
        assert!(sent.len() < 8192, "{} bytes", sent.len());
        for secret in ["between nodes", config.secret.as_ref().map_or("", Secret::expose)] {
            assert!(!sent.contains(secret));
        }
    }
}
