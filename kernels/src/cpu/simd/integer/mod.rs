//! Integer dot products, sixteen outputs at a time, on any machine.
//!
//! Codes of weights are unsigned and laid out as [`super::super::packed`] describes: four columns of sixteen
//! outputs in 64 bytes. Codes of activations are signed, from -127 to 127. Sums are exact, so all sets agree
//! by construction.

/// Implements sums of 4-bit codes as sums of 8-bit codes, for sets whose dot product takes either.
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
mod operations;
mod peak;
mod plain;

pub use operations::{IntegerKernel, Integers, SMALL_COLUMNS};

use super::{Isa, Set};

/// An integer instruction set of this machine.
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
    /// The best integer set no wider than this set.
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
    /// All sets of this machine, best first; the last is plain Rust.
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

    /// Name for logs.
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
    use super::super::{LANES, Simd};
    use super::*;

    struct Probe<'a>(&'a [u8], &'a [i8]);

    impl IntegerKernel for Probe<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Integers>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; 8 * LANES];
            // SAFETY: 64 codes, 32 activations and eight vectors of results, as many as there are.
            unsafe {
                let (codes, zeros) = (s.load(self.0.as_ptr()), s.load_zeros(self.0.as_ptr()));
                let (multipliers, step_zeros) = s.load_steps(self.0.as_ptr());
                let byte_steps = s.load_byte_steps(self.0.as_ptr());
                let start = s.minus_times(zeros, -4064);
                let mut wide = s.splat(-7);
                let (mut low, mut high) = (s.begin_small(start), s.begin_small(s.splat(3)));
                let total = self.1.iter().map(|code| i32::from(*code)).sum();
                let begin = s.minus_times(step_zeros, total);
                let mut stepped = s.begin_small(begin);
                for i in 0..SMALL_COLUMNS / 4 {
                    let four = s.four(self.1[4 * i..].as_ptr());
                    wide = s.dot(wide, codes, four);
                    low = s.dot_small(low, s.low(codes), four);
                    high = s.dot_small(high, s.high(codes), four);
                    stepped = s.dot_small(stepped, s.low(codes), four);
                }
                let ends = [s.end_small(low, start), s.end_small(high, s.splat(3))];
                let stepped = s.end_small(stepped, begin);
                let mut bytes = [0; 64];
                s.store(s.stepped(s.high(codes), byte_steps), bytes.as_mut_ptr());
                let bytes = s.dot(start, s.load(bytes.as_ptr()), s.four([1, 2, 4, 8].as_ptr()));
                let sums = [start, wide, ends[0], ends[1], s.splat(-9), stepped, bytes];
                s.floats().store(multipliers, out[7 * LANES..].as_mut_ptr());
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
                    assert_eq!((expected[5 * LANES], expected[7 * LANES]), (0.0, 15.0));
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
