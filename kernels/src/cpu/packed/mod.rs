//! Weights as small integers, in the layout that the integer multiplication reads, and how they are made.
//!
//! A packed matrix is one run of bytes, so that it can lie in a file: codes, then scales, then zero points, each part from
//! a multiple of 64 bytes on. Outputs are taken sixteen at a time (a panel); rows and columns that the matrix does not
//! have are filled up with codes that mean zero. With columns in fours (`VPDPBUSD` multiplies four bytes of a lane):
//!
//! ```text
//! codes   8 bits: [panels][columns / 4][16 outputs][4 columns]
//!         4 bits: [panels][columns / 8][16 outputs][4]: column j low, column j + 4 high
//! scales  one for each output: f32 [panels][16]; for each group of 32 columns: f16 [panels][groups][16]
//! zeros   u8 [panels][groups][16], in formats that have them
//! ```
//!
//! A weight is `scale * (code - zero)`; codes are unsigned. Formats without zero points have 128 or 8 for all. Scales may be
//! negative: with 4 bits there is one code more below zero than above, and the largest weight may have either sign.

mod pack;
mod scale;
#[cfg(test)]
mod tests;

pub use pack::{NotFinite, pack};

use super::input::GROUP;
use crate::mapped::Bytes;

/// Changes whenever the same weights would be packed to other bytes: part of what packed weights are kept under.
pub const VERSION: u32 = 2;
/// Outputs of a panel.
pub const PANEL: usize = 16;
/// Parts of a packed matrix start at multiples of this.
const PART_ALIGN: usize = 64;

/// How weights are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 8 bits, a scale for each output.
    Int8,
    /// 8 bits, a scale for each output and group of 32 columns.
    Int8Group,
    /// 4 bits, a scale for each output and group of 32 columns.
    Int4,
    /// 4 bits, a scale and a zero point for each output and group of 32 columns.
    Int4Zero,
}

/// Where the parts of a packed matrix lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// How weights are rounded.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl Layout {
    /// Panels of sixteen outputs, the last one perhaps not full.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Groups of 32 columns, the last one perhaps not full.
    pub fn groups(&self) -> usize {
        self.cols.div_ceil(GROUP)
    }

    /// Bytes of a panel's codes.
    pub fn panel_bytes(&self) -> usize {
        let codes = self.groups() * GROUP * PANEL;
        if self.format.bits() == 4 { codes / 2 } else { codes }
    }

    /// Scales of a panel.
    pub fn panel_scales(&self) -> usize {
        if self.format.has_groups() { self.groups() * PANEL } else { PANEL }
    }

    /// Bytes of a scale.
    pub fn scale_bytes(&self) -> usize {
        if self.format.has_groups() { 2 } else { 4 }
    }

    /// Where the scales start.
    pub fn scales_at(&self) -> usize {
        (self.panels() * self.panel_bytes()).next_multiple_of(PART_ALIGN)
    }

    /// Where the zero points start.
    pub fn zeros_at(&self) -> usize {
        (self.scales_at() + self.panels() * self.panel_scales() * self.scale_bytes())
            .next_multiple_of(PART_ALIGN)
    }

    /// All bytes.
    pub fn bytes(&self) -> usize {
        let zeros = if self.format == Format::Int4Zero { self.panels() * self.panel_scales() } else { 0 };
        (self.zeros_at() + zeros).next_multiple_of(PART_ALIGN)
    }

    /// Where in a panel's codes column `col` of output `lane` lies: the byte, and whether in its high half.
    pub(super) fn code_at(&self, col: usize, lane: usize) -> (usize, bool) {
        match self.format.bits() {
            4 => ((col / 8 * PANEL + lane) * 4 + col % 4, col % 8 >= 4),
            _ => ((col / 4 * PANEL + lane) * 4 + col % 4, false),
        }
    }
}

impl Format {
    /// Bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            Self::Int8 | Self::Int8Group => 8,
            Self::Int4 | Self::Int4Zero => 4,
        }
    }

    /// Whether each group of 32 columns has a scale of its own.
    pub fn has_groups(self) -> bool {
        self != Self::Int8
    }

    /// The zero point of formats that do not store any.
    pub fn zero(self) -> u8 {
        1 << (self.bits() - 1)
    }
}

/// A packed matrix.
#[derive(Debug, Clone)]
pub struct Packed {
    bytes: Bytes,
    layout: Layout,
}

impl Packed {
    /// A matrix that lies in `bytes`.
    ///
    /// # Panics
    /// If that is another number of bytes than the layout's.
    pub fn new(layout: Layout, bytes: Bytes) -> Self {
        assert_eq!(bytes.len(), layout.bytes(), "a packed matrix fills its bytes");
        Self { bytes, layout }
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Codes `[panels][panel_bytes]`.
    pub(super) fn codes(&self) -> &[u8] {
        &self.bytes[..self.layout.panels() * self.layout.panel_bytes()]
    }

    /// Scales `[panels][panel_scales][scale_bytes]`.
    pub(super) fn scales(&self) -> &[u8] {
        let bytes = self.layout.panels() * self.layout.panel_scales() * self.layout.scale_bytes();
        &self.bytes[self.layout.scales_at()..][..bytes]
    }

    /// Zero points `[panels][panel_scales]`, none in formats without.
    pub(super) fn zeros(&self) -> &[u8] {
        let count = if self.layout.format == Format::Int4Zero {
            self.layout.panels() * self.layout.panel_scales()
        } else {
            0
        };
        &self.bytes[self.layout.zeros_at()..][..count]
    }

    /// Scale and zero point of an output and column.
    pub(super) fn scale_zero(&self, row: usize, col: usize) -> (f32, u8) {
        let Layout { format, .. } = self.layout;
        let group = if format.has_groups() { col / GROUP } else { 0 };
        let index = row / PANEL * self.layout.panel_scales() + group * PANEL + row % PANEL;
        let at = self.layout.scales_at() + index * self.layout.scale_bytes();
        let scale = match format.has_groups() {
            true => half::f16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]).to_f32(),
            false => f32::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i])),
        };
        let zero = match format {
            Format::Int4Zero => self.bytes[self.layout.zeros_at() + index],
            _ => format.zero(),
        };
        (scale, zero)
    }

    /// The code of an output and column.
    pub(super) fn code(&self, row: usize, col: usize) -> u8 {
        let (at, high) = self.layout.code_at(col, row % PANEL);
        let byte = self.bytes[row / PANEL * self.layout.panel_bytes() + at];
        match self.layout.format.bits() {
            4 if high => byte >> 4,
            4 => byte & 15,
            _ => byte,
        }
    }

    /// The weights of output `row`, as they are multiplied with; `to` has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        for (col, to) in to.iter_mut().enumerate() {
            let (scale, zero) = self.scale_zero(row, col);
            *to = scale * (i32::from(self.code(row, col)) - i32::from(zero)) as f32;
        }
    }
}
