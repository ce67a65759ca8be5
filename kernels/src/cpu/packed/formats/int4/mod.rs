//! 4 bits that expand to 8-bit codes, with one scale per output.
//!
//! The expansion has a multiplier and a zero point per output and group, called a step: a zero point in the
//! high half of a byte and a multiplier in the low half. Steps are stored among a panel's codes: before the
//! codes of each four groups come `[4 groups][16 outputs]` bytes of steps. The 8-bit code is `128 +
//! multiplier * (code - zero)`.

pub(super) mod kernel;

use super::super::rounding::{self, Codes, Panel, Rounding, in_units};
use super::super::scale::{Lanes, Weights as GroupWeights, steps};
use super::super::{Format, Inserted, Layout, PANEL, Packed, Scales, Spec, Weights, ZERO};
use super::int8;
use crate::cpu::input::GROUP;

/// Groups whose steps share one cache line, placed before their codes so that there is one stream to read.
const STEP_GROUPS: usize = 4;
/// Bytes of such a line of steps.
const STEP_BYTES: usize = STEP_GROUPS * PANEL;
/// Bytes from one line of steps to the next.
const STEP_LINE_BYTES: usize = STEP_BYTES + STEP_GROUPS * GROUP * PANEL / 2;

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec {
    inserted: Inserted { columns: STEP_GROUPS * GROUP, bytes: STEP_BYTES },
    // A group's sums are kept besides those of all columns.
    sums: [2, 2],
    head: Some(int8::FORMAT),
    ..Spec::new(["Int4", "int4"], 4, GROUP, WEIGHTS, rounding::pack::<Stepped>)
};

const WEIGHTS: Weights = Weights::Codes { code, scales: Scales::Outputs, has_zeros: false };

struct Stepped;

impl Rounding for Stepped {
    #[inline(always)]
    fn round(weights: &GroupWeights, scale: &Lanes, group: usize, to: &mut Panel<'_>) -> Codes {
        let (found, codes) = steps(&in_units(weights, scale));
        for (lane, to) in to.codes[step_at(group * GROUP, 0)..][..PANEL].iter_mut().enumerate() {
            *to = found.multiplier[lane] as u8 | (found.zero[lane] as u8) << 4;
        }
        codes
    }
}

/// Offset in a panel of the step of a column's group and output `lane`.
pub(in crate::cpu) fn step_at(col: usize, lane: usize) -> usize {
    let group = col / GROUP;
    group / STEP_GROUPS * STEP_LINE_BYTES + group % STEP_GROUPS * PANEL + lane
}

/// Multiplier and zero point of an output and the group of a column.
pub(in super::super) fn step(packed: &Packed, row: usize, col: usize) -> (u8, u8) {
    let step = packed.panel_of(row)[step_at(col, row % PANEL)];
    (step & 15, step >> 4)
}

/// The 8-bit code of an output and column.
fn code(packed: &Packed, row: usize, col: usize) -> u8 {
    let (multiplier, zero) = step(packed, row, col);
    ZERO.wrapping_add(multiplier.wrapping_mul(packed.stored_code(row, col).wrapping_sub(zero)))
}
