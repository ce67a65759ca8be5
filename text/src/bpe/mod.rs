//! Byte pair encoding, the model of nearly all tokenizers of large language models. Reads the same files as
//! Hugging Face's library and finds the same tokens (`tests.rs`), from tables that are built while the file
//! is read: with 128,000 tokens and 280,000 merges, building the library's takes half a second.

mod merges;
#[cfg(test)]
mod tests;
mod vocabulary;
mod word_cache;
mod words;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use skein_proto::TokenId;

use merges::{Merges, MergesSeed};
use vocabulary::{Vocabulary, VocabularySeed};
pub use words::{PlainWords, is_plain};

/// Characters whose tokens lie in a table: those of byte-level vocabularies (GPT-2).
const LETTERS: usize = 0x144;

/// A BPE model.
#[derive(Debug)]
pub struct Bpe {
    vocabulary: Vocabulary,
    merges: Merges,
    /// Tokens of the first characters of Unicode.
    letters: Vec<Option<TokenId>>,
    /// Tokens of single bytes, used for characters without a token.
    bytes: Option<Vec<Option<TokenId>>>,
    /// Token for all other characters; without one they are left out.
    unknown: Option<TokenId>,
    /// Whether successive unknown characters become one token.
    fuses_unknown: bool,
    /// Whether a word that is a token is not built from merges.
    whole_words_first: bool,
    /// Distinguishes the words of this model from others in a thread's cache.
    number: u32,
}

impl Bpe {
    /// Tokens of one word of a text.
    pub fn encode(&self, word: &str) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        let is_cached = !word.as_bytes().contains(&0);
        if is_cached {
            word_cache::append(self.words(), word.as_bytes(), &mut tokens, |tokens| self.merge(word, tokens));
        } else {
            self.merge(word, &mut tokens);
        }
        tokens
    }

    fn merge(&self, word: &str, tokens: &mut Vec<TokenId>) {
        if self.whole_words_first
            && let Some(id) = self.vocabulary.id_of(word)
        {
            tokens.push(id);
            return;
        }
        let before = tokens.len();
        self.push_characters(word, tokens);
        self.merges.apply(tokens, before);
    }

    /// Number of this model's words in the cache.
    fn words(&self) -> u32 {
        2 * self.number
    }

    /// Number of its [plain words](PlainWords), which are spelled otherwise.
    fn plain_words(&self) -> u32 {
        2 * self.number + 1
    }

    /// Appends the tokens of single characters, from which merges start.
    fn push_characters(&self, word: &str, tokens: &mut Vec<TokenId>) {
        // As in the library, a token for unknown characters comes after the bytes of characters that follow.
        let mut unknown = None;
        for letter in word.chars() {
            let mut text = [0; 4];
            let text = letter.encode_utf8(&mut text);
            let own = match self.letters.get(letter as usize) {
                Some(id) => *id,
                None => self.vocabulary.id_of(text),
            };
            if let Some(id) = own {
                tokens.extend(unknown.take());
                tokens.push(id);
            } else if let Some(ids) = self.bytes_of(text) {
                tokens.extend(ids);
            } else if self.unknown.is_some() {
                if !self.fuses_unknown {
                    tokens.extend(unknown);
                }
                unknown = self.unknown;
            }
        }
        tokens.extend(unknown);
    }

    fn bytes_of(&self, text: &str) -> Option<Vec<TokenId>> {
        let table = self.bytes.as_ref()?;
        text.bytes().map(|byte| table[usize::from(byte)]).collect()
    }

    /// The id of a token.
    pub fn id_of(&self, text: &str) -> Option<TokenId> {
        self.vocabulary.id_of(text)
    }

    /// The text of a token, as the file has it.
    pub fn text_of(&self, id: TokenId) -> Option<&str> {
        self.vocabulary.text_of(id)
    }

    /// Every token's text and id.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, TokenId)> {
        self.vocabulary.iter()
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The largest id of a token; `None` if there are none.
    pub fn largest_id(&self) -> Option<TokenId> {
        self.vocabulary.largest_id()
    }
}

/// Reads a BPE model from the `model` of a tokenizer.json, with ids up to `max_id`. Fails for models with
/// dropout, which draw random merges, and with affixes on the words' parts; the library reads those.
pub struct BpeSeed {
    pub max_id: TokenId,
}

impl<'de> DeserializeSeed<'de> for BpeSeed {
    type Value = Bpe;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Bpe, D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// The other members.
#[derive(Default)]
struct Options {
    unk_token: Option<String>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
}

impl<'de> Visitor<'de> for BpeSeed {
    type Value = Bpe;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a BPE model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bpe, A::Error> {
        let mut options = Options::default();
        let (mut vocabulary, mut merges, mut early, mut is_bpe) = (None, None, None, false);
        while let Some(name) = map.next_key::<String>()? {
            // Of members with the same name the last one counts, which is left to the library.
            let is_again = match name.as_str() {
                "vocab" => vocabulary.is_some(),
                "merges" => merges.is_some() || early.is_some(),
                _ => false,
            };
            refuse(&name, is_again)?;
            match name.as_str() {
                "type" => is_bpe = map.next_value::<String>()? == "BPE",
                "dropout" => refuse(&name, map.next_value::<Option<f32>>()?.is_some())?,
                "continuing_subword_prefix" | "end_of_word_suffix" => {
                    refuse(
                        &name,
                        map.next_value::<Option<String>>()?.is_some_and(|affix| !affix.is_empty()),
                    )?;
                }
                "unk_token" => options.unk_token = map.next_value()?,
                "fuse_unk" => options.fuse_unk = flag(&mut map)?,
                "byte_fallback" => options.byte_fallback = flag(&mut map)?,
                "ignore_merges" => options.ignore_merges = flag(&mut map)?,
                "vocab" => vocabulary = Some(map.next_value_seed(VocabularySeed { max_id: self.max_id })?),
                "merges" => match &vocabulary {
                    Some(vocabulary) => merges = Some(map.next_value_seed(MergesSeed(vocabulary))?),
                    None => early = Some(map.next_value::<Box<RawValue>>()?),
                },
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let vocabulary = vocabulary.ok_or_else(|| A::Error::missing_field("vocab"))?;
        if let Some(early) = early {
            let mut json = serde_json::Deserializer::from_str(early.get());
            merges = Some(MergesSeed(&vocabulary).deserialize(&mut json).map_err(A::Error::custom)?);
        }
        let merges = merges.ok_or_else(|| A::Error::missing_field("merges"))?;
        if !is_bpe {
            return Err(A::Error::custom("its type is not BPE"));
        }
        Bpe::new(vocabulary, merges, &options).map_err(A::Error::custom)
    }
}

fn refuse<E: Error>(option: &str, is_used: bool) -> Result<(), E> {
    if is_used { Err(E::custom(format!("{option} is left to the library"))) } else { Ok(()) }
}

fn flag<'de, A: MapAccess<'de>>(map: &mut A) -> Result<bool, A::Error> {
    Ok(map.next_value::<Option<bool>>()? == Some(true))
}

impl Bpe {
    fn new(vocabulary: Vocabulary, merges: Merges, options: &Options) -> Result<Self, String> {
        let unknown = options.unk_token.as_ref().map(|text| {
            let id = vocabulary.id_of(text);
            id.ok_or_else(|| format!("unk_token {text:?} is not in the vocabulary"))
        });
        let letter = |code: u32| vocabulary.id_of(char::from_u32(code)?.encode_utf8(&mut [0; 4]));
        let byte = |byte: u8| vocabulary.id_of(&format!("<{byte:#04X}>"));
        static MODELS: AtomicU32 = AtomicU32::new(1);
        Ok(Self {
            unknown: unknown.transpose()?,
            letters: (0..LETTERS as u32).map(letter).collect(),
            bytes: options.byte_fallback.then(|| (0..=255).map(byte).collect()),
            fuses_unknown: options.fuse_unk,
            whole_words_first: options.ignore_merges,
            number: MODELS.fetch_add(1, Ordering::Relaxed),
            vocabulary,
            merges,
        })
    }
}
