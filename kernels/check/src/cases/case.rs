//! Common parts of the cases: poisoned device memory, random inputs, comparison.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Options, Scale};
use skein_kernels::cpu::philox::philox4x32_10;
use skein_kernels::cuda::memory::Element;
use skein_kernels::cuda::{CudaError, Device, DeviceBuffer, Kernels, Stream};

/// Byte that fills outputs: NaN in every float type, an implausible number in the others.
const POISON: u8 = 0xff;

/// Smallest number of values worth a thread if each takes a few nanoseconds.
pub const CHEAP: usize = 1 << 16;
/// Smallest number of references worth a thread if each takes microseconds.
pub const DEAR: usize = 64;
/// Random values after which a long sequence of them repeats: drawing the weights of a large matrix takes
/// longer than everything else. A prime, so that no two rows of a matrix are equal.
pub const DISTINCT: usize = 1_048_583;
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
    /// Why the case failed without results to compare.
    pub why: Option<String>,
}

impl Outcome {
    /// Whether the error is within tolerance.
    pub fn passed(&self) -> bool {
        self.error <= 1.0
    }
}

/// What happens to a case.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// These cases will run, in this order.
    Listed(&'a [String]),
    /// The case with this name starts. If a kernel breaks the device or never ends, this is the last event.
    Starts(&'a str),
    /// One of its comparisons is done.
    Ended(&'a Outcome),
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
    options: Options,
    /// While cases are only listed: the names so far.
    names: Option<Vec<String>>,
    /// Cases that the filter let through, of all parts.
    passed_filter: usize,
    /// Hash of the case's name: part of the seed of its inputs.
    case: u64,
    drawn: u64,
    started: Instant,
    report: Report,
    on_event: fn(Event<'_>),
}

impl Bench {
    /// A bench on `device` with inputs drawn from the seed. Calls `on_event` before each case and after each
    /// comparison.
    pub fn new(device: &Arc<Device>, options: &Options, on_event: fn(Event<'_>)) -> Result<Self, CudaError> {
        Ok(Self {
            on_event,
            kernels: Kernels::load(device)?,
            stream: Stream::new(device)?,
            scale: options.scale,
            options: options.clone(),
            names: None,
            passed_filter: 0,
            case: 0,
            drawn: 0,
            started: now(),
            report: Report::default(),
        })
    }

    /// Names of the cases that `run` would run. Runs none.
    pub fn list(
        &mut self,
        run: impl Fn(&mut Self) -> Result<(), CudaError>,
    ) -> Result<Vec<String>, CudaError> {
        self.names = Some(Vec::new());
        let done = run(self);
        self.passed_filter = 0;
        let names = self.names.take().unwrap_or_default();
        done.map(|()| names)
    }

    /// Whether to run the case `name`. If so, starts its clock and its inputs.
    ///
    /// Inputs depend on the seed and the name alone: a case has the same ones with any filter, in any group
    /// and in any part of it.
    pub fn wants(&mut self, name: &str) -> bool {
        if !name.contains(&self.options.filter) {
            return false;
        }
        let number = self.passed_filter;
        self.passed_filter += 1;
        if number % self.options.part.of != self.options.part.index {
            return false;
        }
        if let Some(names) = &mut self.names {
            names.push(name.to_owned());
            return false;
        }
        (self.case, self.drawn, self.started) = (hash(name), 0, now());
        (self.on_event)(Event::Starts(name));
        true
    }

    /// The results of all cases.
    pub fn finish(self) -> Report {
        self.report
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        let block = self.drawn / 4;
        let (case, seed) = (self.case, self.options.seed);
        let counter = [block as u32, (block >> 32) as u32, case as u32, (case >> 32) as u32];
        let words = philox4x32_10(counter, [seed as u32, (seed >> 32) as u32]);
        self.drawn += 1;
        words[((self.drawn - 1) % 4) as usize]
    }

    /// A random integer below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.bits()) * u64::from(end)) >> 32) as u32
    }

    /// Values with mean 0 and deviation 1, approximately normal (a sum of four uniform values). They repeat
    /// after [`DISTINCT`].
    pub fn normal(&mut self, len: usize) -> Vec<f32> {
        self.normal_as(len, |value| value)
    }

    /// [`Self::normal`] values, each as `convert` returns it.
    pub fn normal_as<T: Copy + Send>(&mut self, len: usize, convert: impl Fn(f32) -> T + Sync) -> Vec<T> {
        let key = [self.bits(), self.bits()];
        let draw = |i: usize| {
            let words = philox4x32_10([i as u32, (i >> 32) as u32, 1, 0], key);
            convert(words.iter().map(|word| *word as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 3f32.sqrt())
        };
        repeated(each(len.min(DISTINCT), CHEAP, draw), len)
    }

    /// `len` random bytes. They repeat after [`DISTINCT`].
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let key = [self.bits(), self.bits()];
        let distinct = len.min(DISTINCT);
        let blocks =
            each(distinct.div_ceil(16), CHEAP, |i| philox4x32_10([i as u32, (i >> 32) as u32, 2, 0], key));
        repeated(blocks.into_iter().flatten().flat_map(u32::to_le_bytes).take(distinct).collect(), len)
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

    /// Records that a case failed without results.
    pub fn fail(&mut self, name: &str, why: &str) {
        self.add(name, f64::INFINITY, Some(why.to_owned()));
    }

    fn note(&mut self, name: &str, error: f64) {
        self.add(name, error, None);
    }

    fn add(&mut self, name: &str, error: f64, why: Option<String>) {
        let outcome = Outcome { name: name.to_owned(), error, took: self.started.elapsed(), why };
        (self.on_event)(Event::Ended(&outcome));
        self.report.outcomes.push(outcome);
    }
}

/// The sum of products, in f64. Partial sums, so that the compiler can compute several at once.
pub fn dot(x: &[f32], weight: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (weight, weight_rest) = weight.as_chunks::<LANES>();
    for (x, weight) in x.iter().zip(weight) {
        for lane in 0..LANES {
            sums[lane] += f64::from(x[lane]) * f64::from(weight[lane]);
        }
    }
    let rest = x_rest.iter().zip(weight_rest).map(|(x, w)| f64::from(*x) * f64::from(*w));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

/// `len` values: those of `distinct`, again and again.
fn repeated<T: Copy>(mut distinct: Vec<T>, len: usize) -> Vec<T> {
    let count = distinct.len();
    distinct.reserve_exact(len - count);
    while distinct.len() < len {
        distinct.extend_from_within(..count.min(len - distinct.len()));
    }
    distinct
}

/// FNV-1a: differs between names, and is the same on every machine.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
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
