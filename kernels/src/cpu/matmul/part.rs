//! Some outputs of one matrix for some rows of `x`: what a task multiplies, and where the results go.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::ops::Range;

use super::super::disjoint::DisjointMut;
use super::super::input::{Form, Input};
use super::super::packed::{Layout, PANEL, Packed};
use super::super::prefetch;
use super::super::simd::{LANES, Simd};
use super::room::{Room, Share};
use super::tiles::{Panels, Pass, Registers, Streams, Tile};

/// A matrix and its bias, stacked with others along the output.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// `[rows, cols]`.
    pub weights: &'a Packed,
    /// `[rows]`.
    pub bias: Option<&'a [f32]>,
}

impl Linear<'_> {
    /// Panics unless it can be multiplied with `x`.
    pub(super) fn check(&self, x: &Input) {
        let Layout { format, cols, rows } = self.weights.layout();
        assert!(cols > 0 && x.width() == cols, "x is [m, cols]");
        assert!(format.form(x.form() == Form::Bf16) == x.form(), "x has the form the weights take");
        assert!(self.bias.is_none_or(|bias| bias.len() == rows), "a bias for each row");
    }

    /// The panels from `row`'s on; `None` past the end.
    pub(super) fn weights_from(&self, row: usize) -> Option<*const u8> {
        let at = row / PANEL * self.weights.layout().panel_bytes();
        Some(self.weights.values().get(at..)?.first()?)
    }
}

impl<'a> From<&'a Packed> for Linear<'a> {
    fn from(weights: &'a Packed) -> Self {
        Self { weights, bias: None }
    }
}

/// What happens to a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// It replaces what `y` holds.
    Set,
    /// It is added to what `y` holds: the residual connection.
    Add,
}

/// Some rows of one matrix, for some rows of `x`.
pub(in crate::cpu) struct Part<'a> {
    pub(super) share: Share,
    pub(in crate::cpu) x: &'a Input,
    pub(in crate::cpu) rows: Range<usize>,
    pub(in crate::cpu) linear: Linear<'a>,
    pub(in crate::cpu) first: usize,
    pub(super) count: usize,
    /// Which of these panels it is; all if there are none.
    pub(super) streams: Option<Streams>,
    /// Where this thread will probably read on.
    pub(super) next: Option<*const u8>,
    pub(super) pass: Pass,
    /// Of the first of `rows`.
    pub(super) y: Destination<'a>,
    pub(super) write: Write,
}

/// Where a part's results go: rows of `count` values.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) values: &'a DisjointMut<'a, f32>,
    /// Values from one row to the next.
    pub(super) stride: usize,
    /// Where the first row starts.
    pub(super) at: usize,
    /// Whether it is in the cache.
    pub(super) is_near: bool,
}

impl Part<'_> {
    /// Calls `take` for each of its tiles.
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
            soon: prefetch::distance(layout.format.bits()),
        };
        registers.for_each_tile(self.rows.len(), weights, take);
    }

    /// The matrix's panels from this part's first on.
    pub(in crate::cpu) fn weights(&self) -> &[u8] {
        let packed = self.linear.weights;
        &packed.values()[self.first / PANEL * packed.layout().panel_bytes()..]
    }

    /// Room for what becomes of a tile's panels, of so many bytes each, and whether it is there already.
    #[inline(always)]
    pub(in crate::cpu) fn place<'r>(
        &self,
        room: &'r mut Room,
        tile: &Tile,
        panel_bytes: usize,
    ) -> (&'r mut [u8], bool) {
        room.enter(self.share);
        if self.pass.of == 1 && tile.first == 0 {
            room.forget(); // nobody will meet the panels before again
        }
        let at =
            self.weights().as_ptr().wrapping_add(tile.panel * self.linear.weights.layout().panel_bytes());
        room.place(at, tile.width, tile.width * panel_bytes)
    }

    /// Asks for where a tile's sums go: it comes while they are computed.
    #[inline(always)]
    pub(in crate::cpu) fn ask_tile<S: Simd, const MR: usize, const NR: usize>(&self, s: S, tile: &Tile) {
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
                // SAFETY: the last row's last panel ends where the range does. Tasks take disjoint rows of weights, which are
                // disjoint columns of y.
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

    /// [`Part::put_tile`] where the last panel is not full.
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

    /// Writes as many of `sums` as there are outputs from this part's `column` on.
    #[inline(never)]
    fn put(&self, row: usize, column: usize, sums: &[f32; LANES]) {
        let count = LANES.min(self.count - column);
        // SAFETY: one at a time, and tasks take disjoint columns.
        let y = unsafe { self.y.values.part(self.y.at + row * self.y.stride + column, count) };
        for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
            let sum = self.linear.bias.map_or(*sum, |bias| sum + bias[self.first + column + i]);
            *y = if self.write == Write::Add { *y + sum } else { sum };
        }
    }
}
