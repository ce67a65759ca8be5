//! Products of small integers, sixteen outputs at a time, on whatever the machine has.
//!
//! Codes of weights are unsigned and lie as [`super::super::packed`] says, four columns of sixteen outputs in 64 bytes; codes
//! of activations are signed, from -127 to 127. Sums are exact, so all sets agree by construction.

/// Sums of 4-bit codes as those of 8-bit ones, for sets whose dot product takes either.
macro_rules! small_as_sums {
    () => {
        #[inline(always)]
        fn begin_small(self, start: Self::Sums) -> Self::Small {
            start
        }

        #[inline(always)]
        fn dot_small(self, sums: Self::Small, codes: Self::Codes, four: Self::Four) -> Self::Small {
            self.dot(sums, codes, four)
        }

        #[inline(always)]
        fn end_small(self, sums: Self::Small, _: Self::Sums) -> Self::Sums {
            sums
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod peak;
mod plain;

use super::{Isa, Set, Simd};

/// Columns whose products [`Integers::dot_small`] adds up before its sums are taken: a group.
pub const SMALL_COLUMNS: usize = super::super::input::GROUP;

/// An instruction set for products of integers. A value of such a type is the proof that this machine has it.
///
/// Methods are `inline(always)`: they must end up inside a function compiled for that set, see [`IntegerIsa::run`].
pub trait Integers: Copy + Send + Sync {
    /// What sixteen `f32` are computed with.
    type Floats: Simd;
    /// 64 codes of weights, `[16 outputs][4 columns]`.
    type Codes: Copy;
    /// Four codes of activations, as [`Integers::dot`] takes them.
    type Four: Copy;
    /// Sixteen sums of 32 bits.
    type Sums: Copy;
    /// Sums of products of 4-bit codes over at most [`SMALL_COLUMNS`] columns.
    type Small: Copy;
    /// What sums of a group's 4-bit codes are moved and multiplied by, for sixteen outputs.
    type Steps: Copy;
    /// Sums that fit the register file besides the operands.
    const ACCUMULATORS: usize;
    /// Whether products of 8-bit codes are as fast as those of 4-bit ones.
    const HAS_DOT: bool;

    /// Runs `kernel` in a function of its own, compiled for this set ([`Simd::call`]).
    fn call<K: IntegerKernel>(self, kernel: K) -> K::Output;
    /// The proof for floats.
    fn floats(self) -> Self::Floats;
    /// 64 codes of 8 bits, or twice as many of 4.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes; it needs no alignment.
    unsafe fn load(self, from: *const u8) -> Self::Codes;
    /// Writes 64 codes.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes; it needs no alignment.
    unsafe fn store(self, codes: Self::Codes, to: *mut u8);
    /// The low halves of bytes.
    fn low(self, bytes: Self::Codes) -> Self::Codes;
    /// The high halves of bytes.
    fn high(self, bytes: Self::Codes) -> Self::Codes;
    /// Four codes of activations.
    ///
    /// # Safety
    /// `from` is readable for 4 bytes; it needs no alignment.
    unsafe fn four(self, from: *const i8) -> Self::Four;
    /// The same value in all lanes.
    fn splat(self, value: i32) -> Self::Sums;
    /// Adds the products of four columns to the sums, wrapping.
    fn dot(self, sums: Self::Sums, codes: Self::Codes, four: Self::Four) -> Self::Sums;
    /// Sums that will be `start` and the products that [`Integers::dot_small`] adds.
    fn begin_small(self, start: Self::Sums) -> Self::Small;
    /// Like [`Integers::dot`] with codes up to 15, at most `SMALL_COLUMNS / 4` times.
    fn dot_small(self, sums: Self::Small, codes: Self::Codes, four: Self::Four) -> Self::Small;
    /// The sums that began with `start`.
    fn end_small(self, sums: Self::Small, start: Self::Sums) -> Self::Sums;
    /// Sixteen outputs' steps: multipliers in the low halves of bytes, zero points in the high ones.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_steps(self, from: *const u8) -> Self::Steps;
    /// Sums for a group's 4-bit codes with those steps; `sum` is that of the activations' codes.
    fn begin_stepped(self, steps: Self::Steps, sum: i32) -> Self::Small;
    /// `sums` and the products of `multiplier * (code - zero point)` for the codes whose products were added to `group`.
    fn end_stepped(self, group: Self::Small, sums: Self::Sums, steps: Self::Steps, sum: i32) -> Self::Sums;
    /// The same steps as [`Integers::stepped`] takes them.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_byte_steps(self, from: *const u8) -> [Self::Codes; 2];
    /// `multiplier * (code - zero point) + 128` of 4-bit codes, modulo 256.
    fn stepped(self, codes: Self::Codes, steps: [Self::Codes; 2]) -> Self::Codes;
    /// The same zero point in all lanes, as [`Integers::minus_times`] takes it.
    fn splat_zeros(self, zero: u8) -> Self::Sums;
    /// Sixteen zero points, as [`Integers::minus_times`] takes them.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_zeros(self, from: *const u8) -> Self::Sums;
    /// `-zeros * sum`, for zeros up to 255 and sums of 16 bits.
    fn minus_times(self, zeros: Self::Sums, sum: i32) -> Self::Sums;
    /// The nearest `f32` of each sum, ties to even.
    fn to_floats(self, sums: Self::Sums) -> <Self::Floats as Simd>::V;
}

/// Something to compute on any instruction set for integers.
pub trait IntegerKernel {
    /// Its result.
    type Output;
    /// Computes. Implementations are `inline(always)`, and so is all they call that takes `simd`.
    fn run<S: Integers>(self, simd: S) -> Self::Output;
}

/// An instruction set for products of integers that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerIsa(IntegerSet);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IntegerSet {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(avx512::Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512Madd),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx2::AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2Madd),
    Plain,
}

impl Isa {
    /// The best set for integers among those that go with this one.
    pub fn integers(self) -> IntegerIsa {
        #[cfg(target_arch = "x86_64")]
        if self.0 != Set::Plain {
            let wide = || avx512::Avx512Vnni::detect().map(IntegerSet::Avx512Vnni);
            let wide_madd = || avx512::Avx512Madd::detect().map(IntegerSet::Avx512);
            let vnni = || avx2::AvxVnni::detect().map(IntegerSet::AvxVnni);
            let madd = || avx2::Avx2Madd::detect().map(IntegerSet::Avx2);
            let narrow = matches!(self.0, Set::Avx2(_));
            let found = if narrow { None } else { wide().or_else(wide_madd) };
            return IntegerIsa(found.or_else(vnni).or_else(madd).unwrap_or(IntegerSet::Plain));
        }
        let _ = Set::Plain;
        IntegerIsa(IntegerSet::Plain)
    }
}

impl IntegerIsa {
    /// All this machine has, best first; the last is plain Rust.
    pub fn available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx512::Avx512Vnni::detect().map(|proof| Self(IntegerSet::Avx512Vnni(proof))));
            all.extend(avx512::Avx512Madd::detect().map(|proof| Self(IntegerSet::Avx512(proof))));
            all.extend(avx2::AvxVnni::detect().map(|proof| Self(IntegerSet::AvxVnni(proof))));
            all.extend(avx2::Avx2Madd::detect().map(|proof| Self(IntegerSet::Avx2(proof))));
        }
        all.push(Self(IntegerSet::Plain));
        all
    }

    /// For logs.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IntegerSet::Avx512Vnni(_) => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            IntegerSet::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            IntegerSet::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            IntegerSet::Avx2(_) => "avx2",
            IntegerSet::Plain => "plain",
        }
    }

    /// Runs `kernel`, compiled for this set.
    #[inline]
    pub fn run<K: IntegerKernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IntegerSet::Avx512Vnni(proof) => proof.call(kernel),
            #[cfg(target_arch = "x86_64")]
            IntegerSet::Avx512(proof) => proof.call(kernel),
            #[cfg(target_arch = "x86_64")]
            IntegerSet::AvxVnni(proof) => proof.call(kernel),
            #[cfg(target_arch = "x86_64")]
            IntegerSet::Avx2(proof) => proof.call(kernel),
            IntegerSet::Plain => plain::PlainIntegers.call(kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LANES;
    use super::*;

    struct Probe<'a>(&'a [u8], &'a [i8]);

    impl IntegerKernel for Probe<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Integers>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; 7 * LANES];
            // SAFETY: 64 codes, 32 activations and seven vectors of results, as many as there are.
            unsafe {
                let (codes, zeros) = (s.load(self.0.as_ptr()), s.load_zeros(self.0.as_ptr()));
                let steps = s.load_steps(self.0.as_ptr());
                let byte_steps = s.load_byte_steps(self.0.as_ptr());
                let start = s.minus_times(zeros, -4064);
                let mut wide = s.splat(-7);
                let (mut low, mut high) = (s.begin_small(start), s.begin_small(s.splat(3)));
                let total = self.1.iter().map(|code| i32::from(*code)).sum();
                let mut stepped = s.begin_stepped(steps, total);
                for i in 0..SMALL_COLUMNS / 4 {
                    let four = s.four(self.1[4 * i..].as_ptr());
                    wide = s.dot(wide, codes, four);
                    low = s.dot_small(low, s.low(codes), four);
                    high = s.dot_small(high, s.high(codes), four);
                    stepped = s.dot_small(stepped, s.low(codes), four);
                }
                let ends = [s.end_small(low, start), s.end_small(high, s.splat(3))];
                let stepped = s.end_stepped(stepped, start, steps, total);
                let mut bytes = [0; 64];
                s.store(s.stepped(s.high(codes), byte_steps), bytes.as_mut_ptr());
                let bytes = s.dot(start, s.load(bytes.as_ptr()), s.four([1, 2, 4, 8].as_ptr()));
                let sums = [start, wide, ends[0], ends[1], s.splat(-9), stepped, bytes];
                for (i, sums) in sums.into_iter().enumerate() {
                    s.floats().store(s.to_floats(sums), out[i * LANES..].as_mut_ptr());
                }
            }
            out
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_sums_up_to_the_largest_codes() {
        let spread: Vec<u8> = (0..64u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for codes in [spread, vec![255; 64], vec![0; 64]] {
            for activations in [[127i8; 32], [-127; 32], std::array::from_fn(|i| (i * 37) as i8)] {
                let expected = IntegerIsa(IntegerSet::Plain).run(Probe(&codes, &activations));
                let total: i32 = activations.iter().map(|code| i32::from(*code)).sum();
                if codes[0] == 255 {
                    assert_eq!(expected[16], (255 * total - 7) as f32);
                    assert_eq!(expected[32], (15 * total + 255 * 4064) as f32);
                    // Multiplier and zero point are 15, too.
                    assert_eq!(expected[5 * LANES], (255 * 4064) as f32);
                    assert_eq!(expected[6 * LANES], (128 * 15 + 255 * 4064) as f32);
                }
                for isa in IntegerIsa::available() {
                    assert_eq!(isa.run(Probe(&codes, &activations)), expected, "{}", isa.name());
                }
            }
        }
    }

    #[test]
    fn plain_goes_with_plain() {
        let plain = Isa::available().pop().expect("plain is always there");
        assert_eq!(plain.integers(), IntegerIsa(IntegerSet::Plain));
        assert_eq!(Isa::best().integers(), IntegerIsa::available()[0]);
    }
}
