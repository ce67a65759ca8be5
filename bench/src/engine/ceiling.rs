//! Limits of a device, measured in the same run as the results compared with them: plain reads and plain
//! multiplication.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::roofline::{self, Kind};
use skein_kernels::cuda::{self, Device};
use skein_model::cost::Product;
use skein_node::clock;
use skein_sys::mapped::ZeroedBytes;

/// Bytes read per round on the CPU: several times any cache.
const CPU_READ_BYTES: usize = 512 << 20;
/// Multiply-adds per round: tens of milliseconds.
const CPU_MULTIPLY_STEPS: usize = 20_000_000;
/// Rounds on the CPU. The best one counts, because other processes only slow it down.
const CPU_ROUNDS: usize = 5;
/// Bytes read per round on a GPU: many times its cache.
const GPU_READ_BYTES: usize = 4 << 30;
/// Rows and columns of the product on a GPU.
const GPU_MATMUL_SIZE: usize = 8192;
/// Reading takes at most this fraction (1 / n) of free memory.
const GPU_READ_SHARE: u64 = 4;

/// Limits of the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Bytes per second of plain reads.
    pub read_bytes_per_second: f64,
    /// Operations per second (two per multiply-add) of plain `f32` multiplication. Here and below, `None` if
    /// it cannot be measured.
    pub f32: Option<f64>,
    /// The same for bfloat16, if the device has the instruction.
    pub bf16: Option<f64>,
    /// The same for 8-bit integers.
    pub int8: Option<f64>,
}

impl Ceiling {
    /// Operations per second of `product` with its fastest instruction; every type can be widened to `f32`.
    pub fn flops(&self, product: Product) -> Option<f64> {
        let own = match product {
            Product::F32 => None,
            Product::Bf16 => self.bf16,
            Product::Int8 => self.int8,
        };
        own.into_iter().chain(self.f32).max_by(f64::total_cmp)
    }
}

/// The device to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The processors of this machine.
    Cpu {
        /// Number of threads; 0 = all processors that this process may use.
        threads: usize,
    },
    /// A CUDA device.
    Cuda {
        /// Number of the device.
        ordinal: u32,
    },
}

/// Measures the limits. Run it before a model is loaded, with nothing else running.
///
/// # Errors
/// If the device is missing or fails.
pub fn measure(on: On) -> Result<Ceiling, String> {
    match on {
        On::Cpu { threads } => Ok(on_cpu(threads)),
        On::Cuda { ordinal } => {
            let device = Device::open(ordinal).map_err(|error| error.to_string())?;
            on_gpu(&device).map_err(|error| error.to_string())
        }
    }
}

/// Repeats the quick part of the measurement: the bandwidth that other users of a shared machine leave
/// changes from minute to minute. A run is compared with the measurements before and after it.
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
    let mut bytes = ZeroedBytes::new(CPU_READ_BYTES).expect("half a GiB of memory");
    bytes.fill(1); // gives it pages of its own: huge ones, as packed weights have
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

/// Highest rate over several rounds; `work` returns the amount of work in a round.
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
