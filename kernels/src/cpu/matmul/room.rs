//! Memory for what weights become on their way to several tiles of rows: each thread's own.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A cache line.
#[repr(align(64))]
#[derive(Clone, Copy)]
#[expect(dead_code)] // bytes are read as such
struct Line([u8; 64]);

/// Tells a product from all others, of this process and its threads: weights of another one may lie at the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProductId(u64);

impl ProductId {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Weights of a product: where they lie, and how many panels.
type Weights = (ProductId, *const u8, usize);

/// Bytes of one thread, from a multiple of 64 bytes on.
pub(super) struct Room {
    lines: Vec<Line>,
    /// What was made of them is there.
    holds: Option<Weights>,
}

impl Room {
    /// Makes sure that there are so many bytes.
    pub(super) fn grow(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            *self = Self { lines: vec![Line([0; size_of::<Line>()]); lines], holds: None };
        }
    }

    /// Whether this thread has made them already, for other rows of the same product; from now on they count as made.
    pub(super) fn takes(&mut self, product: ProductId, weights: *const u8, panels: usize) -> bool {
        let weights = Some((product, weights, panels));
        std::mem::replace(&mut self.holds, weights) == weights
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: lines are bytes.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), size_of_val(&*self.lines)) }
    }
}

/// Calls `take` with this thread's room, which is kept for the next time.
pub(super) fn with_room(take: impl FnOnce(&mut Room)) {
    thread_local! {
        static ROOM: RefCell<Room> = const { RefCell::new(Room { lines: Vec::new(), holds: None }) };
    }
    ROOM.with_borrow_mut(take);
}
