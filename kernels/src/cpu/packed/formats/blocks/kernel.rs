//! Products with blocks. The sum of a group's codes is exact, as an integer; it is then added to the leaf's
//! result in `f32`, group by group in ascending order:
//!
//! ```text
//! result = fma(sum of (code - zero) * x, scale, result)
//! result = fma(sum of x, minimum, result)        in types with minima
//! ```

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;

use super::super::super::Format;
use super::{HALVES, LOW_BYTES, Q4_0, Section, group_bytes};
use crate::cpu::input::GROUP;
use crate::cpu::matmul::integer::Product;
use crate::cpu::matmul::integer::tile::{Floats, IntegerTileInputs, Kind, VECTOR};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::PrefetchCursor;
use crate::cpu::simd::integer::{IntegerIsa, Integers};
use crate::cpu::simd::{Isa, Simd};

pub(super) fn multiply_4_32(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Blocks<4, 32>> { part, kind: PhantomData });
}

pub(super) fn multiply_5_32(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Blocks<5, 32>> { part, kind: PhantomData });
}

pub(super) fn multiply_4_16(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Blocks<4, 16>> { part, kind: PhantomData });
}

pub(super) fn multiply_6_16(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Blocks<6, 16>> { part, kind: PhantomData });
}

/// Kernel for codes of `BITS` bits with a scale per `COLUMNS` columns. Other differences between formats are
/// checked once per group.
struct Blocks<const BITS: usize, const COLUMNS: usize>;

impl<const BITS: usize, const COLUMNS: usize> Kind for Blocks<BITS, COLUMNS> {
    const FORMAT: Format = Format(&Q4_0); // all formats have the same register budget

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        leaf: usize,
        prefetch: &mut PrefetchCursor,
    ) -> Floats<S, MR, NR> {
        let (f, section, groups) = (s.floats(), Section::in_layout(&t.layout), t.layout.leaf_groups());
        let apart = t.apart * t.layout.panel_bytes();
        let mut results = [[f.zero(); NR]; MR];
        for group in leaf * groups..(leaf + 1) * groups {
            let (header, codes) = section.places(BITS, group);
            // SAFETY: checked above; a section of all panels and a group of all rows is in bounds.
            unsafe {
                let (header, w) = (t.weights.as_ptr().add(header), t.weights.as_ptr().add(codes));
                if group % section.groups == 0 {
                    prefetch.near::<_, NR>(f, header, apart, section.header);
                }
                prefetch.issue::<_, NR>(f, w, apart, const { group_bytes(BITS) });
                for part in 0..GROUP / COLUMNS {
                    let number = group * (GROUP / COLUMNS) + part;
                    let sums = Self::group::<S, MR, NR>(s, t, (w, apart), number, section.form.zero);
                    let index = number % section.scales();
                    results = Self::add::<S, MR, NR>(
                        s,
                        t,
                        &section,
                        (header, apart),
                        (number, index),
                        sums,
                        results,
                    );
                }
            }
        }
        results
    }
}

impl<const BITS: usize, const COLUMNS: usize> Blocks<BITS, COLUMNS> {
    /// Sum of row `m`'s codes in group `number` of `COLUMNS` columns.
    ///
    /// # Safety
    /// The row and group exist.
    #[inline(always)]
    unsafe fn row_sum(t: &IntegerTileInputs<'_>, m: usize, number: usize) -> i32 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match COLUMNS {
                16 => *t.half_sums.as_ptr().add(2 * m * t.sum_stride + number),
                _ => *t.sums.as_ptr().add(m * t.sum_stride + number),
            }
        }
    }

    /// Exact sums of a group, minus `zero` times the rows' sums. `w` points to the codes of the 32 columns
    /// that contain the group, in panels `apart` bytes apart.
    ///
    /// # Safety
    /// These columns of `MR` rows and `NR` panels are readable.
    #[inline(always)]
    unsafe fn group<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        (w, apart): (*const u8, usize),
        number: usize,
        zero: u8,
    ) -> [[S::Sums; NR]; MR] {
        let part = number % (GROUP / COLUMNS);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let x = t.codes.as_ptr().add(number * COLUMNS);
            let mut starts = [[s.splat(0); NR]; MR];
            for m in 0..MR {
                starts[m] = [s.splat(-i32::from(zero) * Self::row_sum(t, m, number)); NR];
            }
            let mut small = [[s.begin_small(starts[0][0]); NR]; MR];
            for m in 0..MR {
                small[m] = [s.begin_small(starts[m][0]); NR];
            }
            let upper = w.add(LOW_BYTES + if COLUMNS == 16 { part * VECTOR } else { 0 });
            let w = w.add(part * COLUMNS / 8 * VECTOR);
            for step in 0..COLUMNS / 8 {
                let mut low = [s.load(w); NR];
                let mut high = low;
                for n in 0..NR {
                    let both = s.load(w.add(n * apart + step * VECTOR));
                    (low[n], high[n]) = (s.low(both), s.high(both));
                    if BITS > 4 {
                        let (upper, width) = (s.load(upper.add(n * apart)), BITS as i32 - 4);
                        let (mask, at) = (((1i8 << width) - 1) << 4, 4 - 2 * step as i32 * width);
                        low[n] = s.with_upper(low[n], upper, at, mask);
                        high[n] = s.with_upper(high[n], upper, at - width, mask);
                    }
                }
                for m in 0..MR {
                    let at = x.add(m * t.code_stride + step * 8);
                    let fours = [s.four(at), s.four(at.add(4))];
                    for n in 0..NR {
                        if BITS == 4 {
                            small[m][n] = s.dot_small(small[m][n], low[n], fours[0]);
                            small[m][n] = s.dot_small(small[m][n], high[n], fours[1]);
                        } else {
                            starts[m][n] = s.dot(starts[m][n], low[n], fours[0]);
                            starts[m][n] = s.dot(starts[m][n], high[n], fours[1]);
                        }
                    }
                }
            }
            if BITS == 4 {
                for m in 0..MR {
                    for n in 0..NR {
                        starts[m][n] = s.end_small(small[m][n], starts[m][n]);
                    }
                }
            }
            starts
        }
    }

    /// Adds a group's sums times their scales, and its minima times the rows' sums. `header` points to the
    /// section that holds the group's parameters at `index`.
    ///
    /// # Safety
    /// The section's parameters of `NR` panels are readable, and the group of `MR` rows exists.
    #[inline(always)]
    unsafe fn add<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        section: &Section,
        (header, apart): (*const u8, usize),
        (number, index): (usize, usize),
        sums: [[S::Sums; NR]; MR],
        mut results: Floats<S, MR, NR>,
    ) -> Floats<S, MR, NR> {
        let (f, form) = (s.floats(), &section.form);
        let (scale_at, minimum_at) = (section.scale_at(index), section.minimum_at(index));
        // SAFETY: guaranteed by the caller.
        unsafe {
            for n in 0..NR {
                let header = header.add(n * apart);
                let scale = if form.has_factors {
                    f.mul(f.load_f16(header), f.load_i8(header.add(scale_at)))
                } else {
                    f.load_f16(header.add(scale_at))
                };
                for m in 0..MR {
                    results[m][n] = f.fma(s.to_floats(sums[m][n]), scale, results[m][n]);
                }
                if !form.has_minimum {
                    continue;
                }
                // Types with factors subtract their minima.
                let (minimum, sign) = if form.has_factors {
                    (f.mul(f.load_f16(header.add(HALVES)), f.load_i8(header.add(minimum_at))), -1)
                } else {
                    (f.load_f16(header.add(minimum_at)), 1)
                };
                for m in 0..MR {
                    let sum = f.splat((sign * Self::row_sum(t, m, number)) as f32);
                    results[m][n] = f.fma(sum, minimum, results[m][n]);
                }
            }
        }
        results
    }
}
