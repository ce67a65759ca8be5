//! The memory limit of all requests' output together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes of output kept for readers to come, over all requests. Ended requests are dropped first.
pub const OUTPUT_BYTES: usize = 256 * 1024 * 1024;

/// Bytes held by all streams, including streams that only readers still hold.
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
        if after >= before {
            self.held.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}
