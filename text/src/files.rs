//! Files of a model's text: those in its directory, or those that the operator gave instead.

use std::path::Path;

use serde_json::Value;
use skein_gguf::{GgufModel, is_gguf};
use skein_grammar::{MAX_TOKENIZER_BYTES, tokenizer_fingerprint};
use skein_vocab::{Converted, Declarations, TOKENIZER, Vocabulary, look_alikes};
use xxhash_rust::xxh3::xxh3_64;

use super::bounded_read::read_if_there;
use super::chat_template::ChatTemplate;
use super::error::TextError;
use super::known_steps;
use super::named_templates::{NamedTemplates, special_strings};
use super::sources::TextSources;
use super::tokenizer::{Tokenizer, malformed};
use super::tokenizer_file::TokenizerFile;

/// Files of a model's text, read and parsed. Nothing in them has run yet.
pub struct TextFiles {
    /// Content of tokenizer.json.
    pub(super) tokenizer: Vec<u8>,
    /// Name of the file with the vocabulary.
    file: &'static str,
    /// Digest of what the tokenizer was built from, where that is no tokenizer.json.
    pub(super) digest: Option<[u8; 8]>,
    pub(super) parsed: TokenizerFile,
    pub(super) built: Option<Tokenizer>,
    /// tokenizer_config.json.
    pub(super) config: Value,
    /// Chat templates outside of it.
    pub(super) templates: NamedTemplates,
    /// Added tokens that tokenizer.json lacks, as JSON; empty if it has all.
    declared: String,
}

impl TextFiles {
    /// Reads the files of the model in `directory`; `sources` replace some.
    ///
    /// # Errors
    /// If one cannot be read or parsed.
    pub fn read(directory: &Path, sources: &TextSources) -> Result<Self, TextError> {
        Self::of_tokenizer(sources.tokenizer_directory(directory), sources.templates(directory)?)
    }

    /// Reads the tokenizer's files in `source`.
    fn of_tokenizer(source: &Path, templates: NamedTemplates) -> Result<Self, TextError> {
        if is_gguf(source) {
            let model = GgufModel::open(source)?;
            let files = Self::new(model.tokenizer()?, model.tokenizer_config(), templates)?;
            return Ok(Self { digest: model.tokenizer_digest().map(u64::to_le_bytes), ..files });
        }
        if let Some(json) = read_if_there(&source.join(TOKENIZER), MAX_TOKENIZER_BYTES)? {
            let declarations = Declarations::read(source)?;
            let mut files = Self::new(json, Value::Null, templates)?;
            files.declared = add_missing(&mut files.parsed, &declarations);
            return Ok(Self { config: declarations.config, ..files });
        }
        let vocabulary = vocabulary(source)?;
        let (digest, file) = (Some(vocabulary.digest().to_le_bytes()), vocabulary.name());
        let Converted { json, config } = vocabulary.convert()?;
        let files = Self::new(json, config, templates).map_err(|error| error.in_file(file))?;
        Ok(Self { digest, file, ..files })
    }

    /// Parses the content of tokenizer.json; `config` is tokenizer_config.json.
    pub(super) fn new(
        tokenizer: Vec<u8>,
        config: Value,
        templates: NamedTemplates,
    ) -> Result<Self, TextError> {
        let parsed = TokenizerFile::parse(&tokenizer).map_err(malformed)?;
        let declared = String::new();
        Ok(Self {
            tokenizer,
            file: TOKENIZER,
            digest: None,
            parsed,
            built: None,
            config,
            templates,
            declared,
        })
    }

    /// Builds the tokenizer now, which takes most of the time of
    /// [`ModelText::of`](super::model_text::ModelText::of).
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn build_tokenizer(mut self) -> Result<Self, TextError> {
        self.built = Some(self.tokenizer()?);
        Ok(self)
    }

    pub(super) fn tokenizer(&mut self) -> Result<Tokenizer, TextError> {
        let built = self.built.take().map_or_else(|| Tokenizer::new(&self.parsed, self.tokenizer.len()), Ok);
        built.map_err(|error| error.in_file(self.file))
    }

    /// What distinguishes the tokenizer: the content of tokenizer.json, or a digest of what there is instead.
    pub(super) fn identity(&self) -> &[u8] {
        self.digest.as_ref().map_or(&self.tokenizer, |digest| digest)
    }

    /// Whether the tokenizer must first be tried in a process of its own.
    pub fn needs_trial(&self) -> bool {
        !known_steps::are_known(&self.parsed)
    }

    /// Fingerprint of tokenizer and chat template: versions of a model with equal ones can replace each other
    /// under a running router. Covers the tokenizer's whole file, added tokens beside it, and of its
    /// configuration what a template sees.
    pub fn fingerprint(&self) -> u64 {
        let NamedTemplates { default, tool_use } = self.templates.clone().or_of_config(&self.config);
        let specials = special_strings(&self.config).into_iter().flat_map(|(name, text)| [name, text]);
        let declared = Some(self.declared.clone()).filter(|declared| !declared.is_empty());
        let templates = [default.unwrap_or_default()].into_iter().chain(tool_use);
        let parts = templates.chain(specials).chain(declared);
        let mut bytes = tokenizer_fingerprint(&self.tokenizer).to_le_bytes().to_vec();
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        xxh3_64(&bytes)
    }
}

/// Loads only the tokenizer of the model in `directory`.
pub(super) fn tokenizer_of(directory: &Path, sources: &TextSources) -> Result<Tokenizer, TextError> {
    let source = sources.tokenizer_directory(directory);
    TextFiles::of_tokenizer(source, NamedTemplates::default())?.tokenizer()
}

/// Adds tokens that only the files beside tokenizer.json declare; returns them as JSON, or nothing.
fn add_missing(parsed: &mut TokenizerFile, declarations: &Declarations) -> String {
    let missing = declarations.missing_from(parsed.member("added_tokens"));
    let shown = if missing.is_empty() { String::new() } else { Value::from(missing.clone()).to_string() };
    parsed.add_tokens(missing);
    shown
}

/// The vocabulary of a directory without a tokenizer.json.
fn vocabulary(directory: &Path) -> Result<Vocabulary, TextError> {
    let none = || TextError::NoTokenizer { directory: directory.to_owned(), found: look_alikes(directory) };
    Vocabulary::find(directory)?.ok_or_else(none)
}

/// tokenizer_config.json, with special_tokens_map.json and the special tokens that its tokenizer names.
fn tokenizer_config(directory: &Path) -> Result<Value, TextError> {
    if is_gguf(directory) {
        return Ok(GgufModel::open(directory)?.tokenizer_config());
    }
    if read_if_there(&directory.join(TOKENIZER), MAX_TOKENIZER_BYTES)?.is_some() {
        return Ok(Declarations::read(directory)?.config);
    }
    match Vocabulary::find(directory)? {
        Some(vocabulary) => Ok(vocabulary.convert()?.config),
        None => Ok(Declarations::read(directory)?.config),
    }
}

/// Loads and compiles only the chat template of the model in `directory`.
pub(super) fn chat_template_of(
    directory: &Path,
    sources: &TextSources,
) -> Result<Option<ChatTemplate>, TextError> {
    let config = tokenizer_config(sources.tokenizer_directory(directory))?;
    compile(sources.templates(directory)?, &config)
}

/// The chat templates, which `config` may have.
pub(super) fn compile(templates: NamedTemplates, config: &Value) -> Result<Option<ChatTemplate>, TextError> {
    templates.or_of_config(config).compile(&special_strings(config))
}
