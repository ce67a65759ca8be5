//! Some outputs of one matrix for some rows of `x`: the work of a task and the destination of its results.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::ops::Range;

use super::super::disjoint::DisjointMut;
use super::super::input::{Encoding, Input};
use super::super::packed::{Layout, Order, PANEL, Packed};
use super::super::prefetch;
use super::super::simd::integer::IntegerIsa;
use super::super::simd::{Isa, LANES, Simd};
use super::tiles::{Panels, Pass, Registers, Streams, Tile};
use super::unpacked::{PanelsKey, UnpackBuffers};

/// A matrix and its bias. Several can be stacked along the output.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// `[rows, cols]` weights.
    pub weights: &'a Packed,
    /// Bias of each output, `[rows]`.
    pub bias: Option<&'a [f32]>,
}

impl Linear<'_> {
    /// Asserts that the matrix can be multiplied by `x`.
    pub(super) fn check(&self, x: &Input) {
        let layout @ Layout { cols, rows, .. } = self.weights.layout();
        assert!(cols > 0 && x.width() == cols, "x is [m, cols]");
        assert!(
            layout.encoding(x.encoding() == Encoding::Bf16) == x.encoding(),
            "x has the encoding that the weights require"
        );
        assert!(is_same_order(x.order(), self.weights.order()), "x has the order of the weights' columns");
        assert!(self.bias.is_none_or(|bias| bias.len() == rows), "a bias for each row");
    }

    /// Address of `row`'s panel; `None` past the end.
    pub(super) fn weights_from(&self, row: usize) -> Option<*const u8> {
        let at = row / PANEL * self.weights.layout().panel_bytes();
        Some(self.weights.values().get(at..)?.first()?)
    }
}

fn is_same_order(a: Option<&Order>, b: Option<&Order>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Order::ptr_eq(a, b) || a == b,
        (a, b) => a.is_none() && b.is_none(),
    }
}

impl<'a> From<&'a Packed> for Linear<'a> {
    fn from(weights: &'a Packed) -> Self {
        Self { weights, bias: None }
    }
}

/// How a result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Replaces the value in `y`.
    Set,
    /// Adds to the value in `y`: the residual connection.
    Add,
}

/// Some rows of one matrix, for some rows of `x`.
pub(in crate::cpu) struct Part<'a> {
    pub(super) key: PanelsKey,
    pub(in crate::cpu) x: &'a Input,
    pub(in crate::cpu) rows: Range<usize>,
    pub(in crate::cpu) linear: Linear<'a>,
    pub(in crate::cpu) first: usize,
    pub(super) count: usize,
    /// The part's panels if they are not adjacent.
    pub(super) streams: Option<Streams>,
    /// Address that this thread will probably read next.
    pub(super) next: Option<*const u8>,
    pub(super) pass: Pass,
    /// Destination of the first of `rows`.
    pub(super) y: Destination<'a>,
    pub(super) write: Write,
}

/// The kernel of a format: multiplies the outputs of a part by its rows of `x`, which have the encoding that
/// the format requires.
pub(in crate::cpu) type Multiply = fn(&Part<'_>, Isa, IntegerIsa);

/// Destination of a part's results, which are rows of `count` values.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) values: &'a DisjointMut<'a, f32>,
    /// Values from one row to the next.
    pub(super) stride: usize,
    /// Index of the first row.
    pub(super) at: usize,
    /// Whether the destination is already cached.
    pub(super) is_near: bool,
}

impl Part<'_> {
    /// Calls `take` for each of the part's tiles.
    #[inline(always)]
    pub(in crate::cpu) fn for_each_tile(&self, registers: Registers, take: impl FnMut(Tile)) {
        assert!(self.first.is_multiple_of(PANEL), "tasks start at a panel");
        let layout = self.linear.weights.layout();
        let weights = Panels {
            at: self.weights().as_ptr(),
            panels: self.streams.map_or(self.count.div_ceil(PANEL), |streams| streams.panels()),
            streams: self.streams,
            panel_bytes: layout.panel_bytes(),
            next: self.next,
            pass: self.pass,
            near: prefetch::distance(layout.format.bits()),
        };
        registers.for_each_tile(self.rows.len(), weights, take);
    }

    /// The matrix's panels from this part's first one on.
    pub(in crate::cpu) fn weights(&self) -> &[u8] {
        let packed = self.linear.weights;
        &packed.values()[self.first / PANEL * packed.layout().panel_bytes()..]
    }

    /// Buffer for a tile's unpacked panels, `panel_bytes` each, and whether it is already filled.
    #[inline(always)]
    pub(in crate::cpu) fn buffer<'r>(
        &self,
        buffers: &'r mut UnpackBuffers,
        tile: &Tile,
        panel_bytes: usize,
    ) -> (&'r mut [u8], bool) {
        buffers.enter(self.key);
        if self.pass.of == 1 && tile.first == 0 {
            buffers.forget(); // no later tile reads the previous panels
        }
        let at =
            self.weights().as_ptr().wrapping_add(tile.panel * self.linear.weights.layout().panel_bytes());
        buffers.buffer(at, tile.width, tile.width * panel_bytes)
    }

    /// Prefetches the destination of a tile's sums, so that it arrives while they are computed.
    #[inline(always)]
    pub(in crate::cpu) fn prefetch_results<S: Simd, const MR: usize, const NR: usize>(
        &self,
        s: S,
        tile: &Tile,
    ) {
        let Destination { values, stride, at, is_near } = self.y;
        if is_near {
            return;
        }
        let y = values.pointer(at + tile.first * stride + tile.panel * PANEL, 0);
        for m in 0..MR {
            for n in 0..NR {
                s.prefetch(y.wrapping_add(m * stride + n * tile.apart * PANEL).cast());
            }
        }
    }

    /// Writes a tile's sums.
    #[inline(always)]
    pub(in crate::cpu) fn put_tile<S: Simd, const MR: usize, const NR: usize>(
        &self,
        s: S,
        tile: &Tile,
        mut sums: [[S::V; NR]; MR],
    ) {
        let (column, apart) = (tile.panel * PANEL, tile.apart * PANEL);
        let width = (NR - 1) * apart + LANES;
        if column + width > self.count {
            return self.put_edge(s, tile, &sums);
        }
        if let Some(bias) = self.linear.bias {
            let bias = &bias[self.first + column..][..width];
            for n in 0..NR {
                // SAFETY: the last panel's sixteen values end where the slice does.
                let bias = unsafe { s.load(bias[n * apart..].as_ptr()) };
                for m in 0..MR {
                    sums[m][n] = s.add(sums[m][n], bias);
                }
            }
        }
        let Destination { values, stride, at, .. } = self.y;
        let y = values.pointer(at + tile.first * stride + column, (MR - 1) * stride + width);
        for m in 0..MR {
            for n in 0..NR {
                // SAFETY: the last row's last panel ends where the range does. Tasks have disjoint rows of
                // weights, and so disjoint columns of y.
                unsafe {
                    let to = y.add(m * stride + n * apart);
                    if self.write == Write::Add {
                        sums[m][n] = s.add(s.load(to), sums[m][n]);
                    }
                    s.store(sums[m][n], to);
                }
            }
        }
    }

    /// [`Part::put_tile`] for a tile whose last panel is not full.
    #[inline(always)]
    fn put_edge<S: Simd, const MR: usize, const NR: usize>(
        &self,
        s: S,
        tile: &Tile,
        sums: &[[S::V; NR]; MR],
    ) {
        for (m, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                let mut values = [0.0; LANES];
                // SAFETY: sixteen values.
                unsafe { s.store(*sum, values.as_mut_ptr()) };
                self.put(tile.first + m, (tile.panel + n * tile.apart) * PANEL, &values);
            }
        }
    }

    /// Writes those of `sums` that are outputs of this part, to `column` and those after it.
    #[inline(never)]
    fn put(&self, row: usize, column: usize, sums: &[f32; LANES]) {
        let count = LANES.min(self.count - column);
        // SAFETY: one borrow at a time, and tasks have disjoint columns.
        let y = unsafe { self.y.values.part(self.y.at + row * self.y.stride + column, count) };
        for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
            let sum = self.linear.bias.map_or(*sum, |bias| sum + bias[self.first + column + i]);
            *y = if self.write == Write::Add { *y + sum } else { sum };
        }
    }
}
