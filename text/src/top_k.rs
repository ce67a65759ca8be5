//! The range of `top_k`.

use crate::refused::TextRefused;

/// `top_k` in the worker's form: 0 is off.
///
/// # Errors
/// A negative number other than -1.
pub fn top_k(value: i64, vocab_size: u32) -> Result<u32, TextRefused> {
    match value {
        -1 | 0 => Ok(0),
        // Larger than the vocabulary means all of it.
        1.. => Ok(u32::try_from(value).unwrap_or(u32::MAX).min(vocab_size)),
        _ => Err(TextRefused::invalid(
            "top_k",
            format!("top_k must be -1 or 0 (off) or at least 1, got {value}."),
        )),
    }
}
