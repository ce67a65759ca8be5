//! Packed weights times quantised activations, compared with the machine's read bandwidth and multiply rate
//! from the same run.
//!
//! `cargo bench -p skein-bench --bench integers [-- FORMAT...] [--threads N]` with the formats `int8`,
//! `int8-group`, `int4` and `int4-zero`; default: all. The roofline is the longer of the times for reading
//! the weights, including scales, and for multiplying them. Reports the fastest of several rounds, as on an
//! idle machine.

use std::hint::black_box;
use std::time::Duration;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Write, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Format, Layout, Packed, pack};
use skein_kernels::cpu::roofline::{self, Kind};
use skein_node::clock;

mod shapes;

/// Total size of the weights, in bytes: more than any cache of one core.
const BUFFER_BYTES: usize = 512 << 20;
/// Numbers of activation rows to measure.
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

fn main() {
    let (chosen, threads) = arguments();
    let cpu = &mut Cpu::new(threads);
    let isa = cpu.isa.integers();
    let buffer = vec![1u8; BUFFER_BYTES];
    let reads = roofline::READINGS.map(|reading| best(|| roofline::read(cpu, black_box(&buffer), reading)));
    let read = buffer.len() as f64 / reads.into_iter().fold(f64::INFINITY, f64::min) / 1e9;
    drop(buffer);
    let mut operations = 0;
    let seconds = best(|| operations = roofline::multiply(cpu, Kind::Int8, PEAK_STEPS));
    let peak = operations as f64 / seconds / 1e9;
    println!("{threads} threads, {}: read {read:.1} GB/s, multiply {peak:.0} Gop/s", isa.name());
    for (name, format) in FORMATS {
        if !chosen.is_empty() && !chosen.iter().any(|chosen| chosen == name) {
            continue;
        }
        packing(cpu, name, format);
        for (shape, rows, cols) in shapes::SHAPES {
            print!("{name:>10} {shape:>13} [{rows}, {cols}]:");
            one_shape(cpu, Layout::new(format, rows, cols), read, peak);
        }
    }
}

/// Formats and number of threads; default: all processors.
fn arguments() -> (Vec<String>, usize) {
    let mut threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let (mut chosen, mut arguments) = (Vec::new(), std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--threads" => threads = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(threads),
            flag if flag.starts_with('-') => {} // cargo passes --bench
            _ => chosen.push(argument),
        }
    }
    (chosen, threads)
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

/// Small bfloat16 weights.
fn weights(rows: usize, cols: usize) -> WeightMatrix {
    let mut state = 1u32;
    let mut weight = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        half::bf16::from_f32((state >> 8) as f32 / 2e8 - 0.04)
    };
    let bytes: Vec<u8> = (0..rows * cols).flat_map(|_| weight().to_le_bytes()).collect();
    WeightMatrix::new(Storage::Bf16(bytes.into()), rows, cols)
}

fn packing(cpu: &mut Cpu, name: &str, format: Format) {
    let layout = Layout::new(format, 2048, 2048);
    let (from, mut to) = (weights(2048, 2048), vec![0; layout.bytes()]);
    let seconds = best(|| pack(cpu, &from, layout, &mut to).expect("all weights are finite"));
    println!("{name:>10} packs {:.2} G weights a second", 2048.0 * 2048.0 / seconds / 1e9);
}

/// One matrix at several batch sizes. Its copies are used in turn, so that the weights come from memory.
fn one_shape(cpu: &mut Cpu, layout: Layout, read: f64, peak: f64) {
    let mut bytes = vec![0; layout.bytes()];
    pack(cpu, &weights(layout.rows, layout.cols), layout, &mut bytes).expect("all weights are finite");
    let copies: Vec<Packed> = (0..(BUFFER_BYTES / bytes.len()).clamp(1, 300))
        .map(|_| Packed::new(layout, bytes.clone().into()))
        .collect();
    for m in BATCHES {
        let mut x = Input::default();
        let values: Vec<f32> = (0..m * layout.cols).map(|i| (i % 37) as f32 - 18.0).collect();
        x.set(cpu, Encoding::INT8, &values, layout.cols);
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
