//! A cache of words' tokens in each thread. Its size is fixed, so clients cannot fill memory with words.

use std::cell::RefCell;

use skein_proto::TokenId;
use xxhash_rust::xxh3::xxh3_64;

/// Longest cached word, in bytes and in tokens.
const BYTES: usize = 32;
const TOKENS: usize = 6;
/// Entries of 64 bytes each.
const ENTRIES: usize = 1 << 14;

/// Tokens of a word.
#[derive(Debug, Clone, Copy, Default)]
struct CachedWord {
    /// Followed by zeros, which no word contains.
    word: [u8; BYTES],
    tokens: [TokenId; TOKENS],
    /// Which model and spelling it is from; 0 = none.
    of: u32,
    count: u8,
}

thread_local! {
    /// Last word with each hash.
    static WORDS: RefCell<Vec<CachedWord>> = const { RefCell::new(Vec::new()) };
}

/// Appends the tokens of `word`, which has no zero bytes, to `ids`: remembered ones, or those that `encode`
/// appends. `of` is the number of the model and of the spelling, from 1.
pub fn append(of: u32, word: &[u8], ids: &mut Vec<TokenId>, encode: impl FnOnce(&mut Vec<TokenId>)) {
    let Some(rest) = BYTES.checked_sub(word.len()) else { return encode(ids) };
    let mut key = [0; BYTES];
    key[..BYTES - rest].copy_from_slice(word);
    let at = xxh3_64(&key) as usize % ENTRIES;
    WORDS.with_borrow_mut(|words| {
        if words.is_empty() {
            words.resize(ENTRIES, CachedWord::default());
        }
        let known = &mut words[at];
        if known.word == key && known.of == of {
            ids.extend_from_slice(&known.tokens[..usize::from(known.count)]);
            return;
        }
        let before = ids.len();
        encode(ids);
        let new = &ids[before..];
        if new.len() <= TOKENS {
            let mut tokens = [0; TOKENS];
            tokens[..new.len()].copy_from_slice(new);
            *known = CachedWord { word: key, tokens, of, count: new.len() as u8 };
        }
    });
}
