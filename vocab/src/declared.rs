//! Added tokens that files beside the vocabulary declare, and named special tokens, as transformers 5.24 adds
//! them to the tokenizer.
//!
//! An older tokenizer.json lacks tokens that were added later, and other vocabularies have none of them.
//! Without them `<|im_end|>` is ten characters in a prompt, and nothing in an answer.

use std::path::Path;

use hashbrown::HashSet;
use serde_json::{Map, Value, json};

use crate::error::VocabError;
use crate::files::read_json;

/// Names of single special tokens in the configuration, in the order in which transformers adds them.
pub const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Names of lists of special tokens; the newer one may also be an object of names.
pub(crate) const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The files beside the vocabulary.
#[derive(Debug)]
pub struct Declarations {
    /// tokenizer_config.json, with special_tokens_map.json.
    pub config: Value,
    /// added_tokens.json.
    added: Value,
}

impl Declarations {
    /// Reads the files in `directory`.
    ///
    /// # Errors
    /// If one cannot be read or parsed.
    pub fn read(directory: &Path) -> Result<Self, VocabError> {
        let special = read_json(&directory.join("special_tokens_map.json"))?;
        let config = read_json(&directory.join("tokenizer_config.json"))?;
        let added = read_json(&directory.join("added_tokens.json"))?;
        Ok(Self { config: with_special_tokens(config, special), added })
    }

    /// Tokens that `known`, the added tokens of tokenizer.json, lack, in the form of that file but without
    /// ids: each gets the vocabulary's, or else the next free one.
    pub fn missing_from(&self, known: &Value) -> Vec<Value> {
        let texts = known.as_array().into_iter().flatten().filter_map(|token| token["content"].as_str());
        let seen: HashSet<String> = texts.map(str::to_owned).collect();
        distinct(self.all(), seen)
    }

    /// The older files count only if tokenizer_config.json does not list the tokens.
    pub(crate) fn all(&self) -> Vec<Value> {
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

    /// Tokens of `added_tokens_decoder`, or else of added_tokens.json, with their ids.
    pub(crate) fn by_id(&self) -> Vec<(u64, &str)> {
        let mut tokens: Vec<(u64, &str)> = match self.config["added_tokens_decoder"].as_object() {
            Some(tokens) => tokens
                .iter()
                .filter_map(|(id, token)| Some((id.parse().ok()?, token["content"].as_str()?)))
                .collect(),
            None => {
                let added = self.added.as_object().into_iter().flatten();
                added.filter_map(|(token, id)| Some((id.as_u64()?, token.as_str()))).collect()
            }
        };
        tokens.sort_unstable();
        tokens
    }
}

/// `tokens` without those in `seen`, without empty ones, and of equal ones the first.
pub(crate) fn distinct(tokens: Vec<Value>, mut seen: HashSet<String>) -> Vec<Value> {
    let mut new = |token: &Value| {
        token["content"].as_str().is_some_and(|text| !text.is_empty() && seen.insert(text.to_owned()))
    };
    tokens.into_iter().filter(|token| new(token)).collect()
}

/// tokenizer_config.json with special_tokens_map.json, which counts only if there is no
/// `added_tokens_decoder`, and then first, as in transformers.
pub fn with_special_tokens(config: Value, special: Value) -> Value {
    match (config, special) {
        (Value::Object(config), _) if config.contains_key("added_tokens_decoder") => Value::Object(config),
        (Value::Object(mut config), Value::Object(special)) => {
            config.extend(special);
            Value::Object(config)
        }
        (Value::Null, special @ Value::Object(_)) => special,
        (config, _) => config,
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

/// A token that is found in the text as it is written.
pub(crate) fn literal(text: &str, special: bool) -> Value {
    let mut token = plain(text, special);
    token["normalized"] = false.into();
    token
}
