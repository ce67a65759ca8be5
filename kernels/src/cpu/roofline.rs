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

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `f32` by fused multiply-add.
    F32,
    /// Pairs of bfloat16 into `f32`: by one instruction, or widened, whichever is faster here.
    Bf16,
    /// Bytes, four at a time, into 32 bits.
    Int8,
}

/// Does `steps * threads` rounds of multiplications in registers and returns how many operations, a product and a sum each
/// counting as one, they were. `None` if there is no instruction for it: 8-bit integers without AVX-512 VNNI.
pub fn multiply(cpu: &mut Cpu, kind: Kind, steps: usize) -> Option<u64> {
    let (isa, threads) = (cpu.isa, cpu.threads.count());
    let products_per_lane = match kind {
        Kind::F32 => 1,
        Kind::Bf16 => 2,
        Kind::Int8 if !has_vnni() => return None,
        Kind::Int8 => 4,
    };
    cpu.threads.run(threads, |_, _| {
        std::hint::black_box(match kind {
            Kind::F32 => isa.run(Multiply(steps)),
            Kind::Bf16 => isa.run(MultiplyPairs(steps)),
            Kind::Int8 => multiply_bytes(steps),
        });
    });
    Some((steps * threads * CHAINS * LANES * 2 * products_per_lane) as u64)
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
        let small = std::hint::black_box([0x3a00u16; 2 * LANES]); // about 2^-11
        // SAFETY: 64 bytes.
        let factor = unsafe { s.load_pairs(small.as_ptr().cast()) };
        let mut chains = [s.splat(1.0); CHAINS];
        for _ in 0..self.0 {
            for chain in &mut chains {
                *chain = s.dot_pairs(factor, factor, *chain);
            }
        }
        total(s, chains)
    }
}

#[inline(always)]
fn total<S: Simd>(s: S, chains: [S::V; CHAINS]) -> f32 {
    let mut sum = s.zero();
    for chain in chains {
        sum = s.add(sum, chain);
    }
    s.sum(sum)
}

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn multiply_bytes(steps: usize) -> f32 {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn run(steps: usize) -> f32 {
        let factor = std::hint::black_box(_mm512_set1_epi32(0x0101_0101));
        let mut chains = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..steps {
            for chain in &mut chains {
                *chain = _mm512_dpbusd_epi32(*chain, factor, factor);
            }
        }
        chains.iter().fold(0, |sum: i32, chain| sum.wrapping_add(_mm512_reduce_add_epi32(*chain))) as f32
    }
    assert!(has_vnni(), "the instruction is there");
    // SAFETY: asserted.
    unsafe { run(steps) }
}

#[cfg(not(target_arch = "x86_64"))]
fn has_vnni() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply_bytes(_: usize) -> f32 {
    unreachable!("asked for only where the instruction is there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_run_on_every_instruction_set() {
        for isa in crate::cpu::simd::Isa::available() {
            let cpu = &mut Cpu::with_isa(2, isa);
            read(cpu, &vec![0; 3 * TASK_BYTES + 5]);
            assert_eq!(multiply(cpu, Kind::F32, 10), Some(2 * 10 * 12 * 16 * 2));
            assert_eq!(multiply(cpu, Kind::Bf16, 10), Some(2 * 10 * 12 * 16 * 4));
            assert_eq!(multiply(cpu, Kind::Int8, 10), has_vnni().then_some(2 * 10 * 12 * 16 * 8));
        }
    }
}
