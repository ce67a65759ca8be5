//! Weights packed in the layouts that products read.
//!
//! A packed matrix is contiguous in memory, so that it can be a file: values or codes, then scales, zero
//! points, and the format's own data, each part aligned to 64 bytes. Outputs are grouped in panels of
//! sixteen, so that an output is a lane and no vector is summed across. Panels and groups are padded with
//! zeros, or with codes of zero.
//!
//! ```text
//! values  [panels][columns][16 outputs], or as the format's file says
//! codes   8 bits: [panels][columns / 4][16 outputs][4 columns]: `VPDPBUSD` multiplies four bytes of a lane
//!         4 bits: [panels][columns / 8][16 outputs][4]: column j low, column j + 4 high
//! scales  one for each output and leaf: f32 [panels][leaves][16]
//!         or for each group of 32 columns: f16 [panels][groups][16]
//!         or for each span of some columns of a leaf: f32 [panels][leaves][spans][16]
//! zeros   u8 [panels][groups][16], in formats that have them
//! ```
//!
//! A matrix with several [leaves](crate::leaves) is divided at them. Only the scales of outputs change, and a
//! rank that packs only its own leaves gets the same numbers.
//!
//! An integer weight is `scale * (code - zero)` with unsigned codes. In formats without zero points, zero is
//! 128.
//!
//! Each format is a module in [`formats`] with its specification, packing, widening and kernel. Other code
//! uses [`Format`].

mod error;
pub(super) mod formats;
mod given;
mod given_rows;
mod rounding;
mod scale;
#[cfg(test)]
mod tests;
mod values;

pub use error::{NotFinite, PackError};
pub use formats::to_e4m3;
pub use given::{GivenCodes, pack_codes};
pub use given_rows::{GivenRow, GivenRows, pack_rows};

use super::Cpu;
use super::blocks::BlockType;
use super::input::{Encoding, GROUP};
use super::matrix::{Storage, WeightMatrix};
use crate::leaves::{MAX_LEAVES, UNIT};
use skein_sys::mapped::Bytes;

/// Version of the packed layouts; part of the key of cached packed weights. Increase it whenever the same
/// weights would be packed to other bytes.
pub const VERSION: u32 = 6;
/// Zero point of codes as they are multiplied, in formats that do not store zero points.
pub(super) const ZERO: u8 = 128;
/// Outputs in a panel.
pub const PANEL: usize = 16;
/// Alignment of the parts of a packed matrix, in bytes.
const PART_ALIGN: usize = 64;

/// Storage format of packed weights; [`formats`] lists all.
#[derive(Clone, Copy)]
pub struct Format(&'static Spec);

/// Specification of a format.
pub(super) struct Spec {
    /// Name in logs and in the keys of packed files. Never changes.
    pub(super) name: &'static str,
    /// Name in the file names of packed files.
    pub(super) file_name: &'static str,
    /// Bits per value or code.
    pub(super) bits: u32,
    /// The number of columns of a panel is padded to a multiple of this.
    pub(super) columns: usize,
    /// Bytes inserted among a panel's codes.
    pub(super) inserted: Inserted,
    /// Whether weights are numbers or codes.
    pub(super) weights: Weights,
    /// Vectors of sums per vector of results: with an instruction that multiplies codes four by four, and
    /// without.
    pub(super) sums: [usize; 2],
    /// Format of the model's head if its layers have this format; `None` = this one.
    pub(super) head: Option<Format>,
    /// Data after values, scales and zero points, if any.
    pub(super) tail: Option<Tail>,
    /// Packs a matrix to this format with all threads; see [`pack`].
    pub(super) pack: Pack,
}

/// Type of [`Spec::pack`].
type Pack = fn(&mut Cpu, &WeightMatrix, Layout, &mut [u8]) -> Result<(), PackError>;

impl Spec {
    /// A format without inserted bytes, tail or special head, with one vector of sums per vector of results.
    pub(super) const fn new(
        names: [&'static str; 2],
        bits: u32,
        columns: usize,
        weights: Weights,
        pack: Pack,
    ) -> Self {
        let ([name, file_name], inserted) = (names, Inserted::NOTHING);
        Self { name, file_name, bits, columns, inserted, weights, sums: [1, 1], head: None, tail: None, pack }
    }
}

/// Bytes that are inserted among a panel's codes.
pub(super) struct Inserted {
    /// Columns whose codes follow each insertion.
    pub(super) columns: usize,
    /// Bytes per insertion.
    pub(super) bytes: usize,
}

impl Inserted {
    /// Nothing inserted: codes are contiguous.
    pub(super) const NOTHING: Self = Self { columns: GROUP, bytes: 0 };
}

/// The kind of a format's weights, and how to read one.
pub(super) enum Weights {
    /// Weights are floating-point numbers.
    Values {
        /// Reads the value of an output and column.
        value: fn(&Packed, usize, usize) -> f32,
        /// Whether weights are bfloat16, so that activations may be rounded to bfloat16, too.
        is_bf16: bool,
    },
    /// Codes of small integers.
    Codes {
        /// Reads the code of an output and column, as it is multiplied.
        code: fn(&Packed, usize, usize) -> u8,
        /// Granularity of the scales.
        scales: Scales,
        /// Whether zero points are stored.
        has_zeros: bool,
    },
    /// Small-integer codes, interleaved with the parameters of blocks of this type.
    Blocks(BlockType),
    /// Codes of floating-point numbers, times a scale: `[columns][16 outputs]` of 8 bits, or two columns per
    /// byte, the even one low.
    Numbers {
        /// Reads the number of an output and column, in `units`.
        number: fn(&Packed, usize, usize) -> f32,
        /// Granularity of the scales.
        scales: Scales,
        /// Unit of the numbers, a power of two that is multiplied into the stored scales.
        units: f32,
    },
}

/// Granularity of scales.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// One per output and leaf, in single precision.
    Outputs,
    /// One per output and group of 32 columns, in half precision.
    Groups,
    /// One per output and span of this many columns of a leaf, in single precision. A leaf's last span may be
    /// shorter.
    Spans(usize),
}

/// A part of a packed matrix that only its format reads.
pub(super) struct Tail {
    /// Size in bytes.
    pub(super) bytes: fn(&Layout) -> usize,
    /// Number of its bytes that no product reads.
    pub(super) unread: fn(&Packed) -> usize,
}

impl Format {
    /// Name for logs.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Name in the file names of packed files.
    pub const fn file_name(self) -> &'static str {
        self.0.file_name
    }

    /// Bits per value or code.
    pub const fn bits(self) -> u32 {
        self.0.bits
    }

    /// Whether weights are codes of small integers; then activations are, too.
    pub const fn is_integer(self) -> bool {
        matches!(self.0.weights, Weights::Codes { .. } | Weights::Blocks(_))
    }

    /// Encoding of the activations that these weights are multiplied by.
    const fn encoding(self, bf16: bool) -> Encoding {
        match self.0.weights {
            Weights::Codes { .. } | Weights::Blocks(_) => Encoding::Int8,
            Weights::Values { is_bf16: true, .. } if bf16 => Encoding::Bf16,
            Weights::Values { .. } | Weights::Numbers { .. } => Encoding::F32,
        }
    }

    /// Format of the head of a model whose layers have this format. A head never has less than 8 bits,
    /// because nothing after it compensates for errors of its logits.
    pub fn of_head(self) -> Self {
        self.0.head.unwrap_or(self)
    }

    /// Vectors of sums per vector of results, for an instruction set with or without a product of codes four
    /// by four.
    pub(super) const fn sums(self, has_dot: bool) -> usize {
        self.0.sums[if has_dot { 0 } else { 1 }]
    }

    /// Granularity of the scales; `None` if there are no scales.
    const fn scales(self) -> Option<Scales> {
        match self.0.weights {
            Weights::Codes { scales, .. } | Weights::Numbers { scales, .. } => Some(scales),
            Weights::Values { .. } | Weights::Blocks(_) => None,
        }
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Format {}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

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
    fn check(&self) {
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
    pub(super) fn leaf_groups(&self) -> usize {
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
    pub(super) fn leaf_spans(&self) -> usize {
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
    fn tail_at(&self) -> usize {
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
    pub(super) fn code_at(&self, col: usize, lane: usize) -> (usize, bool) {
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

/// Packs `from` to `to` in `layout`, with all threads. Integer formats quantise the weights; blocks keep
/// their codes.
///
/// # Errors
/// If a weight to be quantised is NaN or infinite, or if there are too many different exponents to fold. `to`
/// is then unusable.
///
/// # Panics
/// If the shapes disagree, or the layout's format has a different floating-point type.
pub fn pack(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    assert_eq!((from.rows(), from.cols()), (layout.rows, layout.cols), "the layout has the matrix's shape");
    assert_eq!(to.len(), layout.bytes(), "a packed matrix fills its bytes");
    layout.check();
    if let Storage::Blocks(kind, _) = from.storage() {
        return formats::blocks::pack(cpu, from, *kind, layout, to);
    }
    (layout.format.0.pack)(cpu, from, layout, to)
}

/// A packed matrix `[rows, cols]`: row `n` has the weights of output `n`.
#[derive(Debug, Clone)]
pub struct Packed {
    bytes: Bytes,
    layout: Layout,
    order: Option<Order>,
}

/// Input of each packed column, if columns are not in the order of the inputs.
pub type Order = std::sync::Arc<[u32]>;

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

    /// Packs `from` to `format`, in memory.
    ///
    /// # Errors
    /// See [`pack`].
    pub fn of(cpu: &mut Cpu, from: &WeightMatrix, format: Format) -> Result<Self, PackError> {
        Self::in_layout(cpu, from, Layout::new(format, from.rows(), from.cols()))
    }

    /// Packs `from` in `layout`, in memory.
    ///
    /// # Errors
    /// As for [`pack`].
    ///
    /// # Panics
    /// As for [`pack`].
    pub fn in_layout(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout) -> Result<Self, PackError> {
        let mut bytes = vec![0; layout.bytes()];
        pack(cpu, from, layout, &mut bytes)?;
        Ok(Self::new(layout, bytes.into()))
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
    pub(super) fn values(&self) -> &[u8] {
        &self.bytes[..self.layout.panels() * self.layout.panel_bytes()]
    }

    /// The scales, `[panels][panel_scales][scale_bytes]`.
    pub(super) fn scales(&self) -> &[u8] {
        let bytes = self.layout.panels() * self.layout.panel_scales() * self.layout.scale_bytes();
        &self.bytes[self.layout.scales_at()..][..bytes]
    }

    /// Zero points `[panels][panel_zeros]`; empty if the format has none.
    pub(super) fn zeros(&self) -> &[u8] {
        &self.bytes[self.layout.zeros_at()..][..self.layout.panels() * self.layout.panel_zeros()]
    }

    /// The values or codes of the panel with output `row`.
    fn panel_of(&self, row: usize) -> &[u8] {
        &self.values()[row / PANEL * self.layout.panel_bytes()..][..self.layout.panel_bytes()]
    }

    /// Scale and zero point that belong to [`Packed::code`] of an output and column.
    pub(super) fn scale_zero(&self, row: usize, col: usize) -> (f32, u8) {
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
    pub(super) fn code(&self, row: usize, col: usize) -> u8 {
        match self.layout.format.0.weights {
            Weights::Codes { code, .. } => code(self, row, col),
            Weights::Values { .. } | Weights::Numbers { .. } | Weights::Blocks(_) => {
                unreachable!("it has no separate codes")
            }
        }
    }

    /// The code of an output and column, as it is stored.
    fn stored_code(&self, row: usize, col: usize) -> u8 {
        let (at, is_high) = self.layout.code_at(col, row % PANEL);
        let byte = self.panel_of(row)[at];
        match self.layout.format.bits() {
            4 if is_high => byte >> 4,
            4 => byte & 15,
            _ => byte,
        }
    }

    /// Writes the codes of output `row`, as they are multiplied, its scales and zero points to `to`, whose
    /// starts are [`Layout::scale_starts`]. For integer formats other than blocks.
    pub fn codes_of_row(&self, row: usize, to: GivenRow<'_>) {
        to.codes.iter_mut().enumerate().for_each(|(col, code)| *code = self.code(row, col));
        for (i, start) in to.starts.iter().enumerate() {
            (to.scales[i], to.zeros[i]) = self.scale_zero(row, *start);
        }
    }

    /// Writes the weights of output `row`, as they are multiplied, to `to`, which has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        for (col, to) in to.iter_mut().enumerate() {
            *to = match self.layout.format.0.weights {
                Weights::Values { value, .. } => value(self, row, col),
                Weights::Blocks(_) => formats::blocks::weight(self, row, col),
                Weights::Numbers { number, .. } => number(self, row, col) * self.scale_zero(row, col).0,
                Weights::Codes { .. } => {
                    let (scale, zero) = self.scale_zero(row, col);
                    scale * (i32::from(self.code(row, col)) - i32::from(zero)) as f32
                }
            };
        }
    }
}
