//! Incremental detokenizer: turns tokens into text, one token at a time. It emits only whole UTF-8 scalars,
//! as early as they are certain, in linear time. Invalid bytes become U+FFFD, one per maximal subpart, as the
//! Unicode standard recommends.

use std::sync::Arc;

use skein_proto::TokenId;

use super::token_bytes::TokenBytes;

/// Detokenizer state of one sample.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    table: Arc<TokenBytes>,
    skip_special_tokens: bool,
    /// Special tokens that are written even if others are skipped.
    kept: Arc<[TokenId]>,
    /// Incomplete UTF-8 sequence at the end: at most 3 bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// State within a text: the first token keeps its leading space.
    pub fn new(table: Arc<TokenBytes>, skip_special_tokens: bool) -> Self {
        Self { table, skip_special_tokens, kept: Arc::default(), pending: Vec::new() }
    }

    /// Also writes the special tokens in `kept`, which mark parts of the answer.
    pub fn keeping(self, kept: Arc<[TokenId]>) -> Self {
        Self { kept, ..self }
    }

    /// Appends to `out` the text that `token` completes. Returns where in `out` the text of `token` begins if
    /// it is one of the kept special tokens: the same text written by ordinary tokens marks nothing.
    pub fn push(&mut self, token: TokenId, out: &mut String) -> Option<usize> {
        let is_special = self.table.is_special(token);
        let is_kept = is_special && self.kept.contains(&token);
        if is_special && self.skip_special_tokens && !is_kept {
            return None;
        }
        if is_kept {
            // An incomplete character never continues in a special token.
            self.finish(out);
        }
        let begin = is_kept.then_some(out.len());
        let bytes = self.table.get(token);
        if self.pending.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            out.push_str(text);
            return begin;
        }
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        Some(broken) => {
                            out.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[broken..];
                        }
                        None => {
                            rest = after;
                            break;
                        }
                    }
                }
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
        begin
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !std::mem::take(&mut self.pending).is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_bytes::TokenDecoder;
    use proptest::prelude::*;
    use serde_json::json;

    /// Token `i` is the byte `i`; token 256 is special.
    fn bytes_table() -> Arc<TokenBytes> {
        let decoder = TokenDecoder::from_json(&json!({"type": "ByteFallback"})).unwrap();
        let token = |id| Some(if id < 256 { format!("<0x{id:02X}>") } else { "<|end|>".to_owned() });
        Arc::new(TokenBytes::new(&decoder, 257, token, |id| id == 256))
    }

    fn pieces(tokens: &[TokenId], skip: bool) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(bytes_table(), skip);
        let mut pieces: Vec<String> = tokens
            .iter()
            .map(|token| {
                let mut piece = String::new();
                detokenizer.push(*token, &mut piece);
                piece
            })
            .collect();
        let mut rest = String::new();
        detokenizer.finish(&mut rest);
        pieces.push(rest);
        pieces
    }

    #[test]
    fn a_scalar_comes_whole() {
        assert_eq!(pieces(&[0xF0, 0x9F, 0x98, 0x80, 0x61], true), ["", "", "", "😀", "a", ""]);
    }

    #[test]
    fn an_unfinished_scalar_ends_as_a_replacement() {
        assert_eq!(pieces(&[0x61, 0xF0, 0x9F], true), ["a", "", "", "\u{FFFD}"]);
    }

    #[test]
    fn special_tokens_are_skipped_or_written() {
        assert_eq!(pieces(&[0x61, 256, 0x62], true).concat(), "ab");
        assert_eq!(pieces(&[0x61, 256, 0x62], false).concat(), "a<|end|>b");
    }

    #[test]
    fn a_kept_special_token_says_where_it_begins() {
        let mut detokenizer = Detokenizer::new(bytes_table(), true).keeping(Arc::new([256]));
        let mut text = String::new();
        let mut begins = Vec::new();
        let spelt = "<|end|>".bytes().map(TokenId::from);
        for token in [0xC3, 256].into_iter().chain(spelt).chain([256]) {
            begins.extend(detokenizer.push(token, &mut text));
        }
        assert_eq!((text.as_str(), begins.as_slice()), ("\u{FFFD}<|end|><|end|><|end|>", [3, 17].as_slice()));
    }

    proptest! {
        #[test]
        fn any_bytes_read_like_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let tokens: Vec<TokenId> = bytes.iter().map(|byte| TokenId::from(*byte)).collect();
            prop_assert_eq!(pieces(&tokens, true).concat(), String::from_utf8_lossy(&bytes));
        }
    }
}
