//! The device that a model is loaded on.

use skein_node::trace::PROCESS;
use tracing::field::Empty;
use tracing::info_span;

use super::cpu::load_cpu;
use super::cuda::load_cuda;
use super::cuda_options::open_cuda;
use super::fake::load_fake;
use super::loaded_backend::LoadedBackend;
use crate::config::{BackendKind, KvCacheDtype, LoadFormat, Quantization, WorkerConfig};
use crate::error::WorkerError;

/// Flag for made-up weights, and how to get some without a GPU.
const DUMMY: &str = "--load-format dummy (on the CPU, make a model with skein-dev make-model)";

/// Loads the model of `config`. Blocks while reading the weights.
pub(crate) fn load(
    config: &WorkerConfig,
    mut progress: impl FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    let span = info_span!(target: PROCESS, "load", skein.device = Empty, skein.kv_blocks = Empty);
    let loaded = span.in_scope(|| load_on(config, &mut progress))?;
    span.record("skein.device", loaded.device.name());
    span.record("skein.kv_blocks", loaded.backend.kv_blocks());
    Ok(loaded)
}

/// Loads on the device of `config`.
fn load_on(config: &WorkerConfig, progress: &mut dyn FnMut(u64, u64)) -> Result<LoadedBackend, WorkerError> {
    match config.backend {
        BackendKind::Auto => load_auto(config, progress),
        BackendKind::Cuda => {
            let opened = open_cuda(config)?.map_err(|why| WorkerError::Load(Box::new(why)))?;
            load_cuda(config, opened, progress)
        }
        BackendKind::Cpu => load_cpu(config, progress),
        BackendKind::Fake => load_fake(config),
    }
}

/// Uses a usable GPU if there is one, else the CPU. A GPU that is present but does not work is an error: a
/// worker that came back on another device could not continue its earlier requests.
fn load_auto(
    config: &WorkerConfig,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    match open_cuda(config)? {
        Ok(opened) => load_cuda(config, opened, progress),
        Err(why) if why.is_fault() => Err(WorkerError::Load(Box::new(why))),
        Err(why) => {
            for (setting, is_set) in [
                ("--quantization fp8", config.precision.quantization == Some(Quantization::Fp8)),
                ("--kv-cache-dtype fp8", config.precision.kv_cache_dtype == KvCacheDtype::Fp8),
                (DUMMY, config.cuda.load_format == LoadFormat::Dummy),
            ] {
                if is_set {
                    return Err(WorkerError::Load(format!("{setting} needs a GPU: {why}").into()));
                }
            }
            tracing::info!("{why}; using the CPU");
            load_cpu(config, progress)
        }
    }
}
