//! Added tokens that only the files beside tokenizer.json declare, and named special tokens, as transformers
//! 5.24 adds them to the tokenizer.
//!
//! An older tokenizer.json lacks tokens that were added later. Without them `<|im_end|>` is ten characters in
//! a prompt, and nothing in an answer.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::bounded_read::read_json;
use super::error::TextError;

/// Names of single special tokens in the configuration, in the order in which transformers adds them.
pub(super) const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Names of lists of special tokens; the newer one may also be an object of names.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The files beside tokenizer.json.
pub(super) struct Declarations {
    /// tokenizer_config.json, with special_tokens_map.json.
    pub config: Value,
    /// added_tokens.json.
    pub added: Value,
}

impl Declarations {
    /// Reads the file in `directory` that is not `config`.
    ///
    /// # Errors
    /// If it cannot be read or parsed.
    pub fn read(directory: &Path, config: Value) -> Result<Self, TextError> {
        Ok(Self { config, added: read_json(directory, "added_tokens.json")? })
    }

    /// Tokens that `known`, the added tokens of tokenizer.json, lack, in the form of that file but without
    /// ids: each gets the vocabulary's, or else the next free one.
    pub fn missing_from(&self, known: &Value) -> Vec<Value> {
        let texts = known.as_array().into_iter().flatten().filter_map(|token| token["content"].as_str());
        let mut seen: HashSet<String> = texts.map(str::to_owned).collect();
        let mut new = |token: &Value| {
            token["content"].as_str().is_some_and(|text| !text.is_empty() && seen.insert(text.to_owned()))
        };
        self.all().into_iter().filter(|token| new(token)).collect()
    }

    /// The older files count only if tokenizer_config.json does not list the tokens.
    fn all(&self) -> Vec<Value> {
        match self.config["added_tokens_decoder"].as_object() {
            Some(tokens) => {
                let listed = in_order(tokens, |id, _| id.parse().ok());
                let listed = listed.into_iter().map(|(_, token)| token_of(token, Some(false)));
                listed.flatten().chain(special(&self.config)).collect()
            }
            None => {
                let named: Vec<Value> = special(&self.config).collect();
                let is_named = |text: &str| named.iter().any(|token| token["content"] == text);
                let added =
                    self.added.as_object().map_or_else(Vec::new, |it| in_order(it, |_, id| id.as_u64()));
                let added = added.into_iter().map(|(text, _)| plain(text, is_named(text)));
                added.collect::<Vec<_>>().into_iter().chain(named).collect()
            }
        }
    }
}

/// Members by their `id`; those without one are none.
fn in_order(members: &Map<String, Value>, id: impl Fn(&str, &Value) -> Option<u64>) -> Vec<(&str, &Value)> {
    let mut members: Vec<_> =
        members.iter().filter_map(|(name, value)| Some((id(name, value)?, (name.as_str(), value)))).collect();
    members.sort_by_key(|(id, _)| *id);
    members.into_iter().map(|(_, member)| member).collect()
}

/// The special tokens that `config` names.
fn special(config: &Value) -> impl Iterator<Item = Value> {
    let single = NAMED.iter().map(|name| &config[*name]);
    let listed = LISTS.iter().flat_map(|name| -> Vec<&Value> {
        match &config[*name] {
            Value::Array(tokens) => tokens.iter().collect(),
            Value::Object(tokens) => tokens.values().collect(),
            _ => Vec::new(),
        }
    });
    single.chain(listed).filter_map(|token| token_of(token, None))
}

/// `token`, which is a text or an object. `special` is what it is if it does not say so; `None` = special in
/// any case.
fn token_of(token: &Value, special: Option<bool>) -> Option<Value> {
    if let Some(text) = token.as_str() {
        return Some(plain(text, special.unwrap_or(true)));
    }
    let text = token["content"].as_str()?;
    let is_special = special.is_none_or(|default| token["special"].as_bool().unwrap_or(default));
    let mut whole = plain(text, is_special);
    for option in ["single_word", "lstrip", "rstrip", "normalized"] {
        if let Some(set) = token[option].as_bool() {
            whole[option] = set.into();
        }
    }
    Some(whole)
}

/// A token without options; those that are not special are also found in normalised text.
fn plain(text: &str, special: bool) -> Value {
    json!({"content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": !special,
        "special": special})
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::model_text::ModelText;
    use super::*;

    fn root(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
    }

    #[test]
    fn tokens_beside_tokenizer_json_are_those_of_transformers() {
        let golden = std::fs::read(root("tests/golden/added_tokens.json")).unwrap();
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let directory = tempfile::tempdir().unwrap();
            std::fs::copy(root("models/skein-7m/tokenizer.json"), directory.path().join("tokenizer.json"))
                .unwrap();
            for (name, content) in case["files"].as_object().unwrap() {
                std::fs::write(directory.path().join(name), content.to_string()).unwrap();
            }
            let tokenizer = ModelText::load(directory.path(), &[]).unwrap().tokenizer;
            let ids = tokenizer.encode(golden["text"].as_str().unwrap(), false).unwrap();
            assert_eq!(json!(ids), case["ids"], "{}", case["name"]);
            assert_eq!(json!(tokenizer.decode(&ids, true).unwrap()), case["text"], "{}", case["name"]);
            assert!(ids.iter().all(|id| !tokenizer.bytes().get(*id).is_empty()), "{}", case["name"]);
        }
    }
}
