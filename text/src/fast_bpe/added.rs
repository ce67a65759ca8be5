//! Finds added tokens in a text, leftmost and longest first, as the library does before all other steps.

use std::ops::Range;

use serde_json::Value;
use skein_proto::TokenId;

/// Added tokens of a tokenizer.
#[derive(Debug)]
pub(super) struct AddedTokens {
    /// Tokens matched in the raw text, and tokens matched between those.
    passes: [ByFirst; 2],
}

/// Tokens by their first byte, longest first.
#[derive(Debug)]
struct ByFirst(Vec<Vec<(String, TokenId)>>);

impl AddedTokens {
    /// `None` if a token strips white space around it or must be a whole word, or if it is matched in
    /// normalised text and the tokenizer `is_normalised`.
    pub fn from_json(
        tokens: &Value,
        is_normalised: bool,
        id_of: &dyn Fn(&str) -> Option<TokenId>,
    ) -> Option<Self> {
        let mut passes = [ByFirst::new(), ByFirst::new()];
        for token in tokens.as_array().into_iter().flatten() {
            let is = |name: &str| token[name].as_bool() != Some(false);
            let later = is("normalized");
            if is("lstrip") || is("rstrip") || is("single_word") || (later && is_normalised) {
                return None;
            }
            let content = token["content"].as_str().filter(|content| !content.is_empty())?;
            // A token in the vocabulary keeps the vocabulary's id, not the file's.
            passes[usize::from(later)].add(content, id_of(content)?);
        }
        Some(Self { passes })
    }

    /// Added tokens in `text`, in order.
    pub fn find(&self, text: &str) -> Vec<(Range<usize>, TokenId)> {
        let mut found = Vec::new();
        let mut done = 0;
        let [first, then] = &self.passes;
        for (range, id) in first.find(text, 0..text.len()) {
            found.extend(then.find(text, done..range.start));
            done = range.end;
            found.push((range, id));
        }
        found.extend(then.find(text, done..text.len()));
        found
    }
}

impl ByFirst {
    fn new() -> Self {
        Self(vec![Vec::new(); 256])
    }

    fn add(&mut self, content: &str, id: TokenId) {
        let same = &mut self.0[usize::from(content.as_bytes()[0])];
        same.push((content.to_owned(), id));
        same.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
    }

    fn find(&self, text: &str, within: Range<usize>) -> Vec<(Range<usize>, TokenId)> {
        let bytes = &text.as_bytes()[..within.end];
        let (mut found, mut at) = (Vec::new(), within.start);
        while at < bytes.len() {
            let candidates = &self.0[usize::from(bytes[at])];
            match candidates.iter().find(|(content, _)| bytes[at..].starts_with(content.as_bytes())) {
                Some((content, id)) => {
                    found.push((at..at + content.len(), *id));
                    at += content.len();
                }
                None => at += 1,
            }
        }
        found
    }
}
