//! Per-thread buffers for weights that are unpacked once and used by several tiles of rows.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A cache line.
#[repr(align(64))]
#[derive(Clone, Copy)]
#[expect(dead_code)] // accessed as bytes
struct Line([u8; 64]);

/// Identifies a product within this process. Addresses do not: another product's weights may be at the same
/// address later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProductId(u64);

impl ProductId {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A product and the first panel of a task. Tasks with the same key process the same panels for different
/// rows.
pub(super) type PanelsKey = (ProductId, usize);

/// The unpacked weights of one key.
#[derive(Default)]
pub(in crate::cpu) struct UnpackBuffers {
    key: Option<PanelsKey>,
    /// Address and number of panels of each filled buffer.
    filled: Vec<(*const u8, usize)>,
    buffers: Vec<Vec<Line>>,
}

impl UnpackBuffers {
    /// Discards the buffers' content unless it belongs to `key`.
    pub(super) fn enter(&mut self, key: PanelsKey) {
        if self.key.replace(key) != Some(key) {
            self.forget();
        }
    }

    /// Discards the buffers' content. The next panels reuse the buffers, which are in the cache.
    pub(super) fn forget(&mut self) {
        self.filled.clear();
    }

    /// A 64-byte aligned buffer of `bytes` for the `panels` panels at `weights`, and whether it is already
    /// filled. If not, the caller must fill it.
    pub(super) fn buffer(&mut self, weights: *const u8, panels: usize, bytes: usize) -> (&mut [u8], bool) {
        let known = self.filled.iter().position(|filled| *filled == (weights, panels));
        let index = known.unwrap_or(self.filled.len());
        if known.is_none() {
            self.filled.push((weights, panels));
            if self.buffers.len() == index {
                self.buffers.push(Vec::new());
            }
            let (lines, buffer) = (bytes.div_ceil(size_of::<Line>()), &mut self.buffers[index]);
            if buffer.len() < lines {
                *buffer = vec![Line([0; size_of::<Line>()]); lines];
            }
        }
        let buffer = &mut self.buffers[index];
        // SAFETY: lines are bytes.
        let all = unsafe {
            std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), size_of_val(&**buffer))
        };
        (&mut all[..bytes], known.is_some())
    }
}

/// Calls `take` with this thread's buffers, which are kept for the next call.
pub(in crate::cpu) fn with_unpack_buffers(take: impl FnOnce(&mut UnpackBuffers)) {
    thread_local! {
        static BUFFERS: RefCell<UnpackBuffers> = RefCell::default();
    }
    BUFFERS.with_borrow_mut(take);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_panels_are_found_by_tasks_of_their_key_alone() {
        let (mut buffers, weights) = (UnpackBuffers::default(), [0u8; 8]);
        let at = |i: usize| weights[i..].as_ptr();
        let first = (ProductId::new(), 0);
        buffers.enter(first);
        for (i, bytes) in [(0, 100), (1, 3000)] {
            let (buffer, is_filled) = buffers.buffer(at(i), 3, bytes);
            assert!(!is_filled && buffer.len() == bytes && buffer.as_ptr().addr().is_multiple_of(64));
            buffer.fill(i as u8 + 1);
        }
        buffers.enter(first);
        for (i, bytes) in [(1, 3000), (0, 100)] {
            let (buffer, is_filled) = buffers.buffer(at(i), 3, bytes);
            assert!(is_filled && buffer.iter().all(|byte| *byte == i as u8 + 1));
        }
        assert!(!buffers.buffer(at(0), 2, 100).1, "other panels");
        for other in [(first.0, 3), (ProductId::new(), 3), first] {
            buffers.enter(other);
            assert!(!buffers.buffer(at(0), 3, 100).1 && buffers.buffer(at(0), 3, 100).1);
        }
        buffers.forget();
        assert!(!buffers.buffer(at(0), 3, 100).1);
    }
}
