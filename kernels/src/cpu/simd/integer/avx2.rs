//! AVX2: two ymm of sums, with AVX-VNNI (recent machines without AVX-512) or without.

use std::arch::x86_64::*;

use super::super::x86::Avx2;
use super::operations::{IntegerKernel, Integers};

/// AVX2 with AVX-VNNI. The private field makes [`AvxVnni::detect`] the only constructor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AvxVnni(Avx2);

impl AvxVnni {
    pub(super) fn detect() -> Option<Self> {
        Avx2::detect().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }
}

/// AVX2 without VNNI: multiplies in 16 bits and adds pairs of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2Madd(Avx2);

impl Avx2Madd {
    pub(super) fn detect() -> Option<Self> {
        Avx2::detect().map(Self)
    }
}

/// Methods common to both sets. "The token" in SAFETY comments is `self`, which proves that the machine has
/// the instructions.
macro_rules! common {
    ($features:literal) => {
        type Floats = Avx2;
        type Codes = [__m256i; 2];
        type Sums = [__m256i; 2];

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
        fn floats(self) -> Avx2 {
            self.0
        }

        #[inline(always)]
        unsafe fn load(self, from: *const u8) -> Self::Codes {
            // SAFETY: the token and the contract.
            unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
        }

        #[inline(always)]
        unsafe fn store(self, [a, b]: Self::Codes, to: *mut u8) {
            // SAFETY: the token and the contract.
            unsafe {
                _mm256_storeu_si256(to.cast(), a);
                _mm256_storeu_si256(to.add(32).cast(), b);
            }
        }

        #[inline(always)]
        unsafe fn load_steps(self, from: *const u8) -> ([__m256; 2], Self::Sums) {
            // SAFETY: the token and the contract.
            unsafe {
                let ([low, high], mask) = (sixteen(from), _mm256_set1_epi32(15));
                let multipliers = [_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)];
                let (zeros, none) =
                    ([_mm256_srli_epi32::<4>(low), _mm256_srli_epi32::<4>(high)], _mm256_setzero_si256());
                let zeros = [_mm256_sub_epi16(none, zeros[0]), _mm256_sub_epi16(none, zeros[1])];
                (self.to_floats(multipliers), zeros)
            }
        }

        #[inline(always)]
        unsafe fn load_byte_steps(self, from: *const u8) -> [Self::Codes; 2] {
            // Multipliers in 16 bits; zero points times multipliers, minus 128, in bytes.
            // SAFETY: the token and the contract.
            unsafe {
                let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
                let lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
                let low = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(0x0101_0101));
                let high = _mm256_add_epi8(low, _mm256_set1_epi8(8));
                let both = [_mm256_shuffle_epi8(both, low), _mm256_shuffle_epi8(both, high)];
                let (mask, sign) = (_mm256_set1_epi16(15), _mm256_set1_epi8(-128));
                let multipliers = [_mm256_and_si256(both[0], mask), _mm256_and_si256(both[1], mask)];
                let [low, high] = self.high(both);
                let low = _mm256_mullo_epi16(low, multipliers[0]);
                let high = _mm256_mullo_epi16(high, multipliers[1]);
                [multipliers, [_mm256_xor_si256(low, sign), _mm256_xor_si256(high, sign)]]
            }
        }

        #[inline(always)]
        fn stepped(self, [a, b]: Self::Codes, [multipliers, taken]: [Self::Codes; 2]) -> Self::Codes {
            // Two products of 4 bits each fit 16 bits side by side; the difference is correct modulo 256.
            // SAFETY: the token.
            unsafe {
                [
                    _mm256_sub_epi8(_mm256_mullo_epi16(a, multipliers[0]), taken[0]),
                    _mm256_sub_epi8(_mm256_mullo_epi16(b, multipliers[1]), taken[1]),
                ]
            }
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
        fn with_upper(self, low: Self::Codes, upper: Self::Codes, by: i32, mask: i8) -> Self::Codes {
            // SAFETY: the token. The count is constant after inlining.
            unsafe {
                let (mask, count) = (_mm256_set1_epi8(mask), _mm_cvtsi32_si128(by.abs()));
                let [a, b] = if by < 0 {
                    [_mm256_srl_epi16(upper[0], count), _mm256_srl_epi16(upper[1], count)]
                } else {
                    [_mm256_sll_epi16(upper[0], count), _mm256_sll_epi16(upper[1], count)]
                };
                [
                    _mm256_or_si256(low[0], _mm256_and_si256(a, mask)),
                    _mm256_or_si256(low[1], _mm256_and_si256(b, mask)),
                ]
            }
        }

        #[inline(always)]
        fn splat(self, value: i32) -> Self::Sums {
            // SAFETY: the token.
            unsafe { [_mm256_set1_epi32(value); 2] }
        }

        #[inline(always)]
        unsafe fn load_zeros(self, from: *const u8) -> Self::Sums {
            // Halves of 16 bits: (-zero, 0).
            // SAFETY: the token and the contract.
            unsafe {
                let ([low, high], none) = (sixteen(from), _mm256_setzero_si256());
                [_mm256_sub_epi16(none, low), _mm256_sub_epi16(none, high)]
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
    const HAS_DOT: bool = true;

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

    small_as_sums!();
}

impl Integers for Avx2Madd {
    common!("avx2,fma,f16c");
    /// Four codes as bytes; the even ones in 16 bits; the odd ones in 16 bits.
    type Four = [__m256i; 3];
    /// Pairs of columns in 16 bits: `15 * 127 * 2 * 8 < 2^15`.
    type Small = [__m256i; 2];
    const ACCUMULATORS: usize = 4;
    const HAS_DOT: bool = false;

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

/// Loads sixteen bytes and widens them to 32 bits.
///
/// # Safety
/// The machine has AVX2, and `from` is readable for 16 bytes.
#[inline(always)]
unsafe fn sixteen(from: *const u8) -> [__m256i; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (low, high) = (_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast()));
        [_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high)]
    }
}

/// Adds the products of four columns, the even and the odd ones separately.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn add_products(sums: __m256i, codes: __m256i, even: __m256i, odd: __m256i) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let low = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)), even);
        let high = _mm256_madd_epi16(_mm256_srli_epi16::<8>(codes), odd);
        _mm256_add_epi32(sums, _mm256_add_epi32(low, high))
    }
}
