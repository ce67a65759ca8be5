//! The options of a CUDA backend, and its device.

use skein_model::checkpoint::ModelFile;
use skein_model::config::ModelConfig;
use skein_node::trace::PROCESS;
use tracing::info_span;

use super::model_files::{check_adapter, quantised_form};
use super::{precision, sizing};
use crate::backend::cuda::{self, CudaOptions, NotUsable, OpenDevice, ServedAdapters};
use crate::config::{DeviceKind, LoadFormat, WorkerConfig};
use crate::error::WorkerError;

/// Opens the device and its kernels, or says why it cannot be used for the model.
pub(super) fn open_cuda(config: &WorkerConfig) -> Result<Result<OpenDevice, NotUsable>, WorkerError> {
    let _opening = info_span!(target: PROCESS, "open device").entered();
    let model = ModelConfig::from_dir(&config.model)?;
    match cuda::open(config.cuda.ordinal, &model, config.scheduler.block_size) {
        // A wrong flag must not turn a GPU worker into a CPU worker.
        Err(NotUsable::Setting { setting, got, allowed }) => {
            Err(WorkerError::Setting { setting, got: got as u64, allowed })
        }
        opened => Ok(opened),
    }
}

/// The model of `config` and the options of its CUDA backend.
///
/// # Errors
/// If a setting or the model is supported on the CPU only.
pub(super) fn cuda_options(config: &WorkerConfig) -> Result<(ModelConfig, CudaOptions), WorkerError> {
    let fp8 = precision::on_cuda(config.precision)?;
    if config.cpu.draft_model.is_some() {
        return Err(WorkerError::Unsuitable(
            "--speculate with a draft model needs the CPU, and this worker uses a GPU; add --device cpu, or leave it out"
                .into(),
        ));
    }
    let merged = config.merged_adapter.as_ref().map(|adapter| adapter.directory.clone());
    if merged.is_some() && config.cuda.load_format == LoadFormat::Dummy {
        return Err(WorkerError::Unsuitable(
            "--lora-modules without --enable-lora merges an adapter into the weights, and --load-format dummy reads none; \
             leave one of them out"
                .into(),
        ));
    }
    if merged.is_some() {
        check_adapter(config)?;
    }
    if config.cuda.load_format == LoadFormat::Dummy && ModelFile::open(&config.model)?.is_some() {
        return Err(WorkerError::Unsuitable(
            "--load-format dummy takes a directory with config.json, and this model is a GGUF file; leave it out, or make a \
             directory with skein-dev make-model --no-weights --quantization q4_k or another type"
                .into(),
        ));
    }
    let model = ModelConfig::from_dir(&config.model)?;
    precision::check_quantization(config.precision, quantised_form(config, &model.spec)?)?;
    let rounded = precision::rounded_on_cuda(config.precision);
    let limits = config.scheduler_on(DeviceKind::Cuda);
    sizing::check_model_len(&limits, model.max_position_embeddings)?;
    let options = CudaOptions {
        cuda: config.cuda.clone(),
        fp8,
        rounded,
        limits,
        kv_cache_memory_bytes: config.kv_cache_memory_bytes,
        window_blocks: config.cuda.window_blocks,
        readers: config.threads,
        merged,
        served: config.adapters.is_enabled.then_some(ServedAdapters {
            slots: config.adapters.max_loras,
            max_rank: config.adapters.max_lora_rank,
        }),
    };
    Ok((model, options))
}
