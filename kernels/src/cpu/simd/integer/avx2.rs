//! AVX2: two ymm of sums, with AVX-VNNI (recent machines without AVX-512) or without.

use std::arch::x86_64::*;

use super::super::x86::Avx2;
use super::{IntegerKernel, Integers};

/// AVX2 with AVX-VNNI. Its private field makes [`AvxVnni::detect`] the only source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AvxVnni(Avx2);

impl AvxVnni {
    pub(super) fn detect() -> Option<Self> {
        Avx2::detect().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }
}

/// AVX2 without VNNI: pairs of products of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2Madd(Avx2);

impl Avx2Madd {
    pub(super) fn detect() -> Option<Self> {
        Avx2::detect().map(Self)
    }
}

/// What both have in common. SAFETY of all: the token proves that the machine has the instructions.
macro_rules! common {
    ($features:literal) => {
        type Floats = Avx2;
        type Codes = [__m256i; 2];
        type Sums = [__m256i; 2];

        #[inline(always)]
        fn call<K: IntegerKernel>(self, kernel: K) -> K::Output {
            #[inline(never)]
            #[target_feature(enable = $features)]
            fn apart<S: Integers, K: IntegerKernel>(simd: S, kernel: K) -> K::Output {
                kernel.run(simd)
            }
            // SAFETY: the token proves the features.
            unsafe { apart(self, kernel) }
        }

        #[inline(always)]
        fn floats(self) -> Avx2 {
            self.0
        }

        #[inline(always)]
        unsafe fn load(self, from: *const u8) -> Self::Codes {
            // SAFETY: the token and the contract.
            unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
        }

        #[inline(always)]
        fn low(self, [a, b]: Self::Codes) -> Self::Codes {
            // SAFETY: the token.
            unsafe {
                let mask = _mm256_set1_epi8(15);
                [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)]
            }
        }

        #[inline(always)]
        fn high(self, [a, b]: Self::Codes) -> Self::Codes {
            // SAFETY: the token.
            unsafe { self.low([_mm256_srli_epi16::<4>(a), _mm256_srli_epi16::<4>(b)]) }
        }

        #[inline(always)]
        fn splat(self, value: i32) -> Self::Sums {
            // SAFETY: the token.
            unsafe { [_mm256_set1_epi32(value); 2] }
        }

        #[inline(always)]
        fn splat_zeros(self, zero: u8) -> Self::Sums {
            self.splat(i32::from(i16::from(zero).wrapping_neg() as u16))
        }

        #[inline(always)]
        unsafe fn load_zeros(self, from: *const u8) -> Self::Sums {
            // Halves of 16 bits: (-zero, 0).
            // SAFETY: the token and the contract.
            unsafe {
                let (low, high) = (_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast()));
                let none = _mm256_setzero_si256();
                [
                    _mm256_sub_epi16(none, _mm256_cvtepu8_epi32(low)),
                    _mm256_sub_epi16(none, _mm256_cvtepu8_epi32(high)),
                ]
            }
        }

        #[inline(always)]
        fn minus_times(self, [a, b]: Self::Sums, sum: i32) -> Self::Sums {
            // Halves of 16 bits: (-zero, 0) times (sum, its sign).
            // SAFETY: the token.
            unsafe {
                let sum = _mm256_set1_epi32(sum);
                [_mm256_madd_epi16(a, sum), _mm256_madd_epi16(b, sum)]
            }
        }

        #[inline(always)]
        fn to_floats(self, [a, b]: Self::Sums) -> [__m256; 2] {
            // SAFETY: the token.
            unsafe { [_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)] }
        }
    };
}

impl Integers for AvxVnni {
    common!("avx2,fma,f16c,avxvnni");
    type Four = __m256i;
    type Small = [__m256i; 2];
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    unsafe fn four(self, from: *const i8) -> __m256i {
        // SAFETY: the token and the contract.
        unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    fn dot(self, [a, b]: Self::Sums, codes: Self::Codes, four: __m256i) -> Self::Sums {
        // SAFETY: the token.
        unsafe { [_mm256_dpbusd_avx_epi32(a, codes[0], four), _mm256_dpbusd_avx_epi32(b, codes[1], four)] }
    }

    #[inline(always)]
    fn begin_small(self, start: Self::Sums) -> Self::Small {
        start
    }

    #[inline(always)]
    fn dot_small(self, sums: Self::Small, codes: Self::Codes, four: __m256i) -> Self::Small {
        self.dot(sums, codes, four)
    }

    #[inline(always)]
    fn end_small(self, sums: Self::Small, _: Self::Sums) -> Self::Sums {
        sums
    }
}

impl Integers for Avx2Madd {
    common!("avx2,fma,f16c");
    /// As bytes; the even ones as 16 bits; the odd ones.
    type Four = [__m256i; 3];
    /// Pairs of columns in 16 bits: `15 * 127 * 2 * 8 < 2^15`.
    type Small = [__m256i; 2];
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    unsafe fn four(self, from: *const i8) -> Self::Four {
        // SAFETY: the token and the contract.
        unsafe {
            let four = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
            [four, _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(four)), _mm256_srai_epi16::<8>(four)]
        }
    }

    #[inline(always)]
    fn dot(self, [a, b]: Self::Sums, codes: Self::Codes, [_, even, odd]: Self::Four) -> Self::Sums {
        // `VPMADDUBSW` would saturate: 255 * 127 * 2 takes 17 bits.
        // SAFETY: the token.
        unsafe { [add_products(a, codes[0], even, odd), add_products(b, codes[1], even, odd)] }
    }

    #[inline(always)]
    fn begin_small(self, _: Self::Sums) -> Self::Small {
        self.splat(0)
    }

    #[inline(always)]
    fn dot_small(self, [a, b]: Self::Small, codes: Self::Codes, [four, ..]: Self::Four) -> Self::Small {
        // SAFETY: the token.
        unsafe {
            [
                _mm256_add_epi16(a, _mm256_maddubs_epi16(codes[0], four)),
                _mm256_add_epi16(b, _mm256_maddubs_epi16(codes[1], four)),
            ]
        }
    }

    #[inline(always)]
    fn end_small(self, [a, b]: Self::Small, start: Self::Sums) -> Self::Sums {
        // SAFETY: the token.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            [
                _mm256_add_epi32(start[0], _mm256_madd_epi16(a, ones)),
                _mm256_add_epi32(start[1], _mm256_madd_epi16(b, ones)),
            ]
        }
    }
}

/// Adds the products of four columns, the even and the odd ones apart.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn add_products(sums: __m256i, codes: __m256i, even: __m256i, odd: __m256i) -> __m256i {
    // SAFETY: by the contract.
    unsafe {
        let low = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)), even);
        let high = _mm256_madd_epi16(_mm256_srli_epi16::<8>(codes), odd);
        _mm256_add_epi32(sums, _mm256_add_epi32(low, high))
    }
}
