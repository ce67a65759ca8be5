//! Limits how much a tokenizer may lengthen a text. Normalisers come from the model's tokenizer.json, and a
//! few replacements in a row can turn one kilobyte into a terabyte. Each step calls this module before it
//! allocates.
//! The allowance is per thread, because the tokenizer library gives its steps no other way to share a count
//! over one text. The library drops their errors, so an excess is also recorded here.

use std::cell::Cell;

/// Growth allowed per byte of text. A normal tokenizer grows text at most 22-fold: the longest compatibility
/// decomposition in Unicode is 11 times as long, and byte-level characters double that.
pub const MAX_GROWTH_FACTOR: usize = 24;
/// Smallest growth allowance, in bytes.
const MIN_ALLOWANCE_BYTES: usize = 64 * 1024;
/// Largest growth allowance, in bytes.
const MAX_ALLOWANCE_BYTES: usize = 32 * 1024 * 1024;

thread_local! {
    /// Bytes by which the current text may still grow.
    static ALLOWANCE: Cell<usize> = const { Cell::new(0) };
    static EXCEEDED: Cell<bool> = const { Cell::new(false) };
}

/// The tokenizer would lengthen the text too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer lengthens a text by more than a factor of {MAX_GROWTH_FACTOR}")]
pub struct TooMuchGrowth;

/// Runs `work` on a text of `bytes` bytes with a fresh allowance.
///
/// # Errors
/// If a step exceeded the allowance.
pub fn limited<T>(bytes: usize, work: impl FnOnce() -> T) -> Result<T, TooMuchGrowth> {
    let allowance = bytes.saturating_mul(MAX_GROWTH_FACTOR);
    ALLOWANCE.set(allowance.clamp(MIN_ALLOWANCE_BYTES, MAX_ALLOWANCE_BYTES));
    EXCEEDED.set(false);
    let done = work();
    if EXCEEDED.get() { Err(TooMuchGrowth) } else { Ok(done) }
}

/// Checks that the text may grow by `bytes`. After a failure, every further check fails.
///
/// # Errors
/// If it exceeds the allowance; the whole text is then refused.
pub fn check(bytes: usize) -> Result<(), TooMuchGrowth> {
    if EXCEEDED.get() || bytes > ALLOWANCE.get() {
        EXCEEDED.set(true);
        return Err(TooMuchGrowth);
    }
    Ok(())
}

/// Whether the text may grow by `bytes`, without recording a failure.
pub fn fits(bytes: usize) -> bool {
    bytes <= ALLOWANCE.get()
}

/// Deducts growth from the allowance.
///
/// # Errors
/// Like [`check`].
pub fn count(bytes: usize) -> Result<(), TooMuchGrowth> {
    check(bytes)?;
    ALLOWANCE.set(ALLOWANCE.get() - bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excess_refuses_the_text_even_if_its_error_is_dropped() {
        assert_eq!(limited(10_000, || count(200_000)), Ok(Ok(())));
        assert_eq!(limited(10_000, || count(300_000).is_ok()), Err(TooMuchGrowth));
        // Together they exceed the allowance: the rest of this text is refused, and the next text starts
        // afresh.
        assert_eq!(
            limited(10_000, || [200_000, 50_000, 1].map(|bytes| count(bytes).is_ok())),
            Err(TooMuchGrowth)
        );
        assert_eq!(limited(1, || count(60_000)), Ok(Ok(())));
        assert_eq!(limited(usize::MAX, || count(MAX_ALLOWANCE_BYTES + 1).is_ok()), Err(TooMuchGrowth));
    }
}
