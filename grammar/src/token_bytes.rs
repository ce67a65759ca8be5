//! Table of the bytes of every token, so that detokenization is a slice lookup.
//!
//! Built from the `decoder` of tokenizer.json: byte-level (GPT-2's printable alphabet) or SentencePiece (`▁`
//! for a space, `<0xHH>` for a single byte). Such a decoder strips the leading space of a whole text; the
//! table keeps it, because generated text continues a prompt.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;
use skein_proto::TokenId;

/// Unsupported decoder feature in a tokenizer.json.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer uses {0}, which is not supported")]
pub struct UnsupportedDecoder(pub String);

/// Largest token id in [`TokenBytes::from_tokenizer_json`]. Public models have up to about 300,000 tokens.
const MAX_TOKEN_ID: u64 = 1 << 24;
/// Most steps of a decoder; public models have up to about five.
const MAX_STEPS: usize = 64;
/// Largest factor by which a decoder may lengthen a token.
const MAX_GROWTH_FACTOR: usize = 24;

/// Bytes of every token id; empty for unused ids.
#[derive(Debug)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// Token `id` has the bytes `bytes[starts[id]..starts[id + 1]]`.
    starts: Vec<u32>,
    special: Vec<bool>,
}

impl TokenBytes {
    /// Builds the table for ids `0..vocab_size`. `token` maps an id to its token; `special` reports control
    /// tokens.
    pub fn new<S: AsRef<str>>(
        decoder: &TokenDecoder,
        vocab_size: u32,
        token: impl Fn(TokenId) -> Option<S>,
        special: impl Fn(TokenId) -> bool,
    ) -> Self {
        let mut table = Self { bytes: Vec::new(), starts: vec![0], special: Vec::new() };
        for id in 0..vocab_size {
            if let Some(token) = token(id) {
                decoder.append(token.as_ref(), &mut table.bytes);
            }
            table.starts.push(u32::try_from(table.bytes.len()).unwrap_or(u32::MAX));
            table.special.push(special(id));
        }
        table
    }

    /// Builds the table from a tokenizer.json, for a process without a tokenizer.
    ///
    /// # Errors
    /// [`UnsupportedDecoder`] if tokens cannot be converted to bytes.
    pub fn from_tokenizer_json(tree: &Value) -> Result<Self, UnsupportedDecoder> {
        let decoder = TokenDecoder::from_json(&tree["decoder"])?;
        let id = |id: &Value| id.as_u64().filter(|id| *id <= MAX_TOKEN_ID).map(|id| id as TokenId);
        let mut tokens: HashMap<TokenId, (&str, bool)> = HashMap::new();
        for (token, at) in tree["model"]["vocab"].as_object().into_iter().flatten() {
            tokens.extend(id(at).map(|at| (at, (token.as_str(), false))));
        }
        // Unigram models list tokens with scores.
        for (at, entry) in tree["model"]["vocab"].as_array().into_iter().flatten().enumerate() {
            tokens.extend(entry[0].as_str().map(|token| (at as TokenId, (token, false))));
        }
        for added in tree["added_tokens"].as_array().into_iter().flatten() {
            let special = added["special"] == true;
            tokens.extend(id(&added["id"]).zip(added["content"].as_str().map(|token| (token, special))));
        }
        let vocab_size = tokens.keys().max().map_or(0, |largest| largest + 1);
        let spelling = |id| tokens.get(&id).map(|(token, _)| *token);
        Ok(Self::new(&decoder, vocab_size, spelling, |id| {
            tokens.get(&id).is_some_and(|(_, special)| *special)
        }))
    }

    /// Vocabulary of the 256 bytes, for tests and for models without text.
    pub fn of_bytes() -> Self {
        let bytes: Vec<u8> = (0..=255).collect();
        Self { bytes, starts: (0..=256).collect(), special: vec![false; 256] }
    }

    /// Bytes of `token`; empty for an unknown id. They may end within a UTF-8 character.
    pub fn get(&self, token: TokenId) -> &[u8] {
        self.range(token).and_then(|range| self.bytes.get(range)).unwrap_or(&[])
    }

    /// Whether `token` is a control token, left out of text by default.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }

    /// Number of ids in the table.
    pub fn vocab_size(&self) -> u32 {
        u32::try_from(self.special.len()).unwrap_or(u32::MAX)
    }

    fn range(&self, token: TokenId) -> Option<Range<usize>> {
        let start = *self.starts.get(token as usize)?;
        let end = *self.starts.get(token as usize + 1)?;
        Some(start as usize..end as usize)
    }
}

/// Converts a token to bytes with the steps of tokenizer.json's `decoder`.
#[derive(Debug)]
pub struct TokenDecoder(Vec<DecoderStep>);

#[derive(Debug)]
enum DecoderStep {
    /// Each character encodes a byte in GPT-2's alphabet. A token with any other character is taken
    /// literally.
    ByteLevel(Box<ByteAlphabet>),
    /// `<0xHH>` encodes the byte HH.
    ByteFallback,
    Replace(String, String),
    /// A token continues a word if it begins with this; any other begins one, after a space.
    WordPiece(String),
}

impl TokenDecoder {
    /// Reads the `decoder` object of tokenizer.json.
    pub fn from_json(decoder: &Value) -> Result<Self, UnsupportedDecoder> {
        let mut steps = Vec::new();
        add_steps(decoder, &mut steps)?;
        check_growth(&steps)?;
        Ok(Self(steps))
    }

    /// Appends the bytes of `token` to `out`.
    fn append(&self, token: &str, out: &mut Vec<u8>) {
        let mut text = Cow::Borrowed(token);
        for step in &self.0 {
            match step {
                DecoderStep::ByteLevel(alphabet) => {
                    let (before, byte) = (out.len(), |c| *alphabet.get(c as usize)?);
                    if text.chars().try_for_each(|c| byte(c).map(|byte| out.push(byte))).is_none() {
                        out.truncate(before);
                        out.extend_from_slice(text.as_bytes());
                    }
                    return;
                }
                DecoderStep::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        out.push(byte);
                        return;
                    }
                }
                DecoderStep::Replace(from, to) if text.contains(from.as_str()) => {
                    text = Cow::Owned(text.replace(from.as_str(), to));
                }
                DecoderStep::Replace(..) => {}
                DecoderStep::WordPiece(prefix) => {
                    let rest = text.strip_prefix(prefix.as_str()).map(str::to_owned);
                    text = Cow::Owned(rest.unwrap_or_else(|| format!(" {text}")));
                }
            }
        }
        out.extend_from_slice(text.as_bytes());
    }
}

/// Refuses steps that could lengthen a token too much: a few replacements in a row can produce terabytes.
fn check_growth(steps: &[DecoderStep]) -> Result<(), UnsupportedDecoder> {
    let factor = |step: &DecoderStep| match step {
        DecoderStep::Replace(from, to) => to.len().div_ceil(from.len()).max(1),
        DecoderStep::ByteLevel(_) | DecoderStep::ByteFallback => 1,
        // A space before a token of at least one byte.
        DecoderStep::WordPiece(_) => 2,
    };
    let growth = steps.iter().map(factor).fold(1, usize::saturating_mul);
    if growth > MAX_GROWTH_FACTOR || steps.len() > MAX_STEPS {
        let what = format!(
            "a decoder of {} steps that may make a token {growth} times as long (at most {MAX_STEPS} steps and \
             {MAX_GROWTH_FACTOR} times)",
            steps.len()
        );
        return Err(UnsupportedDecoder(what));
    }
    Ok(())
}

fn add_steps(decoder: &Value, steps: &mut Vec<DecoderStep>) -> Result<(), UnsupportedDecoder> {
    let unsupported = |what: &str| Err(UnsupportedDecoder(what.to_owned()));
    let text = |name: &str| decoder[name].as_str().map(str::to_owned);
    match decoder["type"].as_str() {
        Some("ByteLevel") => steps.push(DecoderStep::ByteLevel(byte_alphabet())),
        Some("ByteFallback") => steps.push(DecoderStep::ByteFallback),
        // Joins tokens or strips the text's leading space; neither changes a token within a text.
        Some("Fuse" | "Strip") => {}
        Some("Metaspace") => {
            let mark = text("replacement").unwrap_or_else(|| "▁".to_owned());
            steps.push(DecoderStep::Replace(mark, " ".to_owned()));
        }
        Some("WordPiece") => {
            steps.push(DecoderStep::WordPiece(text("prefix").unwrap_or_else(|| "##".to_owned())));
        }
        Some("Replace") => match (decoder["pattern"]["String"].as_str(), text("content")) {
            (Some(from), Some(to)) if !from.is_empty() => {
                steps.push(DecoderStep::Replace(from.to_owned(), to))
            }
            _ => return unsupported("a Replace decoder with a regular expression"),
        },
        Some("Sequence") => {
            for inner in decoder["decoders"].as_array().into_iter().flatten() {
                add_steps(inner, steps)?;
            }
        }
        Some(other) => return unsupported(&format!("decoder `{other}`")),
        None => return unsupported("a tokenizer without a decoder"),
    }
    Ok(())
}

/// `<0x0A>` → 10.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// Bytes of the characters of GPT-2's alphabet, by code point.
type ByteAlphabet = [Option<u8>; 0x144];

/// GPT-2's alphabet: printable Latin-1 maps to itself, the other 68 bytes to U+0100 and up, in order.
fn byte_alphabet() -> Box<ByteAlphabet> {
    let mut alphabet = Box::new([None; 0x144]);
    let mut next = 0x100;
    for byte in 0..=255_u8 {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        alphabet[if printable { usize::from(byte) } else { next }] = Some(byte);
        next += usize::from(!printable);
    }
    alphabet
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(decoder: Value, token: &str, expected: &[u8]) {
        let mut bytes = Vec::new();
        TokenDecoder::from_json(&decoder).unwrap().append(token, &mut bytes);
        assert_eq!(bytes, expected, "{token} by {decoder}");
    }

    fn sentencepiece() -> Value {
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
    }

    #[test]
    fn tokens_become_bytes() {
        check(json!({"type": "ByteLevel"}), "Ġhello", b" hello");
        check(json!({"type": "ByteLevel"}), "Ċ", b"\n");
        check(json!({"type": "ByteLevel"}), "ðŁĺ", &[0xF0, 0x9F, 0x98]);
        check(json!({"type": "ByteLevel"}), "<|end of text|>", b"<|end of text|>");
        check(sentencepiece(), "▁Hello", b" Hello");
        check(sentencepiece(), "<0xF0>", &[0xF0]);
        check(sentencepiece(), "<0xF0", b"<0xF0");
        check(json!({"type": "Metaspace", "replacement": "▁"}), "▁a▁b", b" a b");
        check(json!({"type": "WordPiece", "prefix": "##"}), "##ing", b"ing");
        check(json!({"type": "WordPiece"}), "sing", b" sing");
    }

    #[test]
    fn an_unknown_decoder_is_refused_by_name() {
        let error = TokenDecoder::from_json(&json!({"type": "CTC"})).unwrap_err();
        assert!(error.to_string().contains("`CTC`"), "{error}");
        assert!(TokenDecoder::from_json(&Value::Null).is_err());
    }
}
