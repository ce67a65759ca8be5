//! Products with blocks, summed as [other codes](crate::cpu::matmul::integer) are; types with minima add,
//! after each span of columns whose weights share them:
//!
//! ```text
//! sum  = sum + scale of a group of activations * sum of its codes     from zero
//! leaf = fma(sum, minimum, leaf)
//! ```

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;

use super::super::super::Format;
use super::section::{HALVES, LOW_BYTES, Section, group_bytes};
use super::specs::Q4_0;
use crate::cpu::input::{GROUP, INPUT_GROUP, PARTS};
use crate::cpu::matmul::integer::Product;
use crate::cpu::matmul::integer::tile::{Floats, IntegerTileInputs, Kind, VECTOR, add_part};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::PrefetchCursor;
use crate::cpu::rows::Strided;
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
                let header = Strided { at: t.weights.as_ptr().add(header), apart };
                let w = Strided { at: t.weights.as_ptr().add(codes), apart };
                if group % section.groups == 0 {
                    prefetch.near::<_, NR>(f, header.at, apart, section.header);
                }
                prefetch.issue::<_, NR>(f, w.at, apart, const { group_bytes(BITS) });
                for part in 0..GROUP / COLUMNS {
                    let number = group * (GROUP / COLUMNS) + part;
                    let sums = Self::group::<S, MR, NR>(s, t, w, number, section.form.zero);
                    results = Self::add::<S, MR, NR>(s, t, &section, header, number, sums, results);
                }
            }
        }
        results
    }
}

impl<const BITS: usize, const COLUMNS: usize> Blocks<BITS, COLUMNS> {
    /// Groups of inputs per scale.
    const PARTS: usize = COLUMNS / INPUT_GROUP;

    /// Sum of row `m`'s values in group `number` of `COLUMNS` columns.
    ///
    /// # Safety
    /// The row and group exist.
    #[inline(always)]
    unsafe fn row_sum(t: &IntegerTileInputs<'_>, m: usize, number: usize) -> f32 {
        let mut sum = 0f32;
        for group in number * Self::PARTS..(number + 1) * Self::PARTS {
            // SAFETY: guaranteed by the caller.
            sum += unsafe { t.inputs(m, group) }.value;
        }
        sum
    }

    /// Sums of a group, minus `zero` times the rows' sums. `w` points to the codes of the 32 columns that
    /// contain the group.
    ///
    /// # Safety
    /// These columns of `MR` rows and `NR` panels are readable.
    #[inline(always)]
    unsafe fn group<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        w: Strided<u8>,
        number: usize,
        zero: u8,
    ) -> Floats<S, MR, NR> {
        let mut results = [[s.floats().zero(); NR]; MR];
        for part in 0..Self::PARTS {
            let group = number * Self::PARTS + part;
            // SAFETY: guaranteed by the caller.
            unsafe {
                let mut sums = [[s.splat(0); NR]; MR];
                for m in 0..MR {
                    sums[m] = [s.splat(-i32::from(zero) * t.inputs(m, group).sum); NR];
                }
                sums = Self::add_codes::<S, MR, NR>(s, t, w, group, sums);
                results = t.add_inputs::<S, MR, NR>(s, group, sums, results);
            }
        }
        results
    }

    /// Adds the products of group `group` of the inputs. `w` is as in [`Self::group`].
    ///
    /// # Safety
    /// As for [`Self::group`].
    #[inline(always)]
    unsafe fn add_codes<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        w: Strided<u8>,
        group: usize,
        mut sums: [[S::Sums; NR]; MR],
    ) -> [[S::Sums; NR]; MR] {
        let part = group % PARTS;
        let first = part * INPUT_GROUP / 8;
        // Upper bits are together for each scale's columns.
        let (upper_at, first_upper) = if COLUMNS == GROUP { (0, first) } else { (part * VECTOR, 0) };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let Strided { at: w, apart } = w;
            let (w, upper) = (w.add(first * VECTOR), w.add(LOW_BYTES + upper_at));
            if BITS == 4 {
                return add_part::<S, MR, NR>(s, 4, t, group, Strided { at: w, apart }, sums);
            }
            for step in 0..INPUT_GROUP / 8 {
                let mut low = [s.load(w); NR];
                let mut high = low;
                for n in 0..NR {
                    let both = s.load(w.add(n * apart + step * VECTOR));
                    let (upper, width) = (s.load(upper.add(n * apart)), BITS as i32 - 4);
                    let mask = ((1i8 << width) - 1) << 4;
                    let at = 4 - 2 * (first_upper + step) as i32 * width;
                    low[n] = s.with_upper(s.low(both), upper, at, mask);
                    high[n] = s.with_upper(s.high(both), upper, at - width, mask);
                }
                for m in 0..MR {
                    let fours = [0, 4].map(|at| s.four(t.codes(m, group, step * 8 + at)));
                    for n in 0..NR {
                        sums[m][n] = s.dot(sums[m][n], low[n], fours[0]);
                        sums[m][n] = s.dot(sums[m][n], high[n], fours[1]);
                    }
                }
            }
        }
        sums
    }

    /// Adds the sums of group `number` times their scales, and its minima times the rows' sums. `header`
    /// points to the section that holds the group's parameters.
    ///
    /// # Safety
    /// The section's parameters of `NR` panels are readable, and the group of `MR` rows exists.
    #[inline(always)]
    unsafe fn add<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        section: &Section,
        header: Strided<u8>,
        number: usize,
        sums: Floats<S, MR, NR>,
        mut results: Floats<S, MR, NR>,
    ) -> Floats<S, MR, NR> {
        let (f, form, index) = (s.floats(), &section.form, number % section.scales());
        let Strided { at: header, apart } = header;
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
                    results[m][n] = f.fma(sums[m][n], scale, results[m][n]);
                }
                if !form.has_minimum {
                    continue;
                }
                // Types with factors subtract their minima.
                let (minimum, sign) = if form.has_factors {
                    (f.mul(f.load_f16(header.add(HALVES)), f.load_i8(header.add(minimum_at))), -1.0)
                } else {
                    (f.load_f16(header.add(minimum_at)), 1.0)
                };
                for m in 0..MR {
                    let sum = f.splat(sign * Self::row_sum(t, m, number));
                    results[m][n] = f.fma(sum, minimum, results[m][n]);
                }
            }
        }
        results
    }
}
