//! Selects the files of a model that Skein reads. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::name::is_part;

/// File that holds all weights.
pub const SINGLE: &str = "model.safetensors";
/// Index of weights that span several files.
pub const INDEX: &str = "model.safetensors.index.json";
/// Files beside the weights.
const TEXT: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
];
/// Without it a model cannot be served.
const CONFIG: &str = "config.json";
/// Tokenizers, of which a model needs one. The first needs no other; those after it are converted (crate
/// `vocab`).
const TOKENIZERS: [&[&str]; 6] = [
    &["tokenizer.json"],
    &["tekken.json"],
    &["tokenizer.model"],
    &["spiece.model"],
    &["tiktoken.model"],
    &["vocab.json", "merges.txt"],
];
/// What messages call them.
const TOKENIZER: &str = "tokenizer (tokenizer.json, tekken.json, tokenizer.model, spiece.model, tiktoken.model, or vocab.json and merges.txt)";
/// Most weight files; the largest published models have about 200.
const MAX_SHARDS: usize = 10_000;

/// Files that a process needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Configuration and tokenizer, as for a router or gateway.
    Text,
    /// Also the weights.
    All,
}

/// Layout of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// All weights in one file.
    Single,
    /// Several files, listed by an index.
    Indexed,
}

/// Files in `listed` that are not weights. Without a tokenizer.json, all that can replace it.
///
/// # Errors
/// What is required and missing.
pub fn text<'a>(listed: &[&'a str]) -> Result<Vec<&'a str>, &'static str> {
    let is_listed = |name: &str| listed.contains(&name);
    if let Some(missing) = missing(is_listed) {
        return Err(missing);
    }
    let [whole, others @ ..] = TOKENIZERS;
    let replaces =
        |name: &&str| !whole.iter().all(|name| is_listed(name)) && others.iter().any(|it| it.contains(name));
    Ok(listed.iter().copied().filter(|name| TEXT.contains(name) || replaces(name)).collect())
}

/// What a model needs besides weights and lacks; `is_there` says which files it has.
pub fn missing(is_there: impl Fn(&str) -> bool) -> Option<&'static str> {
    if !is_there(CONFIG) {
        return Some(CONFIG);
    }
    let has_tokenizer = TOKENIZERS.iter().any(|files| files.iter().all(|name| is_there(name)));
    (!has_tokenizer).then_some(TOKENIZER)
}

/// Weight layout in `listed`. Prefers the single file, as workers do.
///
/// # Errors
/// What the repository contains instead.
pub fn weights(listed: &[&str]) -> Result<Weights, String> {
    if listed.contains(&SINGLE) {
        return Ok(Weights::Single);
    }
    if listed.contains(&INDEX) {
        return Ok(Weights::Indexed);
    }
    let others = [".gguf", ".bin", ".pth", ".pt", ".onnx", ".safetensors", ".msgpack", ".h5"];
    let has = |ending: &&str| listed.iter().any(|name| name.ends_with(ending));
    let found: Vec<&str> = others.into_iter().filter(|ending| has(ending)).collect();
    Err(match found.as_slice() {
        [] => "it has no weights".to_owned(),
        found => format!("it has only {} files; look for a repository with {SINGLE}", found.join(", ")),
    })
}

/// Files named by an index of weights.
///
/// # Errors
/// The fault in the index.
pub fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    let index: Value = serde_json::from_slice(index).map_err(|error| format!("it is not JSON: {error}"))?;
    let map = index["weight_map"].as_object().filter(|map| !map.is_empty());
    let files = map.ok_or("it has no weight_map")?.values().map(|file| match file.as_str() {
        Some(name) if is_part(name) && name.ends_with(".safetensors") => Ok(name.to_owned()),
        _ => Err(format!("weight_map names {file}, which is not a safetensors file beside it")),
    });
    let files = files.collect::<Result<BTreeSet<_>, _>>()?;
    if files.len() > MAX_SHARDS {
        return Err(format!("weight_map names {} files; at most {MAX_SHARDS} are read", files.len()));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_are_read_are_selected() {
        let listed = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "pytorch_model.bin",
            "vocab.json",
        ];
        assert_eq!(text(&listed), Ok(vec!["config.json", "tokenizer.json"]));
        assert_eq!(text(&["tokenizer.json"]), Err("config.json"));
        for bare in [&["config.json"][..], &["config.json", "vocab.json"], &["config.json", "qwen.tiktoken"]]
        {
            assert!(text(bare).unwrap_err().starts_with("tokenizer (tokenizer.json"), "{bare:?}");
        }
        assert_eq!(weights(&listed), Ok(Weights::Single));
        assert_eq!(weights(&[INDEX, "model-00001-of-00002.safetensors"]), Ok(Weights::Indexed));
        assert!(weights(&["a.gguf", "b.bin"]).unwrap_err().contains(".gguf, .bin"));
        assert!(weights(&["README.md"]).unwrap_err().contains("no weights"));
    }

    #[test]
    fn what_replaces_a_missing_tokenizer_json_is_selected() {
        for others in [&["tekken.json"][..], &["tokenizer.model"], &["vocab.json", "merges.txt"]] {
            let listed = [&["config.json", "params.json"], others].concat();
            assert_eq!(text(&listed), Ok([&["config.json"], others].concat()));
            assert_eq!(
                text(&[&listed[..], &["tokenizer.json"]].concat()),
                Ok(vec!["config.json", "tokenizer.json"])
            );
        }
    }

    #[test]
    fn an_index_names_files_beside_it() {
        let names =
            shards(br#"{"weight_map": {"a": "y.safetensors", "b": "x.safetensors", "c": "y.safetensors"}}"#);
        assert_eq!(names.unwrap().into_iter().collect::<Vec<_>>(), ["x.safetensors", "y.safetensors"]);
        for bad in [
            "{",
            "{}",
            r#"{"weight_map": {}}"#,
            r#"{"weight_map": {"a": "../x.safetensors"}}"#,
            r#"{"weight_map": {"a": "/x.safetensors"}}"#,
            r#"{"weight_map": {"a": 1}}"#,
            r#"{"weight_map": {"a": "x.bin"}}"#,
        ] {
            assert!(shards(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
