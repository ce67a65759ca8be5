//! Detects a text that is far too long for a model without tokenising all of it.
//!
//! The tokenizer's library uses about two hundred bytes of memory per byte of text. A text that is long for
//! its model is therefore first counted in pieces, one after another, and refused as soon as they contain
//! twice the tokens that fit. (A bound from the vocabulary's longest token would be simpler. But that is 128
//! spaces in many models, which means more than a megabyte of text per 10,000 tokens of context, and there is
//! no such bound if a normaliser drops text.)

use super::tokenizer::Tokenizer;
use crate::refused::{PromptTooLong, TextRefused};

/// Bytes per token that fits, up to which a text is tokenised without counting. Languages and code have two
/// to five.
const BYTES_A_TOKEN: usize = 8;
/// Size of a counted piece, bytes.
const PIECE_BYTES: usize = 64 * 1024;
/// A text whose pieces contain this many times the tokens that fit is refused. Cutting changes only the few
/// tokens around a cut, so the pieces of a text that fits never contain that many.
const REFUSE_FROM_FACTOR: usize = 2;

/// Refuses a text with far more than `most` tokens. A text that passes may still be too long.
///
/// # Errors
/// [`TextRefused::PromptTooLong`] for `param`, or the tokenizer's refusal.
pub fn refuse_far_too_long(
    tokenizer: &Tokenizer,
    text: &str,
    most: u32,
    param: &'static str,
) -> Result<(), TextRefused> {
    let fits = most as usize;
    if text.len() <= PIECE_BYTES.max(fits.saturating_mul(BYTES_A_TOKEN)) {
        return Ok(());
    }
    let (mut rest, mut tokens) = (text, 0_usize);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
        tokens += tokenizer.encode(piece, false)?.len();
        if tokens > fits.saturating_mul(REFUSE_FROM_FACTOR) {
            return Err(PromptTooLong { max: most, most, bytes: text.len(), param }.into());
        }
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Tokenizer {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn a_text_far_over_the_context_is_refused_after_its_first_piece() {
        let tokenizer = shipped();
        for text in ["The quick brown fox. ", "é", " "] {
            let text = text.repeat(4 * 1024 * 1024 / text.len());
            let refused = refuse_far_too_long(&tokenizer, &text, 1024, "prompt").unwrap_err();
            let expected = format!(
                "maximum context length is 1024 tokens. However, your prompt of {} bytes",
                text.len()
            );
            assert!(refused.to_string().contains(&expected), "{refused}");
            assert!(matches!(refused, TextRefused::PromptTooLong(_)));
        }
    }

    #[test]
    fn a_text_that_may_fit_is_never_refused() {
        let tokenizer = shipped();
        let words = ["word ", "été ", "\n", "  x", "深", "{\"a\": 1}, "];
        let text: String = (0..60_000_usize).map(|at| words[at * at % 7 % words.len()]).collect();
        assert!(text.len() > 2 * PIECE_BYTES);
        let tokens = u32::try_from(tokenizer.encode(&text, false).unwrap().len()).unwrap();
        refuse_far_too_long(&tokenizer, &text, tokens, "prompt").unwrap();
        // So few bytes per token that it is not counted; counted, but below the factor; refused.
        refuse_far_too_long(&tokenizer, &text, tokens * 3 / 5, "prompt").unwrap();
        assert!(refuse_far_too_long(&tokenizer, &text, 1024, "prompt").is_err());
    }
}
