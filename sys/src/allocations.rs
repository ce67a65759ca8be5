//! A counting global allocator, for tests that check how often something allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Forwards to the system's allocator and counts allocations. Use it as a test binary's
/// `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting {
    allocations: AtomicU64,
}

thread_local! {
    /// Where this thread's allocations are also counted.
    static TALLY: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// Adds this thread's allocations and reallocations, from now on, to `tally` as well.
pub fn tally_this_thread(tally: &'static AtomicU64) {
    TALLY.set(Some(tally));
}

impl Counting {
    /// An allocator with a count of zero.
    #[allow(clippy::new_without_default)] // it lives in a static
    pub const fn new() -> Self {
        Self { allocations: AtomicU64::new(0) }
    }

    /// Allocations and reallocations so far, by all threads.
    pub fn count(&self) -> u64 {
        self.allocations.load(Ordering::SeqCst)
    }

    fn add_one(&self) {
        self.allocations.fetch_add(1, Ordering::SeqCst);
        // A thread that ends may have no thread-local values any more.
        if let Ok(Some(tally)) = TALLY.try_with(Cell::get) {
            tally.fetch_add(1, Ordering::SeqCst);
        }
    }
}

// SAFETY: every call is forwarded to the system's allocator unchanged.
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
