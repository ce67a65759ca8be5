//! Words of plain ASCII, as byte-level tokenizers see them.

use skein_proto::TokenId;

use super::{Bpe, word_cache};

/// Longest word whose spelling needs no memory of its own.
const SHORT: usize = 64;

/// The tokens of plain bytes in a byte-level vocabulary.
#[derive(Debug)]
pub struct PlainWords {
    bytes: [TokenId; 128],
}

impl PlainWords {
    /// `None` if `bpe` has no tokens for some plain bytes.
    pub fn of(bpe: &Bpe) -> Option<Self> {
        let mut bytes = [0; 128];
        for byte in (0..128).filter(|byte| is_plain(*byte)) {
            bytes[usize::from(byte)] = bpe.vocabulary.id_of(spelling(byte).encode_utf8(&mut [0; 4]))?;
        }
        Some(Self { bytes })
    }

    /// Appends the tokens of a word of plain bytes.
    pub fn push(&self, bpe: &Bpe, word: &[u8], ids: &mut Vec<TokenId>) {
        word_cache::append(bpe.plain_words(), word, ids, |ids| self.encode(bpe, word, ids));
    }

    fn encode(&self, bpe: &Bpe, word: &[u8], ids: &mut Vec<TokenId>) {
        if bpe.whole_words_first
            && let Some(id) = spelled(word, |word| bpe.vocabulary.id_of(word))
        {
            ids.push(id);
            return;
        }
        let before = ids.len();
        ids.extend(word.iter().map(|byte| self.bytes[usize::from(*byte)]));
        bpe.merges.apply(ids, before);
    }
}

/// Calls `with` with the spelling of `word`.
fn spelled<T>(word: &[u8], with: impl FnOnce(&str) -> T) -> T {
    let letters = word.iter().copied().map(spelling);
    if word.len() > SHORT {
        return with(&letters.collect::<String>());
    }
    let (mut text, mut length) = ([0; 2 * SHORT], 0);
    for letter in letters {
        length += letter.encode_utf8(&mut text[length..]).len();
    }
    with(str::from_utf8(&text[..length]).unwrap_or_default())
}

/// Whether `byte` is printable ASCII or common white space, for which the character classes of all rules are
/// known.
pub fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r')
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
