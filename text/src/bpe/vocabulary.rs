//! Tokens by text and by id. All texts lie in one allocation, so that a large vocabulary is read in
//! milliseconds.

use std::fmt;

use hashbrown::HashTable;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use skein_proto::TokenId;
use xxhash_rust::xxh3::xxh3_64;

/// A vocabulary. Ids may have gaps.
#[derive(Debug, Default)]
pub struct Vocabulary {
    texts: String,
    /// Tokens by the hash of their text.
    by_text: HashTable<Token>,
    /// Text of each id; empty = unused.
    by_id: Vec<Span>,
    /// The empty token's id: files may have one.
    empty: Option<TokenId>,
}

/// Part of `texts`.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: u32,
    end: u32,
}

#[derive(Debug, Clone, Copy)]
struct Token {
    text: Span,
    id: TokenId,
}

impl Span {
    fn of(self, texts: &str) -> &str {
        &texts[self.start as usize..self.end as usize]
    }
}

impl Vocabulary {
    /// The id of a token.
    pub fn id_of(&self, text: &str) -> Option<TokenId> {
        let is_it = |token: &Token| token.text.of(&self.texts) == text;
        self.by_text.find(xxh3_64(text.as_bytes()), is_it).map(|token| token.id)
    }

    /// The text of a token.
    pub fn text_of(&self, id: TokenId) -> Option<&str> {
        let text = self.by_id.get(id as usize)?.of(&self.texts);
        (!text.is_empty() || self.empty == Some(id)).then_some(text)
    }

    /// Every token's text and id, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, TokenId)> {
        self.by_text.iter().map(|token| (token.text.of(&self.texts), token.id))
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.by_text.len()
    }

    /// The largest id; `None` if there are no tokens.
    pub fn largest_id(&self) -> Option<TokenId> {
        u32::try_from(self.by_id.len()).ok()?.checked_sub(1)
    }

    /// Adds the token whose text was appended to `texts` from `start` on. Of tokens with the same text the
    /// last one counts, as in any JSON object.
    fn add(&mut self, start: usize, id: TokenId) {
        let hash = xxh3_64(&self.texts.as_bytes()[start..]);
        let (before, new) = self.texts.split_at(start);
        let text = match self.by_text.find_mut(hash, |token| token.text.of(before) == new) {
            Some(token) => {
                token.id = id;
                let text = token.text;
                self.texts.truncate(start);
                text
            }
            None => {
                let text = Span { start: start as u32, end: self.texts.len() as u32 };
                let texts = &self.texts;
                let rehash = |token: &Token| xxh3_64(token.text.of(texts).as_bytes());
                self.by_text.insert_unique(hash, Token { text, id }, rehash);
                text
            }
        };
        if text.start == text.end {
            self.empty = Some(id);
        }
        let at = id as usize;
        if self.by_id.len() <= at {
            self.by_id.resize(at + 1, Span::default());
        }
        self.by_id[at] = text;
    }
}

/// Reads a vocabulary from an object of texts and ids, none of them larger than `max_id`.
pub struct VocabularySeed {
    pub max_id: TokenId,
}

impl<'de> DeserializeSeed<'de> for VocabularySeed {
    type Value = Vocabulary;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vocabulary, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for VocabularySeed {
    type Value = Vocabulary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tokens and ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        let mut vocabulary = Vocabulary::default();
        loop {
            let start = vocabulary.texts.len();
            let Some(()) = map.next_key_seed(Append(&mut vocabulary.texts))? else { break };
            let id: TokenId = map.next_value()?;
            if id > self.max_id {
                let text: String = vocabulary.texts[start..].chars().take(40).collect();
                let max = self.max_id;
                return Err(A::Error::custom(format!(
                    "token {text:?} has the id {id}, over the limit of {max}"
                )));
            }
            if u32::try_from(vocabulary.texts.len()).is_err() {
                return Err(A::Error::custom("a vocabulary of more than 4 GiB"));
            }
            vocabulary.add(start, id);
        }
        Ok(vocabulary)
    }
}

/// Appends a string.
struct Append<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.push_str(text);
        Ok(())
    }
}
