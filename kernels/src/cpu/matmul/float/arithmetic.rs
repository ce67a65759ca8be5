//! How products of floating-point numbers are summed: for each pair of formats, one order of arithmetic.
//!
//! - Activations in `f32` ([`Wide`]): lane `j` of sixteen takes every column that is `j` modulo 16, ascending, by fused
//!   multiply-add.
//! - Activations rounded to bfloat16, weights in it ([`Dot`], [`Split`]): lane `j` takes columns `2j` and `2j + 1` of every 32,
//!   blocks of 32 ascending, the odd column first, each by fused multiply-add.
//!
//! Columns after the last are zeros. Then [`Simd::sum`].

use super::super::super::input::Input;
use super::super::super::simd::Simd;
use super::scratch::{LINE_BYTES, Line};

/// A format of weights and of the `x` they are multiplied with.
pub(super) trait Arithmetic {
    /// Columns of a step, whose `x` fills a line of 64 bytes.
    const COLUMNS: usize;
    /// Lines of a step's `x` once it is packed, and multiplications for each sum.
    const PARTS: usize;
    /// Bytes of a weight.
    const WEIGHT_BYTES: usize;
    /// What is multiplied: a line of `x`, or weights of as many columns.
    type Operand<S: Simd>: Copy;

    /// All rows of `x` as they lie; a row of `width` values has `width / COLUMNS` lines.
    fn rows(x: &Input) -> &[u8];
    /// Packs a step's `x`: its parts are put `apart` lines apart.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes, all places in `to` are writable.
    #[inline(always)]
    unsafe fn pack<S: Simd>(_: S, from: *const u8, to: *mut Line, apart: usize) {
        let _ = apart;
        // SAFETY: by the contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to.cast(), LINE_BYTES) }
    }
    /// A line of packed `x`.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes.
    unsafe fn x<S: Simd>(simd: S, from: *const u8) -> Self::Operand<S>;
    /// A step's weights for one part.
    ///
    /// # Safety
    /// `from` is readable for the weights of `COLUMNS`.
    unsafe fn weights<S: Simd>(simd: S, from: *const u8, part: usize) -> Self::Operand<S>;
    /// The same as 32 bits a lane.
    ///
    /// # Safety
    /// As for [`Arithmetic::weights`].
    unsafe fn lanes<S: Simd>(simd: S, from: *const u8, part: usize) -> S::V;
    /// The 32 bits at `from`, in every lane.
    ///
    /// # Safety
    /// `from` is readable for 4 bytes, and aligned to them.
    unsafe fn splat<S: Simd>(simd: S, from: *const u8) -> Self::Operand<S>;
    /// Adds the products to `sum`.
    fn add<S: Simd>(simd: S, x: Self::Operand<S>, weights: Self::Operand<S>, sum: S::V) -> S::V;
}

/// A format weights are stored in.
pub(super) trait Element {
    /// Bytes of a value.
    const BYTES: usize;
    /// Sixteen values, widened.
    ///
    /// # Safety
    /// `from` is readable for `16 * BYTES`.
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V;
}

pub(super) struct Bf16;
pub(super) struct F16;
pub(super) struct F32;

impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { simd.load_bf16(from) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { simd.load_f16(from) }
    }
}

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { simd.load(from.cast()) }
    }
}

/// Activations in `f32`, weights widened to it.
pub(super) struct Wide<E>(E);

impl<E: Element> Arithmetic for Wide<E> {
    const COLUMNS: usize = 16;
    const PARTS: usize = 1;
    const WEIGHT_BYTES: usize = E::BYTES;
    type Operand<S: Simd> = S::V;

    fn rows(x: &Input) -> &[u8] {
        bytes_of(x.values())
    }

    #[inline(always)]
    unsafe fn x<S: Simd>(s: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { s.load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, from: *const u8, _: usize) -> S::V {
        // SAFETY: by the contract.
        unsafe { E::load(s, from) }
    }

    #[inline(always)]
    unsafe fn lanes<S: Simd>(s: S, from: *const u8, part: usize) -> S::V {
        // SAFETY: by the contract.
        unsafe { Self::weights(s, from, part) }
    }

    #[inline(always)]
    unsafe fn splat<S: Simd>(s: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        s.splat(unsafe { *from.cast() })
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::V, weights: S::V, sum: S::V) -> S::V {
        s.fma(x, weights, sum)
    }
}

/// Both in bfloat16, multiplied as they lie.
pub(super) struct Dot;

impl Arithmetic for Dot {
    const COLUMNS: usize = 32;
    const PARTS: usize = 1;
    const WEIGHT_BYTES: usize = 2;
    type Operand<S: Simd> = S::Pairs;

    fn rows(x: &Input) -> &[u8] {
        bytes_of(x.halves())
    }

    #[inline(always)]
    unsafe fn x<S: Simd>(s: S, from: *const u8) -> S::Pairs {
        // SAFETY: by the contract.
        unsafe { s.load_pairs(from) }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, from: *const u8, _: usize) -> S::Pairs {
        // SAFETY: by the contract.
        unsafe { s.load_pairs(from) }
    }

    #[inline(always)]
    unsafe fn lanes<S: Simd>(s: S, from: *const u8, _: usize) -> S::V {
        // SAFETY: by the contract.
        unsafe { s.load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn splat<S: Simd>(s: S, from: *const u8) -> S::Pairs {
        // SAFETY: by the contract.
        s.splat_pair(unsafe { *from.cast() })
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::Pairs, weights: S::Pairs, sum: S::V) -> S::V {
        s.dot_pairs(x, weights, sum)
    }
}

/// Both in bfloat16, `x` widened when it is packed: the bits of [`Dot`] where that takes more than one instruction.
pub(super) struct Split;

impl Arithmetic for Split {
    const COLUMNS: usize = 32;
    const PARTS: usize = 2;
    const WEIGHT_BYTES: usize = 2;
    type Operand<S: Simd> = S::V;

    fn rows(x: &Input) -> &[u8] {
        bytes_of(x.halves())
    }

    #[inline(always)]
    unsafe fn pack<S: Simd>(s: S, from: *const u8, to: *mut Line, apart: usize) {
        // SAFETY: by the contract.
        unsafe {
            let pairs = s.load_pairs(from);
            s.store(s.widen_odd(pairs), to.cast());
            s.store(s.widen_even(pairs), to.add(apart).cast());
        }
    }

    #[inline(always)]
    unsafe fn x<S: Simd>(s: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        unsafe { s.load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, from: *const u8, part: usize) -> S::V {
        // SAFETY: by the contract.
        let pairs = unsafe { s.load_pairs(from) };
        if part == 0 { s.widen_odd(pairs) } else { s.widen_even(pairs) }
    }

    #[inline(always)]
    unsafe fn lanes<S: Simd>(s: S, from: *const u8, part: usize) -> S::V {
        // SAFETY: by the contract.
        unsafe { Self::weights(s, from, part) }
    }

    #[inline(always)]
    unsafe fn splat<S: Simd>(s: S, from: *const u8) -> S::V {
        // SAFETY: by the contract.
        s.splat(unsafe { *from.cast() })
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, x: S::V, weights: S::V, sum: S::V) -> S::V {
        s.fma(x, weights, sum)
    }
}

fn bytes_of<T: Number>(values: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and any bytes may be read.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Plain numbers.
trait Number {}
impl Number for f32 {}
impl Number for u16 {}
