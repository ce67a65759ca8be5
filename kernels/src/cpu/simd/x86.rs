//! x86-64: one zmm with AVX-512, or two ymm with AVX2 and FMA.

use std::arch::x86_64::*;

use super::operations::{Kernel, LANES, Simd, store_nearest_bf16};

/// AVX-512 F, BW, DQ and VL, and BF16 and VBMI if `DOT`. The private field makes [`Avx512::detect`] the only
/// constructor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512<const DOT: bool = false>(());

impl<const DOT: bool> Avx512<DOT> {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && (!DOT || (is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi")))
            && Avx2::detect().is_some();
        has.then_some(Self(()))
    }
}

/// Runs a kernel in a separate function compiled for the set.
pub(super) trait Compiled {
    fn compiled<K: Kernel>(self, kernel: K) -> K::Output;
}

/// The prefetch methods, which are the same for all vector widths.
macro_rules! prefetches {
    () => {
        #[inline(always)]
        fn prefetch(self, at: *const u8) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }

        #[inline(always)]
        fn prefetch_later(self, at: *const u8) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
    };
}

macro_rules! compiled {
    ($set:ty, $features:literal) => {
        impl Compiled for $set {
            #[inline(always)]
            fn compiled<K: Kernel>(self, kernel: K) -> K::Output {
                #[inline(never)]
                #[target_feature(enable = $features)]
                fn in_own_function<K: Kernel>(simd: $set, kernel: K) -> K::Output {
                    kernel.run(simd)
                }
                // SAFETY: the token proves the features.
                unsafe { in_own_function(self, kernel) }
            }
        }
    };
}

compiled!(Avx512<true>, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma,f16c");
compiled!(Avx512<false>, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");
compiled!(Avx2, "avx2,fma,f16c");

impl Avx512<true> {
    #[inline]
    pub(super) fn without_dot(self) -> Avx512<false> {
        Avx512(())
    }
}

// In this `impl`, "the token" in SAFETY comments is `self`, which proves that the machine has the
// instructions.
impl<const DOT: bool> Simd for Avx512<DOT>
where
    Self: Compiled,
{
    type V = __m512;
    type Pairs = __m512i;
    type Table = __m512;
    const ACCUMULATORS: usize = 24;
    const HAS_DOT: bool = DOT;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        self.compiled(kernel)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: the token.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            sum8(eight)
        }
    }

    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        // Each step adds the same lanes as `sum`, for several vectors in one instruction.
        // SAFETY: the token; `out` has four values.
        unsafe {
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            let four =
                _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4e>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0xb1>(two));
            let packed = _mm512_maskz_compress_ps(0x1111, one);
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(packed));
            out
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [__m512; LANES]) -> [__m512; LANES] {
        let (mut pairs, mut fours, mut columns) = (rows, rows, rows);
        // SAFETY: the token.
        unsafe {
            for i in 0..8 {
                pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            // Each quarter of a vector holds one column of four rows; quarters are four columns apart.
            for i in (0..16).step_by(4) {
                for half in 0..2 {
                    let (a, b) = (_mm512_castps_pd(pairs[i + half]), _mm512_castps_pd(pairs[i + half + 2]));
                    fours[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            for i in 0..4 {
                let (a, b, c, d) = (fours[i], fours[4 + i], fours[8 + i], fours[12 + i]);
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                columns[i] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
                columns[4 + i] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
                columns[8 + i] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
                columns[12 + i] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
            }
        }
        columns
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the token and the contract.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m512 {
        // SAFETY: the token and the contract.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        // SAFETY: the token and the contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_pairs(self, from: *const u8) -> __m512i {
        // SAFETY: the token and the contract.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_pairs(self, pairs: __m512i, to: *mut u8) {
        // SAFETY: the token and the contract.
        unsafe { _mm512_storeu_si512(to.cast(), pairs) }
    }

    #[inline(always)]
    unsafe fn unfold(self, unit: *const u8, table: *const u8) -> [__m512i; 4] {
        // SAFETY: the token and the contract.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast()));
            let both = _mm512_loadu_si512(unit.cast());
            let low = [_mm512_loadu_si512(unit.add(64).cast()), _mm512_loadu_si512(unit.add(128).cast())];
            let above = _mm512_srli_epi16::<4>(both);
            let [first, second] = if DOT {
                // Uses six bits of each byte as the index; the table is repeated four times, so the upper two
                // do not matter.
                [_mm512_permutexvar_epi8(both, table), _mm512_permutexvar_epi8(above, table)]
            } else {
                let nibble = _mm512_set1_epi8(15);
                [
                    _mm512_shuffle_epi8(table, _mm512_and_si512(both, nibble)),
                    _mm512_shuffle_epi8(table, _mm512_and_si512(above, nibble)),
                ]
            };
            [
                _mm512_unpacklo_epi8(low[0], first),
                _mm512_unpackhi_epi8(low[0], first),
                _mm512_unpacklo_epi8(low[1], second),
                _mm512_unpackhi_epi8(low[1], second),
            ]
        }
    }

    #[inline(always)]
    fn splat_pair(self, pair: u32) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_set1_epi32(pair as i32) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> __m512 {
        // SAFETY: the token and the contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> __m512 {
        // SAFETY: the token and the contract.
        unsafe { _mm512_cvtph_ps(e4m3_as_halves(from)) }
    }

    #[inline(always)]
    unsafe fn load_table(self, from: *const f32) -> __m512 {
        // SAFETY: the token and the contract.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn look_up(self, table: __m512, from: *const u8) -> [__m512; 2] {
        // The permutation uses the low four bits of an index.
        // SAFETY: the token and the contract.
        unsafe {
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm512_srli_epi32::<4>(codes);
            [_mm512_permutexvar_ps(codes, table), _mm512_permutexvar_ps(high, table)]
        }
    }

    #[inline(always)]
    fn widen_even(self, pairs: __m512i) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)) }
    }

    #[inline(always)]
    fn widen_odd(self, pairs: __m512i) -> __m512 {
        // SAFETY: the token.
        unsafe { _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32))) }
    }

    #[inline(always)]
    fn dot_pairs(self, a: __m512i, b: __m512i, c: __m512) -> __m512 {
        if DOT {
            // SAFETY: the token; the types are names for the same bits.
            return unsafe { _mm512_dpbf16_ps(c, bf16x32(a), bf16x32(b)) };
        }
        let odd = self.fma(self.widen_odd(a), self.widen_odd(b), c);
        self.fma(self.widen_even(a), self.widen_even(b), odd)
    }

    #[inline(always)]
    unsafe fn store(self, v: __m512, to: *mut f32) {
        // SAFETY: the token and the contract.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, v: __m512, to: *mut u16) -> __m512 {
        // SAFETY: the token and the contract; the types are names for the same bits.
        unsafe {
            if !DOT {
                return store_nearest_bf16(self, v, to);
            }
            let halves: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(v));
            _mm256_storeu_si256(to.cast(), halves);
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    prefetches!();

    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> __m512 {
        // SAFETY: the token and the contract; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(low_lanes(count), from) }
    }

    #[inline(always)]
    unsafe fn store_part(self, v: __m512, to: *mut f32, count: usize) {
        // SAFETY: the token and the contract; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(to, low_lanes(count), v) }
    }
}

/// The same bits in the type that `VDPBF16PS` takes.
#[inline(always)]
fn bf16x32(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of which all values are valid.
    unsafe { std::mem::transmute(pairs) }
}

#[inline(always)]
fn low_lanes(count: usize) -> u16 {
    ((1u32 << count.min(LANES)) - 1) as u16
}

/// Adds lanes 4 apart, then 2, then 1.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
unsafe fn sum8(eight: __m256) -> f32 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// AVX2, FMA and F16C. The private field makes [`Avx2::detect`] the only constructor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

impl Simd for Avx2 {
    type V = [__m256; 2];
    type Pairs = [__m256i; 2];
    type Table = [__m256; 2];
    // A sixth would be spilled: widening pairs takes another register.
    const ACCUMULATORS: usize = 5;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        self.compiled(kernel)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        // SAFETY: the token.
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        // SAFETY: the token.
        unsafe { sum8(_mm256_add_ps(v[0], v[1])) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::V {
        // SAFETY: the token and the contract.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Self::V {
        // SAFETY: the token and the contract.
        unsafe { [bf16x8(from), bf16x8(from.add(16))] }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::V {
        // SAFETY: the token and the contract.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast()));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(self, from: *const u8) -> Self::Pairs {
        // SAFETY: the token and the contract.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn store_pairs(self, pairs: Self::Pairs, to: *mut u8) {
        // SAFETY: the token and the contract.
        unsafe {
            _mm256_storeu_si256(to.cast(), pairs[0]);
            _mm256_storeu_si256(to.add(32).cast(), pairs[1]);
        }
    }

    #[inline(always)]
    unsafe fn unfold(self, unit: *const u8, table: *const u8) -> [Self::Pairs; 4] {
        // SAFETY: the token and the contract; both halves of a unit's vectors are inside it.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
            let [a, b] = [unfold_half(unit, table), unfold_half(unit.add(32), table)];
            [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]]]
        }
    }

    #[inline(always)]
    fn splat_pair(self, pair: u32) -> Self::Pairs {
        // SAFETY: the token.
        unsafe { [_mm256_set1_epi32(pair as i32); 2] }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> Self::V {
        // SAFETY: the token and the contract.
        unsafe {
            let codes = _mm_loadu_si128(from.cast());
            let (low, high) = (_mm256_cvtepi8_epi32(codes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(codes)));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V {
        // SAFETY: the token and the contract.
        unsafe {
            let halves = e4m3_as_halves(from);
            let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn load_table(self, from: *const f32) -> Self::Table {
        // SAFETY: guaranteed by the caller.
        unsafe { self.load(from) }
    }

    #[inline(always)]
    unsafe fn look_up(self, table: Self::Table, from: *const u8) -> [Self::V; 2] {
        // SAFETY: the token and the contract.
        unsafe {
            let codes = _mm_loadu_si128(from.cast());
            let codes = [_mm256_cvtepu8_epi32(codes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(codes))];
            let high = [_mm256_srli_epi32::<4>(codes[0]), _mm256_srli_epi32::<4>(codes[1])];
            [
                [look_up8(table, codes[0]), look_up8(table, codes[1])],
                [look_up8(table, high[0]), look_up8(table, high[1])],
            ]
        }
    }

    #[inline(always)]
    fn widen_even(self, pairs: Self::Pairs) -> Self::V {
        // SAFETY: the token.
        unsafe {
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[0])),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[1])),
            ]
        }
    }

    #[inline(always)]
    fn widen_odd(self, pairs: Self::Pairs) -> Self::V {
        // SAFETY: the token.
        unsafe {
            let odd = _mm256_set1_epi32(0xffff_0000u32 as i32);
            [
                _mm256_castsi256_ps(_mm256_and_si256(pairs[0], odd)),
                _mm256_castsi256_ps(_mm256_and_si256(pairs[1], odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(self, v: Self::V, to: *mut f32) {
        // SAFETY: the token and the contract.
        unsafe {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        }
    }

    prefetches!();
}

/// Unpacks one half of each vector of a unit of folded bfloat16.
///
/// # Safety
/// The machine has AVX2. `unit` is readable for 32 bytes, and so are the addresses 64 and 128 bytes further.
#[inline(always)]
unsafe fn unfold_half(unit: *const u8, table: __m256i) -> [__m256i; 4] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let both = _mm256_loadu_si256(unit.cast());
        let low = [_mm256_loadu_si256(unit.add(64).cast()), _mm256_loadu_si256(unit.add(128).cast())];
        let nibble = _mm256_set1_epi8(15);
        let first = _mm256_shuffle_epi8(table, _mm256_and_si256(both, nibble));
        let second = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble));
        [
            _mm256_unpacklo_epi8(low[0], first),
            _mm256_unpackhi_epi8(low[0], first),
            _mm256_unpacklo_epi8(low[1], second),
            _mm256_unpackhi_epi8(low[1], second),
        ]
    }
}

/// Loads eight bfloat16 values, widened.
///
/// # Safety
/// The machine has AVX2; `from` is readable for 16 bytes.
#[inline(always)]
unsafe fn bf16x8(from: *const u8) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
    }
}

/// Sixteen FP8 values (E4M3) times 2^-8, as IEEE halves.
///
/// # Safety
/// The machine has AVX2, and 16 bytes at `from` are readable.
#[inline(always)]
unsafe fn e4m3_as_halves(from: *const u8) -> __m256i {
    // Moves the sign to the top, and the rest below the second bit, which the arithmetic shift fills with the
    // sign.
    // SAFETY: guaranteed by the caller.
    unsafe {
        let high = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())));
        _mm256_and_si256(_mm256_srai_epi16::<1>(high), _mm256_set1_epi16(0xbfffu16 as i16))
    }
}

/// Table values for the low four bits of eight indices.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn look_up8(table: [__m256; 2], indices: __m256i) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(indices));
        let low = _mm256_permutevar8x32_ps(table[0], indices);
        _mm256_blendv_ps(low, _mm256_permutevar8x32_ps(table[1], indices), is_high)
    }
}
