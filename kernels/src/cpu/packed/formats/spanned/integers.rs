//! Integer codes: the sum of a span's products is added times the span's scale.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;

use super::super::super::{Format, PANEL};
use super::{INT4_SPANS, INT8_SPANS};
use crate::cpu::aligned::LINE_BYTES;
use crate::cpu::input::GROUP;
use crate::cpu::matmul::integer::Product;
use crate::cpu::matmul::integer::tile::{Floats, IntegerTileInputs, Kind, add_group};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::{Prefetch, PrefetchCursor};
use crate::cpu::rows::Strided;
use crate::cpu::simd::integer::{IntegerIsa, Integers};
use crate::cpu::simd::{Isa, Simd};

pub(in super::super) fn multiply_four_bits(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Spanned<4>> { part, kind: PhantomData });
}

pub(in super::super) fn multiply_eight_bits(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Spanned<8>> { part, kind: PhantomData });
}

/// Kernel for codes of `BITS` bits and spans of whole groups.
struct Spanned<const BITS: usize>;

impl<const BITS: usize> Kind for Spanned<BITS> {
    // All spans have the same register budget.
    const FORMAT: Format = if BITS == 4 { INT4_SPANS[0] } else { INT8_SPANS[0] };

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        leaf: usize,
        prefetch: &mut PrefetchCursor,
    ) -> Floats<S, MR, NR> {
        let (f, groups, spans) = (s.floats(), t.layout.leaf_groups(), t.layout.leaf_spans());
        let (apart, scales_apart) = (t.apart * t.layout.panel_bytes(), t.apart * t.layout.panel_scales());
        let (span_groups, group_bytes) = (t.layout.scale_cols() / GROUP, GROUP * PANEL * BITS / 8);
        let mut results = [[f.zero(); NR]; MR];
        let mut zeros = [s.splat(0); NR];
        let (mut group, end) = (leaf * groups, (leaf + 1) * groups);
        // SAFETY: checked above; all spans and groups of all rows and panels are in bounds.
        unsafe {
            let mut w = t.weights.as_ptr().add(group * group_bytes);
            let mut scales = t.scales.as_ptr().add(leaf * spans * PANEL * 4);
            let mut zero_points = t.zeros.as_ptr().add(leaf * spans * PANEL);
            while group < end {
                let next = end.min(group + span_groups);
                for n in 0..NR {
                    zeros[n] = s.load_zeros(zero_points.add(n * scales_apart));
                }
                if let Prefetch::Near(bytes @ 1..) = *t.prefetch {
                    let ahead = (bytes / 8).max(LINE_BYTES);
                    for n in 0..NR {
                        f.prefetch(scales.wrapping_add(n * scales_apart * 4 + ahead));
                    }
                }
                let mut sums = [[f.zero(); NR]; MR];
                for group in group..next {
                    prefetch.issue::<_, NR>(f, w, apart, group_bytes);
                    sums = add_group::<S, MR, NR>(
                        s,
                        BITS,
                        t,
                        group,
                        Strided { at: w, apart },
                        Some(&zeros),
                        sums,
                    );
                    w = w.add(group_bytes);
                }
                for n in 0..NR {
                    let scale = f.load(scales.add(n * scales_apart * 4).cast());
                    for m in 0..MR {
                        results[m][n] = f.fma(sums[m][n], scale, results[m][n]);
                    }
                }
                group = next;
                (scales, zero_points) = (scales.wrapping_add(PANEL * 4), zero_points.wrapping_add(PANEL));
            }
        }
        results
    }
}
