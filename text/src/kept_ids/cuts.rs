//! Where a text may be cut so that its ids are those of both sides, whatever stands there.
//!
//! *Before an added token* that is found wherever it is spelled. Tokenizers find these first, in the text
//! as it is, and treat what is between them piece by piece: normalizer, pre-tokenizer and model see nothing
//! beyond. The token must be matched in raw text, without white space before it, and no other added token
//! may have it behind its own start or end with its beginning: then no match can start before the token and
//! cover a part of it. It belongs to what follows, so that a rule for the very start of a text (`Metaspace`
//! with `first`) applies to the first part only.
//!
//! *Before a space after an ASCII letter*, under the word rules of public byte-level tokenizers: in none of
//! them a word has a letter before a space, and none looks back. NFC composes nothing with a space.

use std::collections::HashSet;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::AddedToken;

use super::limits::{MOST_TOKEN_PAIRS, PART_BYTES};
use crate::control::ControlTokens;
use crate::fast_bpe::Rule;
use crate::known_steps::is_known_post_processor;
use crate::tokenizer_file::{ModelFile, TokenizerFile};

/// Expressions of public tokenizers, beside those of [`Rule`], in which a word ends between an ASCII letter
/// and a space: those of Qwen 3.5, Tekken, GPT-4o, and DeepSeek-V3, which splits thrice.
pub(super) const WORDS: [&[&str]; 4] = [
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"\p{N}{1,3}",
        "[一-龥\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ],
];

/// The cuts of a tokenizer.
#[derive(Debug)]
pub struct Cuts {
    added: Vec<AddedToken>,
    /// Those before which a text may be cut; found on first use.
    found: OnceLock<Found>,
    after_letters: bool,
}

#[derive(Debug)]
struct Found {
    tokens: ControlTokens,
    every_control_token: bool,
}

impl Cuts {
    /// `None` if ids of one part may depend on another one: the post-processor may do more than add tokens
    /// around a text, merges are drawn, or an added token must be a word of its own.
    pub(crate) fn of(file: &TokenizerFile, added: impl Iterator<Item = AddedToken>) -> Option<Self> {
        let is_drawn = matches!(&file.model, ModelFile::Other(model, _) if !model["dropout"].is_null());
        let added: Vec<AddedToken> = added.filter(|token| !token.content.is_empty()).collect();
        if is_drawn
            || !is_known_post_processor(file.member("post_processor"))
            || added.iter().any(|token| token.single_word)
        {
            return None;
        }
        let after_letters = words_end_at_spaces(file, &added);
        Some(Self { added, found: OnceLock::new(), after_letters })
    }

    /// `text` in parts, each of at least [`PART_BYTES`] but the last.
    pub fn parts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut done = 0_usize;
        std::iter::from_fn(move || {
            let start = done;
            done = self.after(text, start.saturating_add(PART_BYTES)).unwrap_or(text.len());
            (start < text.len()).then(|| &text[start..done])
        })
    }

    /// The first cut at `from` or behind it.
    pub(super) fn after(&self, text: &str, from: usize) -> Option<usize> {
        let (bytes, tokens) = (text.as_bytes(), self.tokens());
        (from.max(1)..bytes.len()).find(|at| {
            let is_after_letter =
                || self.after_letters && bytes[at - 1].is_ascii_alphabetic() && bytes[*at] == b' ';
            is_after_letter() || tokens.starts_at(bytes, *at)
        })
    }

    /// Whether a text may be cut before each control token, and no longer token begins as one does. Then a
    /// text in which messages spell no control token has the same ids where they are text and where they
    /// are none.
    pub(crate) fn see_every_control_token(&self) -> bool {
        self.found().every_control_token
    }

    fn tokens(&self) -> &ControlTokens {
        &self.found().tokens
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            let apart: HashSet<&str> =
                apart(&self.added).into_iter().map(|token| token.content.as_str()).collect();
            let others: Vec<&AddedToken> = self.added.iter().filter(|token| !token.special).collect();
            let is_seen = |token: &AddedToken| {
                let content = token.content.as_str();
                apart.contains(content) && !others.iter().any(|other| other.content.starts_with(content))
            };
            let every_control_token = self.added.iter().filter(|token| token.special).all(is_seen);
            Found { tokens: ControlTokens::new(apart.into_iter().map(|text| (text, 0))), every_control_token }
        })
    }
}

/// Whether every word ends between an ASCII letter and a space, and no added token goes across.
fn words_end_at_spaces(file: &TokenizerFile, added: &[AddedToken]) -> bool {
    let normalizer = file.member("normalizer");
    let is_composed = normalizer["type"] == "NFC";
    let is_plain = |token: &AddedToken| {
        let goes_across =
            token.content.as_bytes().windows(2).any(|two| two[0].is_ascii_alphabetic() && two[1] == b' ');
        let is_changed = token.normalized && is_composed;
        !(token.lstrip || token.rstrip || is_changed || goes_across)
    };
    let pre_tokenizer = file.member("pre_tokenizer");
    let is_known = || Rule::from_json(pre_tokenizer).is_some() || splits_by_known_words(pre_tokenizer);
    (normalizer.is_null() || is_composed) && added.iter().all(is_plain) && is_known()
}

/// Whether `pre_tokenizer` splits by one of [`WORDS`], and then into bytes.
fn splits_by_known_words(pre_tokenizer: &Value) -> bool {
    let steps = pre_tokenizer["pretokenizers"].as_array().filter(|_| pre_tokenizer["type"] == "Sequence");
    let Some((bytes, splits)) = steps.and_then(|steps| steps.split_last()) else { return false };
    let is_bytes =
        bytes["type"] == "ByteLevel" && bytes["add_prefix_space"] == false && bytes["use_regex"] == false;
    let pattern = |split: &Value| {
        let is_split =
            split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
        split["pattern"]["Regex"].as_str().filter(|_| is_split).map(spelled_out)
    };
    let splits: Option<Vec<String>> = splits.iter().map(pattern).collect();
    is_bytes && splits.is_some_and(|splits| WORDS.iter().any(|words| *words == splits))
}

/// `pattern` with the ranges of kana as the characters that they are.
fn spelled_out(pattern: &str) -> String {
    pattern.replace(r"\x{3040}-\x{30FF}", "\u{3040}-\u{309f}\u{30a0}-\u{30ff}")
}

/// The tokens that are found in raw text wherever they are spelled, and take no white space before them.
fn apart(added: &[AddedToken]) -> Vec<&AddedToken> {
    let raw: Vec<&AddedToken> = added.iter().filter(|token| !token.normalized).collect();
    let pairs: usize = raw.iter().map(|token| token.content.len().saturating_mul(token.content.len())).sum();
    if pairs > MOST_TOKEN_PAIRS {
        return Vec::new();
    }
    let bytes = |token: &AddedToken| token.content.clone().into_bytes();
    let whole: HashSet<Vec<u8>> = raw.iter().map(|token| bytes(token)).collect();
    let starts: HashSet<&[u8]> =
        whole.iter().flat_map(|token| (1..=token.len()).map(move |end| &token[..end])).collect();
    // What is in a token behind its start, and ends of tokens with which some token begins. A longer token
    // with the same start is no harm: a match starts there in any case.
    let (mut inside, mut ends) = (HashSet::new(), HashSet::new());
    for token in &whole {
        for from in 1..token.len() {
            let parts = (from + 1..=token.len()).map(|to| &token[from..to]);
            inside.extend(parts.filter(|part| whole.contains(*part)));
            if starts.contains(&token[from..]) {
                ends.insert(&token[from..]);
            }
        }
    }
    let strip: Vec<&str> =
        raw.iter().filter(|token| token.lstrip).map(|token| token.content.as_str()).collect();
    let is_apart = |token: &&AddedToken| {
        let bytes = token.content.as_bytes();
        let is_shared = inside.contains(bytes) || (1..=bytes.len()).any(|end| ends.contains(&bytes[..end]));
        let strips = || strip.iter().any(|longer| longer.starts_with(&token.content));
        !is_shared && !token.content.starts_with(char::is_whitespace) && !strips()
    };
    raw.into_iter().filter(is_apart).collect()
}
