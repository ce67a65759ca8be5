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

/// Content of the tokenizer.json in the directory `model`, or its equivalent from other files or from a GGUF
/// file; `None` if there is none that can be used.
///
/// # Errors
/// If there is a file that cannot be read.
pub(super) fn tokenizer_json(model: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    if let Some(file) = ModelFile::open(model)? {
        return Ok(file.tokenizer());
    }
    Ok(skein_vocab::tokenizer_json(model)?)
}

/// Grammars of the model in `directory`; its tokens are read on first use. `None` without a tokenizer.json,
/// because token ids alone do not determine text.
///
/// # Errors
/// If it cannot be read.
pub fn grammars(directory: &Path, vocab_size: u32) -> Result<Option<Arc<Grammars>>, LoadError> {
    let Some(identity) = tokenizer_identity(directory)? else { return Ok(None) };
    let directory = directory.to_owned();
    let load = move || {
        let failed = |why: String| format!("the tokenizer of {}: {why}", directory.display());
        let json = tokenizer_json(&directory).map_err(|error| error.to_string())?;
        let json = json.ok_or_else(|| failed("it is gone".to_owned()))?;
        let tree = serde_json::from_slice(&json).map_err(|error| failed(error.to_string()))?;
        TokenBytes::from_tokenizer_json(&tree).map(Arc::new).map_err(|error| error.to_string())
    };
    Ok(Some(Arc::new(Grammars::new(&identity, vocab_size, load))))
}

/// What distinguishes the tokenizer of the model in `directory`; `None` without one.
fn tokenizer_identity(directory: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    let digest = |file: ModelFile| file.tokenizer_digest().map(|digest| digest.to_le_bytes().to_vec());
    match ModelFile::open(directory)? {
        Some(file) => Ok(digest(file)),
        None => Ok(skein_vocab::identity(directory)?),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_that_is_a_pipe_ends_the_start_and_a_missing_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        assert!(grammars(directory.path(), 8).unwrap().is_none());
        let path = directory.path().join("tokenizer.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = grammars(directory.path(), 8).err().unwrap().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("named pipe"), "{error}");
    }

    #[test]
    fn other_files_replace_tokenizer_json() {
        let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizers");
        for (golden, name) in [("bpe.model", "tokenizer.model"), ("tekken.json", "tekken.json")] {
            let directory = tempfile::tempdir().unwrap();
            std::fs::copy(Path::new(goldens).join(golden), directory.path().join(name)).unwrap();
            let json = tokenizer_json(directory.path()).unwrap().unwrap();
            let bytes = TokenBytes::from_tokenizer_json(&serde_json::from_slice(&json).unwrap()).unwrap();
            assert_eq!((bytes.get(2), bytes.is_special(2)), (&b"</s>"[..], true), "{name}");
            assert!((100..bytes.vocab_size()).any(|id| bytes.get(id) == b"th"), "{name}");
            let grammars = grammars(directory.path(), bytes.vocab_size()).unwrap().unwrap();
            assert_ne!(grammars.fingerprint(), 0);
        }
    }
}
