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
        let Some(grid) = grid(stream, out.len()) else { return Ok(()) };
        let args = Args::new().slice(out).u64(out.len() as u64).u64(seed).f32(scale(deviation));
        self.kernel.launch(stream, grid, &args)
    }
}

/// Grid for `items` of work, of which each thread does at least one; `None` without work.
fn grid(stream: &Stream, items: usize) -> Option<Grid> {
    let filling = (stream.device().multiprocessors * BLOCKS_PER_MULTIPROCESSOR) as usize;
    let blocks = items.div_ceil(THREADS as usize).min(filling) as u32;
    (blocks > 0).then(|| Grid::new(blocks, THREADS).overlapping())
}

/// Bits of every 32-bit word: random where `keep` has ones, else those of `set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// Mask of the random bits.
    pub keep: u32,
    /// The other bits.
    pub set: u32,
}

impl Bits {
    /// Uniformly random bytes.
    pub const UNIFORM: Self = Self { keep: u32::MAX, set: 0 };

    /// The same bits in every byte.
    pub fn of_bytes(keep: u8, set: u8) -> Self {
        Self { keep: u32::from_le_bytes([keep; 4]), set: u32::from_le_bytes([set; 4]) }
    }

    /// The same bits in both halves.
    pub fn of_halves(keep: u16, set: u16) -> Self {
        let both = |half: u16| u32::from(half) << 16 | u32::from(half);
        Self { keep: both(keep), set: both(set) }
    }
}

/// Fills memory with random bits.
#[derive(Debug, Clone, Copy)]
pub struct FillBits {
    kernel: Kernel,
}

impl FillBits {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("fill_bits")? })
    }

    /// Queues the launch: word `i` is [`bits`] of (`seed`, `i`).
    ///
    /// # Panics
    /// Unless `out` is aligned to 16 bytes and consists of whole words.
    pub fn launch(
        &self,
        stream: &Stream,
        out: DeviceSlice<u8>,
        seed: u64,
        of: Bits,
    ) -> Result<(), CudaError> {
        let bytes = out.len();
        self.launch_pieces(stream, out, (bytes, bytes.next_multiple_of(16).max(16)), seed, of)
    }

    /// Queues a launch that fills the first `run` bytes of every `stride` bytes of `out`, counting only the
    /// filled words.
    ///
    /// # Panics
    /// As [`Self::launch`], and unless `stride`, and `run` if there are several pieces, are multiples of 16.
    pub fn launch_pieces(
        &self,
        stream: &Stream,
        out: DeviceSlice<u8>,
        (run, stride): (usize, usize),
        seed: u64,
        Bits { keep, set }: Bits,
    ) -> Result<(), CudaError> {
        assert!(out.address().is_multiple_of(16) && out.len().is_multiple_of(4), "words in fours");
        let is_one = out.len() <= run;
        assert!(
            stride >= run && (is_one || (run % 16, stride % 16) == (0, 0)),
            "{run} of every {stride} bytes"
        );
        let run = if is_one { stride } else { run };
        let words =
            if is_one { out.len() } else { out.len() / stride * run + run.min(out.len() % stride) } / 4;
        let Some(grid) = grid(stream, words.div_ceil(4)) else { return Ok(()) };
        let args = Args::new().slice(out).u64(words as u64).u64(run as u64 / 4).u64(stride as u64 / 4);
        self.kernel.launch(stream, grid, &args.u64(seed).u32(keep).u32(set))
    }
}

/// Word `index` under `seed` of memory filled with `of`.
pub fn bits(seed: u64, index: u64, of: Bits) -> u32 {
    let four = index / 4;
    let words = philox4x32_10([four as u32, (four >> 32) as u32, 0, 2], [seed as u32, (seed >> 32) as u32]);
    words[(index % 4) as usize] & of.keep | of.set
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
