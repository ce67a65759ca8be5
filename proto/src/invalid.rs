//! An unacceptable field of a message.

use std::fmt::Display;

use crate::TokenId;

/// Names the field, its value and the values allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {got}; allowed: {allowed}")]
pub struct Invalid {
    /// The field's name on the wire.
    pub field: &'static str,
    /// The field's value, or what is wrong with it.
    pub got: String,
    /// Description of the allowed values.
    pub allowed: String,
}

/// Refuses a field unless `ok`.
///
/// # Errors
/// [`Invalid`] with the other arguments.
pub fn check(ok: bool, field: &'static str, got: impl Display, allowed: impl Display) -> Result<(), Invalid> {
    if ok { Ok(()) } else { Err(Invalid { field, got: got.to_string(), allowed: allowed.to_string() }) }
}

/// Refuses tokens outside a vocabulary of `vocab_size`.
///
/// # Errors
/// [`Invalid`] for the first token that is not below `vocab_size`.
pub fn check_tokens(tokens: &[TokenId], field: &'static str, vocab_size: u32) -> Result<(), Invalid> {
    let Some(index) = tokens.iter().position(|&token| token >= vocab_size) else { return Ok(()) };
    let got = format_args!("{} at index {index}", tokens[index]);
    check(false, field, got, format_args!("token ids below {vocab_size}"))
}
