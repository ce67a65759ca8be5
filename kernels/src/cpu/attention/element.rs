//! What a chain of multiply-adds is for each type of cached numbers.
//!
//! - `f32`, IEEE half and 8-bit codes are widened, which is exact, and each number is one fused multiply-add. A key's scale
//!   multiplies its score, a value's scale its weight.
//! - bfloat16 goes in pairs, two dimensions of a key or two positions of a value: first the odd one is added, then the
//!   even one, each fused. Queries and weights are rounded to bfloat16 too. So machines with an instruction for that may
//!   use it and get the same bits: [`to_bf16`] leaves none so small that it would not.

#![allow(clippy::needless_range_loop)] // so that vectors come of it

use super::super::kv_cache::{SMALLEST_IN_PAIRS, to_bf16};
use super::super::simd::{LANES, Simd};

/// Sixteen cached numbers, or pairs of numbers, as they are loaded and multiplied.
pub(super) trait Element {
    /// Numbers of a lane: dimensions of a key, positions of a value.
    const STEP: usize;
    /// Bytes of an operand: sixteen times `STEP` numbers.
    const BYTES: usize;
    /// Whether numbers have scales.
    const SCALED: bool = false;
    /// An operand.
    type Operand<S: Simd>: Copy;
    /// What all lanes of an operand are multiplied with: `STEP` numbers.
    type Factor<S: Simd>: Copy;

    /// The operand at `at`.
    ///
    /// # Safety
    /// `at` is readable for `BYTES` bytes.
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> Self::Operand<S>;
    /// Factors `i..i + STEP` of a row that was [put](Element::put).
    ///
    /// # Safety
    /// The row has as many.
    unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> Self::Factor<S>;
    /// Adds the products of a lane to `sum`, the last first.
    fn mul_add<S: Simd>(s: S, factor: Self::Factor<S>, operand: Self::Operand<S>, sum: S::V) -> S::V;
    /// The same with the first number of each lane alone.
    fn mul_add_first<S: Simd>(s: S, factor: Self::Factor<S>, operand: Self::Operand<S>, sum: S::V) -> S::V;
    /// Writes factors `i..i + 16` of a row, rounded, as [`Element::factor`] reads them; gives what they were rounded to. Values
    /// of the row from `i + 16` on are left as they are.
    ///
    /// # Safety
    /// The row has as many.
    #[inline(always)]
    unsafe fn put<S: Simd>(s: S, row: *mut f32, i: usize, factors: [f32; LANES]) -> S::V {
        // SAFETY: by the contract.
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
            const STEP: usize = 1;
            const BYTES: usize = LANES * $bytes;
            const SCALED: bool = $scaled;
            type Operand<S: Simd> = S::V;
            type Factor<S: Simd> = S::V;

            #[inline(always)]
            unsafe fn load<S: Simd>($s: S, $at: *const u8) -> S::V {
                // SAFETY: readable for sixteen numbers by the contract.
                unsafe { $load }
            }

            #[inline(always)]
            unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> S::V {
                // SAFETY: the row has it by the contract.
                s.splat(unsafe { *row.add(i) })
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

/// Pairs of bfloat16, widened.
pub(super) struct Bf16;

impl Element for Bf16 {
    const STEP: usize = 2;
    const BYTES: usize = 4 * LANES;
    /// Even and odd ones.
    type Operand<S: Simd> = (S::V, S::V);
    type Factor<S: Simd> = (S::V, S::V);

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> Self::Operand<S> {
        // SAFETY: readable for 64 bytes by the contract.
        let pairs = unsafe { s.load_pairs(at) };
        (s.widen_even(pairs), s.widen_odd(pairs))
    }

    #[inline(always)]
    unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> Self::Factor<S> {
        // SAFETY: the row has both by the contract.
        unsafe { (s.splat(*row.add(i)), s.splat(*row.add(i + 1))) }
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
        // SAFETY: by the contract.
        unsafe { F32::put(s, row, i, factors) }
    }
}

/// Pairs of bfloat16, multiplied by one instruction.
pub(super) struct Bf16Dot;

impl Element for Bf16Dot {
    const STEP: usize = 2;
    const BYTES: usize = 4 * LANES;
    type Operand<S: Simd> = S::Pairs;
    type Factor<S: Simd> = S::Pairs;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> S::Pairs {
        // SAFETY: readable for 64 bytes by the contract.
        unsafe { s.load_pairs(at) }
    }

    #[inline(always)]
    unsafe fn factor<S: Simd>(s: S, row: *const f32, i: usize) -> S::Pairs {
        // SAFETY: the row has both by the contract, one after the other in half the room.
        s.splat_pair(unsafe { *row.cast::<u32>().add(i / 2) })
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
        // SAFETY: by the contract; sixteen halves, in the first half of the row.
        unsafe { s.store_bf16(s.load(factors.as_ptr()), row.cast::<u16>().add(i)) }
    }
}
