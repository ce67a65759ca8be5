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

/// A product, and the panel that some of its tasks start at: those that take the same panels for different rows.
pub(super) type Share = (ProductId, usize);

/// What became of the weights of one share.
#[derive(Default)]
pub(in crate::cpu) struct Room {
    share: Option<Share>,
    /// Of the first of `places`, where the weights lie and how many panels.
    made: Vec<(*const u8, usize)>,
    places: Vec<Vec<Line>>,
}

impl Room {
    /// Forgets what is there, unless it is of this share.
    pub(super) fn enter(&mut self, share: Share) {
        if self.share.replace(share) != Some(share) {
            self.forget();
        }
    }

    /// Forgets what is there: what comes next takes its place, which is in the cache.
    pub(super) fn forget(&mut self) {
        self.made.clear();
    }

    /// `bytes` for what becomes of some panels, from a multiple of 64 bytes on, and whether it is there already: otherwise it counts as
    /// made from now on.
    pub(super) fn place(&mut self, weights: *const u8, panels: usize, bytes: usize) -> (&mut [u8], bool) {
        let known = self.made.iter().position(|made| *made == (weights, panels));
        let index = known.unwrap_or(self.made.len());
        if known.is_none() {
            self.made.push((weights, panels));
            if self.places.len() == index {
                self.places.push(Vec::new());
            }
            let (lines, place) = (bytes.div_ceil(size_of::<Line>()), &mut self.places[index]);
            if place.len() < lines {
                *place = vec![Line([0; size_of::<Line>()]); lines];
            }
        }
        let place = &mut self.places[index];
        // SAFETY: lines are bytes.
        let all =
            unsafe { std::slice::from_raw_parts_mut(place.as_mut_ptr().cast::<u8>(), size_of_val(&**place)) };
        (&mut all[..bytes], known.is_some())
    }
}

/// Calls `take` with this thread's room, which is kept for the next time.
pub(in crate::cpu) fn with_room(take: impl FnOnce(&mut Room)) {
    thread_local! {
        static ROOM: RefCell<Room> = RefCell::default();
    }
    ROOM.with_borrow_mut(take);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_found_by_tasks_of_its_share_alone() {
        let (mut room, weights) = (Room::default(), [0u8; 8]);
        let at = |i: usize| weights[i..].as_ptr();
        let first = (ProductId::new(), 0);
        room.enter(first);
        for (i, bytes) in [(0, 100), (1, 3000)] {
            let (place, is_made) = room.place(at(i), 3, bytes);
            assert!(!is_made && place.len() == bytes && place.as_ptr().addr().is_multiple_of(64));
            place.fill(i as u8 + 1);
        }
        room.enter(first);
        for (i, bytes) in [(1, 3000), (0, 100)] {
            let (place, is_made) = room.place(at(i), 3, bytes);
            assert!(is_made && place.iter().all(|byte| *byte == i as u8 + 1));
        }
        assert!(!room.place(at(0), 2, 100).1, "other panels");
        for other in [(first.0, 3), (ProductId::new(), 3), first] {
            room.enter(other);
            assert!(!room.place(at(0), 3, 100).1 && room.place(at(0), 3, 100).1);
        }
        room.forget();
        assert!(!room.place(at(0), 3, 100).1);
    }
}
