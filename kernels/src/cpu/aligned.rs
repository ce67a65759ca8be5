//! Numbers that start at a cache line. If rows are whole lines, no vector straddles two lines. Stores that
//! straddle lines cost a product of few columns a tenth of its time.

use std::ops::{Deref, DerefMut};

/// Bytes in a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// A cache-line aligned buffer, initially zero.
#[derive(Debug, Default)]
pub struct Aligned<T> {
    room: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// `len` zeros. The system allocates lazily: pages that were never touched take no memory.
    pub fn zeros(len: usize) -> Self {
        let room = vec![T::default(); len + LINE_BYTES / size_of::<T>()];
        let first = room.as_ptr().addr().wrapping_neg() % LINE_BYTES / size_of::<T>();
        Self { room, first, len }
    }

    /// Makes room for at least `len` values. If the buffer has to grow, all values become zero.
    pub fn grow(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeros(len);
        }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.room[self.first..self.first + self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.room[self.first..self.first + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_keep_their_values_unless_they_grow() {
        fn check<T: Copy + Default + PartialEq + std::fmt::Debug>(one: T) {
            let mut values = Aligned::<T>::default();
            assert!(values.is_empty());
            for len in [1, 7, 5, 1000] {
                let before = values.len();
                values.grow(len);
                assert_eq!(values.len(), before.max(len));
                assert!(values.as_ptr().addr().is_multiple_of(LINE_BYTES));
                let expected = if before < len { T::default() } else { one };
                assert!(values.iter().all(|value| *value == expected));
                values.fill(one);
            }
        }
        check(1.0f32);
        check(1u16);
        check(1i8);
    }
}
