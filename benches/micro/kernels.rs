//! The CPU kernels compared with the limits of this machine, measured in the same run.
//!
//! `cargo bench -p skein-bench --bench kernels [-- DIR] [--threads N]`. With a model directory (`skein-dev
//! make-model` makes one) it measures whole steps, optionally with `--dtype float32|bfloat16`,
//! `--quantization int8|int4` and `--kv-cache-dtype float32|bfloat16|float16|int8` like a worker. Without one
//! it measures single matrices with both forms of activations; `--isa avx512|avx2+fma|plain` limits the
//! instructions. A product's roofline is the longer of the times of reading its weights and of multiplying.
//! Reports the best of several rounds, as on an idle machine.

use std::hint::black_box;
use std::path::Path;

use skein_bench::best_of;
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Write, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Format, Packed};
use skein_kernels::cpu::roofline::{self, Kind};
use skein_kernels::cpu::simd::Isa;
use skein_sys::threads::ThreadPlacement;
use skein_worker::backend::cpu::NumberTypes;

mod shapes;
mod steps;

/// Bytes over which weights are spread: more than any cache of one core.
const BUFFER_BYTES: usize = 1 << 30;

fn main() {
    let (model, threads, numbers, isa) = arguments();
    let cpu = &mut Cpu::with_isa(threads, isa);
    println!("{threads} threads, {}", cpu.isa.name());
    let buffer = noise(BUFFER_BYTES);
    let one = gigabytes(&mut Cpu::with_isa(1, isa), &buffer);
    let bandwidth = gigabytes(cpu, &buffer);
    println!("read {one:.1} GB/s with one thread, {bandwidth:.1} with all");
    let peaks = [Kind::F32, Kind::Bf16, Kind::Int8].map(|kind| {
        let (one, all) = (giga_operations(&mut Cpu::with_isa(1, isa), kind), giga_operations(cpu, kind));
        println!("{kind:?} multiply-add {one:.0} Gop/s with one thread, {all:.0} with all");
        all
    });
    drop(buffer);
    match model {
        Some(dir) => steps::measure(Path::new(&dir), threads, bandwidth, numbers),
        None => {
            for (name, rows, cols) in shapes::SHAPES {
                let copies = copies(cpu, rows, cols);
                for (encoding, peak) in [(Encoding::F32, peaks[0]), (Encoding::Bf16, peaks[1])] {
                    print!("{name:>13} [{rows}, {cols}] {encoding:?}:");
                    one_shape(cpu, &copies, encoding, bandwidth, peak);
                }
            }
        }
    }
}

/// Model directory, number of threads (default: all processors), rounding of numbers, and instruction set.
fn arguments() -> (Option<String>, usize, NumberTypes, Isa) {
    let mut isa = Isa::best();
    let (mut model, mut threads, mut numbers) =
        (None, ThreadPlacement::of_this_machine(0).threads, NumberTypes::STORED);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {} // from cargo
            "--threads" => threads = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(threads),
            "--isa" => {
                let name = arguments.next().unwrap_or_default();
                match Isa::available().into_iter().find(|isa| isa.name() == name) {
                    Some(found) => isa = found,
                    None => println!("{name} is not an instruction set of this machine, and ignored"),
                }
            }
            flag if flag.starts_with('-') => {
                let value = arguments.next().unwrap_or_default();
                match steps::numbers(numbers, flag, &value) {
                    Some(chosen) => numbers = chosen,
                    None => println!("{flag} {value} is not known here, and ignored"),
                }
            }
            _ => model = Some(argument),
        }
    }
    (model, threads, numbers, isa)
}

/// Small random bfloat16 values.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Two numbers of either sign between 2^-7 and 2^-5.
        ((state >> 32) as u32 & 0x80ff_80ff) | 0x3c00_3c00
    };
    (0..bytes / 4).flat_map(|_| word().to_le_bytes()).collect()
}

fn gigabytes(cpu: &mut Cpu, buffer: &[u8]) -> f64 {
    let seconds =
        roofline::READINGS.map(|reading| best_of(5, || roofline::read(cpu, black_box(buffer), reading)));
    buffer.len() as f64 / seconds.into_iter().fold(f64::INFINITY, f64::min) / 1e9
}

fn giga_operations(cpu: &mut Cpu, kind: Kind) -> f64 {
    const STEPS: usize = 2_000_000;
    let mut operations = 0;
    let seconds = best_of(5, || operations = roofline::multiply(cpu, kind, STEPS));
    operations as f64 / seconds / 1e9
}

/// Enough copies of a matrix that its weights come from memory if they are used in turn.
fn copies(cpu: &mut Cpu, rows: usize, cols: usize) -> Vec<Packed> {
    let bytes = rows * cols * 2;
    let matrix = WeightMatrix::new(Storage::Bf16(noise(bytes).into()), rows, cols);
    // Values are not rounded, so this cannot fail.
    (0..(BUFFER_BYTES / bytes).clamp(1, 300)).flat_map(|_| Packed::of(cpu, &matrix, Format::BF16)).collect()
}

/// One matrix at several batch sizes.
fn one_shape(cpu: &mut Cpu, copies: &[Packed], encoding: Encoding, bandwidth: f64, peak: f64) {
    let (rows, cols) = (copies[0].rows(), copies[0].cols());
    for m in [1, 2, 4, 8, 16, 32, 128, 512] {
        let mut x = Input::default();
        x.set(cpu, encoding, &vec![0.01; m * cols], cols);
        let mut y = vec![0.0; m * rows];
        // All copies at small m; at large m as many as take about a second.
        let used = copies.len().min((150_000_000_000 / (2 * m * rows * cols)).max(1));
        let seconds = best_of(if m > 8 { 2 } else { 4 }, || {
            for matrix in &copies[..used] {
                matmul(cpu, &x, &[matrix.into()], &mut y, Write::Set);
            }
        });
        black_box(&y);
        let read = 2.0 * (used * rows * cols) as f64 / seconds / 1e9;
        let speed = read * m as f64;
        let roof = (read / bandwidth).max(speed / peak);
        print!("  m={m} {read:.1} GB/s {speed:.0} GFLOP/s {:.0}%", 100.0 * roof);
    }
    println!();
}
