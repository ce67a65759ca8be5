//! AVX-512: one zmm of sums, with VNNI or, on the first machines with AVX-512, without.

use std::arch::x86_64::*;

use super::super::x86::Avx512;
use super::operations::{IntegerKernel, Integers};

/// AVX-512 with VNNI. The private field makes [`Avx512Vnni::detect`] the only constructor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512Vnni(Avx512<false>);

impl Avx512Vnni {
    pub(super) fn detect() -> Option<Self> {
        Avx512::<false>::detect().filter(|_| is_x86_feature_detected!("avx512vnni")).map(Self)
    }
}

/// AVX-512 without VNNI: multiplies in 16 bits and adds pairs of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512Madd(Avx512<false>);

impl Avx512Madd {
    pub(super) fn detect() -> Option<Self> {
        Avx512::<false>::detect().map(Self)
    }
}

/// Methods common to both sets. "The token" in SAFETY comments is `self`, which proves that the machine has
/// the instructions.
macro_rules! common {
    ($features:literal) => {
        type Floats = Avx512<false>;
        type Codes = __m512i;
        type Sums = __m512i;

        #[inline(always)]
        fn call<K: IntegerKernel>(self, kernel: K) -> K::Output {
            #[inline(never)]
            #[target_feature(enable = $features)]
            fn in_own_function<S: Integers, K: IntegerKernel>(simd: S, kernel: K) -> K::Output {
                kernel.run(simd)
            }
            // SAFETY: the token proves the features.
            unsafe { in_own_function(self, kernel) }
        }

        #[inline(always)]
        fn floats(self) -> Avx512<false> {
            self.0
        }

        #[inline(always)]
        unsafe fn load(self, from: *const u8) -> __m512i {
            // SAFETY: the token and the contract.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }

        #[inline(always)]
        unsafe fn store(self, codes: __m512i, to: *mut u8) {
            // SAFETY: the token and the contract.
            unsafe { _mm512_storeu_si512(to.cast(), codes) }
        }

        #[inline(always)]
        unsafe fn load_steps(self, from: *const u8) -> (__m512, __m512i) {
            // SAFETY: the token and the contract.
            unsafe {
                let both = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
                let multipliers = _mm512_and_si512(both, _mm512_set1_epi32(15));
                let zeros = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_srli_epi32::<4>(both));
                (_mm512_cvtepi32_ps(multipliers), zeros)
            }
        }

        #[inline(always)]
        unsafe fn load_byte_steps(self, from: *const u8) -> [__m512i; 2] {
            // Multipliers in 16 bits; zero points times multipliers, minus 128, in bytes.
            // SAFETY: the token and the contract.
            unsafe {
                let both = _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast()));
                let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
                let four_times = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x0101_0101));
                let both = _mm512_shuffle_epi8(both, four_times);
                let multipliers = _mm512_and_si512(both, _mm512_set1_epi16(15));
                let taken = _mm512_mullo_epi16(self.high(both), multipliers);
                [multipliers, _mm512_xor_si512(taken, _mm512_set1_epi8(-128))]
            }
        }

        #[inline(always)]
        fn stepped(self, codes: __m512i, [multipliers, taken]: [__m512i; 2]) -> __m512i {
            // Two products of 4 bits each fit 16 bits side by side; the difference is correct modulo 256.
            // SAFETY: the token.
            unsafe { _mm512_sub_epi8(_mm512_mullo_epi16(codes, multipliers), taken) }
        }

        #[inline(always)]
        fn low(self, bytes: __m512i) -> __m512i {
            // SAFETY: the token.
            unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(15)) }
        }

        #[inline(always)]
        fn high(self, bytes: __m512i) -> __m512i {
            // SAFETY: the token.
            unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)) }
        }

        #[inline(always)]
        fn with_upper(self, low: __m512i, upper: __m512i, by: i32, mask: i8) -> __m512i {
            // SAFETY: the token. The count is constant after inlining.
            unsafe {
                let count = _mm_cvtsi32_si128(by.abs());
                let shifted =
                    if by < 0 { _mm512_srl_epi16(upper, count) } else { _mm512_sll_epi16(upper, count) };
                _mm512_or_si512(low, _mm512_and_si512(shifted, _mm512_set1_epi8(mask)))
            }
        }

        #[inline(always)]
        fn splat(self, value: i32) -> __m512i {
            // SAFETY: the token.
            unsafe { _mm512_set1_epi32(value) }
        }

        #[inline(always)]
        unsafe fn load_zeros(self, from: *const u8) -> __m512i {
            // Halves of 16 bits: (-zero, 0).
            // SAFETY: the token and the contract.
            unsafe {
                let zeros = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
                _mm512_sub_epi16(_mm512_setzero_si512(), zeros)
            }
        }

        #[inline(always)]
        fn minus_times(self, zeros: __m512i, sum: i32) -> __m512i {
            // Halves of 16 bits: (-zero, 0) times (sum, its sign).
            // SAFETY: the token.
            unsafe { _mm512_madd_epi16(zeros, _mm512_set1_epi32(sum)) }
        }

        #[inline(always)]
        fn to_floats(self, sums: __m512i) -> __m512 {
            // SAFETY: the token.
            unsafe { _mm512_cvtepi32_ps(sums) }
        }
    };
}

impl Integers for Avx512Vnni {
    common!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");
    type Four = __m512i;
    type Small = __m512i;
    const ACCUMULATORS: usize = 24;
    const HAS_DOT: bool = true;

    #[inline(always)]
    unsafe fn four(self, from: *const i8) -> __m512i {
        // SAFETY: the token and the contract.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    fn dot(self, sums: __m512i, codes: __m512i, four: __m512i) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_dpbusd_epi32(sums, codes, four) }
    }

    small_as_sums!();
}

impl Integers for Avx512Madd {
    common!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");
    /// Four codes as bytes; the even ones in 16 bits; the odd ones in 16 bits.
    type Four = [__m512i; 3];
    /// Pairs of columns in 16 bits: `15 * 127 * 2 * 8 < 2^15`.
    type Small = __m512i;
    const ACCUMULATORS: usize = 8;
    const HAS_DOT: bool = false;

    #[inline(always)]
    unsafe fn four(self, from: *const i8) -> Self::Four {
        // SAFETY: the token and the contract.
        unsafe {
            let four = _mm512_set1_epi32(from.cast::<i32>().read_unaligned());
            [four, _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(four)), _mm512_srai_epi16::<8>(four)]
        }
    }

    #[inline(always)]
    fn dot(self, sums: __m512i, codes: __m512i, [_, even, odd]: Self::Four) -> __m512i {
        // SAFETY: the token.
        unsafe {
            let low = _mm512_madd_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(255)), even);
            let high = _mm512_madd_epi16(_mm512_srli_epi16::<8>(codes), odd);
            _mm512_add_epi32(sums, _mm512_add_epi32(low, high))
        }
    }

    #[inline(always)]
    fn begin_small(self, _: __m512i) -> __m512i {
        self.splat(0)
    }

    #[inline(always)]
    fn dot_small(self, sums: __m512i, codes: __m512i, [four, ..]: Self::Four) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_add_epi16(sums, _mm512_maddubs_epi16(codes, four)) }
    }

    #[inline(always)]
    fn end_small(self, sums: __m512i, start: __m512i) -> __m512i {
        // SAFETY: the token.
        unsafe { _mm512_add_epi32(start, _mm512_madd_epi16(sums, _mm512_set1_epi16(1))) }
    }
}
