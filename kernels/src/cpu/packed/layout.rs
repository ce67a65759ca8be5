//! Where the parts of a packed matrix are.

use super::super::input::{Encoding, GROUP};
use super::format::{Format, Scales, Spec, Weights};
use crate::leaves::{MAX_LEAVES, UNIT};

/// Outputs in a panel.
pub const PANEL: usize = 16;
/// Alignment of the parts of a packed matrix, in bytes.
pub(super) const PART_ALIGN: usize = 64;

/// Format and shape of a packed matrix, which determine where its parts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Storage format of the weights.
    pub format: Format,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// Number of leaves of the sums over the inputs; see [`leaves`](crate::leaves).
    pub leaves: usize,
}

impl Layout {
    /// Layout with one leaf.
    pub fn new(format: Format, rows: usize, cols: usize) -> Self {
        Self { format, rows, cols, leaves: 1 }
    }

    /// Asserts that the inputs can be divided into the leaves.
    pub(super) fn check(&self) {
        let Self { cols, leaves, .. } = *self;
        let is_cut = leaves.is_power_of_two() && leaves <= MAX_LEAVES && cols.is_multiple_of(leaves * UNIT);
        assert!(leaves == 1 || is_cut, "{cols} inputs are cut into {leaves} leaves of whole units");
    }

    /// Encoding of activations for a product with these weights. For bfloat16 weights, `bf16` selects whether
    /// activations are rounded to bfloat16 as well.
    pub fn encoding(&self, bf16: bool) -> Encoding {
        self.format.encoding(bf16)
    }

    /// Inputs per leaf.
    pub fn leaf_cols(&self) -> usize {
        self.cols / self.leaves
    }

    /// Groups of 32 columns per leaf.
    pub(in crate::cpu) fn leaf_groups(&self) -> usize {
        self.leaf_cols().div_ceil(GROUP)
    }

    /// Panels of sixteen outputs; the last one may be partial.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Groups of 32 columns; the last one may be partial.
    pub fn groups(&self) -> usize {
        self.cols.div_ceil(GROUP)
    }

    /// Bytes of a panel's values or codes.
    pub fn panel_bytes(&self) -> usize {
        let Spec { bits, columns, inserted, .. } = self.format.0;
        let codes = self.cols.next_multiple_of(*columns) * PANEL * *bits as usize / 8;
        codes + self.cols.div_ceil(inserted.columns) * inserted.bytes
    }

    /// Scales per panel.
    pub fn panel_scales(&self) -> usize {
        match self.format.scales() {
            None => 0,
            Some(Scales::Outputs) => self.leaves * PANEL,
            Some(Scales::Groups) => self.groups() * PANEL,
            Some(Scales::Spans(_)) => self.leaves * self.leaf_spans() * PANEL,
        }
    }

    /// Most columns per scale; those of a leaf if there are no scales.
    pub fn scale_cols(&self) -> usize {
        match self.format.scales() {
            None | Some(Scales::Outputs) => self.leaf_cols(),
            Some(Scales::Groups) => GROUP,
            Some(Scales::Spans(columns)) => columns,
        }
    }

    /// Scales per output and leaf.
    pub(in crate::cpu) fn leaf_spans(&self) -> usize {
        self.leaf_cols().div_ceil(self.scale_cols().max(1))
    }

    /// First column of each scale of an output.
    pub fn scale_starts(&self) -> Vec<usize> {
        let of_leaf = |leaf: usize| {
            (0..self.leaf_spans()).map(move |span| leaf * self.leaf_cols() + span * self.scale_cols())
        };
        (0..self.leaves).flat_map(of_leaf).collect()
    }

    /// Separately stored zero points per panel.
    pub fn panel_zeros(&self) -> usize {
        let has_zeros = matches!(self.format.0.weights, Weights::Codes { has_zeros: true, .. });
        if has_zeros { self.panel_scales() } else { 0 }
    }

    /// Bytes per scale.
    pub fn scale_bytes(&self) -> usize {
        if self.format.scales() == Some(Scales::Groups) { 2 } else { 4 }
    }

    /// Byte offset of the scales.
    pub fn scales_at(&self) -> usize {
        (self.panels() * self.panel_bytes()).next_multiple_of(PART_ALIGN)
    }

    /// Byte offset of the zero points.
    pub fn zeros_at(&self) -> usize {
        (self.scales_at() + self.panels() * self.panel_scales() * self.scale_bytes())
            .next_multiple_of(PART_ALIGN)
    }

    /// Byte offset of the part that only the format reads.
    pub(super) fn tail_at(&self) -> usize {
        (self.zeros_at() + self.panels() * self.panel_zeros()).next_multiple_of(PART_ALIGN)
    }

    /// Size of the packed matrix in bytes.
    pub fn bytes(&self) -> usize {
        let tail = self.format.0.tail.as_ref().map_or(0, |tail| (tail.bytes)(self));
        (self.tail_at() + tail).next_multiple_of(PART_ALIGN)
    }

    /// Whether codes are floating-point numbers, stored column by column.
    fn is_by_column(&self) -> bool {
        matches!(self.format.0.weights, Weights::Numbers { .. })
    }

    /// Position in a panel's codes of column `col` of output `lane`: the byte, and whether it is in the high
    /// half.
    pub(in crate::cpu) fn code_at(&self, col: usize, lane: usize) -> (usize, bool) {
        let Spec { bits, inserted, .. } = self.format.0;
        let before = (col / inserted.columns + 1) * inserted.bytes;
        match *bits {
            4 if self.is_by_column() => (col / 2 * PANEL + lane, col % 2 == 1),
            _ if self.is_by_column() => (col * PANEL + lane, false),
            4 => (before + (col / 8 * PANEL + lane) * 4 + col % 4, col % 8 >= 4),
            _ => (before + (col / 4 * PANEL + lane) * 4 + col % 4, false),
        }
    }
}
