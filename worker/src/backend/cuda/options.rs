//! Options of a CUDA backend.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skein_kernels::cpu::packed::Format;

use crate::config::{CudaConfig, SchedulerConfig};
use crate::draft::Speculate;

/// Options of a CUDA backend.
#[derive(Debug, Clone)]
pub struct CudaOptions {
    /// Options that only concern CUDA.
    pub cuda: CudaConfig,
    /// Values kept in FP8.
    pub fp8: Fp8,
    /// Format of codes that the layers' weights in 16 or 32 bits are quantised to: [`Format::INT8`] or
    /// [`Format::INT4_ZERO`].
    pub rounded: Option<Format>,
    /// Limits, which set the size of the largest step.
    pub limits: SchedulerConfig,
    /// KV cache bytes; `None` = whatever memory is left.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Whether layers with a window have blocks apart where sequences can give them back. Batches then say
    /// where rows lie in window blocks.
    pub window_blocks: bool,
    /// Threads that read weights; 0 = one for each core.
    pub readers: usize,
    /// Adapter that is merged into the weights: its directory.
    pub merged: Option<PathBuf>,
    /// Adapters that are served beside the model; `None` = none.
    pub served: Option<ServedAdapters>,
}

/// Adapters that may be served beside the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedAdapters {
    /// Most different adapters in use at once, each in a slot on the device.
    pub slots: usize,
    /// Highest rank of one.
    pub max_rank: usize,
}

impl CudaOptions {
    /// Whether it verifies drafts. Without batch-invariant mode a row's bits depend on the number of rows, so
    /// drafts would change answers.
    pub(super) fn verifies(&self) -> bool {
        self.cuda.batch_invariant && self.limits.speculate != Speculate::Off
    }
}

/// Values kept in FP8 e4m3 instead of the model's 16-bit type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fp8 {
    /// The layers' weights, with one scale per output.
    pub weights: bool,
    /// Cached keys and values.
    pub kv_cache: bool,
}
