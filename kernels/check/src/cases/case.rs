//! Common parts of the cases: poisoned device memory, random inputs, comparison.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Scale;
use skein_kernels::cpu::philox::philox4x32_10;
use skein_kernels::cuda::memory::Element;
use skein_kernels::cuda::{CudaError, Device, DeviceBuffer, Kernels, Stream};

/// Byte that fills outputs: NaN in every float type, an implausible number in the others.
const POISON: u8 = 0xff;

/// Smallest number of values worth a thread if each takes a few nanoseconds.
pub const CHEAP: usize = 1 << 16;
/// Smallest number of references worth a thread if each takes microseconds.
pub const DEAR: usize = 64;
/// Most results per case that are compared with sums in f64.
pub const COMPARED: usize = 4096;

/// Result of one case.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Kernel and shape.
    pub name: String,
    /// Largest |difference| / (absolute + relative * |reference|); at most 1 passes, NaN does not.
    pub error: f64,
    /// Wall time, reference included.
    pub took: Duration,
}

impl Outcome {
    /// Whether the error is within tolerance.
    pub fn passed(&self) -> bool {
        self.error <= 1.0
    }
}

/// Results of all cases.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Results in the order the cases ran.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// The failed cases.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| !outcome.passed())
    }
}

/// Largest allowed difference: `absolute + relative * |reference|`.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Part of the limit in the result's unit.
    pub absolute: f64,
    /// Part of the limit relative to the reference.
    pub relative: f64,
}

/// Runs the cases on one device.
#[derive(Debug)]
pub struct Bench {
    /// The kernels of the device.
    pub kernels: Kernels,
    /// The stream of all work.
    pub stream: Stream,
    /// Size of the shapes.
    pub scale: Scale,
    filter: String,
    seed: u64,
    drawn: u64,
    started: Instant,
    report: Report,
    on_outcome: fn(&Outcome),
}

impl Bench {
    /// A bench on `device` with inputs drawn from `seed`. Calls `on_outcome` after each case.
    pub fn new(
        device: &Arc<Device>,
        scale: Scale,
        seed: u64,
        filter: &str,
        on_outcome: fn(&Outcome),
    ) -> Result<Self, CudaError> {
        Ok(Self {
            on_outcome,
            kernels: Kernels::load(device)?,
            stream: Stream::new(device)?,
            scale,
            filter: filter.to_owned(),
            seed,
            drawn: 0,
            started: now(),
            report: Report::default(),
        })
    }

    /// Whether to run the case `name`; starts its clock.
    pub fn wants(&mut self, name: &str) -> bool {
        self.started = now();
        name.contains(&self.filter)
    }

    /// The results of all cases.
    pub fn finish(self) -> Report {
        self.report
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        let block = self.drawn / 4;
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let words = philox4x32_10([block as u32, (block >> 32) as u32, 0, 0], key);
        self.drawn += 1;
        words[((self.drawn - 1) % 4) as usize]
    }

    /// A random integer below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.bits()) * u64::from(end)) >> 32) as u32
    }

    /// Values with mean 0 and deviation 1, approximately normal (a sum of four uniform values).
    pub fn normal(&mut self, len: usize) -> Vec<f32> {
        let key = [self.bits(), self.bits()];
        each(len, CHEAP, |i| {
            let words = philox4x32_10([i as u32, (i >> 32) as u32, 1, 0], key);
            words.iter().map(|word| *word as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 3f32.sqrt()
        })
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let key = [self.bits(), self.bits()];
        let blocks =
            each(len.div_ceil(16), CHEAP, |i| philox4x32_10([i as u32, (i >> 32) as u32, 2, 0], key));
        blocks.into_iter().flatten().flat_map(u32::to_le_bytes).take(len).collect()
    }

    /// Indices to compare if the reference of each result is slow: all of them, or [`COMPARED`] chosen at
    /// random.
    pub fn compared(&mut self, len: usize) -> Vec<usize> {
        if len <= COMPARED {
            return (0..len).collect();
        }
        (0..COMPARED).map(|_| self.below(len as u32) as usize).collect()
    }

    /// Copies `values` to the device.
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<DeviceBuffer<T>, CudaError> {
        DeviceBuffer::from_slice(self.kernels.device(), &self.stream, values)
    }

    /// Poisoned memory for a result.
    pub fn output<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>, CudaError> {
        let buffer = DeviceBuffer::new(self.kernels.device(), len)?;
        buffer.fill_bytes(&self.stream, POISON)?;
        Ok(buffer)
    }

    /// Records how far `got` is from `reference`.
    pub fn compare(&mut self, name: &str, got: &[f32], reference: &[f32], tolerance: Tolerance) {
        assert_eq!(got.len(), reference.len(), "{name}: as many results as references");
        let mut error = 0f64;
        for (got, reference) in got.iter().zip(reference) {
            let (got, reference) = (f64::from(*got), f64::from(*reference));
            let allowed = tolerance.absolute + tolerance.relative * reference.abs();
            let far = if got == reference { 0.0 } else { (got - reference).abs() / allowed };
            error = if far.is_nan() || error.is_nan() { f64::NAN } else { error.max(far) };
        }
        self.note(name, error);
    }

    /// Records whether `got` equals `reference`.
    pub fn compare_exact<T: PartialEq>(&mut self, name: &str, got: &[T], reference: &[T]) {
        assert_eq!(got.len(), reference.len(), "{name}: as many results as references");
        let differing = got.iter().zip(reference).filter(|(a, b)| a != b).count();
        self.note(name, if differing == 0 { 0.0 } else { f64::INFINITY });
    }

    fn note(&mut self, name: &str, error: f64) {
        let outcome = Outcome { name: name.to_owned(), error, took: self.started.elapsed() };
        (self.on_outcome)(&outcome);
        self.report.outcomes.push(outcome);
    }
}

/// `of(0)` to `of(len - 1)`, computed on all processors in parts of at least `grain` values.
pub fn each<T: Send>(len: usize, grain: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = (len / grain).clamp(1, processors);
    if threads == 1 {
        return (0..len).map(of).collect();
    }
    let part = len.div_ceil(threads);
    std::thread::scope(|scope| {
        let of = &of;
        let run = |thread: usize| {
            let range = (thread * part).min(len)..((thread + 1) * part).min(len);
            scope.spawn(move || range.map(of).collect::<Vec<T>>())
        };
        let threads: Vec<_> = (0..threads).map(run).collect();
        let mut all = Vec::with_capacity(len);
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    })
}

#[allow(clippy::disallowed_methods)] // a check's duration is for its reader
fn now() -> Instant {
    Instant::now()
}
