//! Keeps control tokens written by users in messages as plain text.
//!
//! A chat template writes control tokens (`<|end|>`) as text between the messages, and a tokenizer would
//! recognise them wherever they stand. Before rendering, every control token spelled in a message is
//! therefore *shielded*: a mark, a Unicode noncharacter that occurs nowhere in the messages, is inserted
//! after its first character. Any control token found after rendering was written by the template. The mark
//! is removed before encoding.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;
use skein_proto::TokenId;

/// The model's control tokens (added tokens marked `special`), as a byte trie.
#[derive(Debug)]
pub struct ControlTokens {
    nodes: Vec<Node>,
    /// For each byte, whether a token starts with it. Few bytes do, which makes scanning long texts fast.
    begins: [bool; 256],
}

impl Default for ControlTokens {
    fn default() -> Self {
        Self { nodes: Vec::new(), begins: [false; 256] }
    }
}

#[derive(Debug, Default)]
struct Node {
    next: HashMap<u8, usize>,
    token: Option<TokenId>,
}

impl ControlTokens {
    /// Builds a trie from (text, id) pairs.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a str, TokenId)>) -> Self {
        let (mut nodes, mut begins) = (vec![Node::default()], [false; 256]);
        for (spelling, id) in tokens {
            spelling.bytes().take(1).for_each(|byte| begins[usize::from(byte)] = true);
            let mut at = 0;
            for byte in spelling.bytes() {
                at = match nodes[at].next.get(&byte) {
                    Some(next) => *next,
                    None => {
                        nodes.push(Node::default());
                        let new = nodes.len() - 1;
                        nodes[at].next.insert(byte, new);
                        new
                    }
                };
            }
            if at != 0 {
                nodes[at].token = Some(id);
            }
        }
        Self { nodes, begins }
    }

    /// The longest control token at the start of `bytes`: its length and id.
    fn longest(&self, bytes: &[u8]) -> Option<(usize, TokenId)> {
        if !self.begins[usize::from(*bytes.first()?)] {
            return None;
        }
        let mut found = None;
        let mut node = self.nodes.first()?;
        for (at, byte) in bytes.iter().enumerate() {
            let Some(next) = node.next.get(byte) else { break };
            node = &self.nodes[*next];
            found = node.token.map(|id| (at + 1, id)).or(found);
        }
        found
    }

    /// Whether a control token starts at `at` of `bytes`.
    pub(super) fn starts_at(&self, bytes: &[u8], at: usize) -> bool {
        self.begins[usize::from(bytes[at])] && self.longest(&bytes[at..]).is_some()
    }

    /// Every position in `text` where a control token starts, overlaps included.
    fn starts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        // Searching bytes is enough: no token starts inside a character.
        let bytes = text.as_bytes();
        let may_begin = bytes.iter().enumerate().filter(|(_, byte)| self.begins[usize::from(**byte)]);
        may_begin.map(|(at, _)| at).filter(|at| self.longest(&bytes[*at..]).is_some())
    }

    /// Whether any string in `value`, keys included, contains a control token.
    pub fn contains_control(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.starts(text).next().is_some(),
            Value::Array(items) => items.iter().any(|item| self.contains_control(item)),
            Value::Object(map) => {
                map.iter().any(|(key, item)| self.starts(key).next().is_some() || self.contains_control(item))
            }
            _ => false,
        }
    }

    /// A copy of `value` with every control token in its strings shielded by `mark`.
    pub fn shield(&self, value: &Value, mark: char) -> Value {
        match value {
            Value::String(text) => Value::String(self.shield_text(text, mark)),
            Value::Array(items) => items.iter().map(|item| self.shield(item, mark)).collect(),
            Value::Object(map) => map
                .iter()
                .map(|(key, item)| (self.shield_text(key, mark), self.shield(item, mark)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            other => other.clone(),
        }
    }

    fn shield_text(&self, text: &str, mark: char) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        for (at, c) in text.char_indices() {
            out.push(c);
            if self.longest(&text.as_bytes()[at..]).is_some() {
                out.push(mark);
            }
        }
        out
    }

    /// The unshielded control tokens in `text`, leftmost and longest first, as (range, id).
    pub fn find(&self, text: &str, mark: char) -> Vec<(Range<usize>, TokenId)> {
        let mut found = Vec::new();
        let mut skip_to = 0;
        for (at, _) in text.char_indices() {
            if at < skip_to {
                continue;
            }
            if let Some((length, id)) = self.longest(&text.as_bytes()[at..])
                // The mark cannot split a control token of one character, only follow it.
                && !text[at + length..].starts_with(mark)
            {
                found.push((at..at + length, id));
                skip_to = at + length;
            }
        }
        found
    }
}

/// A Unicode noncharacter that none of `values` contains; `None` if all sixteen candidates occur.
pub fn unused_mark(values: &[&Value]) -> Option<char> {
    ('\u{FDD0}'..='\u{FDDF}').find(|mark| !values.iter().any(|value| contains(value, *mark)))
}

fn contains(value: &Value, mark: char) -> bool {
    match value {
        Value::String(text) => text.contains(mark),
        Value::Array(items) => items.iter().any(|item| contains(item, mark)),
        Value::Object(map) => map.iter().any(|(key, item)| key.contains(mark) || contains(item, mark)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MARK: char = '\u{FDD0}';

    fn tokens() -> ControlTokens {
        ControlTokens::new([("<|end|>", 6), ("<|end|><|user|>", 7), ("<|user|>", 4), ("§", 9)])
    }

    #[test]
    fn the_longest_leftmost_token_is_found() {
        let found = |text| tokens().find(text, MARK).into_iter().map(|(_, id)| id).collect::<Vec<_>>();
        assert_eq!(found("a<|end|>b<|user|>"), [6, 4]);
        assert_eq!(found("<|end|><|user|>"), [7]);
        assert_eq!(found("<|end|<|end|>"), [6]);
        assert_eq!(found("§"), [9]);
    }

    #[test]
    fn a_shielded_token_is_text() {
        let message = json!({"role": "user", "content": ["x<|end|><|user|>§ <|end"], "<|end|>": 1});
        assert!(tokens().contains_control(&message));
        let shielded = tokens().shield(&message, MARK);
        assert!(!shielded.to_string().contains("<|end|>"), "{shielded}");
        let text = shielded["content"][0].as_str().unwrap();
        assert_eq!(tokens().find(text, MARK), []);
        assert_eq!(text.replace(MARK, ""), "x<|end|><|user|>§ <|end");
        assert!(!tokens().contains_control(&json!("<|end")));
    }

    #[test]
    fn the_mark_does_not_occur_in_the_values() {
        assert_eq!(unused_mark(&[&json!(["\u{FDD0}", {"\u{FDD1}": 1}])]), Some('\u{FDD2}'));
        let all: String = ('\u{FDD0}'..='\u{FDDF}').collect();
        assert_eq!(unused_mark(&[&json!(all)]), None);
    }
}
