//! Peak rate of integer dot products, to compare kernels with.

use super::{IntegerIsa, IntegerKernel, Integers};
use crate::cpu::simd::Simd;

/// Independent chains of sums, enough to hide their latency.
const CHAINS: usize = 12;

impl IntegerIsa {
    /// Runs `steps` rounds of dot products in registers, on this thread.
    pub(in crate::cpu) fn multiply(self, steps: usize) {
        std::hint::black_box(self.run(Multiply(steps)));
    }
}

struct Multiply(usize);

impl IntegerKernel for Multiply {
    type Output = f32;

    #[inline(always)]
    fn run<S: Integers>(self, s: S) -> f32 {
        let (codes, four) = (std::hint::black_box([3u8; 64]), std::hint::black_box([5i8; 4]));
        // SAFETY: the arrays have these sizes.
        let (codes, four) = unsafe { (s.load(codes.as_ptr()), s.four(four.as_ptr())) };
        let mut chains = [s.splat(0); CHAINS];
        for _ in 0..self.0 {
            for chain in &mut chains {
                *chain = s.dot(*chain, codes, four);
            }
        }
        let f = s.floats();
        let mut sum = f.zero();
        for chain in chains {
            sum = f.add(sum, s.to_floats(chain));
        }
        f.sum(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_on_every_instruction_set() {
        for isa in IntegerIsa::available() {
            assert_eq!(isa.run(Multiply(7)), (7 * CHAINS * 16 * 60) as f32, "{}", isa.name());
        }
    }
}
