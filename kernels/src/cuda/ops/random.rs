//! Random values generated on the device, for benchmark weights; `cu/random.cu`.

use crate::cpu::philox::philox4x32_10;
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::{E4m3, Element};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use std::marker::PhantomData;

/// Threads per block.
const THREADS: u32 = 256;
/// Blocks that a multiprocessor runs at once.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Types that can be filled with random values.
pub trait Randomised: Element {
    /// Name of the type's kernel.
    const KERNEL: &'static str;
}

impl Randomised for half::bf16 {
    const KERNEL: &'static str = "fill_normal_bf16";
}

impl Randomised for half::f16 {
    const KERNEL: &'static str = "fill_normal_f16";
}

impl Randomised for f32 {
    const KERNEL: &'static str = "fill_normal_f32";
}

impl Randomised for E4m3 {
    const KERNEL: &'static str = "fill_normal_e4m3";
}

/// Fills memory with approximately normally distributed values.
#[derive(Debug, Clone, Copy)]
pub struct FillNormal<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

impl<T: Randomised> FillNormal<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get(T::KERNEL)?, of: PhantomData })
    }

    /// Queues the launch: `out[i]` is [`normal`] of (`seed`, `i`), rounded to `T`.
    pub fn launch(
        &self,
        stream: &Stream,
        out: DeviceSlice<T>,
        seed: u64,
        deviation: f32,
    ) -> Result<(), CudaError> {
        let needed = out.len().div_ceil(THREADS as usize);
        let filling = (stream.device().multiprocessors * BLOCKS_PER_MULTIPROCESSOR) as usize;
        let blocks = needed.min(filling) as u32;
        if blocks == 0 {
            return Ok(());
        }
        let args = Args::new().slice(out).u64(out.len() as u64).u64(seed).f32(scale(deviation));
        self.kernel.launch(stream, Grid::new(blocks, THREADS).overlapping(), &args)
    }
}

/// Value `index` under `seed`: a sum of eight uniform 16-bit values (Irwin-Hall), scaled to mean 0 and the
/// given deviation. The device computes the same bits.
pub fn normal(seed: u64, index: u64, deviation: f32) -> f32 {
    let words = philox4x32_10([index as u32, (index >> 32) as u32, 0, 1], [seed as u32, (seed >> 32) as u32]);
    let sum: i32 = words.iter().map(|word| (word & 0xffff) as i32 + (word >> 16) as i32).sum();
    (sum - 262_140) as f32 * scale(deviation)
}

/// Factor that scales the sum to `deviation`; the sum's own is sqrt(8 * (2^32 - 1) / 12).
fn scale(deviation: f32) -> f32 {
    (f64::from(deviation) / (8.0 * 4_294_967_295.0 / 12.0f64).sqrt()) as f32
}
