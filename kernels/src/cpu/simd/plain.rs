//! Sixteen lanes in an array, for any architecture. Vectorises where the target has fused multiply-add.

use super::operations::{Kernel, LANES, Simd, e4m3_in_256ths};

/// Plain Rust; always available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plain;

impl Simd for Plain {
    type V = [f32; LANES];
    type Pairs = [u32; LANES];
    type Table = [f32; LANES];
    // On x86-64 only machines without AVX2 run this, where each multiplication is a call of `fmaf`. More tile
    // sizes would add a fifth to the crate's machine code; their gain on such a machine was not measured.
    const ACCUMULATORS: usize = if cfg!(target_arch = "x86_64") { 1 } else { 6 };

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
        // SAFETY: the caller guarantees that `from` is readable; the read is unaligned.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Self::V {
        // SAFETY: the caller guarantees 32 readable bytes.
        let words = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        words.map(|word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::V {
        // SAFETY: the caller guarantees 32 readable bytes.
        let words = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        words.map(|word| half::f16::from_bits(u16::from_le_bytes(word)).to_f32())
    }

    #[inline(always)]
    unsafe fn load_pairs(self, from: *const u8) -> Self::Pairs {
        // SAFETY: the caller guarantees 64 readable bytes.
        unsafe { from.cast::<[[u8; 4]; LANES]>().read_unaligned() }.map(u32::from_le_bytes)
    }

    #[inline(always)]
    unsafe fn store_pairs(self, pairs: Self::Pairs, to: *mut u8) {
        // SAFETY: the caller guarantees 64 writable bytes.
        unsafe { to.cast::<[[u8; 4]; LANES]>().write_unaligned(pairs.map(u32::to_le_bytes)) }
    }

    #[inline(always)]
    unsafe fn unfold(self, unit: *const u8, table: *const u8) -> [Self::Pairs; 4] {
        // SAFETY: the caller guarantees that unit and table are readable.
        let (numbers, low, table) = unsafe {
            (
                unit.cast::<[u8; 64]>().read_unaligned(),
                unit.add(64).cast::<[[u8; 64]; 2]>().read_unaligned(),
                table.cast::<[u8; 16]>().read_unaligned(),
            )
        };
        // The values of two vectors alternate, eight by eight.
        std::array::from_fn(|vector| {
            let value = |word: usize| {
                let at = word / 8 * 16 + vector % 2 * 8 + word % 8;
                let number = numbers[at] >> (vector / 2 * 4) & 15;
                u32::from(table[usize::from(number)]) << 8 | u32::from(low[vector / 2][at])
            };
            std::array::from_fn(|lane| value(2 * lane) | value(2 * lane + 1) << 16)
        })
    }

    #[inline(always)]
    fn splat_pair(self, pair: u32) -> Self::Pairs {
        [pair; LANES]
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> Self::V {
        // SAFETY: the caller guarantees 16 readable bytes.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V {
        // SAFETY: the caller guarantees 16 readable bytes.
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(e4m3_in_256ths)
    }

    #[inline(always)]
    unsafe fn load_table(self, from: *const f32) -> Self::Table {
        // SAFETY: guaranteed by the caller.
        unsafe { self.load(from) }
    }

    #[inline(always)]
    unsafe fn look_up(self, table: Self::Table, from: *const u8) -> [Self::V; 2] {
        // SAFETY: the caller guarantees 16 readable bytes.
        let codes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        [codes.map(|code| table[usize::from(code & 15)]), codes.map(|code| table[usize::from(code >> 4)])]
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
        // SAFETY: the caller guarantees that `to` is writable.
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }
}
