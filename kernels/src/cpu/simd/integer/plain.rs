//! Sixteen sums in an array, for any architecture.

use super::super::plain::Plain;
use super::super::{LANES, Simd};
use super::operations::{IntegerKernel, Integers};

/// Plain Rust; always available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlainIntegers;

impl Integers for PlainIntegers {
    type Floats = Plain;
    type Codes = [[u8; 4]; LANES];
    type Four = [i8; 4];
    type Sums = [i32; LANES];
    type Small = [i32; LANES];
    const ACCUMULATORS: usize = 4;
    const HAS_DOT: bool = true;

    #[inline(never)]
    fn call<K: IntegerKernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn floats(self) -> Plain {
        Plain
    }

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Self::Codes {
        // SAFETY: the caller guarantees 64 readable bytes.
        unsafe { from.cast::<Self::Codes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, codes: Self::Codes, to: *mut u8) {
        // SAFETY: the caller guarantees 64 writable bytes.
        unsafe { to.cast::<Self::Codes>().write_unaligned(codes) }
    }

    #[inline(always)]
    fn low(self, bytes: Self::Codes) -> Self::Codes {
        bytes.map(|four| four.map(|byte| byte & 15))
    }

    #[inline(always)]
    fn high(self, bytes: Self::Codes) -> Self::Codes {
        bytes.map(|four| four.map(|byte| byte >> 4))
    }

    #[inline(always)]
    fn with_upper(self, low: Self::Codes, upper: Self::Codes, by: i32, mask: i8) -> Self::Codes {
        let shifted = |byte: u8| if by < 0 { byte >> -by } else { byte << by };
        std::array::from_fn(|i| std::array::from_fn(|j| low[i][j] | shifted(upper[i][j]) & mask as u8))
    }

    #[inline(always)]
    unsafe fn four(self, from: *const i8) -> [i8; 4] {
        // SAFETY: the caller guarantees 4 readable bytes.
        unsafe { from.cast::<[i8; 4]>().read_unaligned() }
    }

    #[inline(always)]
    fn splat(self, value: i32) -> Self::Sums {
        [value; LANES]
    }

    #[inline(always)]
    fn dot(self, sums: Self::Sums, codes: Self::Codes, four: [i8; 4]) -> Self::Sums {
        std::array::from_fn(|i| {
            let product = |j: usize| i32::from(codes[i][j]) * i32::from(four[j]);
            sums[i].wrapping_add(product(0) + product(1) + product(2) + product(3))
        })
    }

    small_as_sums!();

    #[inline(always)]
    unsafe fn load_steps(self, from: *const u8) -> (<Plain as Simd>::V, Self::Sums) {
        // SAFETY: the caller guarantees 16 readable bytes.
        let steps = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        (steps.map(|step| f32::from(step & 15)), steps.map(|step| i32::from(step >> 4)))
    }

    #[inline(always)]
    unsafe fn load_byte_steps(self, from: *const u8) -> [Self::Codes; 2] {
        // SAFETY: the caller guarantees 16 readable bytes.
        let steps = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        [steps.map(|step| [step & 15; 4]), steps.map(|step| [step >> 4; 4])]
    }

    #[inline(always)]
    fn stepped(self, codes: Self::Codes, [multipliers, zeros]: [Self::Codes; 2]) -> Self::Codes {
        std::array::from_fn(|i| {
            let (multiplier, zero) = (multipliers[i][0], zeros[i][0]);
            codes[i].map(|code| multiplier.wrapping_mul(code.wrapping_sub(zero)).wrapping_add(128))
        })
    }

    #[inline(always)]
    unsafe fn load_zeros(self, from: *const u8) -> Self::Sums {
        // SAFETY: the caller guarantees 16 readable bytes.
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(i32::from)
    }

    #[inline(always)]
    fn minus_times(self, zeros: Self::Sums, sum: i32) -> Self::Sums {
        zeros.map(|zero| -zero * sum)
    }

    #[inline(always)]
    fn to_floats(self, sums: Self::Sums) -> <Plain as Simd>::V {
        sums.map(|sum| sum as f32)
    }
}
