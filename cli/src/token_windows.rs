//! Windows of tokens from text, for calibration and for measuring perplexity.

use std::fs;
use std::path::{Path, PathBuf};

use skein_text::model_text::ModelText;

use crate::exit::{Failure, MODEL, USAGE};

/// Largest text that is read, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Reads `files` one after another.
///
/// # Errors
/// If one cannot be read, is not UTF-8 or makes the text too large.
pub fn read(files: &[PathBuf]) -> Result<String, Failure> {
    let mut text = String::new();
    for file in files {
        let failed = |why: String| Failure::new(USAGE, format!("cannot read {}: {why}", file.display()));
        let size = fs::metadata(file).map_err(|error| failed(error.to_string()))?.len();
        if text.len() as u64 + size > MAX_BYTES {
            return Err(failed(format!("the text would be larger than {} MiB", MAX_BYTES >> 20)));
        }
        text.push_str(&fs::read_to_string(file).map_err(|error| failed(error.to_string()))?);
    }
    Ok(text)
}

/// Tokenizes `text` for the model in `directory` and takes up to `most` windows of `length` tokens, evenly
/// spread. Each starts with the tokens that the tokenizer puts before a text.
///
/// # Errors
/// If the tokenizer cannot be used, or the text is too short for a window of two tokens.
pub fn of_text(directory: &Path, text: &str, most: usize, length: usize) -> Result<Vec<Vec<u32>>, Failure> {
    let model = ModelText::load(directory, &[]).map_err(|error| Failure::new(MODEL, error.to_string()))?;
    let encode = |text: &str, with_special: bool| {
        let tokens = model.encode_text(text, with_special, u32::MAX);
        tokens.map_err(|refusal| Failure::new(USAGE, format!("the text cannot be tokenized: {refusal}")))
    };
    // What comes before a text; some tokenizers also add something behind it.
    let (with, without) = (encode("a", true)?, encode("a", false)?);
    let before = with.iter().position(|token| without.first() == Some(token)).unwrap_or_default();
    let windows = windows(&encode(text, false)?, &with[..before], most, length);
    match windows.first() {
        Some(first) if first.len() > 1 => Ok(windows),
        _ => Err(Failure::new(USAGE, "the text is too short: it has no two tokens".to_owned())),
    }
}

/// Up to `most` windows of `length` tokens, each `prefix` and then a stretch of `tokens`. If they do not fill
/// one, a single shorter window.
fn windows(tokens: &[u32], prefix: &[u32], most: usize, length: usize) -> Vec<Vec<u32>> {
    let stretch = length.saturating_sub(prefix.len()).clamp(1, tokens.len().max(1));
    let count = (tokens.len() / stretch).min(most);
    let start = |i: usize| i * (tokens.len() - stretch) / (count.max(2) - 1);
    (0..count).map(|i| [prefix, &tokens[start(i)..start(i) + stretch]].concat()).collect()
}

/// Reads windows of `length` tokens from a file of 16-bit little-endian ids.
///
/// # Errors
/// If it cannot be read or does not consist of whole windows.
pub fn of_ids(file: &Path, length: usize) -> Result<Vec<Vec<u32>>, Failure> {
    let failed = |why: String| Failure::new(USAGE, format!("cannot read {}: {why}", file.display()));
    let bytes = fs::read(file).map_err(|error| failed(error.to_string()))?;
    let (ids, rest) = bytes.as_chunks::<2>();
    if ids.is_empty() || !rest.is_empty() || !ids.len().is_multiple_of(length) {
        let size = bytes.len();
        return Err(failed(format!(
            "its {size} bytes are not windows of {length} 16-bit ids; --window says how many ids a window has"
        )));
    }
    let id = |id: &[u8; 2]| u32::from(u16::from_le_bytes(*id));
    Ok(ids.chunks(length).map(|window| window.iter().map(id).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_start_with_the_prefix_and_span_the_text() {
        let tokens: Vec<u32> = (0..100).collect();
        let all = windows(&tokens, &[7], 4, 11);
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|window| window.len() == 11 && window[0] == 7));
        assert_eq!((all[0][1], all[3][10]), (0, 99));
        let consecutive = windows(&tokens, &[], usize::MAX, 10);
        assert_eq!(consecutive.concat(), tokens);
        assert_eq!(windows(&tokens[..3], &[7], 4, 11), [[7, 0, 1, 2]], "a short text is one short window");
        assert!(windows(&[], &[7], 4, 11).is_empty());
        assert_eq!(windows(&tokens, &[7], 1, 51)[0].len(), 51);
    }
}
