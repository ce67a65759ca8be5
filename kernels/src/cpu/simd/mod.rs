//! Sixteen `f32` lanes on any machine: one zmm, two ymm or an array.
//!
//! A kernel is written once, over [`Simd`]. On every instruction set it applies the same operations to the
//! same lanes in the same order. All of them are exact or correctly rounded (fused multiply-add included), so
//! results have equal bits everywhere. [`Isa::run`] compiles a [`Kernel`] once for each set and picks one at
//! run time.

#[cfg(target_arch = "x86_64")]
mod dot;
pub mod integer;
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

/// Lanes of a vector, on every instruction set.
pub const LANES: usize = 16;

/// A vector instruction set. A value of such a type proves that this machine has it.
///
/// Methods are `inline(always)`: they must end up inside a function compiled for the set, see [`Isa::run`].
pub trait Simd: Copy + Send + Sync {
    /// Vector of sixteen `f32`.
    type V: Copy;
    /// Thirty-two bfloat16 values as in memory: lane `j` holds the pair `2j` (even), `2j + 1` (odd).
    type Pairs: Copy;
    /// Table of sixteen `f32` for 4-bit lookups.
    type Table: Copy;
    /// Accumulators that fit the register file besides the operands.
    const ACCUMULATORS: usize;
    /// Whether [`Simd::dot_pairs`] is one instruction.
    const HAS_DOT: bool = false;

    /// Runs `kernel` in a separate function compiled for this set. Used for code that several callers share,
    /// or that would make its callers too large to compile in reasonable time.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    /// The same value in all lanes.
    fn splat(self, value: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of the lanes in one fixed order: lanes 8 apart, then 4, 2 and 1.
    fn sum(self, v: Self::V) -> f32;
    /// [`Simd::sum`] of four vectors, the same bits in fewer instructions.
    #[inline(always)]
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        [self.sum(v[0]), self.sum(v[1]), self.sum(v[2]), self.sum(v[3])]
    }

    /// Lane `j` of vector `i` becomes lane `i` of vector `j`. Lanes may hold any bits.
    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        let (mut lanes, mut columns) = ([[0f32; LANES]; LANES], rows);
        for (row, lanes) in rows.into_iter().zip(&mut lanes) {
            // SAFETY: sixteen values.
            unsafe { self.store(row, lanes.as_mut_ptr()) };
        }
        for (j, column) in columns.iter_mut().enumerate() {
            let mut column_lanes = [0f32; LANES];
            for i in 0..LANES {
                column_lanes[i] = lanes[i][j];
            }
            // SAFETY: sixteen values.
            *column = unsafe { self.load(column_lanes.as_ptr()) };
        }
        columns
    }

    /// Loads sixteen values.
    ///
    /// # Safety
    /// `from` is readable for 16 values; it needs no alignment.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// Loads sixteen bfloat16 values, widened.
    ///
    /// # Safety
    /// `from` is readable for 32 bytes.
    unsafe fn load_bf16(self, from: *const u8) -> Self::V;
    /// Loads sixteen IEEE half values, widened.
    ///
    /// # Safety
    /// `from` is readable for 32 bytes.
    unsafe fn load_f16(self, from: *const u8) -> Self::V;
    /// Loads thirty-two bfloat16 values.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes; it needs no alignment.
    unsafe fn load_pairs(self, from: *const u8) -> Self::Pairs;
    /// Stores thirty-two bfloat16 values.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes; it needs no alignment.
    unsafe fn store_pairs(self, pairs: Self::Pairs, to: *mut u8);
    /// Unpacks a unit of folded bfloat16, as `packed::formats::bf16_folded` lays it out: 128 values whose
    /// high bytes come from a table of sixteen.
    ///
    /// # Safety
    /// `unit` is readable for 192 bytes and `table` for 16; they need no alignment.
    unsafe fn unfold(self, unit: *const u8, table: *const u8) -> [Self::Pairs; 4];
    /// The same pair in all lanes, with its even value in the low half.
    fn splat_pair(self, pair: u32) -> Self::Pairs;
    /// Loads sixteen signed bytes, converted to `f32`.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_i8(self, from: *const u8) -> Self::V;
    /// Loads sixteen FP8 values (E4M3 without infinities) times 2^-8, widened like [`e4m3_in_256ths`].
    ///
    /// # Safety
    /// 16 bytes at `from` are readable.
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V;
    /// Loads a table for [`Simd::look_up`].
    ///
    /// # Safety
    /// 16 values at `from` are readable; no alignment is required.
    unsafe fn load_table(self, from: *const f32) -> Self::Table;
    /// Table values for sixteen bytes: of their low halves, and of their high halves.
    ///
    /// # Safety
    /// 16 bytes at `from` are readable.
    unsafe fn look_up(self, table: Self::Table, from: *const u8) -> [Self::V; 2];
    /// The even values of the pairs, widened.
    fn widen_even(self, pairs: Self::Pairs) -> Self::V;
    /// The odd values of the pairs, widened.
    fn widen_odd(self, pairs: Self::Pairs) -> Self::V;
    /// `a_even * b_even + (a_odd * b_odd + c)`, with one rounding per multiply-add. The bits are the same
    /// everywhere if every input and sum is zero or at least 2^-126: `VDPBF16PS` takes smaller ones for zero.
    #[inline(always)]
    fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs, c: Self::V) -> Self::V {
        let odd = self.fma(self.widen_odd(a), self.widen_odd(b), c);
        self.fma(self.widen_even(a), self.widen_even(b), odd)
    }
    /// Stores sixteen values.
    ///
    /// # Safety
    /// `to` is writable for 16 values; it needs no alignment.
    unsafe fn store(self, v: Self::V, to: *mut f32);
    /// Stores sixteen values rounded to bfloat16, ties to even, subnormals as zeros. Returns the stored
    /// values, widened.
    ///
    /// # Safety
    /// `to` is writable for 16 values; it needs no alignment.
    #[inline(always)]
    unsafe fn store_bf16(self, v: Self::V, to: *mut u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { store_nearest_bf16(self, v, to) }
    }

    /// Prefetches the cache line at `at`, which may be any address.
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        let _ = at;
    }

    /// Prefetches the cache line at `at` into the second-level cache.
    #[inline(always)]
    fn prefetch_later(self, at: *const u8) {
        let _ = at;
    }

    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// Loads the first `count` values and pads with zeros.
    ///
    /// # Safety
    /// `from` is readable for `count <= 16` values.
    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> Self::V {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller guarantees `from`; `lanes` has 16.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count.min(LANES));
            self.load(lanes.as_ptr())
        }
    }

    /// Stores the first `count` values.
    ///
    /// # Safety
    /// `to` is writable for `count <= 16` values.
    #[inline(always)]
    unsafe fn store_part(self, v: Self::V, to: *mut f32, count: usize) {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller guarantees `to`; `lanes` has 16.
        unsafe {
            self.store(v, lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count.min(LANES));
        }
    }
}

/// [`Simd::store_bf16`] for sets without an instruction for it.
///
/// # Safety
/// `to` is writable for 16 values.
#[inline(always)]
unsafe fn store_nearest_bf16<S: Simd>(s: S, v: S::V, to: *mut u16) -> S::V {
    let (mut lanes, mut halves) = ([0f32; LANES], [0u16; LANES]);
    // SAFETY: the caller guarantees `to`; the arrays have 16.
    unsafe {
        s.store(v, lanes.as_mut_ptr());
        for i in 0..LANES {
            halves[i] = nearest_bf16(lanes[i]);
        }
        to.cast::<[u16; LANES]>().write_unaligned(halves);
        s.load_bf16(halves.as_ptr().cast())
    }
}

/// Bits of the nearest bfloat16, ties to even; subnormals become zero.
#[inline(always)]
pub(super) fn nearest_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let rounded = if value.is_nan() { bits | 0x40_0000 } else { rounded };
    let rounded = if value.abs() < f32::MIN_POSITIVE { bits & 0x8000_0000 } else { rounded };
    (rounded >> 16) as u16
}

/// FP8 value (E4M3 without infinities) times 2^-8. Its shifted bits are an IEEE half of that value, including
/// subnormals. The code of NaN gives 1.875.
#[inline(always)]
pub(super) fn e4m3_in_256ths(code: u8) -> f32 {
    half::f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7).to_f32()
}

/// A computation that can be compiled for any instruction set.
pub trait Kernel {
    /// Result of the computation.
    type Output;
    /// Whether it uses [`Simd::dot_pairs`]. Other kernels are not compiled separately for sets that only
    /// differ in it.
    const USES_DOT: bool = false;
    /// Computes the result. Implementations are `inline(always)`, and so is everything they call that takes
    /// `simd`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

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
