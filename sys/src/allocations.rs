//! A global allocator that counts: for tests which say that something allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, and a count of what was asked of it. Make it a test binary's `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting {
    allocations: AtomicU64,
}

impl Counting {
    /// One that has counted nothing.
    #[allow(clippy::new_without_default)] // it lives in a static
    pub const fn new() -> Self {
        Self { allocations: AtomicU64::new(0) }
    }

    /// Allocations so far, growing ones included, by all threads.
    pub fn count(&self) -> u64 {
        self.allocations.load(Ordering::SeqCst)
    }

    fn add_one(&self) {
        self.allocations.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: everything is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add_one();
        // SAFETY: the contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add_one();
        // SAFETY: the contract is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add_one();
        // SAFETY: the contract is the same.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the contract is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}
