//! Byte pair encoding of one word: repeatedly merges the pair with the lowest rank, leftmost first, until no
//! pair has a rank.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

use skein_proto::TokenId;

use crate::text::tokenizer_file::{ModelFile, Pair};

/// Longest word encoded here, in bytes; the time is quadratic in its length.
const MAX_WORD_BYTES: usize = 64;
/// Longest cached word, in bytes and in tokens.
const REMEMBERED_BYTES: usize = 16;
const REMEMBERED_TOKENS: usize = 6;
/// Entries in each thread's word cache, of 48 bytes each.
const REMEMBERED: usize = 1 << 14;

/// The model: merges by pair, and the token of each plain byte.
#[derive(Debug)]
pub struct Merges {
    by_pair: HashMap<u64, Merge, BuildHasherDefault<PairHasher>>,
    bytes: [TokenId; 128],
    /// Whole words that are tokens, if these take precedence over merges.
    whole: HashMap<Box<[u8]>, TokenId>,
    /// Distinguishes the words of this model from others in a thread's cache.
    id: u32,
}

#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    token: TokenId,
}

/// Cached encoding of a word.
#[derive(Debug, Clone, Copy, Default)]
struct Remembered {
    word: u128,
    model: u32,
    count: u8,
    tokens: [TokenId; REMEMBERED_TOKENS],
}

thread_local! {
    /// Last word with each hash. The size is fixed, so clients cannot fill memory with words.
    static WORDS: RefCell<Vec<Remembered>> = const { RefCell::new(Vec::new()) };
}

impl Merges {
    /// `None` if the model uses more than plain byte-level merges.
    pub fn of(model: &ModelFile) -> Option<Self> {
        let ModelFile::Bpe(bpe) = model else { return None };
        let is_off = |affix: &Option<String>| affix.as_ref().is_none_or(String::is_empty);
        if bpe.dropout.is_some()
            || bpe.byte_fallback == Some(true)
            || !(is_off(&bpe.continuing_subword_prefix) && is_off(&bpe.end_of_word_suffix))
        {
            return None;
        }
        let token = |text: &str| bpe.vocab.get(text).copied();
        let mut by_pair = HashMap::with_capacity_and_hasher(bpe.merges.len(), BuildHasherDefault::default());
        let mut joined = String::new();
        for (rank, Pair(one, other)) in bpe.merges.iter().enumerate() {
            joined.clear();
            joined.extend([one.as_str(), other]);
            let merged = Merge { rank: u32::try_from(rank).ok()?, token: token(&joined)? };
            by_pair.insert(pair(token(one)?, token(other)?), merged);
        }
        let mut bytes = [0; 128];
        for byte in (0..128).filter(|byte| super::is_plain(*byte)) {
            bytes[usize::from(byte)] = token(&spelling(byte).to_string())?;
        }
        let whole = if bpe.ignore_merges == Some(true) {
            bpe.vocab.iter().filter_map(|(text, id)| Some((plain_bytes(text)?, *id))).collect()
        } else {
            HashMap::new()
        };
        static MODELS: AtomicU32 = AtomicU32::new(1);
        Some(Self { by_pair, bytes, whole, id: MODELS.fetch_add(1, Ordering::Relaxed) })
    }

    /// Appends the tokens of a word of plain bytes. Returns false without effect if the word is too long.
    pub fn push_word(&self, word: &[u8], ids: &mut Vec<TokenId>) -> bool {
        if word.len() > REMEMBERED_BYTES {
            return self.encode(word, ids);
        }
        let mut key = [0; REMEMBERED_BYTES];
        key[..word.len()].copy_from_slice(word);
        let key = u128::from_le_bytes(key);
        let at = (mix(key as u64 ^ mix((key >> 64) as u64)) >> 32) as usize % REMEMBERED;
        WORDS.with_borrow_mut(|words| {
            if words.is_empty() {
                words.resize(REMEMBERED, Remembered::default());
            }
            let known = &words[at];
            // Plain bytes are never zero, so equal keys mean equal words.
            if known.word == key && known.model == self.id {
                ids.extend_from_slice(&known.tokens[..usize::from(known.count)]);
                return true;
            }
            let before = ids.len();
            let done = self.encode(word, ids);
            let new = &ids[before..];
            if done && new.len() <= REMEMBERED_TOKENS {
                let mut tokens = [0; REMEMBERED_TOKENS];
                tokens[..new.len()].copy_from_slice(new);
                words[at] = Remembered { word: key, model: self.id, count: new.len() as u8, tokens };
            }
            done
        })
    }

    fn encode(&self, word: &[u8], ids: &mut Vec<TokenId>) -> bool {
        if let Some(&id) = self.whole.get(word) {
            ids.push(id);
            return true;
        }
        if word.len() > MAX_WORD_BYTES {
            return false;
        }
        let mut tokens = [0; MAX_WORD_BYTES];
        let mut merges = [None; MAX_WORD_BYTES];
        let mut length = word.len();
        for (token, byte) in tokens.iter_mut().zip(word) {
            *token = self.bytes[usize::from(*byte)];
        }
        for at in 1..length {
            merges[at - 1] = self.merge(tokens[at - 1], tokens[at]);
        }
        loop {
            let ranked =
                merges[..length - 1].iter().enumerate().filter_map(|(at, merge)| Some((merge.as_ref()?, at)));
            let Some((&Merge { token, .. }, at)) = ranked.min_by_key(|(merge, at)| (merge.rank, *at)) else {
                break;
            };
            tokens[at] = token;
            tokens.copy_within(at + 2..length, at + 1);
            merges.copy_within(at + 1..length, at);
            length -= 1;
            if at > 0 {
                merges[at - 1] = self.merge(tokens[at - 1], token);
            }
            merges[at] = if at + 1 < length { self.merge(token, tokens[at + 1]) } else { None };
        }
        ids.extend_from_slice(&tokens[..length]);
        true
    }

    fn merge(&self, one: TokenId, other: TokenId) -> Option<Merge> {
        self.by_pair.get(&pair(one, other)).copied()
    }
}

fn pair(one: TokenId, other: TokenId) -> u64 {
    u64::from(one) << 32 | u64::from(other)
}

/// Character of a plain byte in a byte-level vocabulary: white space maps to other characters.
fn spelling(byte: u8) -> char {
    match byte {
        b' ' => 'Ġ',
        b'\t' => 'ĉ',
        b'\n' => 'Ċ',
        b'\r' => 'č',
        _ => char::from(byte),
    }
}

/// Bytes of a token; `None` if one of them is not plain.
fn plain_bytes(text: &str) -> Option<Box<[u8]>> {
    let byte = |letter: char| match letter {
        'Ġ' => Some(b' '),
        'ĉ' => Some(b'\t'),
        'Ċ' => Some(b'\n'),
        'č' => Some(b'\r'),
        '!'..='~' => u8::try_from(letter).ok(),
        _ => None,
    };
    text.chars().map(byte).collect()
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ (value >> 29)
}

/// Hashes pairs of tokens. They come from the operator's file, so clients cannot force collisions.
#[derive(Debug, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value);
    }
}
