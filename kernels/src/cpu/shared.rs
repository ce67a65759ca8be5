//! A slice that several tasks write, each its own part.

use std::marker::PhantomData;

/// `&mut [T]` that can be handed to tasks. Each task takes parts no other task takes.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    lives: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts are handed out under the contract of `part`.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lives: PhantomData }
    }

    /// The place of `len` items from `start` on, of which the caller takes those that no other task does.
    #[inline(always)]
    pub(crate) fn pointer(&self, start: usize, len: usize) -> *mut T {
        assert!(start <= self.len && len <= self.len - start, "a part lies inside its slice");
        self.start.wrapping_add(start)
    }

    /// `len` items from `start` on.
    ///
    /// # Safety
    /// No two live parts overlap.
    #[allow(clippy::mut_from_ref)] // that is what it is for
    #[inline(always)]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: inside the slice, which is borrowed for 'a; disjoint by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(start, len), len) }
    }
}
