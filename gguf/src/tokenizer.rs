//! Builds tokenizer.json and tokenizer_config.json from the vocabulary in the metadata.
//!
//! `gpt2` is byte-level BPE, whose rule for splitting text into words the file names ([`super::word_rules`]).
//! `llama` is SentencePiece BPE, whose merges are derived from the scores ([`super::spm`]). `gemma4` is the
//! same with merges in the file.

use serde_json::{Map, Value as Json, json};
use xxhash_rust::xxh3::Xxh3Default;

use crate::GgufError;
use crate::metadata::Value;
use crate::model::GgufModel;
use crate::special_tokens::{
    CONTROL, KEEPS_SPACE, MODEL, NORMAL, SpecialTokens, TOKENS, UNKNOWN, USER_DEFINED, spelling,
    strips_after, token_id,
};
use crate::spm;
use crate::tokenizer_json::{Bpe, Model, TokenizerJson, Tokens, around, byte_level_decoder};
use crate::word_rules::WordRule;

const PRE: &str = "tokenizer.ggml.pre";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
/// Most tokens; public models have up to about 300,000.
pub const MAX_TOKENS: usize = 1 << 20;

/// The model's `tokenizer.json`, as [`GgufModel::tokenizer`] returns it.
pub fn tokenizer(model: &GgufModel) -> Result<Vec<u8>, GgufError> {
    let vocabulary = Vocabulary::read(model)?;
    match model.get(MODEL).and_then(Value::as_str) {
        Some("gpt2") => byte_level(model, &vocabulary),
        Some("llama") => sentence_piece(model, &vocabulary, of_scores(model, &vocabulary)?),
        Some("gemma4") => sentence_piece(model, &vocabulary, listed_merges(model)?),
        kind => {
            let supported = "gpt2 (byte-level BPE), llama (SentencePiece), gemma4 (the same, with merges)";
            Err(unsupported(model, MODEL, kind, supported))
        }
    }
}

/// A tokenizer of a kind that other programs may know.
fn unsupported(model: &GgufModel, key: &str, value: Option<&str>, supported: &str) -> GgufError {
    let shown = |value: &str| format!("{:?}", value.chars().take(80).collect::<String>());
    let shown = value.map_or_else(|| "missing".to_owned(), shown);
    model.unsupported(format!("{key} is {shown}; supported: {supported}"))
}

fn bytes(model: &GgufModel, file: &TokenizerJson<'_>) -> Result<Vec<u8>, GgufError> {
    file.bytes().map_err(|error| model.unsupported(error.to_string()))
}

/// Tokens and their types.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<u64>,
    /// Whether white space after special tokens is dropped.
    strips_after: bool,
}

impl<'a> Vocabulary<'a> {
    fn read(model: &'a GgufModel) -> Result<Self, GgufError> {
        let list = |key: &str| model.get(key).and_then(Value::as_array);
        let wrong = || model.wrong(TOKENS, "a list of strings in UTF-8, at most 1,048,576");
        let tokens = list(TOKENS).filter(|tokens| tokens.len() <= MAX_TOKENS).ok_or_else(wrong)?;
        let tokens = tokens.texts().ok_or_else(wrong)?;
        let mut types = match list(TYPES) {
            None => vec![NORMAL; tokens.len()],
            Some(types) => {
                let whole = |types: &mut dyn Iterator<Item = Value<'_>>| types.map(Value::as_u64).collect();
                let types: Option<Vec<u64>> = types.values().and_then(|mut types| whole(&mut types));
                types
                    .filter(|types| types.len() == tokens.len())
                    .ok_or_else(|| model.wrong(TYPES, "a whole number for each token"))?
            }
        };
        SpecialTokens::of(model).correct(&mut types);
        Ok(Self { tokens, types, strips_after: strips_after(model) })
    }

    /// Added tokens, which are matched before text is split into words.
    fn added(&self) -> Vec<Json> {
        let added = |(id, kind): (usize, &u64)| {
            let special = matches!(*kind, UNKNOWN | CONTROL);
            let content = self.tokens[id];
            ((special || *kind == USER_DEFINED) && !content.is_empty()).then(|| {
                let rstrip = self.strips_after && !KEEPS_SPACE.contains(&content);
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": rstrip,
                    "normalized": false, "special": special})
            })
        };
        self.types.iter().enumerate().filter_map(added).collect()
    }

    /// Tokens with their ids.
    fn with_ids(&self) -> Tokens<'a> {
        Tokens(self.tokens.iter().copied().zip(0..).collect())
    }
}

/// Digest of all metadata that determines the tokenizer, as [`GgufModel::tokenizer_digest`] returns it.
pub fn digest(model: &GgufModel) -> Option<u64> {
    let text = |key: &str| model.get(key).and_then(Value::as_str);
    let is_supported = match text(MODEL)? {
        "gpt2" => WordRule::named(text(PRE)).is_ok(),
        kind => matches!(kind, "llama" | "gemma4"),
    };
    let mut hash = Xxh3Default::new();
    for (key, value) in model.raw_entries().filter(|(key, _)| key.starts_with("tokenizer.")) {
        for part in [key.as_bytes(), value] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    is_supported.then(|| hash.digest())
}

/// The model's `tokenizer_config.json`, as [`GgufModel::tokenizer_config`] returns it.
pub fn tokenizer_config(model: &GgufModel) -> Json {
    let mut config = Map::new();
    for (field, name) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        if let Some(token) = spelling(model, name) {
            config.insert(field.into(), token.into());
        }
    }
    let template = |key: &str| model.get(key).and_then(Value::as_str);
    match (template("tokenizer.chat_template"), template("tokenizer.chat_template.tool_use")) {
        (Some(default), None) => {
            config.insert("chat_template".into(), default.into());
        }
        (default, Some(tool_use)) => {
            let named = |name: &str, source: &str| json!({"name": name, "template": source});
            let default = default.map(|source| named("default", source));
            let list = default.into_iter().chain([named("tool_use", tool_use)]).collect();
            config.insert("chat_template".into(), Json::Array(list));
        }
        (None, None) => {}
    }
    Json::Object(config)
}

fn byte_level(model: &GgufModel, vocabulary: &Vocabulary<'_>) -> Result<Vec<u8>, GgufError> {
    let rule = WordRule::named(model.get(PRE).and_then(Value::as_str))
        .map_err(|wrong| model.unsupported(format!("{PRE} is {wrong}")))?;
    let merges = listed_merges(model)?;
    let bpe = Bpe { ignore_merges: rule.ignores_merges, ..Bpe::new(vocabulary.with_ids(), merges) };
    let file = TokenizerJson {
        added_tokens: vocabulary.added(),
        normalizer: if rule.is_composed { json!({"type": "NFC"}) } else { Json::Null },
        pre_tokenizer: rule.pre_tokenizer(),
        post_processor: template(model, rule.adds_bos),
        decoder: byte_level_decoder(),
        ..TokenizerJson::new(Model::Bpe(bpe))
    };
    bytes(model, &file)
}

/// Merges as the file lists them, in the order in which they apply.
fn listed_merges(model: &GgufModel) -> Result<Vec<(&str, &str)>, GgufError> {
    let merges = model.get(MERGES).and_then(Value::as_array);
    if merges.is_some_and(|merges| merges.len() > spm::MAX_MERGES) {
        return Err(too_many_merges(model));
    }
    let merges = merges.and_then(|merges| merges.texts());
    let merges = merges.ok_or_else(|| model.wrong(MERGES, "a list of strings in UTF-8"))?;
    // Inside a token, a space is stored in its printable form, so the first space is the separator.
    let merges: Option<Vec<_>> = merges.into_iter().map(|merge| merge.split_once(' ')).collect();
    merges.ok_or_else(|| model.wrong(MERGES, "pairs of tokens separated by a space"))
}

fn too_many_merges(model: &GgufModel) -> GgufError {
    model.unsupported(format!("its tokenizer has more than {} merges", spm::MAX_MERGES))
}

/// Merges of a SentencePiece model, by the scores of the tokens.
fn of_scores<'a>(
    model: &GgufModel,
    vocabulary: &Vocabulary<'a>,
) -> Result<Vec<(&'a str, &'a str)>, GgufError> {
    let wrong = || model.wrong(SCORES, "a number for each token");
    let scores = model.get(SCORES).and_then(Value::as_array).and_then(|scores| scores.values());
    let scores: Option<Vec<f64>> = scores.ok_or_else(wrong)?.map(Value::as_f64).collect();
    let scores = scores.filter(|scores| scores.len() == vocabulary.tokens.len()).ok_or_else(wrong)?;
    spm::merges(&vocabulary.tokens, &scores).ok_or_else(|| too_many_merges(model))
}

fn sentence_piece(
    model: &GgufModel,
    vocabulary: &Vocabulary<'_>,
    merges: Vec<(&str, &str)>,
) -> Result<Vec<u8>, GgufError> {
    let flag = |key: &str| model.get(&format!("tokenizer.ggml.{key}")).and_then(Value::as_bool);
    let is_llama = model.get(MODEL).and_then(Value::as_str) == Some("llama");
    let has_prefix = is_llama && flag("add_space_prefix").unwrap_or(true);
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizer = if has_prefix {
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]})
    } else {
        spaces
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if has_prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let bpe = Bpe {
        unk_token: spelling(model, "unknown"),
        fuse_unk: true,
        byte_fallback: true,
        ..Bpe::new(vocabulary.with_ids(), merges)
    };
    let file = TokenizerJson {
        added_tokens: vocabulary.added(),
        normalizer,
        post_processor: template(model, true),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        ..TokenizerJson::new(Model::Bpe(bpe))
    };
    bytes(model, &file)
}

/// Post-processor that adds the BOS and EOS tokens requested by the file's flags.
fn template(model: &GgufModel, adds_bos: bool) -> Json {
    let flag = |name: &str| model.get(&format!("tokenizer.ggml.add_{name}_token")).and_then(Value::as_bool);
    let token = |name: &str, default: bool| {
        let (id, text) = token_id(model, name).zip(spelling(model, name))?;
        flag(name).unwrap_or(default).then_some((text, id))
    };
    let (bos, eos) = (token("bos", adds_bos), token("eos", false));
    around(bos, eos)
}
