//! Backends, and sequences over one pool of blocks that any backend can run.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skein_kernels::cpu::packed::Format;
use skein_model::config::ModelConfig;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::cpu::{CpuBackend, CpuOptions, NumberTypes};
use skein_worker::backend::cuda::{self, CudaBackend, CudaOptions, Fp8};
use skein_worker::backend::{Backend, Batch, StepOutput};
use skein_worker::check::{Draw, Sequence};
use skein_worker::config::{CudaConfig, SchedulerConfig};

pub const BLOCK_SIZE: u32 = 16;
const KV_BLOCKS: u32 = 64;

pub fn limits() -> SchedulerConfig {
    SchedulerConfig {
        block_size: BLOCK_SIZE,
        max_model_len: Some(128),
        max_num_seqs: 6,
        max_num_batched_tokens: 48,
        ..SchedulerConfig::default()
    }
}

/// CUDA backend for the model in `dir`, on the emulated device.
pub fn on_cuda(dir: &Path, config: CudaConfig) -> CudaBackend {
    on_cuda_in(dir, config, Fp8::default()).unwrap()
}

/// The same backend with some values in FP8.
pub fn on_cuda_in(dir: &Path, config: CudaConfig, fp8: Fp8) -> Result<CudaBackend, cuda::CudaLoadError> {
    let (cuda, limits, kv_cache_memory_bytes) = (config, limits(), Some(4 << 20));
    // Sequences run by hand have no window blocks.
    let window_blocks = false;
    load(dir, CudaOptions { fp8, window_blocks, ..options(cuda, limits, kv_cache_memory_bytes) })
}

/// The same backend with the layers' weights quantised to codes.
pub fn on_cuda_rounded(
    dir: &Path,
    config: CudaConfig,
    rounded: Option<Format>,
) -> Result<CudaBackend, cuda::CudaLoadError> {
    load(dir, CudaOptions { rounded, ..options(config, limits(), Some(4 << 20)) })
}

/// Options of a model whose sequences are run by hand.
pub fn options(cuda: CudaConfig, limits: SchedulerConfig, kv_cache_memory_bytes: Option<u64>) -> CudaOptions {
    CudaOptions {
        cuda,
        fp8: Fp8::default(),
        rounded: None,
        limits,
        kv_cache_memory_bytes,
        window_blocks: false,
        readers: 2,
        merged: None,
        served: None,
    }
}

pub fn try_cuda(
    dir: &Path,
    cuda: CudaConfig,
    limits: SchedulerConfig,
    kv_bytes: Option<u64>,
) -> Result<CudaBackend, cuda::CudaLoadError> {
    try_cuda_with((dir, false), cuda, limits, kv_bytes)
}

/// As [`try_cuda`], with window blocks if `window_blocks` is set and the model has layers with a window.
pub fn try_cuda_with(
    (dir, window_blocks): (&Path, bool),
    cuda: CudaConfig,
    limits: SchedulerConfig,
    kv_cache_memory_bytes: Option<u64>,
) -> Result<CudaBackend, cuda::CudaLoadError> {
    load(dir, CudaOptions { window_blocks, ..options(cuda, limits, kv_cache_memory_bytes) })
}

pub fn load(dir: &Path, options: CudaOptions) -> Result<CudaBackend, cuda::CudaLoadError> {
    let model = ModelConfig::from_dir(dir).unwrap();
    let opened = cuda::open(0, &model, options.limits.block_size).unwrap();
    let mut last = None;
    let loaded = cuda::load(dir, &model, opened, &options, &mut |done, total| last = Some((done, total)));
    if loaded.is_ok() {
        assert!(
            last.is_some_and(|(done, total)| done == total && total > 0),
            "loading ends at all bytes: {last:?}"
        );
    }
    loaded.map(|(backend, _)| backend)
}

pub fn eager() -> CudaConfig {
    CudaConfig { enforce_eager: true, step_timeout: Duration::from_secs(60), ..CudaConfig::default() }
}

pub fn on_cpu(dir: &Path) -> CpuBackend {
    let options = CpuOptions {
        threads: 1,
        kv_blocks: KV_BLOCKS,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: 48,
        numbers: NumberTypes::STORED,
    };
    CpuBackend::load(dir, options, &mut |_, _| {}).unwrap()
}

pub fn step(backend: &mut dyn Backend, batch: Batch) -> StepOutput {
    let step = backend.launch(batch).unwrap();
    backend.collect(step).unwrap()
}

/// Sequence number `index`, of up to 128 tokens.
pub fn sequence_of(tokens: Vec<u32>, index: u32) -> Sequence {
    Sequence::new(tokens, index, 8, BLOCK_SIZE)
}

/// Adds a sample at the last row of `sequence`, the last sequence in `batch`.
pub fn sample(
    sequence: &Sequence,
    batch: &mut Batch,
    params: &Arc<SamplingParams>,
    index: u32,
    carried: Option<u32>,
) {
    let forbid_stop = !params.stop_token_ids.is_empty();
    sequence.sample(batch, params, Draw { index, carried, forbid_stop, prompt_len: 5 });
}

/// Tokens from a vocabulary of 300.
pub fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i * 7 + 31 * i + seed * 97) % 290 + 2).collect()
}
