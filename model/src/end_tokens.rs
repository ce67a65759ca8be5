//! Tokens that end an answer, as in vLLM 0.33: those of generation_config.json, or else of config.json, and
//! the tokenizer's own `eos_token`.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use skein_proto::TokenId;
use skein_vocab::{TOKENIZER, Vocabulary};

use super::LoadError;
use super::fields::{Fields, MAX_JSON_BYTES, read_object};

const FIELD: &str = "eos_token_id";

/// Ids that `generation` names, or else `config`: a number or a list. Those outside the vocabulary are left
/// out: some models name -1 or an id of a larger vocabulary, and no sample is such a token.
pub(super) fn named(
    config: &Fields<'_>,
    generation: &Fields<'_>,
    vocab_size: u32,
) -> Result<Vec<TokenId>, LoadError> {
    let fields = if generation.is_absent(FIELD) { config } else { generation };
    let values = match fields.get(FIELD) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(values)) => values.as_slice(),
        Some(value) => std::slice::from_ref(value),
    };
    if !values.iter().all(|value| value.is_i64() || value.is_u64()) {
        return Err(fields.wrong(FIELD, "a token id or a list of token ids".into()));
    }
    let ids = values.iter().filter_map(|value| TokenId::try_from(value.as_u64()?).ok());
    Ok(ids.filter(|id| *id < vocab_size).collect())
}

/// Id of the tokenizer's `eos_token` in `directory`. `None` if it has none, or if the files cannot be read,
/// which is reported where text is loaded.
pub(super) fn of_tokenizer(directory: &Path) -> Option<TokenId> {
    if directory.join(TOKENIZER).exists() {
        let config = read_object(&directory.join("tokenizer_config.json")).unwrap_or_default();
        let map = || read_object(&directory.join("special_tokens_map.json")).ok();
        let text = match config.get("eos_token") {
            Some(token) => content(token)?.to_owned(),
            None => content(map()?.get("eos_token")?)?.to_owned(),
        };
        let read = || skein_sys::regular_file::read(&directory.join(TOKENIZER), MAX_JSON_BYTES).ok();
        return declared(&config, &text).or_else(|| in_json(&read()?, &text));
    }
    let converted = Vocabulary::find(directory).ok()??.convert().ok()?;
    let text = content(converted.config.get("eos_token")?)?.to_owned();
    in_json(&converted.json, &text)
}

/// A token is a text, or an object with one.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// Id in tokenizer_config.json's `added_tokens_decoder`.
fn declared(config: &serde_json::Map<String, Value>, text: &str) -> Option<TokenId> {
    let tokens = config.get("added_tokens_decoder")?.as_object()?;
    let (id, _) = tokens.iter().find(|(_, token)| content(token) == Some(text))?;
    id.parse().ok()
}

/// Id in a tokenizer.json: of an added token, or else of the vocabulary, which is only parsed if it must be.
fn in_json(json: &[u8], text: &str) -> Option<TokenId> {
    let WithAdded { added_tokens } = serde_json::from_slice(json).ok()?;
    let added = added_tokens.into_iter().find(|token| token.content == text);
    let own = || serde_json::from_slice::<WithModel>(json).ok()?.model.vocab.get(text).copied();
    added.map(|token| token.id).or_else(own)
}

#[derive(Deserialize)]
struct WithAdded {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: TokenId,
    content: String,
}

#[derive(Deserialize)]
struct WithModel {
    model: WithTokens,
}

#[derive(Deserialize)]
struct WithTokens {
    vocab: HashMap<String, TokenId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_without_tokenizer_json_names_its_end() {
        let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizers");
        let of = |golden: &str, name: &str, config: &str| {
            let directory = tempfile::tempdir().unwrap();
            std::fs::copy(Path::new(goldens).join(golden), directory.path().join(name)).unwrap();
            std::fs::write(directory.path().join("tokenizer_config.json"), config).unwrap();
            of_tokenizer(directory.path())
        };
        assert_eq!(of("bpe.model", "tokenizer.model", "{}"), Some(2));
        assert_eq!(of("unigram.model", "tokenizer.model", "{}"), Some(2));
        assert_eq!(of("tekken.json", "tekken.json", "{}"), Some(2));
        assert_eq!(of("tiktoken.model", "tiktoken.model", "{}"), None);
        assert_eq!(of("tiktoken.model", "tiktoken.model", r#"{"eos_token": "<|end|>"}"#), Some(416));
        assert_eq!(of("make.py", "tokenizer.model", "{}"), None, "reported where text is loaded");
    }
}
