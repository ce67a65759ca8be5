//! A field of a message that cannot be accepted.

use std::fmt::Display;

use crate::TokenId;

/// Which field, what it is, and what it may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {got}; allowed: {allowed}")]
pub struct Invalid {
    /// Its name on the wire.
    pub field: &'static str,
    /// Its value, or what about it is wrong.
    pub got: String,
    /// The limit.
    pub allowed: String,
}

/// Refuses a field unless `ok`.
///
/// # Errors
/// The other arguments as an [`Invalid`].
pub fn check(ok: bool, field: &'static str, got: impl Display, allowed: impl Display) -> Result<(), Invalid> {
    if ok { Ok(()) } else { Err(Invalid { field, got: got.to_string(), allowed: allowed.to_string() }) }
}

/// Refuses tokens outside a vocabulary of `vocab_size`.
///
/// # Errors
/// Names the first such token.
pub fn check_tokens(tokens: &[TokenId], field: &'static str, vocab_size: u32) -> Result<(), Invalid> {
    let Some(index) = tokens.iter().position(|&token| token >= vocab_size) else { return Ok(()) };
    let got = format_args!("{} at index {index}", tokens[index]);
    check(false, field, got, format_args!("token ids below {vocab_size}"))
}
