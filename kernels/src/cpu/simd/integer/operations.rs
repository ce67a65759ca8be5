//! What an instruction set for integers provides.

use super::super::operations::Simd;

/// Most columns of one [`Integers::dot_small`] sum: a group.
pub const SMALL_COLUMNS: usize = super::super::super::input::GROUP;

/// An instruction set for integer dot products. A value of such a type proves that this machine has it.
///
/// Methods are `inline(always)`: they must end up inside a function compiled for the set, see
/// [`IntegerIsa::run`](super::IntegerIsa::run).
pub trait Integers: Copy + Send + Sync {
    /// Matching instruction set for sixteen `f32`.
    type Floats: Simd;
    /// 64 codes of weights, `[16 outputs][4 columns]`.
    type Codes: Copy;
    /// Four codes of activations, as [`Integers::dot`] takes them.
    type Four: Copy;
    /// Sixteen 32-bit sums.
    type Sums: Copy;
    /// Sums of products of 4-bit codes over at most [`SMALL_COLUMNS`] columns.
    type Small: Copy;
    /// Sums that fit the register file besides the operands.
    const ACCUMULATORS: usize;
    /// Whether products of 8-bit codes are as fast as those of 4-bit ones.
    const HAS_DOT: bool;

    /// Runs `kernel` in a separate function compiled for this set ([`Simd::call`]).
    fn call<K: IntegerKernel>(self, kernel: K) -> K::Output;
    /// Token of the matching instruction set for floats.
    fn floats(self) -> Self::Floats;
    /// Loads 64 codes of 8 bits, or 128 of 4.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes; it needs no alignment.
    unsafe fn load(self, from: *const u8) -> Self::Codes;
    /// Stores 64 codes.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes; it needs no alignment.
    unsafe fn store(self, codes: Self::Codes, to: *mut u8);
    /// The low halves of the bytes.
    fn low(self, bytes: Self::Codes) -> Self::Codes;
    /// The high halves of the bytes.
    fn high(self, bytes: Self::Codes) -> Self::Codes;
    /// `low` with the bits in `mask` replaced by those of `upper`, whose bytes are shifted left by `by` bits,
    /// or right if negative. Bits shifted across bytes must lie outside the mask.
    fn with_upper(self, low: Self::Codes, upper: Self::Codes, by: i32, mask: i8) -> Self::Codes;
    /// Loads four codes of activations.
    ///
    /// # Safety
    /// `from` is readable for 4 bytes; it needs no alignment.
    unsafe fn four(self, from: *const i8) -> Self::Four;
    /// The same value in all lanes.
    fn splat(self, value: i32) -> Self::Sums;
    /// Adds the products of four columns to the sums, wrapping.
    fn dot(self, sums: Self::Sums, codes: Self::Codes, four: Self::Four) -> Self::Sums;
    /// Starts sums for [`Integers::dot_small`]; pass the same `start` to [`Integers::end_small`].
    fn begin_small(self, start: Self::Sums) -> Self::Small;
    /// As [`Integers::dot`], for codes up to 15 and at most `SMALL_COLUMNS / 4` calls.
    fn dot_small(self, sums: Self::Small, codes: Self::Codes, four: Self::Four) -> Self::Small;
    /// `start` plus the sums.
    fn end_small(self, sums: Self::Small, start: Self::Sums) -> Self::Sums;
    /// Loads the steps of sixteen outputs: multipliers from the low halves of bytes, and zero points from the
    /// high ones, as [`Integers::minus_times`] takes them.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_steps(self, from: *const u8) -> (<Self::Floats as Simd>::V, Self::Sums);
    /// Loads steps in the form that [`Integers::stepped`] takes.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_byte_steps(self, from: *const u8) -> [Self::Codes; 2];
    /// `multiplier * (code - zero point) + 128` for 4-bit codes, modulo 256.
    fn stepped(self, codes: Self::Codes, steps: [Self::Codes; 2]) -> Self::Codes;
    /// Loads sixteen zero points, as [`Integers::minus_times`] takes them.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_zeros(self, from: *const u8) -> Self::Sums;
    /// `-zeros * sum`, for zero points up to 255 and sums of 16 bits.
    fn minus_times(self, zeros: Self::Sums, sum: i32) -> Self::Sums;
    /// Converts each sum to the nearest `f32`, ties to even.
    fn to_floats(self, sums: Self::Sums) -> <Self::Floats as Simd>::V;
}

/// A computation that can be compiled for any integer instruction set.
pub trait IntegerKernel {
    /// Result of the computation.
    type Output;
    /// Computes the result. Implementations are `inline(always)`, and so is everything they call that takes
    /// `simd`.
    fn run<S: Integers>(self, simd: S) -> Self::Output;
}
