//! Finds the model's directory or GGUF file, and reads what the banner shows. A name of the hub is resolved
//! to its directory. Only mistakes that should be reported at once are checked here; the worker checks the
//! rest.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use skein_gguf::{GgufModel, is_gguf};
use skein_hub::{Cache, ModelName, Need, Revision};
use skein_node::config::Settings;
use skein_sys::regular_file;
pub use skein_text::model_text::Facts;

use crate::exit::{Failure, MODEL};
use crate::hub;
#[cfg(feature = "worker")]
use crate::shipped;

/// Largest safetensors header that is read, bytes; larger ones are broken.
const MAX_HEADER_BYTES: u64 = 100 << 20;
/// Largest configuration file that is read, bytes.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The model settings as the user gave them.
#[derive(Debug, Clone, Default)]
pub struct ModelArgument {
    /// A directory, a GGUF file or a name; `None` = the shipped model.
    pub given: Option<String>,
    /// Branch, tag or commit; only for a name.
    pub revision: Option<Revision>,
}

impl ModelArgument {
    /// Reads `--model` and `--revision`; problems are recorded in `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        let argument = Self::given(settings);
        argument.check(settings);
        argument
    }

    /// Like [`read`](Self::read), without the check: for commands that may take the model from a positional
    /// argument.
    pub fn given(settings: &mut Settings) -> Self {
        let parse = |text: &str| Revision::parse(text).map_err(|error| error.to_string());
        Self { given: crate::settings::model_argument(settings), revision: settings.value("revision", parse) }
    }

    /// Records a problem if a revision is given for something that is not a name.
    pub fn check(&self, settings: &mut Settings) {
        let is_named = self.given.as_deref().is_some_and(|given| !Path::new(given).is_dir());
        if self.revision.is_some() && !is_named {
            settings.problem(
                "--revision: only models of the hub have revisions; name one, as organisation/model",
            );
        }
    }
}

/// The directory of a model; downloads the model if `argument` is a name that is not on this machine.
///
/// # Errors
/// If there is no such model, or it cannot be downloaded.
pub async fn find(argument: &ModelArgument, need: Need) -> Result<PathBuf, Failure> {
    let Some(given) = &argument.given else { return without_name() };
    let path = PathBuf::from(given);
    match ModelName::parse(given) {
        _ if path.is_dir() => directory(path),
        _ if is_gguf(&path) => gguf_file(path),
        Ok(name) => hub::find(&name, argument.revision.as_ref(), need).await,
        Err(_) => Err(Failure::new(
            MODEL,
            format!(
                "`{given}` {}. Give a Hugging Face model directory (config.json, *.safetensors, a \
                 tokenizer), a GGUF file, or the name of a model, for example Qwen/Qwen3-0.6B. Without MODEL \
                 Skein serves the shipped model",
                if path.exists() { "is neither a directory nor a GGUF file" } else { "does not exist" }
            ),
        )),
    }
}

/// Whether `word` can be a model: a directory, a GGUF file, a name as organisation/model, or a path, even if
/// nothing is there.
pub fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    path.is_dir() || is_gguf(path) || ModelName::is_name(word) || is_path(word)
}

/// Whether `word`, which names no model, was probably meant to: it is written as a path, a file of weights, a
/// name with a tag, or with digits or hyphens as `llama3` and `phi-4-mini` are. `Hello` is a prompt.
pub fn resembles_model(word: &str) -> bool {
    if word.is_empty() || word.contains(char::is_whitespace) {
        return false;
    }
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:/\\~".contains(&byte));
    let has_letter = word.bytes().any(|byte| byte.is_ascii_alphabetic());
    let joins = |(before, after): (&str, &str)| !before.is_empty() && !after.is_empty();
    let is_joined = [':', '-', '_', '/', '\\'].iter().any(|sign| word.split_once(*sign).is_some_and(joins));
    let is_file = [".gguf", ".safetensors"].iter().any(|end| word.to_ascii_lowercase().ends_with(end));
    let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
    is_path(word) || is_file || (is_plain && has_letter && (is_joined || has_digit))
}

/// Whether `word` is written as a path. With white space it is a sentence.
fn is_path(word: &str) -> bool {
    let begins_as_path = ["./", "../", "/", "~/"].iter().any(|start| word.starts_with(start));
    begins_as_path && !word.contains(char::is_whitespace)
}

/// Reports what is wrong with a GGUF file before anything starts.
fn gguf_file(path: PathBuf) -> Result<PathBuf, Failure> {
    let read = GgufModel::open(&path).and_then(|model| model.config().map(drop));
    read.map(|()| path).map_err(|error| Failure::new(MODEL, error.to_string()))
}

fn directory(path: PathBuf) -> Result<PathBuf, Failure> {
    if !path.join("config.json").is_file() {
        return Err(Failure::new(
            MODEL,
            format!(
                "`{}` has no config.json, so it is not a model directory; is the model one level further down?",
                path.display()
            ),
        ));
    }
    Ok(path)
}

#[cfg(feature = "worker")]
fn without_name() -> Result<PathBuf, Failure> {
    shipped::find()
}

/// Fails: a binary without workers contains no model.
#[cfg(not(feature = "worker"))]
fn without_name() -> Result<PathBuf, Failure> {
    let message = "name a model, as organisation/model or its directory: this build contains none";
    Err(Failure::new(MODEL, message.to_owned()))
}

/// The default name for clients: that of the hub for a directory in its cache, else the name of the directory
/// or of the file without its extension.
pub fn default_name(model: &Path) -> String {
    let full = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    if let Some(name) = Cache::name_of(&full) {
        return name.to_string();
    }
    let name = if full.is_file() { full.file_stem() } else { full.file_name() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Reads a model's configuration and weight headers. What cannot be read stays empty; the worker reports it.
pub fn facts(model: &Path) -> Facts {
    if is_gguf(model) {
        return GgufModel::open(model).map(|model| gguf_facts(&model)).unwrap_or_default();
    }
    let config: Value = regular_file::read(&model.join("config.json"), MAX_CONFIG_BYTES)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let mut facts =
        Facts { family: config["model_type"].as_str().unwrap_or("?").to_owned(), ..Facts::default() };
    let mut largest = 0;
    for path in weight_files(model) {
        for (name, tensor) in header(&path).as_ref().and_then(Value::as_object).into_iter().flatten() {
            if name == "__metadata__" {
                continue;
            }
            let shape = tensor["shape"].as_array().map(Vec::as_slice).unwrap_or_default();
            let count = shape.iter().filter_map(Value::as_u64).fold(1, u64::saturating_mul);
            let ends = (tensor["data_offsets"][0].as_u64(), tensor["data_offsets"][1].as_u64());
            facts.parameters = facts.parameters.saturating_add(count);
            let bytes = ends.1.unwrap_or(0).saturating_sub(ends.0.unwrap_or(0));
            facts.bytes = facts.bytes.saturating_add(bytes);
            if count > largest {
                largest = count;
                facts.dtype = tensor["dtype"].as_str().unwrap_or("?").to_lowercase();
            }
        }
    }
    facts
}

/// [`facts`] for a GGUF file.
fn gguf_facts(model: &GgufModel) -> Facts {
    let mut facts = Facts {
        family: model
            .get("general.architecture")
            .and_then(skein_gguf::Value::as_str)
            .unwrap_or("?")
            .to_owned(),
        ..Facts::default()
    };
    let mut largest = 0;
    for tensor in model.tensors() {
        let count = tensor.shape.iter().map(|size| *size as u64).fold(1, u64::saturating_mul);
        facts.parameters = facts.parameters.saturating_add(count);
        facts.bytes = facts.bytes.saturating_add(tensor.bytes.len() as u64);
        if count > largest {
            largest = count;
            facts.dtype = tensor.kind.name.to_lowercase();
        }
    }
    facts
}

/// `vocab_size` of config.json, if present, to compare it with the tokenizer. The worker checks the file
/// itself.
pub fn vocab_size(model: &Path) -> Option<u32> {
    if is_gguf(model) {
        let config = GgufModel::open(model).and_then(|model| model.config()).ok()?;
        return config["vocab_size"].as_u64().and_then(|size| u32::try_from(size).ok());
    }
    let config: Value =
        serde_json::from_slice(&regular_file::read(&model.join("config.json"), MAX_CONFIG_BYTES).ok()?)
            .ok()?;
    let size = config["vocab_size"].as_u64().or_else(|| config["text_config"]["vocab_size"].as_u64());
    size.and_then(|size| u32::try_from(size).ok())
}

/// The weight files that a worker would read: the single file, or the shards that the index lists.
fn weight_files(model: &Path) -> Vec<PathBuf> {
    let single = model.join("model.safetensors");
    if single.exists() {
        return vec![single];
    }
    let index: Value = regular_file::read(&model.join("model.safetensors.index.json"), MAX_CONFIG_BYTES)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let names = index["weight_map"].as_object().into_iter().flatten().filter_map(|(_, file)| file.as_str());
    // An index must not point outside its directory.
    let names: BTreeSet<&str> = names.filter(|name| !name.contains('/')).collect();
    names.into_iter().map(|name| model.join(name)).collect()
}

/// Names of the weight files that the index lists and that are missing.
pub fn missing_shards(model: &Path) -> Vec<String> {
    let missing = weight_files(model).into_iter().filter(|path| !path.exists());
    missing.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
}

/// The JSON header of a safetensors file.
fn header(path: &Path) -> Option<Value> {
    let mut file = regular_file::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return None;
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use skein_bench::models::{Dtype, RandomWeights, SHAPES, make_model};

    use super::*;

    #[test]
    fn facts_come_from_the_headers_of_a_made_model() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("tokenizer.json"), "{}").expect("a file");
        let out = dir.path().join("made");
        let random = RandomWeights { dtype: Dtype::Bf16, seed: 1, has_outliers: false };
        let made = make_model(&SHAPES[0], random, dir.path(), &out, |_| {}).expect("it is made");
        let expected = Facts {
            family: "llama".into(),
            parameters: made.parameters,
            dtype: "bf16".into(),
            bytes: made.bytes,
        };
        assert_eq!(facts(&out), expected);
        assert_eq!(default_name(&out), "made");
        // The same weights under a second name, as some publishers add them, count once.
        let whole = out.join("model.safetensors");
        std::fs::copy(&whole, out.join("consolidated.safetensors")).expect("a copy");
        assert_eq!(facts(&out), expected);
        std::fs::rename(&whole, out.join("one.safetensors")).expect("it is ours");
        let index = r#"{"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "../made/one.safetensors"}}"#;
        std::fs::write(out.join("model.safetensors.index.json"), index).expect("a file");
        assert_eq!(facts(&out), expected, "each shard once, through the index");
    }

    #[test]
    fn a_header_with_false_sizes_does_not_panic() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let tensor = format!(r#"{{"dtype":"F32","shape":[{0},2],"data_offsets":[0,{0}]}}"#, u64::MAX);
        let header = format!(r#"{{"a":{tensor},"b":{tensor}}}"#);
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        std::fs::write(dir.path().join("model.safetensors"), file).expect("a file");
        let facts = facts(dir.path());
        assert_eq!((facts.parameters, facts.bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_path_where_nothing_is_is_no_prompt() {
        let check = |word: &str, expected: bool| assert_eq!(is_model(word), expected, "{word}");
        for path in ["./nope", "../nope", "/nope", "~/models/nope", "./nope.gguf"] {
            check(path, true);
        }
        for prompt in ["nope", "/ is a slash", "../ and ./ are what?", "Hello.", "~5", "..."] {
            check(prompt, false);
        }
    }

    #[tokio::test]
    async fn a_missing_model_is_refused_with_a_next_step() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let empty = dir.path().display().to_string();
        for (given, expected) in [("/nowhere/at/all", "does not exist"), (&empty, "has no config.json")] {
            let argument = ModelArgument { given: Some(given.to_owned()), revision: None };
            let failure = find(&argument, Need::All).await.expect_err(given);
            assert_eq!(failure.code, MODEL);
            assert!(failure.message.contains(expected), "{failure}");
        }
        assert!(
            find(&ModelArgument::default(), Need::All).await.is_ok(),
            "the shipped model is found from the source tree"
        );
    }
}
