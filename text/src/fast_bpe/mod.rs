//! Fast path of byte-level BPE for the plain ASCII parts of a text, past the steps of Hugging Face's library.
//! These handle the rest, and every text if the two paths might produce different tokens.
//!
//! A text may be cut where the library cuts: around added tokens, and between the pre-tokenizer's words.
//! Under every supported rule, a space between two ASCII letters starts a word, whatever surrounds it. So a
//! stretch with other characters is cut out at such spaces and tokenized by the library on its own.

mod added;
#[cfg(test)]
mod tests;
mod words;

use skein_proto::TokenId;

use std::sync::Arc;

use super::bpe::{Bpe, PlainWords, is_plain};
use super::tokenizer_file::{ModelFile, TokenizerFile};
use crate::refused::TextRefused;
use added::AddedTokens;
pub use words::Rule;

/// Stretches for the library that are closer than this are joined, because each call has a cost.
const CLOSE_BYTES: usize = 64;

/// Tokenizer with the fast path.
#[derive(Debug)]
pub(super) struct FastBpe {
    added: AddedTokens,
    rule: Rule,
    words: PlainWords,
    bpe: Arc<Bpe>,
}

/// Calls the library on a stretch of text.
pub(super) type Library<'a> = &'a mut dyn FnMut(&str) -> Result<Vec<TokenId>, TextRefused>;

impl FastBpe {
    /// Built from a tokenizer.json; `None` if it uses anything that this path may not reproduce. `id_of` is
    /// the library's id of a token.
    pub fn new(file: &TokenizerFile, id_of: &dyn Fn(&str) -> Option<TokenId>) -> Option<Self> {
        let ModelFile::Bpe(bpe) = &file.model else { return None };
        let normalizer = file.member("normalizer");
        // NFC leaves ASCII unchanged, and composes no character with a space or across one.
        let composes = normalizer["type"] == "NFC";
        if !(normalizer.is_null() || composes) {
            return None;
        }
        let added = AddedTokens::from_json(file.member("added_tokens"), composes, id_of)?;
        let rule = Rule::from_json(file.member("pre_tokenizer"))?;
        Some(Self { added, rule, words: PlainWords::of(bpe)?, bpe: bpe.clone() })
    }

    /// Tokens of `text`, without those of the post-processor.
    pub fn encode(&self, text: &str, library: Library<'_>) -> Result<Vec<TokenId>, TextRefused> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut done = 0;
        for (range, id) in self.added.find(text) {
            self.piece(&text[done..range.start], &mut ids, library)?;
            ids.push(id);
            done = range.end;
        }
        self.piece(&text[done..], &mut ids, library)?;
        Ok(ids)
    }

    /// Tokenizes a text without added tokens.
    fn piece(&self, text: &str, ids: &mut Vec<TokenId>, library: Library<'_>) -> Result<(), TextRefused> {
        let bytes = text.as_bytes();
        let mut done = 0;
        while done < bytes.len() {
            let Some((start, end)) = stretch(bytes, done) else {
                self.plain(&text[done..], ids);
                return Ok(());
            };
            self.plain(&text[done..start], ids);
            ids.extend(library(&text[start..end])?);
            done = end;
        }
        Ok(())
    }

    /// Tokenizes plain ASCII.
    fn plain(&self, text: &str, ids: &mut Vec<TokenId>) {
        let mut at = 0;
        while at < text.len() {
            let end = self.rule.end_of_word(text.as_bytes(), at);
            self.words.push(&self.bpe, &text.as_bytes()[at..end], ids);
            at = end;
        }
    }
}

/// First stretch from `from` on that contains a character that is not plain. It is cut at certain word
/// starts.
fn stretch(bytes: &[u8], from: usize) -> Option<(usize, usize)> {
    let odd = |from: usize| bytes[from..].iter().position(|byte| !is_plain(*byte)).map(|at| from + at);
    let starts_word = |at: &usize| is_start_of_word(bytes, *at);
    let first = odd(from)?;
    let start = (from + 1..first).rev().find(starts_word).unwrap_or(from);
    let mut last = first;
    loop {
        let end = (last + 1..bytes.len()).find(starts_word).unwrap_or(bytes.len());
        match odd(end).filter(|next| next - end < CLOSE_BYTES) {
            Some(next) => last = next,
            None => return Some((start, end)),
        }
    }
}

/// Whether a word certainly starts here: at a single space between two letters.
fn is_start_of_word(bytes: &[u8], at: usize) -> bool {
    let is_letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
    bytes[at] == b' ' && is_letter(at - 1) && is_letter(at + 1)
}
