//! Allowed and banned tokens: `allowed_token_ids` and `bad_words`.

use skein_proto::TokenId;
use skein_proto::sampling::{MAX_ALLOWED_TOKENS, MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS};
use skein_text::tokenizer::Tokenizer;

use super::ranges::{check_bytes, check_count, token_id};
use crate::refusal::Refusal;

/// Most banned words: each has up to two spellings, with and without a leading space.
pub(super) const MAX_WORDS: usize = MAX_BAD_WORDS / 2;
/// Longest banned word, in bytes.
pub(super) const MAX_WORD_BYTES: usize = 256;

/// Validates `allowed_token_ids`; empty = any.
pub fn allowed_token_ids(tokens: Option<&[i64]>, vocab_size: u32) -> Result<Vec<TokenId>, Refusal> {
    let Some(tokens) = tokens else { return Ok(Vec::new()) };
    const NAME: &str = "allowed_token_ids";
    if tokens.is_empty() {
        let message = "allowed_token_ids must hold at least one token; leave it out to allow all.";
        return Err(Refusal::invalid(NAME, message));
    }
    check_count(NAME, tokens.len(), MAX_ALLOWED_TOKENS)?;
    let mut checked =
        tokens.iter().map(|token| token_id(NAME, *token, vocab_size)).collect::<Result<Vec<_>, _>>()?;
    checked.sort_unstable();
    checked.dedup();
    Ok(checked)
}

/// Checks of `bad_words` that need no tokenizer.
pub fn check_bad_words(words: &[String]) -> Result<(), Refusal> {
    check_count("bad_words", words.len(), MAX_WORDS)?;
    words.iter().try_for_each(|word| {
        if word.trim().is_empty() {
            let message = "bad_words must have a character other than white space.";
            return Err(Refusal::invalid("bad_words", message));
        }
        check_bytes("bad_words", word, MAX_WORD_BYTES)
    })
}

/// Tokens of the checked `words`, in vLLM's two spellings: without a leading space, and with one if that
/// gives the same number of tokens and a different first token. A leading space in the word itself is
/// ignored.
pub fn bad_words(
    words: &[String],
    tokenizer: &Tokenizer,
    vocab_size: u32,
) -> Result<Vec<Vec<TokenId>>, Refusal> {
    let mut spellings = Vec::with_capacity(words.len());
    for word in words {
        let word = word.trim_start();
        let plain = tokenizer.encode(word, false)?;
        let spaced = tokenizer.encode(&format!(" {word}"), false)?;
        check_spelling(word, &plain, vocab_size)?;
        let is_another = spaced.len() == plain.len() && spaced.first() != plain.first();
        spellings.push(plain);
        if is_another {
            spellings.push(spaced);
        }
    }
    // Tokens outside the model's vocabulary are never drawn.
    spellings.retain(|word| word.iter().all(|token| *token < vocab_size));
    Ok(spellings)
}

fn check_spelling(word: &str, tokens: &[TokenId], vocab_size: u32) -> Result<(), Refusal> {
    let word: String = word.chars().take(40).collect();
    let count = tokens.len();
    let problem = match tokens.iter().find(|token| **token >= vocab_size) {
        Some(token) => {
            format!("has token {token}, which is outside the model's vocabulary (0..{vocab_size})")
        }
        None if count == 0 => "has no tokens".to_owned(),
        None if count > MAX_BAD_WORD_TOKENS => {
            format!("has {count} tokens; at most {MAX_BAD_WORD_TOKENS} are allowed")
        }
        None => return Ok(()),
    };
    Err(Refusal::invalid("bad_words", format!("bad_words: `{}` {problem}.", word.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_bad_at_the_beginning_and_in_the_middle_of_a_text() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap();
        let spellings = |word: &str| -> Vec<String> {
            let words = bad_words(&[word.to_owned()], &tokenizer, 4096).unwrap();
            words.iter().map(|word| tokenizer.decode(word, false).unwrap()).collect()
        };
        assert_eq!(spellings("return"), ["return", " return"]);
        assert_eq!(spellings("  return"), ["return", " return"], "a space before it does not count");
        // With the space it may have one token more; vLLM then omits that spelling.
        let uneven = "ZeroDivisionError";
        let lengths = [uneven.to_owned(), format!(" {uneven}")]
            .map(|word| tokenizer.encode(&word, false).unwrap().len());
        let expected = if lengths[0] == lengths[1] { 2 } else { 1 };
        assert_eq!(spellings(uneven).len(), expected);
    }

    #[test]
    fn allowed_tokens_are_a_set() {
        assert_eq!(allowed_token_ids(None, 10).unwrap(), Vec::<TokenId>::new());
        assert_eq!(allowed_token_ids(Some(&[7, 3, 7]), 10).unwrap(), [3, 7]);
    }
}
