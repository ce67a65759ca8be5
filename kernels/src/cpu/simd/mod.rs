//! Sixteen `f32` lanes on any machine: one zmm, two ymm or an array.
//!
//! A kernel is written once, over [`Simd`]. On every instruction set it applies the same operations to the
//! same lanes in the same order. All of them are exact or correctly rounded (fused multiply-add included), so
//! results have equal bits everywhere. [`Isa::run`] compiles a [`Kernel`] once for each set and picks one at
//! run time.

#[cfg(target_arch = "x86_64")]
mod dot;
pub mod integer;
mod operations;
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use operations::{Kernel, LANES, Simd};
pub(super) use operations::{e4m3_in_256ths, nearest_bf16};

use std::sync::OnceLock;

/// An instruction set of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(x86::Avx512<true>),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512<false>),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    Plain,
}

impl Isa {
    /// The fastest set; detected once.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// All sets of this machine, best first; the last is plain Rust.
    pub fn available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let with_dot = x86::Avx512::<true>::detect().map(Set::Avx512Bf16);
            let without = x86::Avx512::<false>::detect().map(Set::Avx512);
            let best = if dot::is_fast() { [with_dot, without] } else { [without, with_dot] };
            all.extend(best.into_iter().flatten().map(Self));
            all.extend(x86::Avx2::detect().map(|proof| Self(Set::Avx2(proof))));
        }
        all.push(Self(Set::Plain));
        all
    }

    /// Whether [`Simd::dot_pairs`] is one instruction.
    pub fn has_dot(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Bf16(_) => true,
            _ => false,
        }
    }

    /// Name for logs.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Bf16(_) => "avx512+bf16",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2+fma",
            Set::Plain => "plain",
        }
    }

    /// Runs `kernel`, compiled for this set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Bf16(proof) if K::USES_DOT => proof.call(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Bf16(proof) => proof.without_dot().call(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(proof) => proof.call(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(proof) => proof.call(kernel),
            Set::Plain => plain::Plain.call(kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Probe<'a>(&'a [f32], &'a [u8]);

    impl Kernel for Probe<'_> {
        type Output = Vec<u32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<u32> {
            let mut out = vec![0.0f32; 16 * LANES];
            // SAFETY: reads 64 values and writes 16 vectors, which is all of them.
            unsafe {
                let v: [S::V; 4] = std::array::from_fn(|i| s.load(self.0[i * LANES..].as_ptr()));
                s.store(s.fma(v[0], v[1], v[2]), out[0..].as_mut_ptr());
                s.store(s.load_part(self.0.as_ptr(), 5), out[16..].as_mut_ptr());
                s.store(s.load_bf16(self.1.as_ptr()), out[32..].as_mut_ptr());
                s.store(s.load_f16(self.1.as_ptr()), out[48..].as_mut_ptr());
                s.store_part(s.mul(v[0], v[3]), out[64..].as_mut_ptr(), 7);
                s.store(s.add(v[0], v[3]), out[80..].as_mut_ptr());
                out[96..100].copy_from_slice(&s.sum4(v));
                (0..4).for_each(|i| out[100 + i] = s.sum(v[i]));
                s.store(s.load_i8(self.1.as_ptr()), out[144..].as_mut_ptr());
                s.store(s.widen_odd(s.splat_pair(0x4049_3f80)), out[160..].as_mut_ptr());
                s.store(s.store_bf16(v[1], out[192..].as_mut_ptr().cast()), out[176..].as_mut_ptr());
                s.store(s.load_e4m3(self.1.as_ptr()), out[208..].as_mut_ptr());
                let found = s.look_up(s.load_table(self.0.as_ptr()), self.1.as_ptr());
                s.store(found[0], out[224..].as_mut_ptr());
                s.store(found[1], out[240..].as_mut_ptr());
            }
            out.into_iter().map(f32::to_bits).collect()
        }
    }

    /// Dot products of pairs from both arrays, accumulated; returns the sums after every step.
    struct Dots<'a>(&'a [u16], &'a [u16]);

    impl Kernel for Dots<'_> {
        type Output = Vec<u32>;
        const USES_DOT: bool = true;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<u32> {
            let (mut sums, mut out) = (s.zero(), Vec::new());
            for (a, b) in self.0.as_chunks::<32>().0.iter().zip(self.1.as_chunks::<32>().0) {
                let mut lanes = [0f32; LANES];
                // SAFETY: both have 32 values, `lanes` has 16.
                unsafe {
                    sums =
                        s.dot_pairs(s.load_pairs(a.as_ptr().cast()), s.load_pairs(b.as_ptr().cast()), sums);
                    s.store(sums, lanes.as_mut_ptr());
                }
                out.extend(lanes.map(f32::to_bits));
            }
            out
        }
    }

    /// Random bfloat16 with exponents within `spread` of 1, then their negatives with the same partners, so
    /// that sums cancel.
    fn halves_that_cancel(count: usize, spread: u32, seed: u64) -> (Vec<u16>, Vec<u16>) {
        let mut state = seed;
        let mut half = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bits = (state >> 32) as u32;
            (bits & 0x807f | (127 - spread + (bits >> 16) % (2 * spread + 1)) << 7) as u16
        };
        let (a, b): (Vec<u16>, Vec<u16>) = (0..count).map(|_| (half(), half())).unzip();
        let negated: Vec<u16> = a.iter().map(|half| half ^ 0x8000).collect();
        ([a, negated].concat(), [b.clone(), b].concat())
    }

    #[test]
    fn dots_of_pairs_have_the_same_bits_on_every_instruction_set() {
        for (seed, spread) in (0..40).flat_map(|seed| [0, 1, 4, 12, 30].map(|spread| (seed, spread))) {
            let (a, b) = halves_that_cancel(64 * 32, spread, seed);
            let expected = Isa(Set::Plain).run(Dots(&a, &b));
            // Reference: the odd product is added first.
            let mut sum = 0f32;
            for step in 0..a.len() / 32 {
                let half = |of: &[u16], i: usize| half::bf16::from_bits(of[step * 32 + i]).to_f32();
                sum = half(&a, 1).mul_add(half(&b, 1), sum);
                sum = half(&a, 0).mul_add(half(&b, 0), sum);
                assert_eq!(sum.to_bits(), expected[step * LANES]);
            }
            for isa in Isa::available() {
                assert_eq!(isa.run(Dots(&a, &b)), expected, "{}, spread {spread}, seed {seed}", isa.name());
            }
        }
    }

    #[test]
    fn dots_of_infinities_and_nans_follow_ieee_arithmetic() {
        let half = |value: f32| half::bf16::from_f32(value).to_bits();
        let a: Vec<u16> = (0..32).map(|i| half([f32::INFINITY, 1.0, f32::MAX, 0.0][i / 2 % 4])).collect();
        let b: Vec<u16> = (0..32).map(|i| half([2.0, f32::NAN, -3.0, f32::INFINITY][i / 2 % 4])).collect();
        for isa in Isa::available() {
            let sums: Vec<f32> = isa.run(Dots(&a, &b)).into_iter().map(f32::from_bits).collect();
            assert!(
                sums[0] == f32::INFINITY
                    && sums[1].is_nan()
                    && sums[2] == f32::NEG_INFINITY
                    && sums[3].is_nan()
            );
        }
    }

    #[test]
    fn rounding_to_bfloat16_is_the_same_for_every_class_of_number() {
        let odd =
            [0.0, f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-39, 1.003_906_3, 1.011_718_8];
        let values: Vec<f32> = odd.into_iter().flat_map(|value| [value, -value]).cycle().take(64).collect();
        let expected = Isa(Set::Plain).run(Probe(&values, &[0; 32]))[176..].to_vec();
        assert_eq!(expected[10..12], [0, 0x8000_0000], "subnormals become zeros");
        for isa in Isa::available() {
            assert_eq!(isa.run(Probe(&values, &[0; 32]))[176..], expected, "{}", isa.name());
        }
    }

    #[test]
    fn every_code_is_decoded_alike_on_every_instruction_set() {
        let table: Vec<f32> = (0..64).map(|i| (i * i) as f32 * 0.37 - 3.0).collect();
        for first in (0..=255u8).step_by(16) {
            let codes: Vec<u8> = (0..32).map(|i| first.wrapping_add(i)).collect();
            for isa in Isa::available() {
                let out = isa.run(Probe(&table, &codes));
                for (i, code) in codes[..LANES].iter().enumerate() {
                    let mantissa = f32::from(code & 7);
                    let size = match code >> 3 & 15 {
                        0 => mantissa * 2f32.powi(-9),
                        exponent => (8.0 + mantissa) * 2f32.powi(i32::from(exponent) - 10),
                    };
                    let value = if *code < 128 { size } else { -size };
                    assert_eq!(out[208 + i], (value / 256.0).to_bits(), "{code} {}", isa.name());
                    assert_eq!(out[224 + i], table[usize::from(code & 15)].to_bits(), "{}", isa.name());
                    assert_eq!(out[240 + i], table[usize::from(code >> 4)].to_bits(), "{}", isa.name());
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let values: Vec<f32> =
            (0..64u32).map(|i| (i.wrapping_mul(2_654_435_761) as f32 / 4e9 - 0.5) * 3.7).collect();
        // Finite halves: exponents below all-ones, denormals included.
        let halves: Vec<u8> = (0..16u16).flat_map(|i| (i * 1777 % 0x7800).to_le_bytes()).collect();
        let expected = Isa(Set::Plain).run(Probe(&values, &halves));
        assert_eq!(expected[96..100], expected[100..104], "four sums at once are four sums");
        assert!((0..LANES).all(|i| expected[144 + i] == f32::from(halves[i] as i8).to_bits()));
        assert!(expected[160..176].iter().all(|pi| *pi == 0x4049_0000));
        let to_half = |value: &f32| half::bf16::from_f32(*value).to_f32().to_bits();
        assert!((0..LANES).all(|i| expected[176 + i] == to_half(&values[LANES + i])));
        for isa in Isa::available() {
            assert_eq!(isa.run(Probe(&values, &halves)), expected, "{}", isa.name());
        }
    }
}
