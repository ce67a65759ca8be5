//! A slice written by several tasks, each its own part.

use std::marker::PhantomData;

/// A `&mut [T]` to share among tasks that take disjoint parts of it.
pub(crate) struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    lives: PhantomData<&'a mut [T]>,
}

// SAFETY: this is a `&mut [T]` whose parts are handed out under the contract of `part`.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lives: PhantomData }
    }

    /// Pointer to `len` items from `start` on. Dereference it only for items that no other task takes.
    #[inline(always)]
    pub(crate) fn pointer(&self, start: usize, len: usize) -> *mut T {
        assert!(start <= self.len && len <= self.len - start, "a part lies inside its slice");
        self.start.wrapping_add(start)
    }

    /// The `len` items from `start` on.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)] // the purpose of this type
    #[inline(always)]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: inside the slice, which is borrowed for 'a; disjoint by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(start, len), len) }
    }
}
