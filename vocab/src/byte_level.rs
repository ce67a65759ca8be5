//! vocab.json and merges.txt, the files of byte-level BPE, as the classes of transformers 5.24 read them.

use std::path::Path;

use hashbrown::{HashMap, HashSet};
use serde_json::{Map, Value as Json, json};
use skein_gguf::MAX_TOKENS;
use skein_gguf::spm::MAX_MERGES;
use skein_gguf::tokenizer_json::{Bpe, Model, TokenizerJson, Tokens, byte_level_decoder};
use skein_gguf::word_rules::WordRule;

use crate::class::Class;
use crate::declared::{Declarations, distinct};
use crate::error::{VocabError, shown};
use crate::special::AddedTokens;

/// A file and its content.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    pub path: &'a Path,
    pub bytes: &'a [u8],
}

impl Content<'_> {
    fn malformed(&self, reason: impl Into<String>) -> VocabError {
        VocabError::malformed(self.path, reason)
    }
}

/// Builds a tokenizer.json from both files. Completes `declarations.config`.
///
/// # Errors
/// If one is malformed.
pub fn tokenizer_json(
    vocab: Content<'_>,
    merges: Content<'_>,
    class: Class,
    declarations: &mut Declarations,
) -> Result<Vec<u8>, VocabError> {
    declarations.config = class.with_defaults(&declarations.config);
    let config = &declarations.config;
    let tree: Map<String, Json> =
        serde_json::from_slice(vocab.bytes).map_err(|error| vocab.malformed(error.to_string()))?;
    let tokens = tokens(&tree).map_err(|reason| vocab.malformed(reason))?;
    let text = std::str::from_utf8(merges.bytes)
        .map_err(|error| merges.malformed(format!("it is not UTF-8: {error}")))?;
    let pairs = pairs(text, &tokens).map_err(|reason| merges.malformed(reason))?;
    let declared = distinct(declarations.all(), HashSet::new());
    if pairs.is_empty()
        && let Some((token, _)) = tokens.iter().find(|(token, _)| is_merged(token, &declared))
    {
        let reason =
            format!("it has no merges, but vocab.json has {}; take both files from one model", shown(token));
        return Err(merges.malformed(reason));
    }
    let added = AddedTokens::new(declared, &tokens);
    let post_processor = match class {
        Class::Roberta => roberta(config, &added, &tokens),
        _ => added.post_processor(config, false, &tokens),
    };
    let file = TokenizerJson {
        normalizer: match class {
            Class::Gpt2 | Class::Roberta => Json::Null,
            _ => json!({"type": "NFC"}),
        },
        pre_tokenizer: pre_tokenizer(class, config).map_err(|reason| vocab.malformed(reason))?,
        post_processor,
        decoder: byte_level_decoder(),
        added_tokens: added.0,
        ..TokenizerJson::new(Model::Bpe(Bpe::new(Tokens(tokens.clone()), pairs)))
    };
    file.bytes().map_err(|error| vocab.malformed(error.to_string()))
}

/// Whether only a merge makes `token`: it has several characters and is not declared.
fn is_merged(token: &str, declared: &[Json]) -> bool {
    token.chars().nth(1).is_some() && declared.iter().all(|it| it["content"] != token)
}

/// Tokens by id.
fn tokens(tree: &Map<String, Json>) -> Result<Vec<(&str, u32)>, String> {
    if tree.is_empty() || tree.len() > MAX_TOKENS {
        return Err(format!("it has {} tokens; from 1 to {MAX_TOKENS} are read", tree.len()));
    }
    let mut by_id = HashMap::<u32, &str>::with_capacity(tree.len());
    let mut tokens = Vec::with_capacity(tree.len());
    for (token, id) in tree {
        let number =
            id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < MAX_TOKENS);
        let number = number.ok_or_else(|| {
            format!("the id of {} is {id}; it must be a number below {MAX_TOKENS}", shown(token))
        })?;
        if let Some(other) = by_id.insert(number, token) {
            return Err(format!("{} and {} have the same id, {number}", shown(other), shown(token)));
        }
        tokens.push((token.as_str(), number));
    }
    tokens.sort_unstable_by_key(|(_, id)| *id);
    Ok(tokens)
}

/// Merges, a line each. The first line may state a version.
fn pairs<'a>(text: &'a str, tokens: &[(&str, u32)]) -> Result<Vec<(&'a str, &'a str)>, String> {
    let known: HashSet<&str> = tokens.iter().map(|(token, _)| *token).collect();
    let mut pairs = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("#version") || line.is_empty() {
            continue;
        }
        let number = number + 1;
        let pair = line
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '));
        let (left, right) = pair.ok_or_else(|| {
            format!("line {number} is {}, not two tokens with a space between", shown(line))
        })?;
        let merged = format!("{left}{right}");
        if let Some(missing) = [left, right, &merged].into_iter().find(|token| !known.contains(token)) {
            return Err(format!(
                "line {number} merges {} to a token, but vocab.json has no {}; take both files from one model",
                shown(line),
                shown(missing)
            ));
        }
        pairs.push((left, right));
        if pairs.len() > MAX_MERGES {
            return Err(format!("it has more than {MAX_MERGES} merges"));
        }
    }
    Ok(pairs)
}

/// How a class splits text.
fn pre_tokenizer(class: Class, config: &Json) -> Result<Json, String> {
    let has_prefix = config["add_prefix_space"].as_bool().unwrap_or(false);
    let rule = match class {
        Class::Qwen2 => "qwen2",
        Class::Qwen35 => "qwen35",
        Class::Cohere => "command-r",
        _ => return Ok(bytes(has_prefix, true)),
    };
    let mut steps = WordRule::named(Some(rule))?.pre_tokenizer();
    if let Some(last) = steps["pretokenizers"].as_array_mut().and_then(|steps| steps.last_mut()) {
        last["add_prefix_space"] = has_prefix.into();
    }
    Ok(steps)
}

fn bytes(has_prefix: bool, has_words: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": has_prefix, "trim_offsets": true, "use_regex": has_words})
}

/// Splits by the regular expression `pattern`, then into bytes.
pub fn split(pattern: &str) -> Json {
    let words =
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [words, bytes(false, false)]})
}

/// `<s>` before a text and `</s>` after it.
fn roberta(config: &Json, added: &AddedTokens, tokens: &[(&str, u32)]) -> Json {
    let token = |name: &str| {
        let token = &config[name];
        let text = token.as_str().or_else(|| token["content"].as_str())?;
        Some((text, added.id_of(text, tokens)?))
    };
    let (Some(cls), Some(sep)) = (token("cls_token"), token("sep_token")) else { return Json::Null };
    let has_prefix = config["add_prefix_space"].as_bool().unwrap_or(false);
    json!({"type": "RobertaProcessing", "sep": [sep.0, sep.1], "cls": [cls.0, cls.1], "trim_offsets": true,
        "add_prefix_space": has_prefix})
}
