//! Ids of added tokens, and the post-processor that adds them to a text.

use hashbrown::HashMap;
use serde_json::{Map, Value as Json};
use skein_gguf::tokenizer_json::around;

/// Added tokens in the form of a tokenizer.json.
#[derive(Debug)]
pub struct AddedTokens(pub Vec<Json>);

impl AddedTokens {
    /// `added` with ids, as the tokenizers library gives them: the vocabulary's, or else the next after the
    /// number of its tokens.
    pub fn new(mut added: Vec<Json>, vocabulary: &[(&str, u32)]) -> Self {
        let ids: HashMap<&str, u32> = vocabulary.iter().copied().collect();
        let mut next = ids.len() as u64;
        for token in &mut added {
            let known = token["content"].as_str().and_then(|text| ids.get(text)).copied();
            let id = known.map(u64::from).unwrap_or(next);
            next += u64::from(known.is_none());
            // First, as in files that the library writes.
            let mut whole = Map::from_iter([("id".to_owned(), id.into())]);
            whole.extend(token.as_object().cloned().unwrap_or_default());
            *token = Json::Object(whole);
        }
        Self(added)
    }

    /// Id of a token, added or not.
    pub fn id_of(&self, text: &str, vocabulary: &[(&str, u32)]) -> Option<u64> {
        let added = self.0.iter().find(|token| token["content"] == text);
        let own = || vocabulary.iter().find(|(token, _)| *token == text).map(|(_, id)| u64::from(*id));
        added.and_then(|token| token["id"].as_u64()).or_else(own)
    }

    /// Adds BOS and EOS as `config` says: `add_bos_token`, which is otherwise `adds_bos`, and
    /// `add_eos_token`.
    pub fn post_processor(&self, config: &Json, adds_bos: bool, vocabulary: &[(&str, u32)]) -> Json {
        let token = |name: &str, default: bool| {
            let flag = &config[format!("add_{name}_token")];
            let token = &config[format!("{name}_token")];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            let id = self.id_of(text, vocabulary)?;
            flag.as_bool().unwrap_or(default).then_some((text, id))
        };
        around(token("bos", adds_bos), token("eos", false))
    }
}
