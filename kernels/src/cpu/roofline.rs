//! Upper bounds of this machine, to compare kernels with: plain reading and plain multiplication.

use super::Cpu;
use super::simd::{Kernel, LANES, Simd};

/// Bytes of a vector of 16 `f32`.
const VECTOR_BYTES: usize = LANES * 4;
const STREAMS: usize = 4;
/// Independent chains of multiply-adds, enough to hide their latency.
const CHAINS: usize = 12;
/// Chains for pairs of bfloat16 where registers allow: their latency is higher (Zen 5: six cycles, two per
/// cycle; twelve chains reach 92%).
const PAIR_CHAINS: usize = 2 * CHAINS;

/// A way of reading memory. Which one is fastest differs between processors; the fastest is the ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Bytes per task, read in four streams; a multiple of 256.
    task_bytes: usize,
    /// Prefetch distance in bytes; 0 = only the hardware prefetches.
    prefetch: usize,
}

/// All ways of reading to try.
pub const READINGS: [Reading; 4] = [
    Reading { task_bytes: 256 << 10, prefetch: 2048 },
    Reading { task_bytes: 256 << 10, prefetch: 0 },
    Reading { task_bytes: 2 << 20, prefetch: 512 },
    Reading { task_bytes: 2 << 20, prefetch: 0 },
];

/// Reads `bytes`, rounded down to whole tasks, with all threads.
pub fn read(cpu: &mut Cpu, bytes: &[u8], reading: Reading) {
    let isa = cpu.isa;
    let Reading { task_bytes, prefetch } = reading;
    cpu.threads.run(bytes.len() / task_bytes, |task, _| {
        std::hint::black_box(isa.run(Read { bytes: &bytes[task * task_bytes..][..task_bytes], prefetch }));
    });
}

/// Reads four streams at once.
struct Read<'a> {
    bytes: &'a [u8],
    prefetch: usize,
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.zero(); STREAMS];
        let stream = self.bytes.len() / STREAMS;
        for at in (0..stream).step_by(VECTOR_BYTES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let from = self.bytes[i * stream + at..i * stream + at + VECTOR_BYTES].as_ptr();
                if self.prefetch > 0 {
                    s.prefetch(from.wrapping_add(self.prefetch));
                }
                // SAFETY: the slice above has a vector's bytes.
                *sum = s.add(*sum, unsafe { s.load(from.cast()) });
            }
        }
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

/// Operand type of a multiplication benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `f32` with fused multiply-add.
    F32,
    /// Pairs of bfloat16 into `f32`, by an instruction or widened, whichever is faster here.
    Bf16,
    /// 8-bit integers, four at a time, into 32 bits.
    Int8,
}

/// Runs `steps * threads` rounds of multiply-adds in registers. Returns the number of operations; a product
/// and a sum count as one each.
pub fn multiply(cpu: &mut Cpu, kind: Kind, steps: usize) -> u64 {
    let (isa, threads) = (cpu.isa, cpu.threads.count());
    cpu.threads.run(threads, |_, _| match kind {
        Kind::F32 => drop(std::hint::black_box(isa.run(Multiply(steps)))),
        Kind::Bf16 => drop(std::hint::black_box(isa.run(MultiplyPairs(steps)))),
        Kind::Int8 => isa.integers().multiply(steps),
    });
    let products_per_lane = match kind {
        Kind::F32 => 1,
        Kind::Bf16 => 2,
        Kind::Int8 => 4,
    };
    (steps * threads * CHAINS * LANES * 2 * products_per_lane) as u64
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
        total(s, chains)
    }
}

struct MultiplyPairs(usize);

impl Kernel for MultiplyPairs {
    type Output = f32;
    const USES_DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        if S::ACCUMULATORS >= PAIR_CHAINS {
            pairs::<S, PAIR_CHAINS>(s, self.0 * CHAINS / PAIR_CHAINS)
        } else {
            pairs::<S, CHAINS>(s, self.0)
        }
    }
}

#[inline(always)]
fn pairs<S: Simd, const N: usize>(s: S, steps: usize) -> f32 {
    let small = std::hint::black_box([0x3a00u16; 2 * LANES]); // about 2^-11
    // SAFETY: 64 bytes.
    let factor = unsafe { s.load_pairs(small.as_ptr().cast()) };
    let mut chains = [s.splat(1.0); N];
    for _ in 0..steps {
        for chain in &mut chains {
            *chain = s.dot_pairs(factor, factor, *chain);
        }
    }
    total(s, chains)
}

#[inline(always)]
fn total<S: Simd, const N: usize>(s: S, chains: [S::V; N]) -> f32 {
    let mut sum = s.zero();
    for chain in chains {
        sum = s.add(sum, chain);
    }
    s.sum(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_run_on_every_instruction_set() {
        for isa in crate::cpu::simd::Isa::available() {
            let cpu = &mut Cpu::with_isa(2, isa);
            READINGS.iter().for_each(|reading| read(cpu, &vec![0; (3 << 20) + 5], *reading));
            assert_eq!(multiply(cpu, Kind::F32, 10), 2 * 10 * 12 * 16 * 2);
            assert_eq!(multiply(cpu, Kind::Bf16, 10), 2 * 10 * 12 * 16 * 4);
            assert_eq!(multiply(cpu, Kind::Int8, 10), 2 * 10 * 12 * 16 * 8);
        }
    }
}
