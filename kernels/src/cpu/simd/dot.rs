//! `VDPBF16PS`: twice the rate of fused multiply-add on AMD's Zen 4, half of it on Intel's Emerald Rapids.
//!
//! It adds the odd product, then the even one, each rounded once, to nearest: measured, and what the tests of
//! [`super`] hold it to. Values and sums below 2^-126 count as zero.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Independent chains in the measurement: enough to cover the latency of either instruction.
const CHAINS: usize = 12;
/// Instructions of a chain: about a microsecond for all.
const STEPS: usize = 200;
/// Measurements of each; the fastest counts, for neighbours only slow it down.
const ROUNDS: usize = 10;

/// Whether the machine has the instruction.
pub(super) fn exists() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// Whether it multiplies faster than fused multiply-add, which needs two instructions for the same. Measured once, in some
/// tens of microseconds; which of the two is taken changes no bit.
pub(super) fn is_fast() -> bool {
    static FAST: OnceLock<bool> = OnceLock::new();
    // SAFETY: the instructions exist.
    *FAST.get_or_init(|| exists() && unsafe { cycles::<true>() < 2 * cycles::<false>() })
}

/// `a_even * b_even + (a_odd * b_odd + c)` in each lane. In assembly, so that one compilation for AVX-512 serves machines with
/// and without it.
///
/// # Safety
/// [`exists`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn dot_pairs(a: __m512i, b: __m512i, mut c: __m512) -> __m512 {
    // SAFETY: it exists by the contract, and touches its registers only.
    unsafe {
        asm!(
            "vdpbf16ps {c}, {a}, {b}",
            c = inout(zmm_reg) c, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    c
}

/// Time-stamp ticks of the fastest round of either instruction.
///
/// # Safety
/// [`exists`].
#[target_feature(enable = "avx512f")]
unsafe fn cycles<const DOT: bool>() -> u64 {
    let factor = std::hint::black_box(_mm512_set1_ps(0.999));
    let mut chains = std::hint::black_box([_mm512_set1_ps(1.0); CHAINS]);
    let mut fastest = u64::MAX;
    for _ in 0..ROUNDS {
        // SAFETY: every x86-64 has it.
        let start = unsafe { _rdtsc() };
        for _ in 0..STEPS {
            for chain in &mut chains {
                *chain = if DOT {
                    let factor = _mm512_castps_si512(factor);
                    // SAFETY: by the contract.
                    unsafe { dot_pairs(factor, factor, *chain) }
                } else {
                    _mm512_fmadd_ps(factor, factor, *chain)
                };
            }
        }
        chains = std::hint::black_box(chains);
        // SAFETY: as above.
        fastest = fastest.min(unsafe { _rdtsc() }.saturating_sub(start));
    }
    fastest
}
