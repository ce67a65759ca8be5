//! From a configuration to a backend that can compute.

use super::{WorkerError, sizing};
use crate::TokenId;
use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::backend::fake::{FakeBackend, FakeOptions};
use crate::config::{BackendKind, WorkerConfig};
use crate::model::LoadError;
use crate::model::config::ModelConfig;
use crate::model::fingerprint::fingerprint;

/// Vocabulary and context of the fake backend when it is served.
const FAKE_VOCAB_SIZE: u32 = 32_000;
const FAKE_MODEL_LEN: u32 = 8192;
/// Its cache is sized as that of a model of half a billion parameters.
const FAKE_KV_BYTES_PER_TOKEN: u64 = 12 * 1024;

/// A backend with its weights, and what requests have to know of the model.
pub struct LoadedBackend {
    /// Computes.
    pub backend: Box<dyn Backend>,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Longest sequence the model was made for.
    pub model_len: u32,
    /// Tokens that end a sample unless the request ignores them.
    pub eos_token_ids: Vec<TokenId>,
    /// "cpu", "cuda", "fake".
    pub name: &'static str,
    /// Whether a resumed request continues bit for bit.
    pub resume_exact: bool,
    /// Tells models of one name apart.
    pub fingerprint: u64,
}

/// Loads what `config` names. Blocks for as long as reading the weights takes.
pub(super) fn load(
    config: &WorkerConfig,
    mut progress: impl FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    match config.backend {
        BackendKind::Cpu => load_cpu(config, &mut progress),
        BackendKind::Fake => load_fake(config),
    }
}

impl From<LoadError> for WorkerError {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}

fn load_cpu(config: &WorkerConfig, progress: &mut dyn FnMut(u64, u64)) -> Result<LoadedBackend, WorkerError> {
    // Its header first: the size of the cache depends on the model's.
    let model = ModelConfig::from_dir(&config.model)?;
    let options = CpuOptions {
        threads: config.threads,
        kv_blocks: kv_blocks(config, model.kv_bytes_per_token(), model.max_position_embeddings)?,
        block_size: config.scheduler.block_size,
        max_rows: config.scheduler.max_num_batched_tokens,
    };
    let fingerprint = fingerprint(&config.model)?;
    let (backend, model) = CpuBackend::load(&config.model, options, progress)?;
    Ok(LoadedBackend {
        fingerprint,
        backend: Box::new(backend),
        vocab_size: model.vocab_size,
        model_len: model.max_position_embeddings,
        eos_token_ids: model.eos_token_ids,
        name: "cpu",
        resume_exact: true,
    })
}

fn load_fake(config: &WorkerConfig) -> Result<LoadedBackend, WorkerError> {
    let options = FakeOptions {
        vocab_size: FAKE_VOCAB_SIZE,
        block_size: config.scheduler.block_size,
        kv_blocks: kv_blocks(config, FAKE_KV_BYTES_PER_TOKEN, FAKE_MODEL_LEN)?,
        ..FakeOptions::default()
    };
    Ok(LoadedBackend {
        backend: Box::new(FakeBackend::new(options)),
        vocab_size: FAKE_VOCAB_SIZE,
        model_len: FAKE_MODEL_LEN,
        eos_token_ids: Vec::new(),
        name: "fake",
        resume_exact: true,
        fingerprint: 0,
    })
}

fn kv_blocks(config: &WorkerConfig, bytes_per_token: u64, model_len: u32) -> Result<u32, WorkerError> {
    sizing::check_model_len(&config.scheduler, model_len)?;
    let available = sizing::available_memory().map(|bytes| bytes / u64::from(config.memory_sharers.max(1)));
    let given = config.kv_cache_memory_bytes;
    Ok(sizing::kv_blocks(&config.scheduler, given, bytes_per_token, model_len, available))
}
