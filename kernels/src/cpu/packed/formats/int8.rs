//! 8 bits with one scale per output: the scale is the largest weight's magnitude / 127.

use std::marker::PhantomData;

use super::super::rounding::{self, Codes, Panel, Rounding, encode};
use super::super::scale::{Lanes, Weights as GroupWeights};
use super::super::{Format, PANEL, Packed, Scales, Spec, Weights, ZERO};
use crate::cpu::input::GROUP;
use crate::cpu::matmul::integer::Product;
use crate::cpu::matmul::integer::tile::{Floats, IntegerTileInputs, Kind, add_group};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::PrefetchCursor;
use crate::cpu::rows::Strided;
use crate::cpu::simd::integer::{IntegerIsa, Integers};
use crate::cpu::simd::{Isa, LANES, Simd};

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec {
    // A group's sums are kept besides those of all columns.
    sums: [2, 2],
    ..Spec::new(["Int8", "int8"], 8, GROUP, WEIGHTS, rounding::pack::<Int8>)
};

const WEIGHTS: Weights =
    Weights::Codes { code: Packed::stored_code, scales: Scales::Outputs, has_zeros: false };

impl Rounding for Int8 {
    #[inline(always)]
    fn round(weights: &GroupWeights, scale: &Lanes, _: usize, _: &mut Panel<'_>) -> Codes {
        encode(weights, scale, &[f32::from(ZERO); LANES], 255)
    }
}

pub(super) fn multiply(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Int8> { part, kind: PhantomData });
}

/// 8 bits with one scale per output.
pub(super) struct Int8;

impl Kind for Int8 {
    const FORMAT: Format = FORMAT;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        leaf: usize,
        prefetch: &mut PrefetchCursor,
    ) -> Floats<S, MR, NR> {
        let f = s.floats();
        let (groups, apart) = (t.layout.leaf_groups(), t.apart * t.layout.panel_bytes());
        let mut results = [[f.zero(); NR]; MR];
        // SAFETY: checked above; a group of columns of all rows and panels is inside.
        unsafe {
            let mut w = t.weights.as_ptr().add(leaf * groups * GROUP * PANEL);
            for group in leaf * groups..(leaf + 1) * groups {
                prefetch.issue::<_, NR>(f, w, apart, GROUP * PANEL);
                results = add_group::<S, MR, NR>(s, 8, t, group, Strided { at: w, apart }, None, results);
                w = w.add(GROUP * PANEL);
            }
            t.times_scales::<S, MR, NR>(s, leaf, results)
        }
    }
}
