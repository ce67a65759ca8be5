//! Memory for what a tile's weights become on their way: each thread's own.

use std::cell::RefCell;

/// A cache line.
#[repr(align(64))]
#[derive(Clone, Copy)]
#[expect(dead_code)] // bytes are read as such
struct Line([u8; 64]);

/// Calls `take` with so many bytes of this thread's own, from a multiple of 64 bytes on, kept for the next time.
pub(super) fn with_room(bytes: usize, take: impl FnOnce(&mut [u8])) {
    thread_local! {
        static ROOM: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    }
    ROOM.with_borrow_mut(|room| {
        let lines = bytes.div_ceil(size_of::<Line>());
        if room.len() < lines {
            *room = vec![Line([0; size_of::<Line>()]); lines];
        }
        // SAFETY: lines are bytes.
        take(unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), bytes) })
    })
}
