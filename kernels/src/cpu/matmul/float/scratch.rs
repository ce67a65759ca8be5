//! Memory that a product needs while it runs: each thread keeps its own, so that no step allocates.

use std::cell::Cell;

/// A cache line, aligned as one: a vector of `f32`, or twice as many bfloat16.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(#[allow(dead_code)] [u8; LINE_BYTES]); // read through pointers

pub(super) const LINE_BYTES: usize = 64;

/// Packed rows of `x`, sums whose columns are not all in, weights laid out.
#[derive(Default)]
pub(super) struct Scratch([Vec<Line>; 3]);

thread_local! {
    static KEPT: Cell<Scratch> = const { Cell::new(Scratch([const { Vec::new() }; 3])) };
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

    /// So many lines of each, with any contents.
    pub(super) fn parts(&mut self, counts: [usize; 3]) -> [&mut [Line]; 3] {
        let mut i = 0;
        self.0.each_mut().map(|lines| {
            let count = counts[i];
            i += 1;
            if lines.len() < count {
                lines.resize(count, Line([0; LINE_BYTES]));
            }
            &mut lines[..count]
        })
    }
}

/// What lines hold.
pub(super) fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}
