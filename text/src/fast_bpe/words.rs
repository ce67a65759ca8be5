//! Splits plain ASCII into words like the pre-tokenizers of byte-level BPE. Each rule is the regular
//! expression of a published tokenizer, written out for ASCII.

use serde_json::Value;

/// GPT-2's expression, which `ByteLevel` has built in:
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The expression above.
    Gpt2,
    /// Each digit alone, GPT-2's rule between digits.
    DigitsThenGpt2,
    /// Rule of Llama 3 and Qwen 2, with at most `digits` digits per word.
    Split { digits: usize },
}

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Rule {
    /// Rule of a `pre_tokenizer`; `None` if it is not supported.
    pub fn from_json(tree: &Value) -> Option<Self> {
        let byte_level = |step: &Value, use_regex: bool| {
            step["type"] == "ByteLevel"
                && step["add_prefix_space"] == false
                && step["use_regex"].as_bool().unwrap_or(true) == use_regex
        };
        if byte_level(tree, true) {
            return Some(Self::Gpt2);
        }
        let [first, second] =
            tree["pretokenizers"].as_array().filter(|_| tree["type"] == "Sequence")?.as_slice()
        else {
            return None;
        };
        if first["type"] == "Digits" && first["individual_digits"] == true && byte_level(second, true) {
            return Some(Self::DigitsThenGpt2);
        }
        let is_split =
            first["type"] == "Split" && first["behavior"] == "Isolated" && first["invert"] == false;
        match first["pattern"]["Regex"].as_str().filter(|_| is_split && byte_level(second, false))? {
            LLAMA_3 => Some(Self::Split { digits: 3 }),
            QWEN_2 => Some(Self::Split { digits: 1 }),
            _ => None,
        }
    }

    /// End of the word that starts at `at`.
    pub fn end_of_word(self, text: &[u8], at: usize) -> usize {
        match self {
            Self::Gpt2 => gpt2(text, at),
            Self::DigitsThenGpt2 if text[at].is_ascii_digit() => at + 1,
            Self::DigitsThenGpt2 => gpt2(&text[..run(text, at, |byte| !byte.is_ascii_digit())], at),
            Self::Split { digits } => split(text, at, digits),
        }
    }
}

fn gpt2(text: &[u8], at: usize) -> usize {
    if let Some(end) = contraction(text, at, false) {
        return end;
    }
    let body = at + usize::from(text[at] == b' ');
    match text.get(body) {
        Some(byte) if byte.is_ascii_alphabetic() => run(text, body, |byte| byte.is_ascii_alphabetic()),
        Some(byte) if byte.is_ascii_digit() => run(text, body, |byte| byte.is_ascii_digit()),
        Some(byte) if !is_space(*byte) => run(text, body, is_other),
        _ => spaces(text, at),
    }
}

fn split(text: &[u8], at: usize, digits: usize) -> usize {
    if let Some(end) = contraction(text, at, true) {
        return end;
    }
    let first = text[at];
    let leads = !first.is_ascii_alphanumeric() && !is_newline(first);
    let letters = at + usize::from(leads);
    if text.get(letters).is_some_and(u8::is_ascii_alphabetic) {
        return run(text, letters, |byte| byte.is_ascii_alphabetic());
    }
    if first.is_ascii_digit() {
        return run(text, at, |byte| byte.is_ascii_digit()).min(at + digits);
    }
    let body = at + usize::from(first == b' ');
    if text.get(body).is_some_and(|byte| is_other(*byte)) {
        return run(text, run(text, body, is_other), is_newline);
    }
    let end = run(text, at, is_space);
    match text[at..end].iter().rposition(|byte| is_newline(*byte)) {
        Some(last) => at + last + 1,
        None => spaces(text, at),
    }
}

/// `\s+(?!\S)
/// s+`: the last space before a word belongs to the word, unless it is the only one.
fn spaces(text: &[u8], at: usize) -> usize {
    let end = run(text, at, is_space);
    if end == text.len() || end == at + 1 { end } else { end - 1 }
}

/// End of a contraction such as `'s` or `'ll`.
fn contraction(text: &[u8], at: usize, any_case: bool) -> Option<usize> {
    if text[at] != b'\'' {
        return None;
    }
    let rest = &text[at + 1..];
    let is = |ending: &&&[u8]| match rest.get(..ending.len()) {
        Some(start) if any_case => start.eq_ignore_ascii_case(ending),
        Some(start) => start == **ending,
        None => false,
    };
    let endings: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];
    endings.iter().find(is).map(|ending| at + 1 + ending.len())
}

/// End of the run of bytes `of_kind` that starts at `at`.
fn run(text: &[u8], at: usize, of_kind: impl Fn(u8) -> bool) -> usize {
    text[at..].iter().position(|byte| !of_kind(*byte)).map_or(text.len(), |end| at + end)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_newline(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

fn is_other(byte: u8) -> bool {
    !is_space(byte) && !byte.is_ascii_alphanumeric()
}
