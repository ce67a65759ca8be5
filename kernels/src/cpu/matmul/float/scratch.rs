//! Memory that a product needs while it runs: each thread keeps its own, so that no step allocates.

use std::cell::Cell;

/// A cache line, aligned as one: a vector of `f32`, or twice as many bfloat16.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(#[allow(dead_code)] [u8; LINE_BYTES]); // read through pointers

pub(super) const LINE_BYTES: usize = 64;

/// Packed rows of `x`, and sums whose columns are not all in.
#[derive(Default)]
pub(super) struct Scratch {
    x: Vec<Line>,
    sums: Vec<Line>,
}

thread_local! {
    static KEPT: Cell<Scratch> = const { Cell::new(Scratch { x: Vec::new(), sums: Vec::new() }) };
}

impl Scratch {
    /// This thread's.
    pub(super) fn take() -> Self {
        KEPT.take()
    }

    /// For the next product on this thread.
    pub(super) fn keep(self) {
        KEPT.set(self);
    }

    /// So many lines for packed `x` and for sums, with any contents.
    pub(super) fn parts(&mut self, x: usize, sums: usize) -> (&mut [Line], &mut [Line]) {
        for (lines, count) in [(&mut self.x, x), (&mut self.sums, sums)] {
            if lines.len() < count {
                lines.resize(count, Line([0; LINE_BYTES]));
            }
        }
        (&mut self.x[..x], &mut self.sums[..sums])
    }
}

/// What lines hold.
pub(super) fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}
