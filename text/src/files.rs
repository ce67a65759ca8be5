//! Files of a model's text: those in its directory, or those that the operator gave instead.

use std::path::Path;

use serde_json::Value;
use skein_gguf::{GgufModel, is_gguf};
use skein_grammar::{MAX_TOKENIZER_BYTES, tokenizer_fingerprint};
use xxhash_rust::xxh3::xxh3_64;

use super::bounded_read::{read_if_there, read_json};
use super::chat_template::ChatTemplate;
use super::error::TextError;
use super::known_steps;
use super::sources::TextSources;
use super::tokenizer::{Tokenizer, malformed};
use super::tokenizer_file::TokenizerFile;

/// Files of a model's text, read and parsed. Nothing in them has run yet.
pub struct TextFiles {
    /// Content of tokenizer.json.
    pub(super) tokenizer: Vec<u8>,
    /// Of a GGUF file, the digest of its tokenizer.
    pub(super) digest: Option<[u8; 8]>,
    pub(super) parsed: TokenizerFile,
    pub(super) built: Option<Tokenizer>,
    /// tokenizer_config.json.
    pub(super) config: Value,
    /// Chat template outside of it.
    pub(super) template: Option<String>,
}

impl TextFiles {
    /// Reads the files of the model in `directory`; `sources` replace some.
    ///
    /// # Errors
    /// If one cannot be read or parsed.
    pub fn read(directory: &Path, sources: &TextSources) -> Result<Self, TextError> {
        let source = sources.tokenizer_directory(directory);
        let template = sources.template(directory)?;
        if !is_gguf(source) {
            return Self::new(tokenizer_json(source)?, tokenizer_config(source)?, template);
        }
        let model = GgufModel::open(source)?;
        let files = Self::new(model.tokenizer()?, model.tokenizer_config(), template)?;
        Ok(Self { digest: model.tokenizer_digest().map(u64::to_le_bytes), ..files })
    }

    /// Parses the content of tokenizer.json; `config` is tokenizer_config.json.
    pub(super) fn new(
        tokenizer: Vec<u8>,
        config: Value,
        template: Option<String>,
    ) -> Result<Self, TextError> {
        let parsed = TokenizerFile::parse(&tokenizer).map_err(malformed)?;
        Ok(Self { tokenizer, digest: None, parsed, built: None, config, template })
    }

    /// Builds the tokenizer now, which takes most of the time of
    /// [`ModelText::of`](super::model_text::ModelText::of).
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn build_tokenizer(mut self) -> Result<Self, TextError> {
        self.built = Some(Tokenizer::new(&self.parsed, self.tokenizer.len())?);
        Ok(self)
    }

    /// Whether the tokenizer must first be tried in a process of its own.
    pub fn needs_trial(&self) -> bool {
        !known_steps::are_known(&self.parsed)
    }

    /// Fingerprint of tokenizer and chat template: versions of a model with equal ones can replace each other
    /// under a running router. Covers the tokenizer's whole file, and of its configuration what a template
    /// sees.
    pub fn fingerprint(&self) -> u64 {
        let own = default_template(&self.config["chat_template"]);
        let template = self.template.clone().or(own).unwrap_or_default();
        let specials = special_strings(&self.config).into_iter().flat_map(|(name, text)| [name, text]);
        let parts = [template].into_iter().chain(specials);
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
    Tokenizer::from_json(&tokenizer_json(sources.tokenizer_directory(directory))?)
}

/// Content of tokenizer.json.
fn tokenizer_json(directory: &Path) -> Result<Vec<u8>, TextError> {
    if is_gguf(directory) {
        return Ok(GgufModel::open(directory)?.tokenizer()?);
    }
    let json = read_if_there(&directory.join("tokenizer.json"), MAX_TOKENIZER_BYTES)?;
    json.ok_or_else(|| TextError::NoTokenizer { directory: directory.to_owned() })
}

/// Content of tokenizer_config.json; null if it does not exist.
fn tokenizer_config(directory: &Path) -> Result<Value, TextError> {
    if is_gguf(directory) {
        return Ok(GgufModel::open(directory)?.tokenizer_config());
    }
    read_json(directory, "tokenizer_config.json")
}

/// Loads and compiles only the chat template of the model in `directory`.
pub(super) fn chat_template_of(
    directory: &Path,
    sources: &TextSources,
) -> Result<Option<ChatTemplate>, TextError> {
    let config = tokenizer_config(sources.tokenizer_directory(directory))?;
    compile(sources.template(directory)?, &config)
}

/// The chat template, which `config` may have.
pub(super) fn compile(template: Option<String>, config: &Value) -> Result<Option<ChatTemplate>, TextError> {
    let source = template.or_else(|| default_template(&config["chat_template"]));
    let own = special_strings(config);
    let compile = |source: String| ChatTemplate::compile(&source, own, skein_node::clock::unix_time);
    source.map(compile).transpose()
}

/// `chat_template` of tokenizer_config.json: a string, or a list of named templates with a "default".
fn default_template(value: &Value) -> Option<String> {
    let named = |list: &'_ Vec<Value>| {
        list.iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| entry["template"].as_str())
            .map(str::to_owned)
    };
    value.as_str().map(str::to_owned).or_else(|| value.as_array().and_then(named))
}

/// `bos_token`, `eos_token` and so on, each a string or `{"content": …}`.
fn special_strings(config: &Value) -> Vec<(String, String)> {
    let names = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];
    let spelling = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    names.iter().filter_map(|name| Some(((*name).to_owned(), spelling(&config[*name])?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_and_tokens_come_in_several_forms() {
        assert_eq!(default_template(&json!("x")), Some("x".to_owned()));
        let named = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
        assert_eq!(default_template(&named), Some("d".to_owned()));
        assert_eq!(default_template(&Value::Null), None);
        let own = special_strings(
            &json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null}),
        );
        assert_eq!(own, [("bos_token".into(), "<s>".into()), ("eos_token".into(), "</s>".into())]);
    }
}
