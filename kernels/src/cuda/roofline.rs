//! Measured upper bounds of a device: plain reading of its memory (`cu/roofline.cu`) and a large product.
//!
//! Not yet run on a GPU.

use half::bf16;

use super::blaslt::{BlasLt, Gemm, WORKSPACE_BYTES};
use super::launch::{Args, Grid, Kernel};
use super::ops::random::FillNormal;
use super::{CudaError, CudaEvent, DeviceBuffer, DeviceSlice, Kernels, Stream};

/// Threads per block.
const THREADS: u32 = 512;
/// Blocks per multiprocessor: four of 512 threads fill it.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;
/// Timed reads, of which the median counts.
const ROUNDS: usize = 15;

/// Kernel that reads memory and only keeps a checksum.
#[derive(Debug, Clone, Copy)]
pub struct ReadAll {
    kernel: Kernel,
    blocks: u32,
}

impl ReadAll {
    /// Looks the kernel up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let blocks = kernels.device().multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        Ok(Self { kernel: kernels.get("read_all")?, blocks })
    }

    /// Number of words that [`Self::launch`] writes. Their xor is that of all words read.
    pub fn words(&self) -> usize {
        self.blocks as usize
    }

    /// Reads `data`, a multiple of 16 bytes. `out` needs [`Self::words`].
    pub fn launch(
        &self,
        stream: &Stream,
        out: DeviceSlice<u32>,
        data: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        assert!(data.len().is_multiple_of(4), "{} words are no whole 16 bytes", data.len());
        assert!(out.len() >= self.words(), "{} results do not fit {}", self.words(), out.len());
        let args = Args::new().slice(out).slice(data).u64((data.len() / 4) as u64);
        self.kernel.launch(stream, Grid::new(self.blocks, THREADS), &args)
    }
}

/// A measurement that takes longer than this is not repeated at a larger size: a slow device, such as an
/// emulated one, would take minutes.
const STOP_AFTER_SECONDS: f64 = 0.005;

/// Bytes per second when reading up to `most_bytes` of memory, which is allocated here. Must be several times
/// the L2 cache, or it measures that. The data is random, like weights.
pub fn read_bandwidth(kernels: &Kernels, stream: &Stream, most_bytes: usize) -> Result<f64, CudaError> {
    let sizes = [1 << 20, 64 << 20, most_bytes].into_iter().filter(|bytes| *bytes <= most_bytes);
    measure_ascending(sizes, |bytes| {
        let rate = read_rate(kernels, stream, bytes)?;
        Ok((bytes as f64 / rate, rate))
    })
}

/// Operations per second of a product of square bf16 matrices with random values and up to `most` rows;
/// `None` without cuBLASLt.
pub fn matmul_rate(kernels: &Kernels, stream: &Stream, most: usize) -> Result<Option<f64>, CudaError> {
    let Some(blas) = BlasLt::open(kernels.device())? else { return Ok(None) };
    let sizes = [128, 1024, most].into_iter().filter(|size| *size <= most);
    let rate = measure_ascending(sizes, |size| {
        let rate = product_rate(&blas, kernels, stream, size)?;
        Ok((2.0 * (size as f64).powi(3) / rate, rate))
    });
    rate.map(Some)
}

/// Measures at ascending sizes and returns the last result; stops after a size that takes long. `measure`
/// returns (seconds, result).
fn measure_ascending(
    sizes: impl Iterator<Item = usize>,
    measure: impl Fn(usize) -> Result<(f64, f64), CudaError>,
) -> Result<f64, CudaError> {
    let mut result = 0.0;
    for size in sizes {
        let seconds;
        (seconds, result) = measure(size)?;
        if seconds > STOP_AFTER_SECONDS {
            break;
        }
    }
    Ok(result)
}

fn read_rate(kernels: &Kernels, stream: &Stream, bytes: usize) -> Result<f64, CudaError> {
    let device = kernels.device();
    let read = ReadAll::new(kernels)?;
    let data = DeviceBuffer::<u32>::new(device, bytes / 16 * 4)?;
    // Random values, because hardware may move zeros faster.
    FillNormal::<bf16>::new(kernels)?.launch(stream, data.cast(), 1, 1.0)?;
    let out = DeviceBuffer::new(device, read.words())?;
    let seconds = median_seconds(stream, ROUNDS, || read.launch(stream, *out, *data))?;
    Ok(data.bytes() as f64 / seconds)
}

fn product_rate(blas: &BlasLt, kernels: &Kernels, stream: &Stream, size: usize) -> Result<f64, CudaError> {
    let device = kernels.device();
    let buffer = || DeviceBuffer::<bf16>::new(device, size * size);
    let (out, x, weight) = (buffer()?, buffer()?, buffer()?);
    let fill = FillNormal::<bf16>::new(kernels)?;
    fill.launch(stream, *x, 1, 1.0)?;
    fill.launch(stream, *weight, 2, 1.0)?;
    let workspace = DeviceBuffer::new(device, WORKSPACE_BYTES)?;
    let gemm = Gemm::new(*out, *x, *weight, size, size, size);
    let seconds = median_seconds(stream, ROUNDS, || blas.matmul(stream, gemm, *workspace))?;
    Ok(2.0 * (size as f64).powi(3) / seconds)
}

/// Median time of `rounds` runs of the work that `launch` queues, after one warm-up run.
pub fn median_seconds(
    stream: &Stream,
    rounds: usize,
    mut launch: impl FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let (start, end) = (CudaEvent::new(stream.device())?, CudaEvent::new(stream.device())?);
    launch()?;
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        start.record(stream)?;
        launch()?;
        end.record(stream)?;
        end.synchronize()?;
        seconds.push(f64::from(end.since(&start)?) / 1e3);
    }
    seconds.sort_unstable_by(f64::total_cmp);
    Ok(seconds[rounds / 2])
}
