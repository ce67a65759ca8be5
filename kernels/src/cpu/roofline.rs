//! What the machine can do at most: plain reading and plain multiplication, to hold the kernels against.

use super::Cpu;
use super::matmul::PREFETCH_BYTES;
use super::simd::{Kernel, LANES, Simd};

/// Bytes a task reads.
const TASK_BYTES: usize = 256 << 10;
/// Bytes of a vector of 16 `f32`.
const VECTOR_BYTES: usize = LANES * 4;
const STREAMS: usize = 4;
/// Independent chains of fused multiply-adds: enough to cover their latency.
const CHAINS: usize = 12;

/// Reads all of `bytes` (whole tasks of 256 KiB) with all threads, and does nothing with them.
pub fn read(cpu: &mut Cpu, bytes: &[u8]) {
    let isa = cpu.isa;
    cpu.threads.run(bytes.len() / TASK_BYTES, |task, _| {
        std::hint::black_box(isa.run(Read(&bytes[task * TASK_BYTES..][..TASK_BYTES])));
    });
}

/// Reads four streams at once, asking ahead, as the kernels do.
struct Read<'a>(&'a [u8]);

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.zero(); STREAMS];
        let stream = self.0.len() / STREAMS;
        for at in (0..stream).step_by(VECTOR_BYTES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let from = self.0[i * stream + at..i * stream + at + VECTOR_BYTES].as_ptr();
                s.prefetch(from.wrapping_add(PREFETCH_BYTES));
                // SAFETY: the slice above has a vector's bytes.
                *sum = s.add(*sum, unsafe { s.load(from.cast()) });
            }
        }
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

/// Does `steps * threads` rounds of multiply-adds in registers and returns how many floating-point operations they were.
pub fn multiply(cpu: &mut Cpu, steps: usize) -> u64 {
    let (isa, threads) = (cpu.isa, cpu.threads.count());
    cpu.threads.run(threads, |_, _| {
        std::hint::black_box(isa.run(Multiply(steps)));
    });
    (steps * threads * CHAINS * LANES * 2) as u64
}

struct Multiply(usize);

impl Kernel for Multiply {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (factor, term) = (s.splat(std::hint::black_box(0.999)), s.splat(std::hint::black_box(0.001)));
        let mut chains = [s.splat(1.0); CHAINS];
        for _ in 0..self.0 {
            for chain in &mut chains {
                *chain = s.fma(*chain, factor, term);
            }
        }
        let mut sum = s.zero();
        for chain in chains {
            sum = s.add(sum, chain);
        }
        s.sum(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_run_on_every_instruction_set() {
        for isa in crate::cpu::simd::Isa::available() {
            let cpu = &mut Cpu::with_isa(2, isa);
            read(cpu, &vec![0; 3 * TASK_BYTES + 5]);
            assert_eq!(multiply(cpu, 10), 2 * 10 * 12 * 16 * 2);
        }
    }
}
