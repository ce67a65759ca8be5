//! Packed weights times quantised activations, compared with the machine's read bandwidth and multiply rate
//! from the same run.
//!
//! `cargo bench -p skein-bench --bench integers [-- FORMAT...] [SHAPE...] [--rows M]... [--threads N]` with
//! the formats `int8`, `int8-group`, `int4` and `int4-zero`, and GGUF's `Q5_0`, `Q4_K`, `Q6_K` and so on.
//! Default: the first four. A shape is the start of a name, such as `0.5b`; default: all. The roofline is the
//! longer of the times for reading the weights, including scales, and for multiplying them. Reports the
//! fastest of several rounds, as on an idle machine.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::blocks::BlockType;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Write, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Format, Layout, Packed, pack};
use skein_kernels::cpu::roofline::{self, Kind};
use skein_node::clock;
use skein_sys::filling::Filling;
use skein_sys::mapped::{Bytes, ZeroedBytes};

mod shapes;

/// Total size of the weights, in bytes: more than any cache of one core.
const BUFFER_BYTES: usize = 512 << 20;
/// Numbers of activation rows to measure, by default.
const BATCHES: [usize; 6] = [1, 2, 8, 32, 128, 512];
/// Duration of a measurement.
const MEASURED: Duration = Duration::from_millis(300);
/// Rounds of products for measuring the peak.
const PEAK_STEPS: usize = 500_000;
const FORMATS: [(&str, Format); 4] = [
    ("int8", Format::INT8),
    ("int8-group", Format::INT8_GROUP),
    ("int4", Format::INT4),
    ("int4-zero", Format::INT4_ZERO),
];

/// What the weights are stored in before they are packed.
#[derive(Clone, Copy)]
enum Source {
    /// bfloat16, quantised to this format.
    Bf16(Format),
    /// Blocks of GGUF, kept.
    Blocks(BlockType),
}

fn main() {
    let Options { formats, shapes, rows, threads } = Options::parse();
    let cpu = &mut Cpu::new(threads);
    let isa = cpu.isa.integers();
    let mut buffer = ZeroedBytes::new(BUFFER_BYTES).expect("half a GiB of memory");
    buffer.fill(1);
    let reads = roofline::READINGS.map(|reading| best(|| roofline::read(cpu, black_box(&buffer), reading)));
    let read = buffer.len() as f64 / reads.into_iter().fold(f64::INFINITY, f64::min) / 1e9;
    drop(buffer);
    let mut operations = 0;
    let seconds = best(|| operations = roofline::multiply(cpu, Kind::Int8, PEAK_STEPS));
    let peak = operations as f64 / seconds / 1e9;
    println!("{threads} threads, {}: read {read:.1} GB/s, multiply {peak:.0} Gop/s", isa.name());
    for (name, from) in formats {
        packing(cpu, name, from);
        for (shape, outputs, inputs) in shapes::SHAPES {
            let is_chosen = shapes.is_empty() || shapes.iter().any(|chosen| shape.starts_with(chosen));
            if is_chosen && inputs.is_multiple_of(from.unit()) {
                print!("{name:>10} {shape:>13} [{outputs}, {inputs}]:");
                one_shape(cpu, &from.weights(outputs, inputs), from.format(), &rows, (read, peak));
            }
        }
    }
}

struct Options {
    formats: Vec<(&'static str, Source)>,
    /// Starts of shapes' names; none = all shapes.
    shapes: Vec<String>,
    rows: Vec<usize>,
    threads: usize,
}

impl Options {
    fn parse() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let mut options = Self { formats: Vec::new(), shapes: Vec::new(), rows: Vec::new(), threads };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || {
                arguments.next().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{argument} N"))
            };
            match argument.as_str() {
                "--rows" => options.rows.push(number()),
                "--threads" => options.threads = number(),
                "--bench" => {} // cargo passes it
                name => match Source::named(name) {
                    Some(format) => options.formats.push(format),
                    None if shapes::SHAPES.iter().any(|shape| shape.0.starts_with(name)) => {
                        options.shapes.push(name.to_owned());
                    }
                    None => panic!("{name}: neither a format (int8, int4-zero, Q5_0) nor a shape (0.5b)"),
                },
            }
        }
        if options.formats.is_empty() {
            options.formats = FORMATS.map(|(name, format)| (name, Source::Bf16(format))).into();
        }
        if options.rows.is_empty() {
            options.rows = BATCHES.into();
        }
        options
    }
}

impl Source {
    fn named(name: &str) -> Option<(&'static str, Self)> {
        let quantised = FORMATS.iter().find(|known| known.0 == name);
        let kept = BlockType::ALL.iter().find(|kind| kind.name() == name);
        quantised
            .map(|(name, format)| (*name, Self::Bf16(*format)))
            .or(kept.map(|kind| (kind.name(), Self::Blocks(*kind))))
    }

    /// Numbers of inputs are multiples of this.
    fn unit(self) -> usize {
        match self {
            Self::Bf16(_) => 1,
            Self::Blocks(kind) => kind.form().values,
        }
    }

    fn format(self) -> Format {
        match self {
            Self::Bf16(format) => format,
            Self::Blocks(kind) => Format::keeping(&Storage::Blocks(kind, Vec::new().into()))[0],
        }
    }

    /// Small weights.
    fn weights(self, rows: usize, cols: usize) -> WeightMatrix {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let storage = match self {
            Self::Bf16(_) => {
                let mut weight = || half::bf16::from_f32(random() as f32 / 2e8 - 0.04);
                Storage::Bf16(
                    (0..rows * cols).flat_map(|_| weight().to_le_bytes()).collect::<Vec<_>>().into(),
                )
            }
            // Bytes up to 63 make all half-precision numbers finite.
            Self::Blocks(kind) => {
                let bytes = rows * cols / kind.form().values * kind.form().bytes;
                Storage::Blocks(
                    kind,
                    (0..bytes).map(|_| (random() >> 16) as u8 & 63).collect::<Vec<_>>().into(),
                )
            }
        };
        WeightMatrix::new(storage, rows, cols)
    }
}

/// Seconds of the fastest run within the time limit.
fn best(mut run: impl FnMut()) -> f64 {
    let (begin, mut best) = (clock::now(), f64::INFINITY);
    while clock::now().since(begin) < MEASURED || best == f64::INFINITY {
        let start = clock::now();
        run();
        best = best.min(clock::now().since(start).as_secs_f64());
    }
    best
}

fn packing(cpu: &mut Cpu, name: &str, from: Source) {
    let layout = Layout::new(from.format(), 2048, 2048);
    let (from, mut to) = (from.weights(2048, 2048), vec![0; layout.bytes()]);
    let seconds = best(|| {
        to.fill(0);
        pack(cpu, &from, layout, &mut to).expect("all weights are finite");
    });
    println!("{name:>10} packs {:.2} G weights a second", 2048.0 * 2048.0 / seconds / 1e9);
}

/// A copy in huge pages, as packed files are cached in.
fn in_huge_pages(bytes: &[u8]) -> Bytes {
    let mut copy = Filling::in_memory(bytes.len()).expect("memory for the copies");
    copy.copy_from_slice(bytes);
    Bytes::mapped(Arc::new(copy.freeze().expect("memory can become read-only")), 0..bytes.len())
}

/// One matrix at several batch sizes. Its copies are used in turn, so that the weights come from memory.
/// `read` and `peak` are the machine's rates, in GB/s and Gop/s.
fn one_shape(cpu: &mut Cpu, from: &WeightMatrix, format: Format, rows: &[usize], (read, peak): (f64, f64)) {
    let layout = Layout::new(format, from.rows(), from.cols());
    let mut bytes = vec![0; layout.bytes()];
    pack(cpu, from, layout, &mut bytes).expect("all weights are finite");
    let copies: Vec<Packed> = (0..(BUFFER_BYTES / bytes.len()).clamp(1, 300))
        .map(|_| Packed::new(layout, in_huge_pages(&bytes)))
        .collect();
    for m in rows.iter().copied() {
        let mut x = Input::default();
        let values: Vec<f32> = (0..m * layout.cols).map(|i| (i % 37) as f32 - 18.0).collect();
        x.set(cpu, Encoding::Int8, &values, layout.cols);
        let mut y = vec![0.0; m * layout.rows];
        let operations = 2.0 * (m * layout.rows * layout.cols) as f64;
        // All copies if reading dominates, else as many as take about a tenth of a second.
        let used = copies.len().min((2e10 / operations) as usize).max(1);
        let seconds = best(|| {
            for matrix in &copies[..used] {
                matmul(cpu, &x, &[matrix.into()], &mut y, Write::Set);
            }
        }) / used as f64;
        black_box(&y);
        let (bytes, speed) = (layout.bytes() as f64 / seconds / 1e9, operations / seconds / 1e9);
        let roof = 100.0 * (bytes / read).max(speed / peak);
        print!("  m={m} {bytes:.1} GB/s {speed:.0} Gop/s {roof:.0}%");
    }
    println!();
}
