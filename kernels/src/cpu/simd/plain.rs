//! Sixteen lanes in an array: any architecture. Where the compiler knows a fused multiply-add it vectorises.

use super::{Kernel, LANES, Simd};

/// Plain Rust; always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plain;

impl Simd for Plain {
    type V = [f32; LANES];
    type Pairs = [u32; LANES];
    const ACCUMULATORS: usize = 6;

    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::V {
        // SAFETY: readable by the contract; an unaligned read needs no more.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Self::V {
        // SAFETY: readable for 32 bytes by the contract.
        let words = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        words.map(|word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::V {
        // SAFETY: readable for 32 bytes by the contract.
        let words = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        words.map(|word| half::f16::from_bits(u16::from_le_bytes(word)).to_f32())
    }

    #[inline(always)]
    unsafe fn load_pairs(self, from: *const u8) -> Self::Pairs {
        // SAFETY: readable for 64 bytes by the contract.
        unsafe { from.cast::<[[u8; 4]; LANES]>().read_unaligned() }.map(u32::from_le_bytes)
    }

    #[inline(always)]
    fn splat_pair(self, pair: u32) -> Self::Pairs {
        [pair; LANES]
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> Self::V {
        // SAFETY: readable for 16 bytes by the contract.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    fn widen_even(self, pairs: Self::Pairs) -> Self::V {
        pairs.map(|pair| f32::from_bits(pair << 16))
    }

    #[inline(always)]
    fn widen_odd(self, pairs: Self::Pairs) -> Self::V {
        pairs.map(|pair| f32::from_bits(pair & 0xffff_0000))
    }

    #[inline(always)]
    unsafe fn store(self, v: Self::V, to: *mut f32) {
        // SAFETY: writable by the contract.
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }
}
