//! What a model's files say, without reading its weights: how they are stored, and the tokens.

use std::path::Path;
use std::sync::Arc;

use skein_grammar::Grammars;
use skein_grammar::token_bytes::TokenBytes;
use skein_kernels::cpu::matrix::Storage;
use skein_model::LoadError;
use skein_model::adapter::Adapter;
use skein_model::checkpoint::quantised::Scheme;
use skein_model::checkpoint::{ModelFile, Weights};
use skein_model::config::ModelConfig;
use skein_model::spec::Spec;
use skein_model::tensors::{self, Kind};

use crate::backend::cpu::NumberTypes;
use crate::config::{LoadFormat, WorkerConfig};
use crate::error::WorkerError;

/// The part of the description of arithmetic of the merged adapter in `directory`; empty without one.
pub(super) fn of_merged(directory: Option<&Path>) -> Result<String, LoadError> {
    let fingerprint = directory.map(|directory| Adapter::open(directory)?.fingerprint()).transpose()?;
    Ok(fingerprint.map_or(String::new(), |fingerprint| format!(" adapter {fingerprint:016x}")))
}

/// Bits per weight in memory, including scales.
pub(super) fn bits_per_weight(numbers: &NumberTypes, stored: &Storage) -> u64 {
    numbers.weights.map_or(stored.bits_of_256().div_ceil(256) as u64, |format| u64::from(format.bits()) + 1)
}

/// Refuses an adapter where merging is not supported.
pub(super) fn check_adapter(config: &WorkerConfig) -> Result<(), WorkerError> {
    if ModelFile::open(&config.model)?.is_none() {
        return Ok(());
    }
    let why = "--lora-modules needs a model in safetensors, and this one is a GGUF file; merge the adapter before the \
         model is converted";
    Err(WorkerError::Unsuitable(why.into()))
}

/// Name of the scheme of the model's codes, or the type of its first matrix in blocks; `None` if its weights
/// are numbers.
pub(crate) fn stored_form(spec: &Spec, weights: &Weights) -> Result<Option<&'static str>, LoadError> {
    if let Some(scheme) = weights.scheme() {
        return Ok(Some(scheme.name()));
    }
    for tensor in tensors::all(spec).iter().filter(|tensor| matches!(tensor.kind, Kind::Matrix(..))) {
        if let Some(kind) = tensor.find_stored(weights)?.storage().blocks() {
            return Ok(Some(kind.name()));
        }
    }
    Ok(None)
}

/// Name of the scheme or of the blocks in which the weights of `config`'s model are quantised, if they are.
pub(super) fn quantised_form(
    config: &WorkerConfig,
    spec: &Spec,
) -> Result<Option<&'static str>, WorkerError> {
    if let Some(scheme) = Scheme::of(&config.model)? {
        return Ok(Some(scheme.name()));
    }
    // Dummy weights need no files.
    if config.cuda.load_format == LoadFormat::Dummy {
        return Ok(None);
    }
    Ok(stored_form(spec, &Weights::open(&config.model)?)?)
}

/// Content of a tokenizer.json, or its equivalent from a GGUF file.
pub(super) fn tokenizer_json(path: &Path) -> Result<Vec<u8>, String> {
    match ModelFile::open(path).map_err(|error| error.to_string())? {
        Some(file) => file.tokenizer().ok_or_else(|| format!("{} has no usable tokenizer", path.display())),
        None => std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display())),
    }
}

/// Grammars of the model in `directory`; its tokens are read on first use. `None` without a tokenizer.json,
/// because token ids alone do not determine text.
pub fn grammars(directory: &Path, vocab_size: u32) -> Option<Arc<Grammars>> {
    let (path, identity) = match ModelFile::open(directory) {
        Ok(Some(file)) => (directory.to_owned(), file.tokenizer_digest()?.to_le_bytes().to_vec()),
        Ok(None) | Err(_) => {
            let path = directory.join("tokenizer.json");
            let json = tokenizer_json(&path).ok()?;
            (path, json)
        }
    };
    let load = move || {
        let json = tokenizer_json(&path)?;
        let tree = serde_json::from_slice(&json).map_err(|error| format!("{}: {error}", path.display()))?;
        TokenBytes::from_tokenizer_json(&tree).map(Arc::new).map_err(|error| error.to_string())
    };
    Some(Arc::new(Grammars::new(&identity, vocab_size, load)))
}

/// Storage of the model's embedding, and the name of the codes of its other weights.
pub(super) fn stored(model: &Path) -> Result<(Storage, Option<&'static str>), String> {
    let read = || {
        let config = ModelConfig::from_dir(model)?;
        let weights = Weights::open(model)?;
        let embedding = tensors::embedding(&config.spec).find(&weights)?;
        Ok((embedding.storage().clone(), stored_form(&config.spec, &weights)?))
    };
    read().map_err(|error: LoadError| error.to_string())
}
