//! Weights in the layouts that multiplication reads.
//!
//! A packed matrix is one run of bytes, so that it can lie in a file: values or codes, then scales, then zero points, then what
//! else its format has, each part from a multiple of 64 bytes on. Outputs are taken sixteen at a time (a panel), so that an
//! output is a lane and no vector has to be summed up at the end. Rows and columns that the matrix does not have are filled up
//! with zeros, or codes that mean zero.
//!
//! ```text
//! values  [panels][columns][16 outputs], or as the format's file says
//! codes   8 bits: [panels][columns / 4][16 outputs][4 columns]: `VPDPBUSD` multiplies four bytes of a lane
//!         4 bits: [panels][columns / 8][16 outputs][4]: column j low, column j + 4 high
//! scales  one for each output: f32 [panels][16]; for each group of 32 columns: f16 [panels][groups][16]
//! zeros   u8 [panels][groups][16], in formats that have them
//! ```
//!
//! An integer weight is `scale * (code - zero)`; codes are unsigned. Formats without zero points have 128 for all.
//!
//! Each format is one file of [`formats`]: its numbers, how it is packed and widened, and its kernel. The rest asks [`Format`].

mod error;
pub(super) mod formats;
mod given;
mod rounding;
mod scale;
#[cfg(test)]
mod tests;
mod values;

pub use error::{NotFinite, PackError};
pub use given::{GivenCodes, pack_codes};

use super::Cpu;
use super::input::{Form, GROUP};
use super::matrix::WeightMatrix;
use skein_sys::mapped::Bytes;

/// Changes whenever the same weights would be packed to other bytes: part of what packed weights are kept under.
pub const VERSION: u32 = 5;
/// The zero point of codes as they are multiplied with, in formats that do not store any.
pub(super) const ZERO: u8 = 128;
/// Outputs of a panel.
pub const PANEL: usize = 16;
/// Parts of a packed matrix start at multiples of this.
const PART_ALIGN: usize = 64;

/// How weights lie. [`formats`] lists all.
#[derive(Clone, Copy)]
pub struct Format(&'static Spec);

/// What a format says of itself.
pub(super) struct Spec {
    /// In logs, and in the keys of packed files: it never changes.
    pub(super) name: &'static str,
    /// In the names of packed files.
    pub(super) file_name: &'static str,
    /// Bits of a value or code.
    pub(super) bits: u32,
    /// Columns that a panel has a multiple of.
    pub(super) columns: usize,
    /// What lies among a panel's codes.
    pub(super) inserted: Inserted,
    /// Whether weights are numbers or codes.
    pub(super) weights: Weights,
    /// Vectors of sums that a vector of results takes: with an instruction that multiplies codes four by four, and without.
    pub(super) sums: [usize; 2],
    /// The format of a model's head where this is that of its layers; the same if `None`.
    pub(super) head: Option<Format>,
    /// What lies behind values, scales and zero points.
    pub(super) tail: Option<Tail>,
    /// Writes a matrix in a layout of this format, with all threads; see [`pack`].
    pub(super) pack: Pack,
}

/// [`Spec::pack`].
type Pack = fn(&mut Cpu, &WeightMatrix, Layout, &mut [u8]) -> Result<(), PackError>;

impl Spec {
    /// Nothing among codes or behind them, a vector of sums for each of results, and heads as layers.
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

/// Bytes that lie among a panel's codes.
pub(super) struct Inserted {
    /// Columns whose codes follow them.
    pub(super) columns: usize,
    /// Bytes before those.
    pub(super) bytes: usize,
}

impl Inserted {
    /// Codes lie side by side.
    pub(super) const NOTHING: Self = Self { columns: GROUP, bytes: 0 };
}

/// What weights are.
pub(super) enum Weights {
    /// Floating-point numbers.
    Values {
        /// That of an output and column.
        value: fn(&Packed, usize, usize) -> f32,
        /// Whether activations may be rounded to bfloat16, as these are.
        is_bf16: bool,
    },
    /// Codes of small integers.
    Codes {
        /// That of an output and column, as it is multiplied with.
        code: fn(&Packed, usize, usize) -> u8,
        /// What a scale is for.
        scales: Scales,
        /// Whether zero points are stored.
        has_zeros: bool,
    },
}

/// What has a scale of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// Each output; in single precision.
    Outputs,
    /// Each output's groups of 32 columns; in half precision.
    Groups,
}

/// A part of a packed matrix that only its format reads.
pub(super) struct Tail {
    /// Its bytes.
    pub(super) bytes: fn(&Layout) -> usize,
    /// How many of them no product reads.
    pub(super) unread: fn(&Packed) -> usize,
}

impl Format {
    /// For logs.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// In the names of packed files.
    pub const fn file_name(self) -> &'static str {
        self.0.file_name
    }

    /// Bits of a value or code.
    pub const fn bits(self) -> u32 {
        self.0.bits
    }

    /// Whether weights are codes of small integers, and activations too.
    pub const fn is_integer(self) -> bool {
        matches!(self.0.weights, Weights::Codes { .. })
    }

    /// The form that activations have when they are multiplied with such weights: where weights are bfloat16, `bf16` says
    /// whether activations are rounded to it too.
    pub const fn form(self, bf16: bool) -> Form {
        match self.0.weights {
            Weights::Codes { .. } => Form::Int8,
            Weights::Values { is_bf16: true, .. } if bf16 => Form::Bf16,
            Weights::Values { .. } => Form::F32,
        }
    }

    /// The format of the head of a model whose layers have this one: nothing after it makes up for a logit's error, so that the
    /// head never has less than 8 bits.
    pub fn of_head(self) -> Self {
        self.0.head.unwrap_or(self)
    }

    /// Vectors of sums that a vector of results takes, on an instruction set that has a product of codes four by four or not.
    pub(super) const fn sums(self, has_dot: bool) -> usize {
        self.0.sums[if has_dot { 0 } else { 1 }]
    }

    /// What has a scale of its own, if anything has.
    const fn scales(self) -> Option<Scales> {
        match self.0.weights {
            Weights::Codes { scales, .. } => Some(scales),
            Weights::Values { .. } => None,
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

/// Where the parts of a packed matrix lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// How weights lie.
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

    /// Bytes of a panel's values or codes.
    pub fn panel_bytes(&self) -> usize {
        let Spec { bits, columns, inserted, .. } = self.format.0;
        let codes = self.cols.next_multiple_of(*columns) * PANEL * *bits as usize / 8;
        codes + self.cols.div_ceil(inserted.columns) * inserted.bytes
    }

    /// Scales of a panel.
    pub fn panel_scales(&self) -> usize {
        match self.format.scales() {
            None => 0,
            Some(Scales::Outputs) => PANEL,
            Some(Scales::Groups) => self.groups() * PANEL,
        }
    }

    /// Zero points of a panel, where they lie apart.
    pub fn panel_zeros(&self) -> usize {
        let has_zeros = matches!(self.format.0.weights, Weights::Codes { has_zeros: true, .. });
        if has_zeros { self.panel_scales() } else { 0 }
    }

    /// Bytes of a scale.
    pub fn scale_bytes(&self) -> usize {
        if self.format.scales() == Some(Scales::Groups) { 2 } else { 4 }
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

    /// Where the part that only the format reads starts.
    fn tail_at(&self) -> usize {
        (self.zeros_at() + self.panels() * self.panel_zeros()).next_multiple_of(PART_ALIGN)
    }

    /// All bytes.
    pub fn bytes(&self) -> usize {
        let tail = self.format.0.tail.as_ref().map_or(0, |tail| (tail.bytes)(self));
        (self.tail_at() + tail).next_multiple_of(PART_ALIGN)
    }

    /// Where in a panel's codes column `col` of output `lane` lies: the byte, and whether in its high half.
    pub(super) fn code_at(&self, col: usize, lane: usize) -> (usize, bool) {
        let Spec { bits, inserted, .. } = self.format.0;
        let before = (col / inserted.columns + 1) * inserted.bytes;
        match *bits {
            4 => (before + (col / 8 * PANEL + lane) * 4 + col % 4, col % 8 >= 4),
            _ => (before + (col / 4 * PANEL + lane) * 4 + col % 4, false),
        }
    }
}

/// Writes `from` to `to` in `layout`, with all threads: rounded where its format is one of integers.
///
/// # Errors
/// If a weight that is to be rounded is infinite or no number, or exponents are too many to be folded. `to` then holds nothing
/// of use.
///
/// # Panics
/// If the shapes disagree, or the layout is that of other floating-point numbers.
pub fn pack(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    assert_eq!((from.rows(), from.cols()), (layout.rows, layout.cols), "the layout is the matrix's");
    assert_eq!(to.len(), layout.bytes(), "a packed matrix fills its bytes");
    (layout.format.0.pack)(cpu, from, layout, to)
}

/// A packed matrix `[rows, cols]`: row `n` holds the weights of output `n`.
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

    /// `from` in `format`, in memory.
    ///
    /// # Errors
    /// See [`pack`].
    pub fn of(cpu: &mut Cpu, from: &WeightMatrix, format: Format) -> Result<Self, PackError> {
        let layout = Layout { format, rows: from.rows(), cols: from.cols() };
        let mut bytes = vec![0; layout.bytes()];
        pack(cpu, from, layout, &mut bytes)?;
        Ok(Self::new(layout, bytes.into()))
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.layout.cols
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that a multiplication reads.
    pub fn read_bytes(&self) -> usize {
        self.bytes.len() - self.layout.format.0.tail.as_ref().map_or(0, |tail| (tail.unread)(self))
    }

    /// Values or codes `[panels][panel_bytes]`.
    pub(super) fn values(&self) -> &[u8] {
        &self.bytes[..self.layout.panels() * self.layout.panel_bytes()]
    }

    /// Scales `[panels][panel_scales][scale_bytes]`.
    pub(super) fn scales(&self) -> &[u8] {
        let bytes = self.layout.panels() * self.layout.panel_scales() * self.layout.scale_bytes();
        &self.bytes[self.layout.scales_at()..][..bytes]
    }

    /// Zero points `[panels][panel_zeros]`, none in formats without.
    pub(super) fn zeros(&self) -> &[u8] {
        &self.bytes[self.layout.zeros_at()..][..self.layout.panels() * self.layout.panel_zeros()]
    }

    /// The panel of output `row`: values or codes.
    fn panel_of(&self, row: usize) -> &[u8] {
        &self.values()[row / PANEL * self.layout.panel_bytes()..][..self.layout.panel_bytes()]
    }

    /// Scale and zero point of an output's and column's [`Packed::code`].
    pub(super) fn scale_zero(&self, row: usize, col: usize) -> (f32, u8) {
        let has_groups = self.layout.format.scales() == Some(Scales::Groups);
        let group = if has_groups { col / GROUP } else { 0 };
        let index = row / PANEL * self.layout.panel_scales() + group * PANEL + row % PANEL;
        let scale = &self.scales()[index * self.layout.scale_bytes()..];
        let scale = if has_groups {
            half::f16::from_le_bytes([scale[0], scale[1]]).to_f32()
        } else {
            f32::from_le_bytes(std::array::from_fn(|i| scale[i]))
        };
        (scale, self.zeros().get(index).copied().unwrap_or(ZERO))
    }

    /// The code of an output and column, as it is multiplied with.
    pub(super) fn code(&self, row: usize, col: usize) -> u8 {
        match self.layout.format.0.weights {
            Weights::Codes { code, .. } => code(self, row, col),
            Weights::Values { .. } => unreachable!("numbers have no codes"),
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

    /// The weights of output `row`, as they are multiplied with; `to` has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        for (col, to) in to.iter_mut().enumerate() {
            *to = match self.layout.format.0.weights {
                Weights::Values { value, .. } => value(self, row, col),
                Weights::Codes { .. } => {
                    let (scale, zero) = self.scale_zero(row, col);
                    scale * (i32::from(self.code(row, col)) - i32::from(zero)) as f32
                }
            };
        }
    }
}
