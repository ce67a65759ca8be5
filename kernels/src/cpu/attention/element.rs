//! The chain of multiply-adds for each type of cached numbers.
//!
//! - `f32`, IEEE half, FP8 and 8-bit codes are widened, which is exact. Each number takes one fused
//!   multiply-add. A key's scale multiplies its score, a value's scale its weight.
//! - bfloat16 numbers are processed in pairs: two dimensions of a key or two positions of a value. First the
//!   odd number is added, then the even one, each fused. Queries and weights are rounded to bfloat16, too. A
//!   machine with an instruction for this may use it and gets the same bits, because [`to_bf16`] flushes
//!   numbers that are small enough for the instruction to differ.

#![allow(clippy::needless_range_loop)] // the compiler vectorises these loops

use super::super::kv_cache::{SMALLEST_IN_PAIRS, to_bf16};
use super::super::simd::{LANES, Simd};

/// A type of cached numbers: how sixteen of them, or sixteen pairs, are loaded and multiplied.
pub(super) trait Element {
    /// Numbers per lane: dimensions of a key or positions of a value.
    const PER_LANE: usize;
    /// Bytes of an operand, which has `16 * PER_LANE` numbers.
    const BYTES: usize;
    /// Whether the numbers have scales.
    const SCALED: bool = false;
    /// Sixteen lanes of cached numbers.
    type Operand<S: Simd>: Copy;
    /// The `PER_LANE` numbers that all lanes of an operand are multiplied by.
    type Factor<S: Simd>: Copy;

    /// Loads the operand at `at`.
    ///
    /// # Safety
    /// `at` is readable for `BYTES` bytes.
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> Self::Operand<S>;
    /// Loads factors `i..i + PER_LANE` of a row written by [`Element::put`].
    ///
    /// # Safety
    /// The row has that many factors.
    unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> Self::Factor<S>;
    /// Loads dimension `i` of the keys at `keys`, widened.
    ///
    /// # Safety
    /// The keys have this dimension.
    unsafe fn dimension<S: Simd>(s: S, keys: *const u8, i: usize) -> S::V;
    /// Loads factors `i..i + 16` of a row written by [`Element::put`].
    ///
    /// # Safety
    /// The row has that many factors.
    #[inline(always)]
    unsafe fn factors<S: Simd>(s: S, row: *const f32, i: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load(row.add(i)) }
    }
    /// Adds each lane's products to `sum`, the last number's first.
    fn mul_add<S: Simd>(s: S, factor: Self::Factor<S>, operand: Self::Operand<S>, sum: S::V) -> S::V;
    /// As [`Element::mul_add`], but with only the first number of each lane.
    fn mul_add_first<S: Simd>(s: S, factor: Self::Factor<S>, operand: Self::Operand<S>, sum: S::V) -> S::V;
    /// Rounds factors `i..i + 16` and writes them to a row in the order in which [`Element::factor`] reads
    /// them; returns the rounded values. Leaves values of the row from `i + 16` on unchanged.
    ///
    /// # Safety
    /// The row has that many factors.
    #[inline(always)]
    unsafe fn put<S: Simd>(s: S, row: *mut f32, i: usize, factors: [f32; LANES]) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let factors = s.load(factors.as_ptr());
            s.store(factors, row.add(i));
            factors
        }
    }
}

macro_rules! widened {
    ($name:ident, $bytes:literal, $scaled:literal, |$s:ident, $at:ident| $load:expr) => {
        #[doc = concat!("Numbers of ", $bytes, " bytes, widened to `f32`.")]
        pub(super) struct $name;

        impl Element for $name {
            const PER_LANE: usize = 1;
            const BYTES: usize = LANES * $bytes;
            const SCALED: bool = $scaled;
            type Operand<S: Simd> = S::V;
            type Factor<S: Simd> = S::V;

            #[inline(always)]
            unsafe fn load<S: Simd>($s: S, $at: *const u8) -> S::V {
                // SAFETY: the caller guarantees that sixteen numbers are readable.
                unsafe { $load }
            }

            #[inline(always)]
            unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> S::V {
                // SAFETY: the caller guarantees that the row has this factor.
                s.splat(unsafe { *row.add(i) })
            }

            #[inline(always)]
            unsafe fn dimension<S: Simd>(s: S, keys: *const u8, i: usize) -> S::V {
                // SAFETY: the caller guarantees that the keys have this dimension.
                unsafe { Self::load(s, keys.add(i * Self::BYTES)) }
            }

            #[inline(always)]
            fn mul_add<S: Simd>(s: S, factor: S::V, operand: S::V, sum: S::V) -> S::V {
                s.fma(factor, operand, sum)
            }

            #[inline(always)]
            fn mul_add_first<S: Simd>(s: S, factor: S::V, operand: S::V, sum: S::V) -> S::V {
                s.fma(factor, operand, sum)
            }
        }
    };
}

widened!(F32, 4, false, |s, at| s.load(at.cast()));
widened!(F16, 2, false, |s, at| s.load_f16(at));
widened!(Int8, 1, true, |s, at| s.load_i8(at));
widened!(Fp8, 1, true, |s, at| s.load_e4m3(at));

/// Pairs of bfloat16, widened to `f32`.
pub(super) struct Bf16;

impl Element for Bf16 {
    const PER_LANE: usize = 2;
    const BYTES: usize = 4 * LANES;
    /// The even and the odd numbers.
    type Operand<S: Simd> = (S::V, S::V);
    type Factor<S: Simd> = (S::V, S::V);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> Self::Operand<S> {
        // SAFETY: the caller guarantees that 64 bytes are readable.
        let pairs = unsafe { s.load_pairs(at) };
        (s.widen_even(pairs), s.widen_odd(pairs))
    }

    #[inline(always)]
    unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> Self::Factor<S> {
        // SAFETY: the caller guarantees that the row has both factors.
        unsafe { (s.splat(*row.add(i)), s.splat(*row.add(i + 1))) }
    }

    #[inline(always)]
    unsafe fn dimension<S: Simd>(s: S, keys: *const u8, i: usize) -> S::V {
        // SAFETY: the caller guarantees that the keys have this dimension.
        let (even, odd) = unsafe { Self::load(s, keys.add(i / 2 * Self::BYTES)) };
        if i.is_multiple_of(2) { even } else { odd }
    }

    #[inline(always)]
    fn mul_add<S: Simd>(s: S, factor: Self::Factor<S>, operand: Self::Operand<S>, sum: S::V) -> S::V {
        s.fma(factor.0, operand.0, s.fma(factor.1, operand.1, sum))
    }

    #[inline(always)]
    fn mul_add_first<S: Simd>(s: S, factor: Self::Factor<S>, operand: Self::Operand<S>, sum: S::V) -> S::V {
        s.fma(factor.0, operand.0, sum)
    }

    #[inline(always)]
    unsafe fn put<S: Simd>(s: S, row: *mut f32, i: usize, mut factors: [f32; LANES]) -> S::V {
        for factor in &mut factors {
            *factor = f32::from_bits(u32::from(to_bf16(*factor)) << 16);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { F32::put(s, row, i, factors) }
    }
}

/// Pairs of bfloat16, multiplied by one instruction.
pub(super) struct Bf16Dot;

impl Element for Bf16Dot {
    const PER_LANE: usize = 2;
    const BYTES: usize = 4 * LANES;
    type Operand<S: Simd> = S::Pairs;
    type Factor<S: Simd> = S::Pairs;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> S::Pairs {
        // SAFETY: the caller guarantees that 64 bytes are readable.
        unsafe { s.load_pairs(at) }
    }

    #[inline(always)]
    unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> S::Pairs {
        // SAFETY: the caller guarantees that the row has both factors. They are adjacent, in half the space
        // of `f32`.
        s.splat_pair(unsafe { *row.cast::<u32>().add(i / 2) })
    }

    #[inline(always)]
    unsafe fn dimension<S: Simd>(s: S, keys: *const u8, i: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { Bf16::dimension(s, keys, i) }
    }

    #[inline(always)]
    unsafe fn factors<S: Simd>(s: S, row: *const f32, i: usize) -> S::V {
        // SAFETY: guaranteed by the caller; the factors are halves.
        unsafe { s.load_bf16(row.cast::<u16>().add(i).cast()) }
    }

    #[inline(always)]
    fn mul_add<S: Simd>(s: S, factor: S::Pairs, operand: S::Pairs, sum: S::V) -> S::V {
        s.dot_pairs(factor, operand, sum)
    }

    #[inline(always)]
    fn mul_add_first<S: Simd>(s: S, factor: S::Pairs, operand: S::Pairs, sum: S::V) -> S::V {
        s.fma(s.widen_even(factor), s.widen_even(operand), sum)
    }

    #[inline(always)]
    unsafe fn put<S: Simd>(s: S, row: *mut f32, i: usize, mut factors: [f32; LANES]) -> S::V {
        for factor in &mut factors {
            *factor = if factor.abs() < SMALLEST_IN_PAIRS { 0.0 } else { *factor };
        }
        // SAFETY: guaranteed by the caller; sixteen halves in the first half of the row.
        unsafe { s.store_bf16(s.load(factors.as_ptr()), row.cast::<u16>().add(i)) }
    }
}
