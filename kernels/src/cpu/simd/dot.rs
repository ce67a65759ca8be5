//! `VDPBF16PS`: twice the rate of fused multiply-add on AMD's Zen 4, half of it on Intel's Emerald Rapids.
//!
//! It adds the odd product and then the even one, each rounded once, to nearest. This was measured, and the
//! tests of [`super`] check it. Inputs and sums below 2^-126 count as zero.

use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Independent chains in the measurement, enough to hide the latency of either instruction.
const CHAINS: usize = 12;
/// Instructions per chain, about a microsecond for all chains.
const STEPS: usize = 200;
/// Measurements of each instruction. The fastest counts, because other programs only slow it down.
const ROUNDS: usize = 10;

/// Whether the machine has the instruction and it is faster than the two fused multiply-adds it replaces.
/// Measured once, in some tens of microseconds; the choice changes no bit.
pub(super) fn is_fast() -> bool {
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| {
        let exists = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        // SAFETY: the instructions exist.
        exists && unsafe { ticks::<true>() < 2 * ticks::<false>() }
    })
}

/// Time-stamp ticks of the fastest round of either instruction.
///
/// # Safety
/// The machine has AVX-512F and AVX512_BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn ticks<const DOT: bool>() -> u64 {
    let factor = std::hint::black_box(_mm512_set1_ps(0.999));
    // SAFETY: both have the same size, and all bit patterns are valid.
    let pairs: __m512bh = unsafe { std::mem::transmute(factor) };
    let mut chains = [_mm512_set1_ps(1.0); CHAINS];
    let mut fastest = u64::MAX;
    for _ in 0..ROUNDS {
        // SAFETY: every x86-64 has it.
        let start = unsafe { _rdtsc() };
        chains = std::hint::black_box(chains);
        for _ in 0..STEPS {
            for chain in &mut chains {
                *chain = if DOT {
                    _mm512_dpbf16_ps(*chain, pairs, pairs)
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
