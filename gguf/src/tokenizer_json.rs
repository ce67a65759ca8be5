//! The form of a tokenizer.json, for those who build one. Tokens are borrowed, because there are hundreds of
//! thousands.

use hashbrown::HashSet;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value as Json, json};

/// A tokenizer.json.
#[derive(Debug, serde::Serialize)]
#[allow(missing_docs)] // the fields are the file's
pub struct TokenizerJson<'a> {
    pub version: &'static str,
    pub truncation: (),
    pub padding: (),
    pub added_tokens: Vec<Json>,
    pub normalizer: Json,
    pub pre_tokenizer: Json,
    pub post_processor: Json,
    pub decoder: Json,
    pub model: Model<'a>,
}

/// The `model` of a tokenizer.json.
#[derive(Debug, serde::Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Model<'a> {
    Bpe(Bpe<'a>),
    Unigram(Unigram<'a>),
}

/// Byte pair encoding.
#[derive(Debug, serde::Serialize)]
#[allow(missing_docs)]
pub struct Bpe<'a> {
    pub r#type: &'static str,
    pub dropout: (),
    pub unk_token: Option<&'a str>,
    pub continuing_subword_prefix: (),
    pub end_of_word_suffix: (),
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
    pub vocab: Tokens<'a>,
    pub merges: Vec<(&'a str, &'a str)>,
}

/// The most probable pieces.
#[derive(Debug, serde::Serialize)]
#[allow(missing_docs)]
pub struct Unigram<'a> {
    pub r#type: &'static str,
    pub unk_id: usize,
    pub vocab: Vec<(&'a str, f64)>,
    pub byte_fallback: bool,
}

/// Tokens with their ids. Of equal ones, which some files use as padding, the first counts.
#[derive(Debug)]
pub struct Tokens<'a>(pub Vec<(&'a str, u32)>);

impl<'a> TokenizerJson<'a> {
    /// A tokenizer with this model and no other step.
    pub fn new(model: Model<'a>) -> Self {
        Self {
            version: "1.0",
            truncation: (),
            padding: (),
            added_tokens: Vec::new(),
            normalizer: Json::Null,
            pre_tokenizer: Json::Null,
            post_processor: Json::Null,
            decoder: Json::Null,
            model,
        }
    }

    /// The content of the file.
    ///
    /// # Errors
    /// If a number is not finite.
    pub fn bytes(&self) -> serde_json::Result<Vec<u8>> {
        // Tokens twice, in the vocabulary and in merges, with quotes and ids.
        let size = match &self.model {
            Model::Bpe(Bpe { vocab, merges, .. }) => {
                vocab.0.iter().map(|(token, _)| token.len() + 16).sum::<usize>()
                    + merges.iter().map(|(left, right)| left.len() + right.len() + 8).sum::<usize>()
            }
            Model::Unigram(Unigram { vocab, .. }) => vocab.iter().map(|(token, _)| token.len() + 32).sum(),
        };
        let mut bytes = Vec::with_capacity(size + (1 << 16));
        serde_json::to_writer(&mut bytes, self)?;
        Ok(bytes)
    }
}

impl<'a> Bpe<'a> {
    /// A model with these merges and no options.
    pub fn new(vocab: Tokens<'a>, merges: Vec<(&'a str, &'a str)>) -> Self {
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

impl<'a> Unigram<'a> {
    /// A model of these pieces with their log probabilities.
    pub fn new(vocab: Vec<(&'a str, f64)>, unk_id: usize, byte_fallback: bool) -> Self {
        Self { r#type: "Unigram", unk_id, vocab, byte_fallback }
    }
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seen = HashSet::<&str>::with_capacity(self.0.len());
        let mut map = serializer.serialize_map(None)?;
        for (token, id) in self.0.iter().filter(|(token, _)| seen.insert(*token)) {
            map.serialize_entry(token, id)?;
        }
        map.end()
    }
}

/// Post-processor with these tokens before and after a text.
pub fn around(bos: Option<(&str, u64)>, eos: Option<(&str, u64)>) -> Json {
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let special = |token: Option<(&str, u64)>| {
        token.map(|(text, _)| json!({"SpecialToken": {"id": text, "type_id": 0}}))
    };
    let around = |sequence: &str| -> Vec<Json> {
        let text = json!({"Sequence": {"id": sequence, "type_id": 0}});
        special(bos).into_iter().chain([text]).chain(special(eos)).collect()
    };
    let tokens: Map<String, Json> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|(text, id)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let pair = [around("A"), around("B")].concat();
    json!({"type": "TemplateProcessing", "single": around("A"), "pair": pair, "special_tokens": tokens})
}

/// Decoder of tokens in GPT-2's alphabet.
pub fn byte_level_decoder() -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})
}
