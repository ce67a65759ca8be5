//! Key of a sorted collection whose comparisons are counted in tests, so that a test of the cost of a search
//! does not depend on time.

#[cfg(test)]
use std::cell::Cell;
use std::cmp::Ordering;

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compared<K>(pub K);

#[cfg(test)]
thread_local! {
    /// Comparisons of this thread so far.
    pub static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

impl<K: Ord> Ord for Compared<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl<K: Ord> PartialOrd for Compared<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
