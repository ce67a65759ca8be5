//! 4 bits that steps make 8, a scale for each output.
//!
//! Among a panel's codes lie its steps: before the codes of each four groups `[4 groups][16 outputs]` bytes, a zero point in the
//! high half and a multiplier in the low one. What weights are multiplied as is `128 + multiplier * (code - zero)`.

pub(super) mod kernel;

use super::super::rounding::{self, Codes, Panel, Rounding, in_units};
use super::super::scale::{Lanes, Weights as GroupWeights, steps};
use super::super::{Format, Inserted, Layout, PANEL, Packed, Scales, Spec, Weights, ZERO};
use super::int8;
use crate::cpu::input::GROUP;

/// Groups whose steps lie in one cache line, before their codes: one stream to read.
const STEP_GROUPS: usize = 4;
/// Bytes of such a line.
const STEP_BYTES: usize = STEP_GROUPS * PANEL;
/// Bytes from one such line to the next.
const STEP_LINE_BYTES: usize = STEP_BYTES + STEP_GROUPS * GROUP * PANEL / 2;

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec {
    inserted: Inserted { columns: STEP_GROUPS * GROUP, bytes: STEP_BYTES },
    // Sums of 4-bit codes stand beside the others where they are multiplied afterwards.
    sums: [1, 2],
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

/// Where in a panel the steps of a column's group and output `lane` lie: a multiplier in the byte's low half, a zero point in its
/// high one.
pub(in crate::cpu) fn step_at(col: usize, lane: usize) -> usize {
    let group = col / GROUP;
    group / STEP_GROUPS * STEP_LINE_BYTES + group % STEP_GROUPS * PANEL + lane
}

/// The multiplier and the zero point of an output's and column's group.
pub(in super::super) fn step(packed: &Packed, row: usize, col: usize) -> (u8, u8) {
    let step = packed.panel_of(row)[step_at(col, row % PANEL)];
    (step & 15, step >> 4)
}

/// The code of an output and column, as it is multiplied with.
fn code(packed: &Packed, row: usize, col: usize) -> u8 {
    let (multiplier, zero) = step(packed, row, col);
    ZERO.wrapping_add(multiplier.wrapping_mul(packed.stored_code(row, col).wrapping_sub(zero)))
}
