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
    /// What numbers are rounded to, on any device.
    pub precision: Precision,
    /// What only the CPU backend reads.
    pub cpu: CpuConfig,
    /// What only a CUDA backend reads.
    pub cuda: CudaConfig,
    /// Compute threads; 0 = one for each core this process may use. On a GPU they only read the weights.
    pub threads: usize,
    /// Scheduler limits; [`WorkerConfig::scheduler_on`] says those of a device.
    pub scheduler: SchedulerConfig,
    /// Limits of `scheduler` that nobody chose, and that a GPU therefore raises.
    pub unset: UnsetLimits,
    /// Bytes of KV cache; `None` = on the CPU what holds `max_num_seqs` sequences of moderate length, within free memory,
    /// and on a GPU what [`CudaConfig::memory_utilization`] leaves.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Workers that start on this machine together and share what memory is free; at least 1.
    pub memory_sharers: u32,
    /// How long requests that run may go on when the worker is told to end; what has not ended then is given back, and
    /// its routers resume it elsewhere. 0 = at once.
    pub drain_grace: Duration,
    /// How long a drain may take in all; streams not read to their ends are cut then.
    pub shutdown_timeout: Duration,
}

impl WorkerConfig {
    /// A worker alone on its machine, on a loopback port that the system chooses.
    pub fn new(model: impl Into<PathBuf>, served_model_name: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            served_model_name: served_model_name.into(),
            listen: ([127, 0, 0, 1], 0).into(),
            backend: BackendKind::Auto,
            precision: Precision::default(),
            cpu: CpuConfig::default(),
            cuda: CudaConfig::default(),
            threads: 0,
            scheduler: SchedulerConfig::default(),
            unset: UnsetLimits::default(),
            kv_cache_memory_bytes: None,
            memory_sharers: 1,
            drain_grace: DRAIN_GRACE,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
        }
    }

    /// The scheduler's limits on a device: a GPU computes larger steps in the time of a small one.
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

/// Which limits are defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnsetLimits {
    /// [`SchedulerConfig::max_num_seqs`].
    pub max_num_seqs: bool,
    /// [`SchedulerConfig::max_num_batched_tokens`].
    pub max_num_batched_tokens: bool,
}

/// Default of [`WorkerConfig::drain_grace`]: short requests end by themselves, long ones move.
pub const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Default of [`WorkerConfig::shutdown_timeout`].
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(120);

/// Default of [`SchedulerConfig::max_num_seqs`] on a GPU.
pub const CUDA_MAX_NUM_SEQS: u32 = 256;
/// Default of [`SchedulerConfig::max_num_batched_tokens`] on a GPU.
pub const CUDA_MAX_NUM_BATCHED_TOKENS: u32 = 8192;

/// What numbers are rounded to; vLLM's names. Not every device has every type: `service::precision` says which.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Precision {
    /// Type of activations.
    pub dtype: Dtype,
    /// Converts the weights at load.
    pub quantization: Option<Quantization>,
    /// Type of cached keys and values.
    pub kv_cache_dtype: KvCacheDtype,
}

/// Type of activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dtype {
    /// That of the weights; on the CPU `f32` where weights are not bfloat16.
    #[default]
    Auto,
    /// `f32`: nothing is rounded between two weights.
    Float32,
    /// bfloat16 wherever activations meet weights in bfloat16.
    Bfloat16,
}

/// What only the CPU backend reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// Where weights that were converted at load are kept for the next start; `None` = nowhere.
    pub packed_cache_dir: Option<PathBuf>,
}

/// What only a CUDA backend reads. vLLM's names where vLLM has the setting.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaConfig {
    /// Which of the visible devices.
    pub ordinal: u32,
    /// Workers on that device together; each takes its share of the memory.
    pub sharers: u32,
    /// Share of the device's memory that is used, by all processes on it together.
    pub memory_utilization: f64,
    /// Where weights come from.
    pub load_format: LoadFormat,
    /// Logits do not depend on what else is in a batch.
    pub batch_invariant: bool,
    /// No CUDA graphs.
    pub enforce_eager: bool,
    /// A step that takes longer means that the device is stuck.
    pub step_timeout: Duration,
    /// Times how long the device does nothing between steps, for benchmarks.
    pub times_gaps: bool,
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
            times_gaps: false,
        }
    }
}

/// Type of cached keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvCacheDtype {
    /// That of the activations; on the CPU bfloat16 unless those are `f32` by choice or because the weights are.
    #[default]
    Auto,
    /// `f32`. On the CPU.
    Float32,
    /// bfloat16. On the CPU.
    Bfloat16,
    /// IEEE half. On the CPU.
    Float16,
    /// 8-bit integers, a scale for each token's key and value of each head. On the CPU.
    Int8,
    /// FP8 e4m3: half the bytes. On a GPU.
    Fp8,
}

/// Where weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadFormat {
    /// The model directory.
    Auto,
    /// Random ones are made on the device: the directory needs only its configuration and tokenizer. For speed work.
    Dummy,
}

/// How weights are converted at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// FP8 e4m3, one scale for each output channel. Embedding and head keep their type. On a GPU.
    Fp8,
    /// 8-bit integers, one scale for each output channel. The embedding keeps its type. On the CPU.
    Int8,
    /// 4-bit integers, one scale for each group of 32 inputs; the head has 8 bits. The embedding keeps its type. On the CPU.
    Int4,
}

/// Which backend is to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// A CUDA device when there is one that can run the model, otherwise the CPU.
    Auto,
    /// The CPU kernels.
    Cpu,
    /// A CUDA device.
    Cuda,
    /// No model: tokens are a hash of what the KV cache holds. For tests.
    Fake,
}

/// What a worker computes with, once that is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU kernels.
    Cpu,
    /// A CUDA device.
    Cuda,
    /// Nothing; see [`BackendKind::Fake`].
    Fake,
}

impl DeviceKind {
    /// As `Info` and logs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Fake => "fake",
        }
    }
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
