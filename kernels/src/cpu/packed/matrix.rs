//! A packed matrix, and its weights one by one.

use skein_sys::mapped::Bytes;

use super::super::input::{GROUP, Order, ZERO};
use super::format::{Scales, Weights};
use super::layout::{Layout, PANEL};

/// A packed matrix `[rows, cols]`: row `n` has the weights of output `n`.
#[derive(Debug, Clone)]
pub struct Packed {
    bytes: Bytes,
    layout: Layout,
    order: Option<Order>,
}

impl Packed {
    /// A packed matrix in `bytes`.
    ///
    /// # Panics
    /// If `bytes` does not have the layout's size.
    pub fn new(layout: Layout, bytes: Bytes) -> Self {
        assert_eq!(bytes.len(), layout.bytes(), "a packed matrix fills its bytes");
        layout.check();
        Self { bytes, layout, order: None }
    }

    /// The same matrix with column `i` assigned to input `order[i]`.
    ///
    /// # Panics
    /// If the number of entries differs from the number of columns.
    pub fn with_order(self, order: Option<Order>) -> Self {
        assert!(order.as_ref().is_none_or(|order| order.len() == self.cols()), "an input for each column");
        Self { order, ..self }
    }

    /// Order set by [`Packed::with_order`].
    pub fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// Format and shape.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        self.layout.cols
    }

    /// All bytes of the packed matrix.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that a product reads.
    pub fn read_bytes(&self) -> usize {
        self.bytes.len() - self.layout.format.0.tail.as_ref().map_or(0, |tail| (tail.unread)(self))
    }

    /// Values or codes `[panels][panel_bytes]`.
    pub(in crate::cpu) fn values(&self) -> &[u8] {
        &self.bytes[..self.layout.panels() * self.layout.panel_bytes()]
    }

    /// The scales, `[panels][panel_scales][scale_bytes]`.
    pub(in crate::cpu) fn scales(&self) -> &[u8] {
        let bytes = self.layout.panels() * self.layout.panel_scales() * self.layout.scale_bytes();
        &self.bytes[self.layout.scales_at()..][..bytes]
    }

    /// Zero points `[panels][panel_zeros]`; empty if the format has none.
    pub(in crate::cpu) fn zeros(&self) -> &[u8] {
        &self.bytes[self.layout.zeros_at()..][..self.layout.panels() * self.layout.panel_zeros()]
    }

    /// The values or codes of the panel with output `row`.
    pub(super) fn panel_of(&self, row: usize) -> &[u8] {
        &self.values()[row / PANEL * self.layout.panel_bytes()..][..self.layout.panel_bytes()]
    }

    /// Scale and zero point that belong to [`Packed::code`] of an output and column.
    pub(in crate::cpu) fn scale_zero(&self, row: usize, col: usize) -> (f32, u8) {
        let has_groups = self.layout.format.scales() == Some(Scales::Groups);
        let group = if has_groups {
            col / GROUP
        } else {
            let (leaf, col) = (col / self.layout.leaf_cols(), col % self.layout.leaf_cols());
            leaf * self.layout.leaf_spans() + col / self.layout.scale_cols()
        };
        let index = row / PANEL * self.layout.panel_scales() + group * PANEL + row % PANEL;
        let scale = &self.scales()[index * self.layout.scale_bytes()..];
        let scale = if has_groups {
            half::f16::from_le_bytes([scale[0], scale[1]]).to_f32()
        } else {
            f32::from_le_bytes(std::array::from_fn(|i| scale[i]))
        };
        (scale, self.zeros().get(index).copied().unwrap_or(ZERO))
    }

    /// The code of an output and column, as it is multiplied.
    pub(in crate::cpu) fn code(&self, row: usize, col: usize) -> u8 {
        match self.layout.format.0.weights {
            Weights::Codes { code, .. } => code(self, row, col),
            Weights::Values { .. } | Weights::Numbers { .. } | Weights::Blocks { .. } => {
                unreachable!("it has no separate codes")
            }
        }
    }

    /// The code of an output and column, as it is stored.
    pub(super) fn stored_code(&self, row: usize, col: usize) -> u8 {
        let (at, is_high) = self.layout.code_at(col, row % PANEL);
        let byte = self.panel_of(row)[at];
        match self.layout.format.bits() {
            4 if is_high => byte >> 4,
            4 => byte & 15,
            _ => byte,
        }
    }

    /// Writes the weights of output `row`, as they are multiplied, to `to`, which has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        for (col, to) in to.iter_mut().enumerate() {
            *to = match self.layout.format.0.weights {
                Weights::Values { value, .. } => value(self, row, col),
                Weights::Blocks { weight, .. } => weight(self, row, col),
                Weights::Numbers { number, .. } => number(self, row, col) * self.scale_zero(row, col).0,
                Weights::Codes { .. } => {
                    let (scale, zero) = self.scale_zero(row, col);
                    scale * (i32::from(self.code(row, col)) - i32::from(zero)) as f32
                }
            };
        }
    }
}
