//! What a device can do at most, measured in the run that is held against it: plain reading, plain multiplication.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::roofline::{self, Kind};
use skein_kernels::cuda::{self, Device};
use skein_node::clock;
use skein_worker::model::cost::Product;

/// Read once a round on the CPU: several times any cache.
const CPU_READ_BYTES: usize = 512 << 20;
/// Rounds of multiply-adds: some tens of milliseconds.
const CPU_MULTIPLY_STEPS: usize = 20_000_000;
/// Rounds on the CPU; the best counts, for neighbours only slow it down.
const CPU_ROUNDS: usize = 5;
/// Read once a round on a GPU: many times its cache.
const GPU_READ_BYTES: usize = 4 << 30;
/// Rows and columns of the product.
const GPU_MATMUL_SIZE: usize = 8192;
/// Of free memory, reading takes at most this part.
const GPU_READ_SHARE: u64 = 4;

/// What the device can do at most, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Bytes a second of plain reading.
    pub read_bytes_per_second: f64,
    /// Operations a second (two for each multiply-add) of plain multiplication of `f32`; `None`, here and below, where there
    /// is nothing to measure it with.
    pub f32: Option<f64>,
    /// The same of bfloat16, where the device has an instruction for it.
    pub bf16: Option<f64>,
    /// The same of 8-bit integers.
    pub int8: Option<f64>,
}

impl Ceiling {
    /// Operations a second of `product`, by whichever instruction is fastest: all numbers can be widened to `f32`.
    pub fn flops(&self, product: Product) -> Option<f64> {
        let own = match product {
            Product::F32 => None,
            Product::Bf16 => self.bf16,
            Product::Int8 => self.int8,
        };
        own.into_iter().chain(self.f32).max_by(f64::total_cmp)
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// This machine's processors, so many threads of them.
    Cpu {
        /// 0 = all that this process may use.
        threads: usize,
    },
    /// A CUDA device.
    Cuda {
        /// Its number.
        ordinal: u32,
    },
}

/// Measures. Nothing else should run meanwhile: before a model is loaded.
///
/// # Errors
/// A device that is not there or fails, in words.
pub fn measure(on: On) -> Result<Ceiling, String> {
    match on {
        On::Cpu { threads } => Ok(on_cpu(threads)),
        On::Cuda { ordinal } => {
            let device = Device::open(ordinal).map_err(|error| error.to_string())?;
            on_gpu(&device).map_err(|error| error.to_string())
        }
    }
}

/// Measures what changes by the minute again, at once: how fast memory is read, which on a shared machine is what others
/// leave of it. A run is held against what was measured before and after it.
pub fn measure_again(on: On, ceiling: &mut Ceiling) {
    if let On::Cpu { threads } = on {
        ceiling.read_bytes_per_second = read_rate(&mut cpu(threads), 1);
    }
}

fn cpu(threads: usize) -> Cpu {
    Cpu::new(match threads {
        0 => std::thread::available_parallelism().map_or(1, |count| count.get()),
        threads => threads,
    })
}

fn read_rate(cpu: &mut Cpu, rounds: usize) -> f64 {
    let bytes = vec![1u8; CPU_READ_BYTES];
    let reads = roofline::READINGS.map(|reading| {
        fastest(rounds, || {
            roofline::read(cpu, &bytes, reading);
            bytes.len() as u64
        })
    });
    reads.into_iter().fold(0.0, f64::max)
}

fn on_cpu(threads: usize) -> Ceiling {
    let mut cpu = cpu(threads);
    let threads = cpu.threads.count();
    let read_bytes_per_second = read_rate(&mut cpu, CPU_ROUNDS);
    let mut multiplied =
        |kind| Some(fastest(CPU_ROUNDS, || roofline::multiply(&mut cpu, kind, CPU_MULTIPLY_STEPS / threads)));
    Ceiling {
        read_bytes_per_second,
        f32: multiplied(Kind::F32),
        bf16: multiplied(Kind::Bf16),
        int8: multiplied(Kind::Int8),
    }
}

/// What the fastest round of `work` did in a second; it returns how much it did.
fn fastest(rounds: usize, mut work: impl FnMut() -> u64) -> f64 {
    let mut best = 0f64;
    for _ in 0..rounds {
        let start = clock::now();
        let done = work();
        best = best.max(done as f64 / clock::now().since(start).as_secs_f64());
    }
    best
}

fn on_gpu(device: &std::sync::Arc<Device>) -> Result<Ceiling, cuda::CudaError> {
    let kernels = cuda::Kernels::load(device)?;
    let stream = cuda::Stream::new(device)?;
    let (free, _) = device.memory_info()?;
    let bytes = GPU_READ_BYTES.min((free / GPU_READ_SHARE) as usize);
    Ok(Ceiling {
        read_bytes_per_second: cuda::roofline::read_bandwidth(&kernels, &stream, bytes)?,
        f32: None,
        bf16: cuda::roofline::matmul_rate(&kernels, &stream, GPU_MATMUL_SIZE)?,
        int8: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_reads_and_multiplies() {
        let ceiling = measure(On::Cpu { threads: 1 }).expect("a CPU is there");
        assert!(ceiling.read_bytes_per_second > 1e8 && ceiling.f32 > Some(1e8), "{ceiling:?}");
        let mut again = Ceiling { read_bytes_per_second: 0.0, ..ceiling };
        measure_again(On::Cpu { threads: 1 }, &mut again);
        assert!(again.read_bytes_per_second > 1e8 && again.f32 == ceiling.f32, "{again:?}");
    }
}
