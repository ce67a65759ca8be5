//! Quantisation to FP8 e4m3 with scales; `cu/quantize.cu`.

use std::marker::PhantomData;

use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::{E4m3, Element};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Values of a row per group, for granularities finer than a row.
pub const GROUP: usize = 128;
/// Values per thread and iteration.
const VALUES: usize = 4;
/// Most threads per block.
const MAX_THREADS: usize = 1024;
/// Threads per block if blocks are not tied to rows.
const THREADS: u32 = 256;
/// Blocks that a multiprocessor runs at once.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Types that can be quantised.
pub trait Quantized: Element {
    /// Names of the kernels: largest magnitude, then quantisation by tensor, by rows, by blocks.
    const KERNELS: [&'static str; 4];
}

macro_rules! quantized {
    ($type:ty, $suffix:literal) => {
        impl Quantized for $type {
            const KERNELS: [&'static str; 4] = [
                concat!("largest_magnitude_", $suffix),
                concat!("quantize_tensor_", $suffix),
                concat!("quantize_rows_", $suffix),
                concat!("quantize_blocks_", $suffix),
            ];
        }
    };
}
quantized!(half::bf16, "bf16");
quantized!(half::f16, "f16");
quantized!(f32, "f32");

/// Which values share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// All: one scale. Takes two launches and one word of scratch.
    Tensor,
    /// A row, which is an output channel of weights or a token of activations: `[rows]` scales.
    Row,
    /// 128 values of a row, for activations whose weights have block scales: `[rows, ceil(cols / 128)]`
    /// scales.
    Group,
    /// 128 x 128 values of weights: `[ceil(rows / 128), ceil(cols / 128)]` scales.
    Block,
}

impl Granularity {
    /// Number of scales of `[rows, cols]` values.
    pub fn scales(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::Tensor => 1,
            Self::Row => rows,
            Self::Group => rows * cols.div_ceil(GROUP),
            Self::Block => rows.div_ceil(GROUP) * cols.div_ceil(GROUP),
        }
    }
}

/// Quantises values to e4m3. A value is `out * scale`; a scale is the largest magnitude of its values / 448.
#[derive(Debug, Clone, Copy)]
pub struct Quantize<T> {
    kernels: [Kernel; 4],
    of: PhantomData<T>,
}

/// Memory of one [`Quantize`] launch.
#[derive(Debug, Clone, Copy)]
pub struct Quantization<T> {
    /// Codes, `[rows, cols]`.
    pub out: DeviceSlice<E4m3>,
    /// As many scales as [`Granularity::scales`] says.
    pub scales: DeviceSlice<f32>,
    /// Values to quantise, `[rows, cols]`.
    pub x: DeviceSlice<T>,
    /// Number of rows, at most 65,535 with groups.
    pub rows: usize,
    /// Values per row, a multiple of 4.
    pub cols: usize,
    /// Which values share a scale.
    pub granularity: Granularity,
    /// `[1]` of scratch for [`Granularity::Tensor`], else [`DeviceSlice::NONE`].
    pub scratch: DeviceSlice<u32>,
}

impl<T: Quantized> Quantize<T> {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let [largest, tensor, rows, blocks] = T::KERNELS;
        let kernels = [kernels.get(largest)?, kernels.get(tensor)?, kernels.get(rows)?, kernels.get(blocks)?];
        Ok(Self { kernels, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, quantization: Quantization<T>) -> Result<(), CudaError> {
        let Quantization { out, scales, x, rows, cols, granularity, .. } = quantization;
        assert!(cols > 0 && cols.is_multiple_of(VALUES), "{cols} columns are not a multiple of {VALUES}");
        assert!(
            out.len() >= rows * cols && x.len() >= rows * cols,
            "{rows} rows of {cols} do not fit into {} from {}",
            out.len(),
            x.len()
        );
        let needed = granularity.scales(rows, cols);
        assert!(scales.len() >= needed, "{needed} scales do not fit into {}", scales.len());
        if rows == 0 {
            return Ok(());
        }
        match granularity {
            Granularity::Tensor => self.by_tensor(stream, quantization),
            Granularity::Row => {
                let threads = (cols / VALUES).next_multiple_of(32).min(MAX_THREADS) as u32;
                let args = Args::new().slice(out).slice(scales).slice(x).size(cols);
                self.kernels[2].launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)
            }
            Granularity::Group => self.by_blocks(stream, quantization, 1, 32),
            Granularity::Block => self.by_blocks(stream, quantization, GROUP, THREADS),
        }
    }

    fn by_blocks(
        &self,
        stream: &Stream,
        quantization: Quantization<T>,
        block_rows: usize,
        threads: u32,
    ) -> Result<(), CudaError> {
        let Quantization { out, scales, x, rows, cols, .. } = quantization;
        let blocks = [cols.div_ceil(GROUP) as u32, rows.div_ceil(block_rows) as u32, 1];
        let args = Args::new().slice(out).slice(scales).slice(x).size(rows).size(cols).size(block_rows);
        self.kernels[3].launch(stream, Grid::of(blocks, threads).overlapping(), &args)
    }

    fn by_tensor(&self, stream: &Stream, quantization: Quantization<T>) -> Result<(), CudaError> {
        let Quantization { out, scales, x, rows, cols, scratch, .. } = quantization;
        assert_eq!(scratch.len(), 1, "a scale of a tensor needs one word of scratch");
        let len = rows * cols;
        let needed = (len / VALUES).div_ceil(THREADS as usize);
        let filling = (stream.device().multiprocessors * BLOCKS_PER_MULTIPROCESSOR) as usize;
        let grid = Grid::new(needed.min(filling) as u32, THREADS);
        scratch.fill_bytes(stream, 0)?;
        // Must not overlap: the previous work is a memset, not a kernel.
        self.kernels[0].launch(stream, grid, &Args::new().slice(scratch).slice(x).u64(len as u64))?;
        let args = Args::new().slice(out).slice(scales).slice(scratch).slice(x).u64(len as u64);
        self.kernels[1].launch(stream, grid.overlapping(), &args)
    }
}
