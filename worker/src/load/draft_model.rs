//! Plans and loads a draft model, and checks that it fits the model.

use std::path::{Path, PathBuf};

use skein_grammar::token_bytes::TokenBytes;
use skein_model::checkpoint::Weights;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::shard::Shard;
use skein_model::tensors;

use super::model_files::{bits_per_weight, stored_form, tokenizer_json};
use super::precision;
use crate::backend::cpu::{CpuBackend, CpuModel, CpuOptions, NumberTypes};
use crate::config::{Precision, WorkerConfig};
use crate::draft_model::DraftModel;
use crate::error::WorkerError;
use crate::group::Topology;

/// Rows of its largest step.
const MAX_ROWS: u32 = 256;

/// A draft model before it is loaded.
pub(super) struct DraftModelPlan {
    path: PathBuf,
    vocab_size: u32,
    numbers: NumberTypes,
    /// Size of its weights in memory.
    pub weight_bytes: u64,
    /// Size of its keys and values of a token.
    pub kv_bytes_per_token: u64,
}

/// Checks the draft model at `path`, and plans its memory.
///
/// # Errors
/// If it cannot draft for the model, for example because their tokens differ.
pub(super) fn plan(
    config: &WorkerConfig,
    path: &Path,
    topology: &Topology,
) -> Result<DraftModelPlan, WorkerError> {
    if topology.ranks() > 1 {
        return Err(WorkerError::Unsuitable(format!(
            "--speculate with a draft model needs a model on one rank, and this one has {}; leave one of them out",
            topology.ranks()
        )));
    }
    let draft = ModelConfig::from_dir(path)?;
    if draft.spec.state.is_some() {
        return Err(WorkerError::Unsuitable(format!(
            "the draft model {} is of {}, which has layers with a recurrent state; take one without, or --speculate with \
             drafts from the text itself",
            path.display(),
            draft.model_type
        )));
    }
    if draft.pooling.is_some() {
        return Err(WorkerError::Unsuitable(format!(
            "the draft model {} gives vectors of prompts and draws no tokens; take one that does, or --speculate with \
             drafts from the text itself",
            path.display(),
        )));
    }
    check_tokens(&config.model, path)?;
    let weights = Weights::open(path)?;
    let embedding = tensors::embedding(&draft.spec).find(&weights)?;
    // Weights that are quantised already stay as they are.
    let quantised = stored_form(&draft.spec, &weights)?;
    let quantization = config.precision.quantization.filter(|_| quantised.is_none());
    let asked = Precision { quantization, ..config.precision };
    let numbers = precision::on_cpu(asked, embedding.storage(), quantised, false)?;
    let weight_bytes = match weights.scheme() {
        Some(_) if !numbers.decodes() => weights.file_bytes() / 10 * 11,
        _ => draft.spec.cpu_weight_bytes(bits_per_weight(&numbers, embedding.storage())),
    };
    let kv_bytes_per_token = draft.spec.kv_bytes_per_token(numbers.kv);
    tracing::info!(draft_model = %path.display(), "a draft model speculates");
    let (path, vocab_size) = (path.to_owned(), draft.spec.vocab_size);
    Ok(DraftModelPlan { path, vocab_size, numbers, weight_bytes, kv_bytes_per_token })
}

impl DraftModelPlan {
    /// Memory that it allocates beside a model with `options`, in bytes.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn bytes(&self, options: &CpuOptions) -> Result<u64, WorkerError> {
        let spec = ModelConfig::from_dir(&self.path)?.spec;
        Ok(CpuModel::plan(&self.path, &spec, &Shard::whole(&spec), &self.options(options))?.total())
    }

    /// Its options. All its layers keep their whole context, so that its blocks need no pairs.
    fn options(&self, options: &CpuOptions) -> CpuOptions {
        CpuOptions {
            max_rows: MAX_ROWS,
            numbers: self.numbers,
            window_blocks: None,
            state_slots: 0,
            ..*options
        }
    }

    /// Loads it beside a model with `options` and a vocabulary of `model_vocab` tokens.
    ///
    /// # Errors
    /// If its files are broken or its first steps fail.
    pub fn load(
        self,
        config: &WorkerConfig,
        options: &CpuOptions,
        model_vocab: u32,
    ) -> Result<DraftModel, WorkerError> {
        let cache = config.cpu.packed_cache_dir.clone().map_or(PackedCache::none(), PackedCache::at);
        let backend =
            CpuBackend::load_with((&self.path, None), self.options(options), &cache, &mut |_, _| {})?;
        let vocab = (self.vocab_size, model_vocab);
        let shares = config.scheduler.enable_prefix_caching;
        let started = DraftModel::start(Box::new(backend), options.block_size, vocab, shares);
        started.map_err(|error| WorkerError::Load(Box::new(error)))
    }
}

/// Refuses a draft model whose tokens have other texts than the model's. Padding at the end of a vocabulary
/// may differ.
fn check_tokens(model: &Path, draft: &Path) -> Result<(), WorkerError> {
    let (Some(of_model), Some(of_draft)) = (token_bytes(model)?, token_bytes(draft)?) else {
        return Ok(());
    };
    let both = of_model.vocab_size().min(of_draft.vocab_size());
    let Some(other) = (0..both).find(|id| of_model.get(*id) != of_draft.get(*id)) else { return Ok(()) };
    let text = |bytes: &TokenBytes| String::from_utf8_lossy(bytes.get(other)).into_owned();
    Err(WorkerError::Unsuitable(format!(
        "the draft model {} has other tokens than the model: token {other} is {:?} there and {:?} here; take a draft \
         model of the same family",
        draft.display(),
        text(&of_draft),
        text(&of_model)
    )))
}

/// Tokens of the model at `path`; `None` if it has no tokenizer.json, as a model for token ids.
fn token_bytes(path: &Path) -> Result<Option<TokenBytes>, WorkerError> {
    let Some(json) = tokenizer_json(path)? else { return Ok(None) };
    let tree = serde_json::from_slice(&json).map_err(|error| WorkerError::Load(Box::new(error)))?;
    Ok(TokenBytes::from_tokenizer_json(&tree).ok())
}
