//! Checks of numbers, lengths and token ids, and the refusals for those out of range, in requests and in a
//! model's own defaults. Pure.

use skein_proto::TokenId;
use skein_proto::sampling::OutOfRange;

use crate::refusal::Refusal;

impl From<OutOfRange> for Refusal {
    fn from(error: OutOfRange) -> Self {
        Self::invalid(error.range.name, error.to_string())
    }
}

/// Checks that `value`, if given, is within `low..=high`.
pub fn whole(name: &'static str, value: Option<i64>, low: i64, high: i64) -> Result<Option<u32>, Refusal> {
    match value {
        None => Ok(None),
        Some(value) if (low..=high).contains(&value) => Ok(u32::try_from(value).ok()),
        Some(value) => {
            Err(Refusal::invalid(name, format!("{name} must be in [{low}, {high}], got {value}.")))
        }
    }
}

/// Checks that a token id is within the vocabulary.
pub fn token_id(name: &'static str, token: i64, vocab_size: u32) -> Result<TokenId, Refusal> {
    match TokenId::try_from(token) {
        Ok(token) if token < vocab_size => Ok(token),
        _ => {
            let message = format!("{name}: token id {token} is not in the vocabulary (0..{vocab_size}).");
            Err(Refusal::invalid(name, message))
        }
    }
}

/// Checks the number of entries of a list.
pub(super) fn check_count(name: &'static str, got: usize, most: usize) -> Result<(), Refusal> {
    if got > most {
        return Err(Refusal::invalid(name, format!("{name} takes at most {most} entries, got {got}.")));
    }
    Ok(())
}

/// Checks the length of a text.
pub(super) fn check_bytes(name: &'static str, text: &str, most: usize) -> Result<(), Refusal> {
    if text.len() > most {
        let got = text.len();
        return Err(Refusal::invalid(name, format!("{name} takes at most {most} bytes each, got {got}.")));
    }
    Ok(())
}
