//! What all requests' output may take together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes of output that are kept for readers who may come, all requests together. Ended ones go first.
pub const OUTPUT_BYTES: usize = 256 * 1024 * 1024;

/// Bytes that all streams hold, those that only readers hold included.
#[derive(Debug)]
pub(super) struct Budget {
    held: AtomicUsize,
    limit: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(OUTPUT_BYTES)
    }
}

impl Budget {
    pub fn of(limit: usize) -> Self {
        Self { held: AtomicUsize::new(0), limit }
    }

    pub fn bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.bytes() > self.limit
    }

    pub fn changed(&self, before: usize, after: usize) {
        match after >= before {
            true => self.held.fetch_add(after - before, Ordering::Relaxed),
            false => self.held.fetch_sub(before - after, Ordering::Relaxed),
        };
    }
}
