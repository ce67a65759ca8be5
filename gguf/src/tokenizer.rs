//! Builds tokenizer.json and tokenizer_config.json from the vocabulary in the metadata.
//!
//! `gpt2` is byte-level BPE. The file names its rule for splitting text into words (`tokenizer.ggml.pre`);
//! the rules themselves are defined here. `llama` is SentencePiece BPE, whose merges are derived from the
//! scores ([`super::spm`]).

use hashbrown::HashSet;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value as Json, json};
use xxhash_rust::xxh3::Xxh3Default;

use crate::GgufError;
use crate::metadata::Value;
use crate::model::GgufModel;
use crate::spm;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
/// Most tokens; public models have up to about 300,000.
const MAX_TOKENS: usize = 1 << 20;

/// Token types in the metadata.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Control tokens that always end a turn. llama.cpp has a similar list, because most files name only one.
const ENDS: [&str; 11] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|END_OF_TURN_TOKEN|>",
    "</s>",
];

/// Rule by which a byte-level tokenizer splits text into words.
struct Pre {
    /// Names of the rule in files.
    names: &'static [&'static str],
    /// Regular expressions of words, applied one after another; empty = GPT-2's.
    words: &'static [&'static str],
    /// Whether each digit is its own word, before any other split.
    splits_digits: bool,
    /// Whether text is normalised to Unicode form C.
    is_composed: bool,
    /// Whether a word that is a token bypasses the merges.
    ignores_merges: bool,
    /// Whether a BOS token is added if the file does not specify it.
    adds_bos: bool,
}

const GPT2: Pre = Pre {
    names: &["gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"],
    words: &[],
    splits_digits: false,
    is_composed: false,
    ignores_merges: false,
    adds_bos: false,
};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// DeepSeek-V3's rules: digits, then Chinese and Japanese characters, then words.
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// Supported rules; a file gives one of their names in `tokenizer.ggml.pre`.
const PRES: [Pre; 9] = [
    GPT2,
    Pre {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"],
        words: &[LLAMA3],
        ignores_merges: true,
        adds_bos: true,
        ..GPT2
    },
    Pre { names: &["glm4", "chatglm-bpe"], words: &[LLAMA3], ignores_merges: true, ..GPT2 },
    Pre { names: &["deepseek-v3"], words: &DEEPSEEK3, adds_bos: true, ..GPT2 },
    Pre { names: &["dbrx", "smaug-bpe"], words: &[LLAMA3], ..GPT2 },
    Pre {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "hunyuan-dense"],
        words: &[QWEN2],
        is_composed: true,
        ..GPT2
    },
    Pre { names: &["starcoder", "refact", "command-r", "smollm", "codeshell"], splits_digits: true, ..GPT2 },
    Pre { names: &["tekken"], words: &[TEKKEN], ignores_merges: true, ..GPT2 },
    Pre { names: &["gpt-4o", "llama4", "o200k"], words: &[GPT4O], ..GPT2 },
];

/// The model's `tokenizer.json`, as [`GgufModel::tokenizer`] returns it.
pub fn tokenizer(model: &GgufModel) -> Result<Vec<u8>, GgufError> {
    let vocabulary = Vocabulary::read(model)?;
    match model.get(MODEL).and_then(Value::as_str) {
        Some("gpt2") => byte_level(model, &vocabulary),
        Some("llama") => sentence_piece(model, &vocabulary),
        kind => Err(unsupported(model, MODEL, kind, "gpt2 (byte-level BPE), llama (SentencePiece)")),
    }
}

/// A tokenizer of a kind that other programs may know.
fn unsupported(model: &GgufModel, key: &str, value: Option<&str>, supported: &str) -> GgufError {
    let shown = |value: &str| format!("{:?}", value.chars().take(80).collect::<String>());
    let shown = value.map_or_else(|| "missing".to_owned(), shown);
    model.unsupported(format!("{key} is {shown}; supported: {supported}"))
}

/// A tokenizer.json; tokens are borrowed, because there are hundreds of thousands.
#[derive(serde::Serialize)]
struct File<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<Json>,
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
    model: Bpe<'a>,
}

/// The `model` of a tokenizer.json.
#[derive(serde::Serialize)]
struct Bpe<'a> {
    r#type: &'static str,
    dropout: (),
    unk_token: Option<&'a str>,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: &'a Vocabulary<'a>,
    merges: Vec<(&'a str, &'a str)>,
}

impl<'a> Bpe<'a> {
    /// A model with these merges and no options.
    fn new(vocab: &'a Vocabulary<'a>, merges: Vec<(&'a str, &'a str)>) -> Self {
        Self {
            r#type: "BPE",
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab,
            merges,
        }
    }
}

impl File<'_> {
    fn bytes(&self, model: &GgufModel) -> Result<Vec<u8>, GgufError> {
        // Tokens twice, in the vocabulary and in merges, with quotes and ids.
        let tokens = self.model.vocab.tokens.iter().map(|token| token.len() + 16).sum::<usize>();
        let merges =
            self.model.merges.iter().map(|(left, right)| left.len() + right.len() + 8).sum::<usize>();
        let mut bytes = Vec::with_capacity(tokens + merges + (1 << 16));
        serde_json::to_writer(&mut bytes, self).map_err(|error| model.unsupported(error.to_string()))?;
        Ok(bytes)
    }
}

/// Tokens, and their types if the file has them.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<u64>,
}

impl<'a> Vocabulary<'a> {
    fn read(model: &'a GgufModel) -> Result<Self, GgufError> {
        let list = |key: &str| model.get(key).and_then(Value::as_array);
        let wrong = || model.wrong(TOKENS, "a list of strings in UTF-8, at most 1,048,576");
        let tokens = list(TOKENS).filter(|tokens| tokens.len() <= MAX_TOKENS).ok_or_else(wrong)?;
        let tokens = tokens.texts().ok_or_else(wrong)?;
        let types = match list(TYPES) {
            None => vec![1; tokens.len()],
            Some(types) => {
                let whole = |types: &mut dyn Iterator<Item = Value<'_>>| types.map(Value::as_u64).collect();
                let types: Option<Vec<u64>> = types.values().and_then(|mut types| whole(&mut types));
                types
                    .filter(|types| types.len() == tokens.len())
                    .ok_or_else(|| model.wrong(TYPES, "a whole number for each token"))?
            }
        };
        Ok(Self { tokens, types })
    }

    /// Added tokens, which are matched before text is split into words.
    fn added(&self) -> Vec<Json> {
        let added = |(id, kind): (usize, &u64)| {
            let special = matches!(*kind, UNKNOWN | CONTROL);
            let content = self.tokens[id];
            ((special || *kind == USER_DEFINED) && !content.is_empty()).then(|| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special})
            })
        };
        self.types.iter().enumerate().filter_map(added).collect()
    }
}

/// `vocab` of tokenizer.json. Of duplicate tokens, which some files use as padding, the first counts.
impl Serialize for Vocabulary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seen = HashSet::<&str>::with_capacity(self.tokens.len());
        let mut map = serializer.serialize_map(None)?;
        for (id, token) in self.tokens.iter().enumerate().filter(|(_, token)| seen.insert(**token)) {
            map.serialize_entry(token, &id)?;
        }
        map.end()
    }
}

/// Id in `tokenizer.ggml.<name>_token_id`.
fn token_id(model: &GgufModel, name: &str) -> Option<u64> {
    model.get(&format!("tokenizer.ggml.{name}_token_id")).and_then(Value::as_u64)
}

/// Text of the token in `tokenizer.ggml.<name>_token_id`.
fn spelling<'a>(model: &'a GgufModel, name: &str) -> Option<&'a str> {
    let id = usize::try_from(token_id(model, name)?).ok()?;
    model.get(TOKENS)?.as_array()?.text(id)
}

/// Ids of tokens that end an answer, ascending.
pub fn end_tokens(model: &GgufModel) -> Vec<u64> {
    let mut ends: Vec<u64> = ["eos", "eot", "eom"].iter().filter_map(|name| token_id(model, name)).collect();
    let control = control_tokens(model).unwrap_or_default();
    // Models with channels end each message so, and the whole answer with another token.
    let has_channels = control.iter().any(|(_, token)| *token == "<|return|>");
    let is_end = |token: &str| ENDS.contains(&token) && !(has_channels && token == "<|end|>");
    ends.extend(control.iter().filter(|(_, token)| is_end(token)).map(|(id, _)| *id as u64));
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Ids and texts of control tokens. Does not decode the others, because this is called for every
/// configuration.
fn control_tokens(model: &GgufModel) -> Option<Vec<(usize, &str)>> {
    let list = |key: &str| model.get(key)?.as_array();
    let (tokens, types) = (list(TOKENS)?, list(TYPES)?.values()?);
    let ids = types.enumerate().filter(|(_, kind)| kind.as_u64() == Some(CONTROL)).map(|(id, _)| id);
    tokens.some_texts(ids)
}

/// Digest of all metadata that determines the tokenizer, as [`GgufModel::tokenizer_digest`] returns it.
pub fn digest(model: &GgufModel) -> Option<u64> {
    let text = |key: &str| model.get(key).and_then(Value::as_str);
    let pre = text(PRE).unwrap_or("default");
    let is_supported = match text(MODEL)? {
        "gpt2" => PRES.iter().any(|known| known.names.contains(&pre)),
        kind => kind == "llama",
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
    let name = model.get(PRE).and_then(Value::as_str).unwrap_or("default");
    let pre = PRES.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
        let names: Vec<&str> = PRES.iter().flat_map(|pre| pre.names).copied().collect();
        unsupported(model, PRE, Some(name), &names.join(", "))
    })?;
    let merges = model.get(MERGES).and_then(Value::as_array);
    if merges.is_some_and(|merges| merges.len() > spm::MAX_MERGES) {
        return Err(too_many_merges(model));
    }
    let merges = merges.and_then(|merges| merges.texts());
    let merges = merges.ok_or_else(|| model.wrong(MERGES, "a list of strings in UTF-8"))?;
    // Inside a token, a space is stored in its printable form, so the first space is the separator.
    let merges: Option<Vec<_>> = merges.into_iter().map(|merge| merge.split_once(' ')).collect();
    let merges = merges.ok_or_else(|| model.wrong(MERGES, "pairs of tokens separated by a space"))?;
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": pre.words.is_empty()});
    let words = pre.words.iter().map(|words| {
        json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false})
    });
    let digits = pre.splits_digits.then(|| json!({"type": "Digits", "individual_digits": true}));
    let steps: Vec<Json> = digits.into_iter().chain(words).chain([bytes]).collect();
    File {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added(),
        normalizer: if pre.is_composed { json!({"type": "NFC"}) } else { Json::Null },
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": steps}),
        post_processor: template(model, pre.adds_bos),
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        model: Bpe { ignore_merges: pre.ignores_merges, ..Bpe::new(vocabulary, merges) },
    }
    .bytes(model)
}

fn too_many_merges(model: &GgufModel) -> GgufError {
    model.unsupported(format!("its tokenizer has more than {} merges", spm::MAX_MERGES))
}

fn sentence_piece(model: &GgufModel, vocabulary: &Vocabulary<'_>) -> Result<Vec<u8>, GgufError> {
    let wrong = || model.wrong(SCORES, "a number for each token");
    let scores = model.get(SCORES).and_then(Value::as_array).and_then(|scores| scores.values());
    let scores: Option<Vec<f64>> = scores.ok_or_else(wrong)?.map(Value::as_f64).collect();
    let scores = scores.filter(|scores| scores.len() == vocabulary.tokens.len()).ok_or_else(wrong)?;
    let flag = |key: &str| model.get(&format!("tokenizer.ggml.{key}")).and_then(Value::as_bool);
    let has_prefix = flag("add_space_prefix").unwrap_or(true);
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
    let merges = spm::merges(&vocabulary.tokens, &scores).ok_or_else(|| too_many_merges(model))?;
    File {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added(),
        normalizer,
        pre_tokenizer: Json::Null,
        post_processor: template(model, true),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: Bpe {
            unk_token: spelling(model, "unknown"),
            fuse_unk: true,
            byte_fallback: true,
            ..Bpe::new(vocabulary, merges)
        },
    }
    .bytes(model)
}

/// Post-processor that adds the BOS and EOS tokens requested by the file's flags.
fn template(model: &GgufModel, adds_bos: bool) -> Json {
    let flag = |name: &str| model.get(&format!("tokenizer.ggml.add_{name}_token")).and_then(Value::as_bool);
    let token = |name: &str, default: bool| {
        let (id, text) = token_id(model, name).zip(spelling(model, name))?;
        flag(name).unwrap_or(default).then_some((id, text))
    };
    let (bos, eos) = (token("bos", adds_bos), token("eos", false));
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let special = |token: Option<(u64, &str)>| {
        token.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": 0}}))
    };
    let around = |sequence: &str| -> Vec<Json> {
        let text = json!({"Sequence": {"id": sequence, "type_id": 0}});
        special(bos).into_iter().chain([text]).chain(special(eos)).collect()
    };
    let tokens: Map<String, Json> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|(id, text)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let pair = [around("A"), around("B")].concat();
    json!({"type": "TemplateProcessing", "single": around("A"), "pair": pair, "special_tokens": tokens})
}
