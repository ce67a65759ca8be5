//! Contents of a tokenizer.json.
//!
//! Nearly all of a large file is the vocabulary and the merges of a BPE model. The library's own parser
//! copies those several times, which takes a second for 128,000 tokens. Here they are parsed once.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, DecoderWrapper, ModelWrapper, PostProcessorWrapper};

use super::bounded_steps::{BoundedNormalizer, BoundedPreTokenizer};
use super::tokenizer::Bounded;

/// Largest token id accepted. Tables have a row for each id up to the largest, so an absurd id would cost
/// gigabytes; vocabularies of public models end at about 300,000.
const MAX_TOKEN_ID: u64 = 1 << 24;
/// Only supported version of the file format.
const VERSION: &str = "1.0";

/// A parsed tokenizer.json.
pub(super) struct TokenizerFile {
    /// All members but the model.
    members: BTreeMap<String, Value>,
    pub model: ModelFile,
}

/// The file's model.
pub(super) enum ModelFile {
    Bpe(BpeFile),
    /// Another model, or one with unusual fields; the library parses it. Also why it is not the first.
    Other(Value, Option<serde_json::Error>),
}

/// A BPE model.
#[derive(Debug, Deserialize)]
pub(super) struct BpeFile {
    r#type: String,
    pub dropout: Option<f32>,
    unk_token: Option<String>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    pub byte_fallback: Option<bool>,
    pub ignore_merges: Option<bool>,
    /// Ids of tokens.
    pub vocab: Vocab,
    /// Pairs that are merged, the first one first.
    pub merges: Vec<Pair>,
}

/// The library's type of a vocabulary.
pub(super) type Vocab = tokenizers::models::bpe::Vocab;

/// Two tokens that are merged: in the file a list, or a string with a space between them.
#[derive(Debug, Clone)]
pub(super) struct Pair(pub String, pub String);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairVisitor;
        impl<'de> Visitor<'de> for PairVisitor {
            type Value = Pair;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }

            fn visit_str<E: serde::de::Error>(self, pair: &str) -> Result<Pair, E> {
                let tokens = pair.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) =
                    tokens.ok_or_else(|| E::custom(format!("merge {pair:?} is not two tokens")))?;
                Ok(Pair(left.to_owned(), right.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<Pair, A::Error> {
                let mut next = || tokens.next_element::<String>();
                let pair = (next()?, next()?, next()?);
                let (Some(left), Some(right), None) = pair else {
                    return Err(A::Error::custom("a merge has other than two tokens"));
                };
                Ok(Pair(left, right))
            }
        }
        deserializer.deserialize_any(PairVisitor)
    }
}

impl TokenizerFile {
    /// Parses the file and checks its ids.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let raw: BTreeMap<String, &RawValue> =
            serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let mut members = BTreeMap::new();
        let mut model = Err("it has no model".to_owned());
        for (name, text) in raw {
            if name == "model" {
                model = ModelFile::parse(text.get());
            } else {
                let value = serde_json::from_str(text.get()).map_err(|error| format!("{name}: {error}"))?;
                members.insert(name, value);
            }
        }
        let file = Self { members, model: model? };
        match file.member("version") {
            Value::Null => {}
            version if version == VERSION => {}
            version => return Err(format!("version {version} is not supported, only {VERSION:?}")),
        }
        let added = file.member("added_tokens").as_array().into_iter().flatten();
        check_ids(added.map(|token| (token["content"].as_str().unwrap_or_default(), token["id"].as_u64())))?;
        Ok(file)
    }

    /// A member other than the model; null if it is absent.
    pub fn member(&self, name: &str) -> &Value {
        self.members.get(name).unwrap_or(&Value::Null)
    }

    fn part<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        Option::deserialize(self.member(name)).map_err(|error| format!("{name}: {error}"))
    }

    /// The library's tokenizer, without truncation and padding.
    pub fn build(&self) -> Result<Bounded, String> {
        let model = match &self.model {
            ModelFile::Bpe(bpe) => ModelWrapper::BPE(bpe.build()?),
            ModelFile::Other(tree, unusual) => {
                let unusual = unusual.as_ref().filter(|_| tree["type"] == "BPE");
                let model = ModelWrapper::deserialize(tree);
                model.map_err(|error| format!("model: {}", unusual.unwrap_or(&error)))?
            }
        };
        let mut tokenizer = Bounded::new(model);
        let normalizer: Option<BoundedNormalizer> = self.part("normalizer")?;
        tokenizer.with_normalizer(normalizer).map_err(|error| error.to_string())?;
        tokenizer.with_pre_tokenizer(self.part::<BoundedPreTokenizer>("pre_tokenizer")?);
        tokenizer.with_post_processor(self.part::<PostProcessorWrapper>("post_processor")?);
        tokenizer.with_decoder(self.part::<DecoderWrapper>("decoder")?);
        let added: Option<Vec<AddedToken>> = self.part("added_tokens")?;
        tokenizer.add_tokens(added.unwrap_or_default()).map_err(|error| error.to_string())?;
        Ok(tokenizer)
    }
}

impl ModelFile {
    fn parse(json: &str) -> Result<Self, String> {
        match serde_json::from_str::<BpeFile>(json) {
            Ok(bpe) if bpe.r#type == "BPE" => {
                check_ids(bpe.vocab.iter().map(|(token, id)| (token.as_str(), Some(u64::from(*id)))))?;
                Ok(Self::Bpe(bpe))
            }
            other => {
                let tree: Value = serde_json::from_str(json).map_err(|error| format!("model: {error}"))?;
                let vocab = tree["vocab"].as_object().into_iter().flatten();
                check_ids(vocab.map(|(token, id)| (token.as_str(), id.as_u64())))?;
                Ok(Self::Other(tree, other.err()))
            }
        }
    }
}

impl BpeFile {
    fn build(&self) -> Result<BPE, String> {
        let merges = self.merges.iter().map(|Pair(left, right)| (left.clone(), right.clone()));
        let mut builder = BPE::builder()
            .vocab_and_merges(self.vocab.clone(), merges.collect())
            .fuse_unk(self.fuse_unk == Some(true))
            .byte_fallback(self.byte_fallback == Some(true))
            .ignore_merges(self.ignore_merges == Some(true));
        if let Some(dropout) = self.dropout {
            builder = builder.dropout(dropout);
        }
        if let Some(token) = &self.unk_token {
            builder = builder.unk_token(token.clone());
        }
        if let Some(prefix) = &self.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix.clone());
        }
        if let Some(suffix) = &self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix.clone());
        }
        builder.build().map_err(|error| format!("model: {error}"))
    }
}

/// Refuses ids over [`MAX_TOKEN_ID`].
fn check_ids<'a>(mut ids: impl Iterator<Item = (&'a str, Option<u64>)>) -> Result<(), String> {
    let Some((token, Some(id))) = ids.find(|(_, id)| id.is_some_and(|id| id > MAX_TOKEN_ID)) else {
        return Ok(());
    };
    let token: String = token.chars().take(40).collect();
    Err(format!("token {token:?} has the id {id}, over the limit of {MAX_TOKEN_ID}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn parse(tree: &Value) -> Result<TokenizerFile, String> {
        TokenizerFile::parse(tree.to_string().as_bytes())
    }

    #[test]
    fn models_are_those_that_the_library_reads() {
        let lists = shipped();
        let mut strings = shipped();
        for merge in strings["model"]["merges"].as_array_mut().unwrap() {
            *merge = format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into();
        }
        let mut options = shipped();
        for (name, value) in [
            ("unk_token", "a".into()),
            ("fuse_unk", true.into()),
            ("byte_fallback", true.into()),
            ("ignore_merges", true.into()),
            ("dropout", 0.5.into()),
            ("end_of_word_suffix", "b".into()),
        ] {
            options["model"][name] = value;
        }
        let mut old = shipped();
        old["model"].as_object_mut().unwrap().remove("type");
        let mut words = shipped();
        words["model"] =
            serde_json::json!({"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}});
        for (name, tree, is_bpe) in [
            ("merges as lists", lists, true),
            ("merges as strings", strings, true),
            ("options", options, true),
            ("without a type", old, false),
            ("another kind", words, false),
        ] {
            let file = parse(&tree).unwrap();
            assert_eq!(matches!(file.model, ModelFile::Bpe(_)), is_bpe, "{name}");
            let theirs: ModelWrapper = serde_json::from_value(tree["model"].clone()).unwrap();
            let ours = file.build().unwrap();
            let value = |model: &ModelWrapper| serde_json::to_value(model).unwrap();
            assert!(value(ours.get_model()) == value(&theirs), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let check = |change: fn(&mut Value), words: &[&str]| {
            let mut tree = shipped();
            change(&mut tree);
            let built = parse(&tree).and_then(|file| file.build().map(drop));
            let said = built.expect_err("it is wrong");
            words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
        };
        check(|tree| drop(tree.as_object_mut().unwrap().remove("model")), &["no model"]);
        check(|tree| tree["version"] = "2.0".into(), &["version", "2.0", "1.0"]);
        check(|tree| tree["model"]["merges"][0] = serde_json::json!(["a"]), &["model", "two tokens"]);
        check(|tree| tree["model"]["merges"][0] = "a b c".into(), &["model", "a b c", "two tokens"]);
        check(|tree| tree["model"]["merges"][0] = serde_json::json!(["a", "no such"]), &["model", "no such"]);
        check(|tree| tree["model"]["vocab"]["a"] = (-1).into(), &["model", "-1"]);
        check(|tree| tree["pre_tokenizer"] = 7.into(), &["pre_tokenizer"]);
        check(|tree| tree["added_tokens"] = serde_json::json!([{"id": 1}]), &["added_tokens", "content"]);
    }
}
