//! Normaliser and pre-tokeniser of a tokenizer.json, with a limit on the growth of the text (see
//! [`growth`](super::growth)). Each step is checked before it allocates.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, de::Error as _};
use tokenizers::pattern::Pattern;
use tokenizers::utils::SysRegex;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper, Result,
};

use super::growth;

/// Most steps of a normaliser or pre-tokeniser; public models have up to about ten.
const MAX_STEPS: usize = 64;
/// Size of the slices in which a growth that may be too large is measured, in bytes.
const SLICE_BYTES: usize = 4096;
/// Longest key of a precompiled normaliser, in bytes.
const PRECOMPILED_KEY_BYTES: usize = 5;

/// Normaliser with limited output.
#[derive(Debug, Clone)]
pub struct BoundedNormalizer(Arc<Vec<BoundedStep>>);

#[derive(Debug)]
enum BoundedStep {
    /// Like the library's `Replace`, but counts the matches before replacing them.
    Replace {
        regex: SysRegex,
        content: String,
    },
    Other(NormalizerWrapper),
}

/// Parts of the library's `Replace`, whose fields are private.
#[derive(Deserialize)]
struct Replace {
    pattern: ReplacePattern,
    content: String,
}

#[derive(Deserialize)]
enum ReplacePattern {
    String(String),
    Regex(String),
}

impl<'de> Deserialize<'de> for BoundedNormalizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut steps = Vec::new();
        flatten(NormalizerWrapper::deserialize(deserializer)?, &mut steps).map_err(D::Error::custom)?;
        check_steps(steps.len()).map_err(D::Error::custom)?;
        Ok(Self(Arc::new(steps)))
    }
}

fn flatten(normalizer: NormalizerWrapper, steps: &mut Vec<BoundedStep>) -> Result<()> {
    match normalizer {
        NormalizerWrapper::Sequence(sequence) => {
            for inner in sequence {
                flatten(inner, steps)?;
            }
        }
        NormalizerWrapper::Replace(replace) => {
            let Replace { pattern, content } = serde_json::from_value(serde_json::to_value(replace)?)?;
            let regex = match pattern {
                ReplacePattern::String(text) => SysRegex::new(&fancy_escape(&text)),
                ReplacePattern::Regex(regex) => SysRegex::new(&regex),
            };
            steps.push(BoundedStep::Replace { regex: regex?, content });
        }
        other => steps.push(BoundedStep::Other(other)),
    }
    Ok(())
}

/// Regular expression that matches exactly `text`.
fn fancy_escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn check_steps(steps: usize) -> std::result::Result<(), String> {
    if steps > MAX_STEPS {
        return Err(format!(
            "a normalizer or pre_tokenizer has {steps} steps, over the limit of {MAX_STEPS}"
        ));
    }
    Ok(())
}

impl Normalizer for BoundedNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        self.0.iter().try_for_each(|step| apply(step, text))
    }
}

fn apply(step: &BoundedStep, text: &mut NormalizedString) -> Result<()> {
    let before = text.get().len();
    match step {
        BoundedStep::Replace { regex, content } => text.replace(&Counted { regex, content }, content)?,
        BoundedStep::Other(normalizer) => {
            check_growth(normalizer, text.get())?;
            normalizer.normalize(text)?;
        }
    }
    growth::count(text.get().len().saturating_sub(before))?;
    Ok(())
}

/// Refuses a step whose growth exceeds the allowance. Measures it only if the upper bound does.
fn check_growth(normalizer: &NormalizerWrapper, text: &str) -> Result<()> {
    let most = most_growth(normalizer, text);
    if growth::fits(most) || matches!(normalizer, NormalizerWrapper::Precompiled(_)) {
        return Ok(growth::check(most)?);
    }
    let (mut rest, mut grown) = (text, 0_usize);
    while !rest.is_empty() {
        let (slice, after) = rest.split_at(rest.floor_char_boundary(SLICE_BYTES));
        let mut normalized = NormalizedString::from(slice);
        normalizer.normalize(&mut normalized)?;
        grown += normalized.get().len().saturating_sub(slice.len());
        growth::check(grown)?;
        rest = after;
    }
    Ok(())
}

/// Upper bound on the growth of `text` in UTF-8 bytes. Unicode normal forms grow at most 3-fold,
/// compatibility forms 11-fold (UAX #15, table 6 of its FAQ).
fn most_growth(normalizer: &NormalizerWrapper, text: &str) -> usize {
    let bytes = text.len();
    match normalizer {
        NormalizerWrapper::NFC(_) | NormalizerWrapper::NFD(_) => bytes.saturating_mul(2),
        NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => bytes.saturating_mul(10),
        NormalizerWrapper::Lowercase(_) | NormalizerWrapper::ByteLevel(_) => bytes,
        // Spaces around Chinese characters, decomposition, lower case.
        NormalizerWrapper::BertNormalizer(_) => bytes.saturating_mul(9),
        NormalizerWrapper::Prepend(prepend) => prepend.prepend.len(),
        NormalizerWrapper::Precompiled(map) => {
            let at_a_character = |at: usize| {
                let key = &text[at..text.floor_char_boundary(at.saturating_add(PRECOMPILED_KEY_BYTES))];
                map.transform(key).map_or(0, str::len)
            };
            text.char_indices().map(|(at, _)| at_a_character(at)).sum()
        }
        NormalizerWrapper::StripNormalizer(_)
        | NormalizerWrapper::StripAccents(_)
        | NormalizerWrapper::Nmt(_) => 0,
        // Already flattened into steps.
        NormalizerWrapper::Sequence(_) | NormalizerWrapper::Replace(_) => usize::MAX,
    }
}

/// Finds the matches of a replacement, and refuses it if the result would be too long.
struct Counted<'a> {
    regex: &'a SysRegex,
    content: &'a str,
}

impl Pattern for &Counted<'_> {
    fn find_matches(&self, text: &str) -> Result<Vec<((usize, usize), bool)>> {
        let (mut spans, mut done, mut added) = (Vec::new(), 0, 0_usize);
        for (start, end) in self.regex.find_iter(text) {
            if done < start {
                spans.push(((done, start), false));
            }
            spans.push(((start, end), true));
            done = end;
            added = added.saturating_add(self.content.len());
            growth::check(added.saturating_sub(end))?;
        }
        if done < text.len() {
            spans.push(((done, text.len()), false));
        }
        let removed: usize =
            spans.iter().filter(|(_, matched)| *matched).map(|((start, end), _)| end - start).sum();
        growth::check(added.saturating_sub(removed))?;
        Ok(spans)
    }
}

/// Pre-tokeniser with limited output.
#[derive(Debug, Clone)]
pub struct BoundedPreTokenizer(Arc<Vec<PreTokenizerWrapper>>);

impl<'de> Deserialize<'de> for BoundedPreTokenizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut steps = Vec::new();
        flatten_pre_tokenizer(PreTokenizerWrapper::deserialize(deserializer)?, &mut steps);
        check_steps(steps.len()).map_err(D::Error::custom)?;
        Ok(Self(Arc::new(steps)))
    }
}

fn flatten_pre_tokenizer(pre_tokenizer: PreTokenizerWrapper, steps: &mut Vec<PreTokenizerWrapper>) {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.into_iter().for_each(|inner| flatten_pre_tokenizer(inner, steps));
        }
        other => steps.push(other),
    }
}

impl PreTokenizer for BoundedPreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        for step in self.0.iter() {
            if !lengthens(step) {
                step.pre_tokenize(text)?;
                continue;
            }
            let before = Sizes::of(text);
            growth::check(before.most_growth(step))?;
            step.pre_tokenize(text)?;
            growth::count(Sizes::of(text).all.saturating_sub(before.all))?;
        }
        Ok(())
    }
}

/// Whether a step does more than split.
fn lengthens(step: &PreTokenizerWrapper) -> bool {
    matches!(step, PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Metaspace(_))
}

/// Sizes of a text that is split into pieces, in bytes.
struct Sizes {
    all: usize,
    spaces: usize,
    /// Everything outside printable ASCII but spaces.
    unprintable: usize,
    /// Number of pieces.
    pieces: usize,
}

impl Sizes {
    fn of(text: &PreTokenizedString) -> Self {
        let mut sizes = Self { all: 0, spaces: 0, unprintable: 0, pieces: 0 };
        for (piece, _, tokens) in text.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            if tokens.is_none() {
                let spaces = piece.bytes().filter(|byte| *byte == b' ').count();
                sizes.all += piece.len();
                sizes.spaces += spaces;
                sizes.unprintable += piece.bytes().filter(|byte| !byte.is_ascii_graphic()).count() - spaces;
                sizes.pieces += 1;
            }
        }
        sizes
    }

    /// Upper bound on the growth by `step`, which the growth by the steps before it is added to: an estimate
    /// that is far too large would refuse texts that decompose.
    fn most_growth(&self, step: &PreTokenizerWrapper) -> usize {
        match step {
            // A space before each piece and every unprintable byte become characters of two bytes.
            PreTokenizerWrapper::ByteLevel(_) => self.spaces + self.unprintable + 2 * self.pieces,
            PreTokenizerWrapper::Metaspace(metaspace) => {
                let mark = metaspace.get_replacement().len_utf8();
                self.spaces * (mark - 1) + self.pieces * mark
            }
            // The others only split.
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::growth::TooMuchGrowth;
    use super::*;
    use serde_json::{Value, json};

    fn normalize(normalizer: Value, text: &str) -> std::result::Result<String, TooMuchGrowth> {
        let normalizer: BoundedNormalizer = serde_json::from_value(normalizer).unwrap();
        let mut normalized = NormalizedString::from(text);
        growth::limited(text.len(), || drop(normalizer.normalize(&mut normalized)))?;
        Ok(normalized.get().to_owned())
    }

    fn replace(pattern: Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    #[test]
    fn a_normalizer_makes_what_the_library_makes() {
        let text = "Ünïcode  ﬁne ﷺ (a.b) İ\u{200d}\t深い\n";
        for normalizer in [
            json!({"type": "NFC"}),
            json!({"type": "NFKD"}),
            json!({"type": "Lowercase"}),
            json!({"type": "ByteLevel"}),
            json!({"type": "Prepend", "prepend": "▁"}),
            json!({"type": "Bert", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
            replace(json!({"String": " "}), "▁"),
            replace(json!({"String": "(a.b)"}), ""),
            replace(json!({"Regex": " {2,}"}), " "),
            replace(json!({"Regex": "(?=ﷺ)|e"}), "[]"),
            json!({"type": "Sequence", "normalizers": [replace(json!({"Regex": "\\s"}), " "), {"type": "NFKC"}]}),
        ] {
            let library: NormalizerWrapper = serde_json::from_value(normalizer.clone()).unwrap();
            let mut expected = NormalizedString::from(text);
            library.normalize(&mut expected).unwrap();
            assert_eq!(normalize(normalizer.clone(), text).as_deref(), Ok(expected.get()), "{normalizer}");
        }
    }

    #[test]
    fn twelve_tenfold_replacements_and_an_empty_pattern_take_no_memory() {
        let tenfold = replace(json!({"String": "x"}), "xxxxxxxxxx");
        let chain = json!({"type": "Sequence", "normalizers": vec![tenfold; 12]});
        assert_eq!(normalize(chain.clone(), &"x".repeat(1000)), Err(TooMuchGrowth));
        assert_eq!(normalize(chain, "no such letter").as_deref(), Ok("no such letter"));
        for pattern in [json!({"String": ""}), json!({"Regex": ""}), json!({"Regex": "(?=x)"})] {
            let insertion = replace(pattern, &"y".repeat(10_000));
            assert_eq!(normalize(insertion, &"x".repeat(10_000)), Err(TooMuchGrowth));
        }
        let prepend = json!({"type": "Prepend", "prepend": "y".repeat(1_000_000)});
        assert_eq!(normalize(prepend, "x"), Err(TooMuchGrowth));
        let doubled = json!({"type": "Sequence", "normalizers": vec![json!({"type": "ByteLevel"}); 40]});
        assert_eq!(normalize(doubled, &"é".repeat(100)), Err(TooMuchGrowth));
    }

    #[test]
    fn the_longest_decomposition_of_a_long_text_is_allowed() {
        let text = "ﷺ".repeat(1_200_000);
        assert_eq!(normalize(json!({"type": "NFKC"}), &text[..3_000_000]).unwrap().len(), 33_000_000);
        assert_eq!(normalize(json!({"type": "NFKC"}), &text).err(), Some(TooMuchGrowth));
        // The upper bound for compatibility forms exceeds the allowance, but the actual growth does not.
        let plain = "plain ".repeat(600_000);
        assert_eq!(normalize(json!({"type": "NFKC"}), &plain).as_deref(), Ok(plain.as_str()));
    }

    #[test]
    fn the_longest_decompositions_may_precede_marks_for_spaces_and_bytes() {
        let replaced =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        for unit in ["ﷺ", "a\u{3000}", "㍿ ", "ﷺﷺ é", "word "] {
            let text = unit.repeat(16_384 / unit.len());
            for normalizer in ["NFKC", "NFKD"] {
                for step in [&replaced, &bytes] {
                    let steps: BoundedPreTokenizer = serde_json::from_value(step.clone()).unwrap();
                    let normalizer: BoundedNormalizer =
                        serde_json::from_value(json!({"type": normalizer})).unwrap();
                    let mut normalized = NormalizedString::from(text.as_str());
                    let tried = growth::limited(text.len(), || {
                        normalizer.normalize(&mut normalized).is_ok()
                            && steps.pre_tokenize(&mut PreTokenizedString::from(normalized)).is_ok()
                    });
                    assert_eq!(tried, Ok(true), "{unit:?}, {step}");
                }
            }
        }
    }

    #[test]
    fn pieces_cannot_grow_without_end() {
        let split =
            json!({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false});
        let prefix = |mark: &str| json!({"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": false});
        let pairs = (0..30).flat_map(|at| [split.clone(), prefix(if at % 2 == 0 { "▁" } else { "▂" })]);
        let steps = json!({"type": "Sequence", "pretokenizers": pairs.collect::<Vec<_>>()});
        let steps: BoundedPreTokenizer = serde_json::from_value(steps).unwrap();
        let text = "x".repeat(1000);
        let mut pieces = PreTokenizedString::from(text.as_str());
        let tried = growth::limited(text.len(), || steps.pre_tokenize(&mut pieces).is_ok());
        assert_eq!(tried, Err(TooMuchGrowth));
    }

    #[test]
    fn more_steps_than_any_model_has_are_refused() {
        let many = json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 65]});
        let error = serde_json::from_value::<BoundedNormalizer>(many).unwrap_err().to_string();
        assert_eq!(error, "a normalizer or pre_tokenizer has 65 steps, over the limit of 64");
    }
}
