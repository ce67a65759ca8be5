//! Weights in the layouts that multiplication reads, and how they are made: as stored, or as small integers.
//!
//! A packed matrix is one run of bytes, so that it can lie in a file: values or codes, then scales, then zero points, each part
//! from a multiple of 64 bytes on. Outputs are taken sixteen at a time (a panel), so that an output is a lane and no vector has
//! to be summed up at the end. Rows and columns that the matrix does not have are filled up with zeros, or codes that mean
//! zero. bfloat16 lies in pairs of columns, as `VDPBF16PS` multiplies them; codes with columns in fours (`VPDPBUSD` multiplies
//! four bytes of a lane):
//!
//! ```text
//! values  bfloat16: [panels][columns / 2][16 outputs][2 columns]; half and single: [panels][columns][16 outputs]
//! codes   8 bits: [panels][columns / 4][16 outputs][4 columns]
//!         4 bits: [panels][columns / 8][16 outputs][4]: column j low, column j + 4 high
//! scales  one for each output: f32 [panels][16]; for each group of 32 columns: f16 [panels][groups][16]
//! zeros   u8 [panels][groups][16], in formats that have them
//! ```
//!
//! An integer weight is `scale * (code - zero)`; codes are unsigned. Formats without zero points have 128 for all. Between the 4-bit
//! codes of [`Format::Int4`] lie its steps: before the codes of each four groups `[4 groups][16 outputs]` bytes, a zero point
//! in the high half and a multiplier in the low one. What its weights are multiplied as is `128 + multiplier * (code - zero)`.
//! [`fold`] describes [`Format::Bf16Folded`].

pub(super) mod fold;
mod pack;
mod scale;
#[cfg(test)]
mod tests;

use fold::Patches;
pub use pack::{NotFinite, PackError, pack};

use super::input::{Form, GROUP};
use skein_sys::mapped::Bytes;

/// Changes whenever the same weights would be packed to other bytes: part of what packed weights are kept under.
pub const VERSION: u32 = 5;
/// The zero point of codes as they are multiplied with, in formats that do not store any.
pub(super) const ZERO: u8 = 128;
/// Groups whose steps lie in one cache line, before their codes: one stream to read, in [`Format::Int4`].
pub(super) const STEP_GROUPS: usize = 4;
/// Bytes of such a line.
pub(super) const STEP_BYTES: usize = STEP_GROUPS * PANEL;
/// Bytes from one such line to the next.
pub(super) const STEP_LINE_BYTES: usize = STEP_BYTES + STEP_GROUPS * GROUP * PANEL / 2;
/// Outputs of a panel.
pub const PANEL: usize = 16;
/// Columns that lie beside each other in bfloat16; 16-bit panels have a multiple of them.
const PAIR: usize = 2;
/// Parts of a packed matrix start at multiples of this.
const PART_ALIGN: usize = 64;

/// How weights lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// bfloat16; subnormals become zero, as `VDPBF16PS` takes them.
    Bf16,
    /// The same values in 12 bits each, if few of their exponents are rare.
    Bf16Folded,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// 8 bits, a scale for each output.
    Int8,
    /// 8 bits, a scale for each output and group of 32 columns.
    Int8Group,
    /// 4 bits that become 8 of [`Format::Int8`] by a multiplier and a zero point of 4 bits each for each output and group of
    /// 32 columns: `multiplier * (code - zero point)`. QServe (arXiv 2405.04532) calls it progressive group quantization.
    Int4,
    /// 4 bits, a scale and a zero point for each output and group of 32 columns.
    Int4Zero,
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
        let columns = match self.format {
            Format::Bf16Folded => self.cols.next_multiple_of(fold::UNIT),
            format if format.is_integer() => self.groups() * GROUP,
            _ => self.cols.next_multiple_of(PAIR),
        };
        columns * PANEL * self.format.bits() as usize / 8 + self.inner_steps()
    }

    /// Bytes of steps among a panel's codes.
    fn inner_steps(&self) -> usize {
        if self.format == Format::Int4 { self.groups().div_ceil(STEP_GROUPS) * STEP_BYTES } else { 0 }
    }

    /// Scales of a panel.
    pub fn panel_scales(&self) -> usize {
        match self.format {
            Format::Bf16 | Format::Bf16Folded | Format::F16 | Format::F32 => 0,
            Format::Int8 | Format::Int4 => PANEL,
            Format::Int8Group | Format::Int4Zero => self.groups() * PANEL,
        }
    }

    /// Zero points of a panel, where they lie apart.
    pub fn panel_zeros(&self) -> usize {
        if self.format == Format::Int4Zero { self.panel_scales() } else { 0 }
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
        if self.format == Format::Bf16Folded {
            return self.folded_at()[3];
        }
        (self.zeros_at() + self.panels() * self.panel_zeros()).next_multiple_of(PART_ALIGN)
    }

    /// The byte of a panel at which the value of column `col` and output `lane` starts, in formats that are no integers.
    fn value_at(&self, col: usize, lane: usize) -> usize {
        match self.format {
            Format::Bf16 | Format::Bf16Folded => ((col / PAIR * PANEL + lane) * PAIR + col % PAIR) * 2,
            _ => (col * PANEL + lane) * self.format.bits() as usize / 8,
        }
    }

    /// Bytes of steps before a column's code.
    fn steps_until(col: usize) -> usize {
        (col / GROUP / STEP_GROUPS + 1) * STEP_BYTES
    }

    /// Where in a panel the steps of a column's group and output `lane` lie: a multiplier in the byte's low half, a zero point
    /// in its high one.
    pub(super) fn step_at(col: usize, lane: usize) -> usize {
        let group = col / GROUP;
        group / STEP_GROUPS * STEP_LINE_BYTES + group % STEP_GROUPS * PANEL + lane
    }

    /// Where in a panel's codes column `col` of output `lane` lies: the byte, and whether in its high half.
    pub(super) fn code_at(&self, col: usize, lane: usize) -> (usize, bool) {
        match self.format.bits() {
            4 => {
                let steps = if self.format == Format::Int4 { Self::steps_until(col) } else { 0 };
                (steps + (col / 8 * PANEL + lane) * 4 + col % 4, col % 8 >= 4)
            }
            _ => ((col / 4 * PANEL + lane) * 4 + col % 4, false),
        }
    }
}

impl Format {
    /// Whether weights are codes of small integers.
    pub const fn is_integer(self) -> bool {
        !matches!(self, Self::Bf16 | Self::Bf16Folded | Self::F16 | Self::F32)
    }

    /// Bits of a value or code.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F32 => 32,
            Self::Bf16 | Self::F16 => 16,
            Self::Bf16Folded => 12,
            Self::Int8 | Self::Int8Group => 8,
            Self::Int4 | Self::Int4Zero => 4,
        }
    }

    /// Whether each group of 32 columns has a scale of its own.
    pub const fn has_groups(self) -> bool {
        matches!(self, Self::Int8Group | Self::Int4Zero)
    }

    /// The form that activations have when they are multiplied with such weights: where weights are bfloat16, `bf16` says
    /// whether activations are rounded to it too.
    pub fn form(self, bf16: bool) -> Form {
        match self {
            Self::Bf16 | Self::Bf16Folded if bf16 => Form::Bf16,
            Self::Bf16 | Self::Bf16Folded | Self::F16 | Self::F32 => Form::F32,
            _ => Form::Int8,
        }
    }
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

    /// Bytes that a multiplication reads: all but the room for patches that there are not.
    pub fn read_bytes(&self) -> usize {
        match self.layout.format {
            Format::Bf16Folded => self.layout.folded_at()[2] + Patches::bytes(&self.bytes, &self.layout),
            _ => self.bytes.len(),
        }
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

    /// High bytes `[panels][16]` of [`Format::Bf16Folded`].
    pub(super) fn tables(&self) -> &[u8] {
        let [tables, starts, ..] = self.layout.folded_at();
        &self.bytes[tables..starts]
    }

    /// Bytes of a panel of [`Format::Bf16Folded`] once it is unfolded.
    pub(super) fn unfolded_panel_bytes(&self) -> usize {
        self.layout.panel_bytes() / fold::UNIT_BYTES * fold::UNFOLDED_BYTES
    }

    /// Patches of a panel of [`Format::Bf16Folded`].
    pub(super) fn patches(&self, panel: usize) -> Patches<'_> {
        Patches::of(&self.bytes, &self.layout, panel)
    }

    /// The value of an output and column of [`Format::Bf16Folded`].
    fn unfolded(&self, row: usize, col: usize) -> half::bf16 {
        let (panel, value) = (row / PANEL, self.layout.value_at(col, row % PANEL) / size_of::<u16>());
        let (low_at, number_at, is_high) = fold::folded_at(value);
        let values = &self.values()[panel * self.layout.panel_bytes()..];
        let number = if is_high { values[number_at] >> 4 } else { values[number_at] & 15 };
        let high = match self.patches(panel).get(value) {
            Some(high) => high,
            None => self.tables()[panel * fold::TABLE + usize::from(number)],
        };
        half::bf16::from_le_bytes([values[low_at], high])
    }

    /// The multiplier and the zero point of an output's and column's group in [`Format::Int4`].
    fn step(&self, row: usize, col: usize) -> (u8, u8) {
        let step = self.values()[row / PANEL * self.layout.panel_bytes() + Layout::step_at(col, row % PANEL)];
        (step & 15, step >> 4)
    }

    /// Scale and zero point of an output's and column's [`Packed::code`].
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
            Format::Int4Zero => self.zeros()[index],
            _ => ZERO,
        };
        (scale, zero)
    }

    /// The code of an output and column, as it is multiplied with.
    pub(super) fn code(&self, row: usize, col: usize) -> u8 {
        let (at, high) = self.layout.code_at(col, row % PANEL);
        let byte = self.bytes[row / PANEL * self.layout.panel_bytes() + at];
        let code = match self.layout.format.bits() {
            4 if high => byte >> 4,
            4 => byte & 15,
            _ => return byte,
        };
        if self.layout.format != Format::Int4 {
            return code;
        }
        let (multiplier, zero) = self.step(row, col);
        ZERO.wrapping_add(multiplier.wrapping_mul(code.wrapping_sub(zero)))
    }

    /// The weights of output `row`, as they are multiplied with; `to` has `cols` values.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        if self.layout.format == Format::Bf16Folded {
            to.iter_mut().enumerate().for_each(|(col, to)| *to = self.unfolded(row, col).to_f32());
            return;
        }
        if !self.layout.format.is_integer() {
            let panel = &self.values()[row / PANEL * self.layout.panel_bytes()..];
            for (col, to) in to.iter_mut().enumerate() {
                let at = self.layout.value_at(col, row % PANEL);
                *to = match self.layout.format {
                    Format::Bf16 => half::bf16::from_le_bytes([panel[at], panel[at + 1]]).to_f32(),
                    Format::F16 => half::f16::from_le_bytes([panel[at], panel[at + 1]]).to_f32(),
                    _ => f32::from_le_bytes(std::array::from_fn(|i| panel[at + i])),
                };
            }
            return;
        }
        for (col, to) in to.iter_mut().enumerate() {
            let (scale, zero) = self.scale_zero(row, col);
            *to = scale * (i32::from(self.code(row, col)) - i32::from(zero)) as f32;
        }
    }
}
