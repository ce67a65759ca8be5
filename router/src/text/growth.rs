//! How much longer a tokenizer may make a text. Normalisers come from the model's tokenizer.json, and a few
//! replacements in a row can turn one kilobyte into a terabyte. Each step asks here before it allocates.
//!
//! The allowance belongs to the thread, because the tokenizer's library offers its steps no other way to
//! share a count over one text. It drops their errors, so that an excess is also recorded here.

use std::cell::Cell;

/// Growth allowed per byte of text. The worst text for a normal tokenizer grows 22-fold: Unicode's longest
/// compatibility decomposition is 11 times as long, and byte-level characters double that.
pub const MAX_GROWTH_FACTOR: usize = 24;
/// Growth allowed for any text, bytes.
const MIN_ALLOWANCE_BYTES: usize = 64 * 1024;
/// Growth allowed for the longest text, bytes.
const MAX_ALLOWANCE_BYTES: usize = 32 * 1024 * 1024;

thread_local! {
    /// Bytes by which the current text may still grow.
    static ALLOWANCE: Cell<usize> = const { Cell::new(0) };
    static EXCEEDED: Cell<bool> = const { Cell::new(false) };
}

/// The tokenizer would make the text too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer makes a text over {MAX_GROWTH_FACTOR} times as long")]
pub struct TooMuchGrowth;

/// Runs `work` on a text of `bytes` bytes with a new allowance.
///
/// # Errors
/// If a step would have exceeded it.
pub fn limited<T>(bytes: usize, work: impl FnOnce() -> T) -> Result<T, TooMuchGrowth> {
    let allowance = bytes.saturating_mul(MAX_GROWTH_FACTOR);
    ALLOWANCE.set(allowance.clamp(MIN_ALLOWANCE_BYTES, MAX_ALLOWANCE_BYTES));
    EXCEEDED.set(false);
    let done = work();
    if EXCEEDED.get() { Err(TooMuchGrowth) } else { Ok(done) }
}

/// Whether the text may grow by `bytes`. Once it may not, nothing may.
///
/// # Errors
/// If it may not; the whole text is then refused.
pub fn check(bytes: usize) -> Result<(), TooMuchGrowth> {
    if EXCEEDED.get() || bytes > ALLOWANCE.get() {
        EXCEEDED.set(true);
        return Err(TooMuchGrowth);
    }
    Ok(())
}

/// Whether the text may grow by `bytes`, without consequences if not.
pub fn fits(bytes: usize) -> bool {
    bytes <= ALLOWANCE.get()
}

/// Counts growth that has happened.
///
/// # Errors
/// As [`check`].
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
        // Together too much: the rest of this text is refused at once, and the next text starts from zero.
        assert_eq!(
            limited(10_000, || [200_000, 50_000, 1].map(|bytes| count(bytes).is_ok())),
            Err(TooMuchGrowth)
        );
        assert_eq!(limited(1, || count(60_000)), Ok(Ok(())));
        assert_eq!(limited(usize::MAX, || count(MAX_ALLOWANCE_BYTES + 1).is_ok()), Err(TooMuchGrowth));
    }
}
