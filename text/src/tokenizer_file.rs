//! Contents of a tokenizer.json.
//!
//! Nearly all of a large file is the vocabulary and the merges of a BPE model. The library's own parser
//! copies those several times, which takes a second for 128,000 tokens. Here they are read once, into tables
//! that encode ([`Bpe`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::Value;
use serde_json::value::RawValue;
use skein_proto::TokenId;
use tokenizers::{AddedToken, DecoderWrapper, ModelWrapper, PostProcessorWrapper};

use super::bounded_steps::{BoundedNormalizer, BoundedPreTokenizer};
use super::bounded_tokenizer::BoundedTokenizer;
use super::bpe::{Bpe, BpeSeed};
use super::model::WordModel;

/// Largest token id accepted. Tables have a row for each id up to the largest, so an absurd id would cost
/// gigabytes; vocabularies of public models end at about 300,000.
const MAX_TOKEN_ID: TokenId = 1 << 24;
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
    Bpe(Arc<Bpe>),
    /// Another model, or one with unusual fields; the library parses it. Also why it is not the first.
    Other(Value, String),
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
            let said = |error: serde_json::Error| said(&error, json, text.get());
            if name == "model" {
                model = ModelFile::parse(text.get(), &said);
            } else {
                let value =
                    serde_json::from_str(text.get()).map_err(|error| format!("{name}: {}", said(error)))?;
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

    /// Appends to the added tokens; one without an id gets the vocabulary's, or else the next free one.
    pub fn add_tokens(&mut self, tokens: Vec<Value>) {
        let all = self.members.entry("added_tokens".to_owned()).or_default();
        let known = all.as_array().cloned().unwrap_or_default();
        *all = known.into_iter().chain(tokens).collect();
    }

    fn part<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        Option::deserialize(self.member(name)).map_err(|error| format!("{name}: {error}"))
    }

    /// The library's tokenizer, without truncation and padding.
    pub fn build(&self) -> Result<BoundedTokenizer, String> {
        let model = match &self.model {
            ModelFile::Bpe(bpe) => WordModel::Bpe(bpe.clone()),
            ModelFile::Other(tree, unusual) => {
                check_prefix(tree)?;
                let model = ModelWrapper::deserialize(tree).map_err(|error| match &tree["type"] {
                    kind if kind == "BPE" => format!("model: {unusual} (the library: {error})"),
                    _ => format!("model: {error}"),
                });
                WordModel::Library(Arc::new(model?))
            }
        };
        let mut tokenizer = BoundedTokenizer::new(model);
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
    /// `said` puts an error into words.
    fn parse(json: &str, said: &dyn Fn(serde_json::Error) -> String) -> Result<Self, String> {
        let mut parser = serde_json::Deserializer::from_str(json);
        match (BpeSeed { max_id: MAX_TOKEN_ID }).deserialize(&mut parser) {
            Ok(bpe) => Ok(Self::Bpe(Arc::new(bpe))),
            Err(unusual) => {
                let tree: Value =
                    serde_json::from_str(json).map_err(|error| format!("model: {}", said(error)))?;
                let vocab = tree["vocab"].as_object().into_iter().flatten();
                check_ids(vocab.map(|(token, id)| (token.as_str(), id.as_u64())))?;
                Ok(Self::Other(tree, said(unusual)))
            }
        }
    }
}

/// Message of an error in `part` of `json`, with its line and column in the latter.
fn said(error: &serde_json::Error, json: &[u8], part: &str) -> String {
    let message = error.to_string();
    let relative = format!(" at line {} column {}", error.line(), error.column());
    let Some(message) = message.strip_suffix(&relative) else { return message };
    let start = (part.as_ptr() as usize).saturating_sub(json.as_ptr() as usize).min(json.len());
    let before = &json[..start];
    let line = error.line() + before.iter().filter(|byte| **byte == b'\n').count();
    let own = before.iter().rev().take_while(|byte| **byte != b'\n').count();
    let column = error.column() + if error.line() == 1 { own } else { 0 };
    format!("{message} at line {line} column {column}")
}

/// Refuses merges that the library would panic on: it removes the prefix of each second token.
fn check_prefix(model: &Value) -> Result<(), String> {
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    for merge in model["merges"].as_array().into_iter().flatten() {
        let second = merge[1].as_str().or_else(|| merge.as_str()?.split_once(' ').map(|(_, second)| second));
        if let Some(second) = second.filter(|second| !second.starts_with(prefix)) {
            let shown: String = second.chars().take(40).collect();
            return Err(format!(
                "model: continuing_subword_prefix is {prefix:?}, with which the second token of a merge, {shown:?}, does \
                 not start"
            ));
        }
    }
    Ok(())
}

/// Refuses ids over [`MAX_TOKEN_ID`].
fn check_ids<'a>(mut ids: impl Iterator<Item = (&'a str, Option<u64>)>) -> Result<(), String> {
    let Some((token, Some(id))) = ids.find(|(_, id)| id.is_some_and(|id| id > u64::from(MAX_TOKEN_ID)))
    else {
        return Ok(());
    };
    let token: String = token.chars().take(40).collect();
    Err(format!("token {token:?} has the id {id}, over the limit of {MAX_TOKEN_ID}"))
}

#[cfg(test)]
mod tests {
    use tokenizers::{Model as _, Token};

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
        let with = |name: &str, value: Value| {
            let mut tree = shipped();
            tree["model"][name] = value;
            tree
        };
        let merges = shipped()["model"]["merges"].clone();
        let strings = merges.as_array().unwrap().iter().map(|merge| {
            Value::from(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()))
        });
        let mut old = shipped();
        old["model"].as_object_mut().unwrap().remove("type");
        let mut words = shipped();
        words["model"] =
            serde_json::json!({"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}});
        for (name, tree, is_ours) in [
            ("merges as lists", shipped(), true),
            ("merges as strings", with("merges", strings.collect()), true),
            ("an unknown token", with("unk_token", "a".into()), true),
            ("an unknown token that is none", with("unk_token", "no such".into()), false),
            ("bytes", with("byte_fallback", true.into()), true),
            ("whole words", with("ignore_merges", true.into()), true),
            ("dropout", with("dropout", 0.0.into()), false),
            ("a prefix", with("continuing_subword_prefix", "b".into()), false),
            ("no prefix", with("continuing_subword_prefix", "".into()), true),
            ("a suffix", with("end_of_word_suffix", "b".into()), false),
            ("without a type", old, false),
            ("another kind", words, false),
        ] {
            let file = parse(&tree).unwrap();
            assert_eq!(matches!(file.model, ModelFile::Bpe(_)), is_ours, "{name}");
            let Ok(theirs) = serde_json::from_value::<ModelWrapper>(tree["model"].clone()) else {
                assert!(file.build().is_err(), "{name}");
                continue;
            };
            let ours = file.build().unwrap();
            assert_eq!(ours.get_model().get_vocab(), theirs.get_vocab(), "{name}");
            assert_eq!(ours.get_model().get_vocab_size(), theirs.get_vocab_size(), "{name}");
            for word in ["a", "Once", "Ġtime", "Ġunbelievably"] {
                let ids = |model: &dyn Fn(&str) -> Vec<Token>| {
                    model(word).iter().map(|token| token.id).collect::<Vec<_>>()
                };
                let expected = ids(&|word| theirs.tokenize(word).unwrap());
                assert_eq!(ids(&|word| ours.get_model().tokenize(word).unwrap()), expected, "{name}: {word}");
            }
        }
    }

    #[test]
    fn errors_count_lines_from_the_start_of_the_file() {
        let json = "{\n \"version\": \"1.0\",\n \"model\": {\"type\": \"BPE\",\n  \"vocab\": {\"a\": \"x\"}, \"merges\": []}}";
        let said = TokenizerFile::parse(json.as_bytes()).and_then(|file| file.build().map(drop)).unwrap_err();
        assert!(said.contains("at line 4 column 20"), "{said}");
        let one_line = json.replace('\n', "");
        let built = TokenizerFile::parse(one_line.as_bytes()).and_then(|file| file.build().map(drop));
        let said = built.unwrap_err();
        let column = one_line.find("\"x\"").unwrap() + 3;
        assert!(said.contains(&format!("at line 1 column {column}")), "{said}");
    }

    #[test]
    fn of_members_with_the_same_name_the_last_one_counts() {
        let model = shipped()["model"].clone();
        for members in [
            format!(r#""merges": [], "vocab": {}, "merges": {}"#, model["vocab"], model["merges"]),
            format!(r#""vocab": {{"a": 1}}, "merges": {}, "vocab": {}"#, model["merges"], model["vocab"]),
        ] {
            let json = format!(r#"{{"model": {{"type": "BPE", {members}}}}}"#);
            let file = TokenizerFile::parse(json.as_bytes()).unwrap();
            let tokens = file.build().unwrap().get_model().tokenize("the").unwrap();
            assert_eq!(
                tokens.iter().map(|token| u64::from(token.id)).collect::<Vec<_>>(),
                [model["vocab"]["the"].as_u64().unwrap()]
            );
        }
    }

    #[test]
    fn merges_may_stand_before_the_vocabulary() {
        let model = shipped()["model"].clone();
        let json = format!(
            r#"{{"model": {{"merges": {}, "type": "BPE", "vocab": {}}}}}"#,
            model["merges"], model["vocab"]
        );
        let ModelFile::Bpe(bpe) = TokenizerFile::parse(json.as_bytes()).unwrap().model else {
            panic!("it is a BPE model")
        };
        assert_eq!(bpe.encode("the"), [bpe.id_of("the").unwrap()]);
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
        check(
            |tree| tree["model"]["continuing_subword_prefix"] = "##".into(),
            &["continuing_subword_prefix", "##", "second token"],
        );
        check(|tree| tree["pre_tokenizer"] = 7.into(), &["pre_tokenizer"]);
        check(|tree| tree["added_tokens"] = serde_json::json!([{"id": 1}]), &["added_tokens", "content"]);
    }
}
