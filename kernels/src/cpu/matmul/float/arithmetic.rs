//! Order of summation of floating-point products within a [leaf](crate::leaves), for each format of weights.
//!
//! - Weights in bfloat16 ([`OfPairs`]): columns in pairs, pairs ascending, the odd column of a pair first.
//!   Each product is added by fused multiply-add. Activations are `f32`, possibly already rounded to
//!   bfloat16.
//! - Weights in other formats ([`Wide`]): columns ascending, each product added by fused multiply-add.
//!
//! Columns are padded with zeros. For bfloat16 this is the order of `VDPBF16PS` on rows of pairs, which
//! `simd::dot` describes.

use super::super::super::input::Input;
use super::super::super::rows::Rows;
use super::super::super::simd::{LANES, Simd};

/// The arithmetic of a format of weights and of the `x` to multiply by.
pub(in crate::cpu) trait Arithmetic {
    /// Multiplications per sum in a step of columns.
    const PARTS: usize;
    /// Bytes of sixteen outputs' weights in a step.
    const WEIGHT_BYTES: usize;
    /// Bytes of a row's `x` in a step.
    const X_BYTES: usize;
    /// Vector of factors.
    type Operand<S: Simd>: Copy;

    /// All rows of `x`, in bytes.
    fn rows(x: &Input) -> Rows<'_, u8>;
    /// One part of a step's `x`, in every lane.
    ///
    /// # Safety
    /// `from` is readable for `X_BYTES` and aligned to 4 bytes.
    unsafe fn x<S: Simd>(simd: S, from: *const u8, part: usize) -> Self::Operand<S>;
    /// One part of a step's weights.
    ///
    /// # Safety
    /// `from` is readable for `WEIGHT_BYTES`.
    unsafe fn weights<S: Simd>(simd: S, from: *const u8, part: usize) -> Self::Operand<S>;
    /// Adds the products of `x` and `weights` to `sum`.
    fn add<S: Simd>(simd: S, x: Self::Operand<S>, weights: Self::Operand<S>, sum: S::V) -> S::V;
}

/// Weights in pairs of bfloat16 that the kernel has already loaded.
pub(in crate::cpu) trait OfPairs: Arithmetic {
    /// Converts one part of a step's weights.
    fn of_pairs<S: Simd>(simd: S, pairs: S::Pairs, part: usize) -> Self::Operand<S>;
}

/// Weights in other formats, widened to `f32`, with `x` in `f32`.
pub(in crate::cpu) struct Wide<E>(E);

impl<E: Element> Arithmetic for Wide<E> {
    const PARTS: usize = 1;
    const WEIGHT_BYTES: usize = LANES * E::BYTES;
    const X_BYTES: usize = 4;
    type Operand<S: Simd> = S::V;

    fn rows(x: &Input) -> Rows<'_, u8> {
        values(x)
    }

    #[inline(always)]
    unsafe fn x<S: Simd>(s: S, from: *const u8, _: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        s.splat(unsafe { *from.cast() })
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, from: *const u8, _: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { E::load(s, from) }
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::V, weights: S::V, sum: S::V) -> S::V {
        s.fma(x, weights, sum)
    }
}

/// A format of weights.
pub(in crate::cpu) trait Element {
    /// Bytes per value.
    const BYTES: usize;
    /// Loads sixteen values, widened.
    ///
    /// # Safety
    /// `from` is readable for `16 * BYTES`.
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V;
}

/// Rows of `f32`, for [`Arithmetic::rows`].
pub(in crate::cpu) fn values(x: &Input) -> Rows<'_, u8> {
    in_bytes(x.values())
}

/// Reinterprets rows of numbers as rows of bytes.
pub(in crate::cpu) fn in_bytes<T: Number>(rows: Rows<'_, T>) -> Rows<'_, u8> {
    let Rows { values, stride } = rows;
    // SAFETY: numbers have no padding, and any bytes may be read.
    let values = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
    Rows { values, stride: stride * size_of::<T>() }
}

/// Numbers without padding.
pub(in crate::cpu) trait Number {}
impl Number for f32 {}
impl Number for u16 {}
