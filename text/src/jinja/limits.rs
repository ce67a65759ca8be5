//! Limits on what a template may produce.

use minijinja::{Error, ErrorKind};

/// Longest text that a template may produce, final or intermediate, in bytes.
pub const MAX_TEXT_BYTES: usize = 32 * 1024 * 1024;
/// Most items of a list that a filter may produce.
pub const MAX_ITEMS: usize = 1_000_000;
/// Deepest nesting of a printed value; a namespace that contains itself is infinitely deep.
pub const MAX_DEPTH: usize = 160;

/// Fails if `bytes` exceeds the size limit of a text.
pub fn check_bytes(bytes: usize) -> Result<(), Error> {
    check(bytes, MAX_TEXT_BYTES, "bytes")
}

/// Fails if `made` exceeds `most`.
pub fn check(made: usize, most: usize, unit: &str) -> Result<(), Error> {
    if made > most {
        let message = format!("it produces a value of over {most} {unit}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// Fails if `text` would grow too long.
pub fn check_replaced(text: &str, from: &str, to: &str) -> Result<(), Error> {
    // A replacement that is not longer cannot exceed the limit.
    if to.len() <= from.len() {
        return Ok(());
    }
    check_bytes(text.matches(from).count().saturating_mul(to.len() - from.len()).saturating_add(text.len()))
}
