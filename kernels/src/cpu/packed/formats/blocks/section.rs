//! A section of a panel: where its parameters and codes are.

use super::super::super::{Layout, PANEL, Packed, Weights};
use crate::cpu::blocks::{Form, value};
use crate::cpu::input::GROUP;

/// Groups of 32 columns per section, if groups have factors.
const FACTOR_SECTION: usize = 8;
/// Groups of 32 columns per section, if groups have their own scales.
const SCALE_SECTION: usize = 2;
/// Bytes of a group's low bits per panel.
pub(super) const LOW_BYTES: usize = GROUP * PANEL / 2;
/// Bytes of a vector of sixteen halves.
pub(super) const HALVES: usize = 2 * PANEL;

/// Layout of a section.
#[derive(Clone, Copy)]
pub(super) struct Section {
    pub(super) form: Form,
    /// Number of groups of 32 columns.
    pub(super) groups: usize,
    /// Bytes before the codes.
    pub(super) header: usize,
}

impl Section {
    pub(super) const fn of(form: Form) -> Self {
        let parts = if form.has_minimum { 2 } else { 1 };
        if form.has_factors {
            let scales = FACTOR_SECTION * GROUP / form.group;
            Self { form, groups: FACTOR_SECTION, header: 2 * HALVES + parts * scales * PANEL }
        } else {
            Self { form, groups: SCALE_SECTION, header: parts * SCALE_SECTION * HALVES }
        }
    }

    /// Section of a layout in one of this module's formats.
    pub(super) fn in_layout(layout: &Layout) -> Self {
        match layout.format.0.weights {
            Weights::Blocks { kind, .. } => Self::of(kind.form()),
            _ => unreachable!("a format of blocks"),
        }
    }

    /// Scales per section.
    pub(super) const fn scales(&self) -> usize {
        self.groups * GROUP / self.form.group
    }

    /// Size of a section with codes of `bits` bits.
    const fn bytes(&self, bits: usize) -> usize {
        self.header + self.groups * group_bytes(bits)
    }

    /// Offsets of the section that contains a group of 32 columns, and of the group's codes.
    #[inline(always)]
    pub(super) const fn places(&self, bits: usize, group: usize) -> (usize, usize) {
        let section = group / self.groups * self.bytes(bits);
        (section, section + self.header + group % self.groups * group_bytes(bits))
    }

    /// Offset in a section of scale (or factor) number `index` of sixteen outputs.
    #[inline(always)]
    pub(super) const fn scale_at(&self, index: usize) -> usize {
        if self.form.has_factors { 2 * HALVES + index * PANEL } else { index * HALVES }
    }

    /// Like [`Section::scale_at`], for minima.
    #[inline(always)]
    pub(super) const fn minimum_at(&self, index: usize) -> usize {
        self.scale_at(self.scales() + index)
    }
}

/// Bytes of the codes of 32 columns in a panel.
pub(super) const fn group_bytes(bits: usize) -> usize {
    GROUP * PANEL * bits / 8
}

/// Position of the code of a column (of 32) and output: the byte with its low bits and whether they are the
/// high half, and the byte with its upper bits and their shift.
pub(super) const fn code_places(bits: usize, col: usize, lane: usize) -> ((usize, bool), (usize, u32)) {
    let at = lane * 4 + col % 4;
    let low = (col / 8 * PANEL * 4 + at, col % 8 >= 4);
    let upper = match bits {
        6 => (LOW_BYTES + col / 16 * PANEL * 4 + at, col % 16 / 4 * 2),
        _ => (LOW_BYTES + at, col / 4),
    };
    (low, (upper.0, upper.1 as u32))
}

/// Weight of an output and column.
pub(super) fn weight(packed: &Packed, row: usize, col: usize) -> f32 {
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

const _: () = assert!(PANEL * 4 == 64, "sixteen outputs by four columns are a cache line");
