//! Weights stored by GGUF in [blocks](crate::cpu::blocks), packed without rounding: codes, scales and minima
//! are preserved. Codes have 4, 5 or 6 bits.
//!
//! A panel consists of sections of 256 columns if groups have factors, else of 64. A section starts with its
//! parameters, each for sixteen outputs, followed by its codes, so that the kernel reads a single stream:
//!
//! ```text
//! with factors     scales f16 [16] | minima f16 [16] | factors i8 [groups][16] | minima's i8 [groups][16]
//! without          scales f16 [groups][16] | minima f16 [groups][16]
//! each 32 columns  low bits [4][16 outputs][4]: column j low, column j + 4 high
//!                  5th bits [16 outputs][4]: bit j / 4 is that of column j
//!                  5th and 6th bits [2][16 outputs][4]: pair of bits j / 4 is that of column j
//! ```
//!
//! Types without minima omit them, except for the unused slot beside the scale.

mod kernel;
mod pack;
#[cfg(test)]
mod tests;

pub(in crate::cpu::packed) use pack::pack;

use super::super::{Format, Inserted, Layout, PANEL, PackError, Packed, Spec, Weights};
use super::Multiply;
use crate::cpu::blocks::{BlockType, Form, value};
use crate::cpu::input::GROUP;
use crate::cpu::matrix::WeightMatrix;
use crate::cpu::{Cpu, packed};

/// Groups of 32 columns per section, if groups have factors.
const FACTOR_SECTION: usize = 8;
/// Groups of 32 columns per section, if groups have their own scales.
const SCALE_SECTION: usize = 2;
/// Bytes of a group's low bits per panel.
const LOW_BYTES: usize = GROUP * PANEL / 2;
/// Bytes of a vector of sixteen halves.
const HALVES: usize = 2 * PANEL;

/// Formats of this module with their kernels.
pub(super) const TABLE: [(Format, Multiply); 9] = [
    (Format(&Q4_0), kernel::multiply_4_32),
    (Format(&Q4_1), kernel::multiply_4_32),
    (Format(&Q5_0), kernel::multiply_5_32),
    (Format(&Q5_1), kernel::multiply_5_32),
    (Format(&Q2_K), kernel::multiply_4_16),
    (Format(&Q3_K), kernel::multiply_4_16),
    (Format(&Q4_K), kernel::multiply_4_32),
    (Format(&Q5_K), kernel::multiply_5_32),
    (Format(&Q6_K), kernel::multiply_6_16),
];

static Q4_0: Spec = spec("q4-0", 4, BlockType::Q4_0);
static Q4_1: Spec = spec("q4-1", 4, BlockType::Q4_1);
static Q5_0: Spec = spec("q5-0", 5, BlockType::Q5_0);
static Q5_1: Spec = spec("q5-1", 5, BlockType::Q5_1);
static Q2_K: Spec = spec("q2-k", 4, BlockType::Q2K);
static Q3_K: Spec = spec("q3-k", 4, BlockType::Q3K);
static Q4_K: Spec = spec("q4-k", 4, BlockType::Q4K);
static Q5_K: Spec = spec("q5-k", 5, BlockType::Q5K);
static Q6_K: Spec = spec("q6-k", 6, BlockType::Q6K);

/// Formats that hold blocks of this type without loss, best first. All but the last may be unable to
/// represent a given matrix.
pub(super) fn keeping(kind: BlockType) -> &'static [Format] {
    match kind {
        BlockType::Q4_0 => const { &[Format(&Q4_0)] },
        BlockType::Q4_1 => const { &[Format(&Q4_1)] },
        BlockType::Q5_0 => const { &[Format(&Q5_0)] },
        BlockType::Q5_1 => const { &[Format(&Q5_1)] },
        BlockType::Q8_0 | BlockType::Iq4Nl => const { &[Format::INT8_GROUP] },
        BlockType::Q2K => const { &[Format(&Q2_K)] },
        BlockType::Q3K => const { &[Format(&Q3_K)] },
        BlockType::Q4K => const { &[Format(&Q4_K)] },
        BlockType::Q5K => const { &[Format(&Q5_K)] },
        BlockType::Q6K => const { &[Format(&Q6_K)] },
        // Its scales are 8-bit powers of two, which half precision covers only in part.
        BlockType::Mxfp4 => const { &[Format::INT8_GROUP, Format::F32] },
    }
}

const fn spec(file_name: &'static str, bits: u32, kind: BlockType) -> Spec {
    let section = Section::of(kind.form());
    let columns = section.groups * GROUP;
    Spec {
        inserted: Inserted { columns, bytes: section.header },
        // A group's sums are kept in addition to those of all columns.
        sums: [2, 2],
        ..Spec::new([kind.name(), file_name], bits, columns, Weights::Blocks(kind), pack_blocks)
    }
}

/// Implements [`packed::pack`].
///
/// # Panics
/// If the matrix is not stored in the format's block type.
fn pack_blocks(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    let kind = from.storage().blocks();
    let kind = kind.unwrap_or_else(|| unreachable!("{:?} holds only blocks", layout.format));
    pack::pack(cpu, from, kind, layout, to)
}

/// Layout of a section.
#[derive(Clone, Copy)]
struct Section {
    form: Form,
    /// Number of groups of 32 columns.
    groups: usize,
    /// Bytes before the codes.
    header: usize,
}

impl Section {
    const fn of(form: Form) -> Self {
        let parts = if form.has_minimum { 2 } else { 1 };
        if form.has_factors {
            let scales = FACTOR_SECTION * GROUP / form.group;
            Self { form, groups: FACTOR_SECTION, header: 2 * HALVES + parts * scales * PANEL }
        } else {
            Self { form, groups: SCALE_SECTION, header: parts * SCALE_SECTION * HALVES }
        }
    }

    /// Section of a layout in one of this module's formats.
    fn in_layout(layout: &Layout) -> Self {
        match layout.format.0.weights {
            Weights::Blocks(kind) => Self::of(kind.form()),
            _ => unreachable!("a format of blocks"),
        }
    }

    /// Scales per section.
    const fn scales(&self) -> usize {
        self.groups * GROUP / self.form.group
    }

    /// Size of a section with codes of `bits` bits.
    const fn bytes(&self, bits: usize) -> usize {
        self.header + self.groups * group_bytes(bits)
    }

    /// Offsets of the section that contains a group of 32 columns, and of the group's codes.
    #[inline(always)]
    const fn places(&self, bits: usize, group: usize) -> (usize, usize) {
        let section = group / self.groups * self.bytes(bits);
        (section, section + self.header + group % self.groups * group_bytes(bits))
    }

    /// Offset in a section of scale (or factor) number `index` of sixteen outputs.
    #[inline(always)]
    const fn scale_at(&self, index: usize) -> usize {
        if self.form.has_factors { 2 * HALVES + index * PANEL } else { index * HALVES }
    }

    /// Like [`Section::scale_at`], for minima.
    #[inline(always)]
    const fn minimum_at(&self, index: usize) -> usize {
        self.scale_at(self.scales() + index)
    }
}

/// Bytes of the codes of 32 columns in a panel.
const fn group_bytes(bits: usize) -> usize {
    GROUP * PANEL * bits / 8
}

/// Position of the code of a column (of 32) and output: the byte with its low bits and whether they are the
/// high half, and the byte with its upper bits and their shift.
const fn code_places(bits: usize, col: usize, lane: usize) -> ((usize, bool), (usize, u32)) {
    let at = lane * 4 + col % 4;
    let low = (col / 8 * PANEL * 4 + at, col % 8 >= 4);
    let upper = match bits {
        6 => (LOW_BYTES + col / 16 * PANEL * 4 + at, col % 16 / 4 * 2),
        _ => (LOW_BYTES + at, col / 4),
    };
    (low, (upper.0, upper.1 as u32))
}

/// Weight of an output and column.
pub(in crate::cpu::packed) fn weight(packed: &Packed, row: usize, col: usize) -> f32 {
    let (layout, panel, lane) = (packed.layout(), packed.panel_of(row), row % PANEL);
    let (section, bits) = (Section::in_layout(&layout), layout.format.bits() as usize);
    let (header, codes) = section.places(bits, col / GROUP);
    let index = col % (section.groups * GROUP) / section.form.group;
    let half = |at: usize| half::f16::from_le_bytes([panel[header + at], panel[header + at + 1]]).to_f32();
    let factor = |at: usize| f32::from(panel[header + at + lane] as i8);
    let (scale_at, minimum_at) = (section.scale_at(index), section.minimum_at(index));
    let (scale, minimum) = match (section.form.has_factors, section.form.has_minimum) {
        (true, true) => (half(2 * lane) * factor(scale_at), -(half(HALVES + 2 * lane) * factor(minimum_at))),
        (true, false) => (half(2 * lane) * factor(scale_at), 0.0),
        (false, true) => (half(scale_at + 2 * lane), half(minimum_at + 2 * lane)),
        (false, false) => (half(scale_at + 2 * lane), 0.0),
    };
    let ((low, is_high), (upper, shift)) = code_places(bits, col % GROUP, lane);
    let low = if is_high { panel[codes + low] >> 4 } else { panel[codes + low] & 15 };
    let upper = if bits == 4 { 0 } else { panel[codes + upper] >> shift & (u8::MAX >> (12 - bits)) };
    value(&section.form, scale, minimum, low | upper << 4)
}

const _: () = assert!(packed::PANEL * 4 == 64, "sixteen outputs by four columns are a cache line");
