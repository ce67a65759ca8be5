//! The CPU kernels against what this machine can do at most, all measured in one run.
//!
//! `cargo bench -p skein-bench --bench kernels [-- DIR] [--threads N]`; with a model directory (`skein bench make-model`
//! makes one of any shape) its whole steps are measured, also with `--dtype float32|bfloat16`, `--quantization int8|int4` and
//! `--kv-cache-dtype float32|bfloat16|float16|int8` as a worker takes them; without one single matrices. Best of several:
//! what a quiet machine would do.

use std::hint::black_box;
use std::path::Path;

use skein_kernels::cpu::input::{Form, Input};
use skein_kernels::cpu::matmul::{Write, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::{Cpu, roofline};
use skein_kernels::threads::Placement;
use skein_node::clock;
use skein_worker::backend::cpu::Numbers;

mod steps;

/// Weights are spread over more memory than any cache of one core holds.
const BUFFER_BYTES: usize = 1 << 30;
/// Names and shapes `[out, in]` of a layer's matrices, and the head's.
const SHAPES: [(&str, usize, usize); 8] = [
    ("0.5b qkv", 1152, 896),
    ("0.5b gate+up", 9728, 896),
    ("0.5b down", 896, 4864),
    ("0.5b head", 151_936, 896),
    ("1b qkv", 3072, 2048),
    ("1b gate+up", 16_384, 2048),
    ("1b down", 2048, 8192),
    ("1b head", 128_256, 2048),
];

fn main() {
    let (model, threads, numbers) = arguments();
    let cpu = &mut Cpu::new(threads);
    println!("{threads} threads, {}", cpu.isa.name());
    let buffer = noise(BUFFER_BYTES);
    let one = gigabytes(&mut Cpu::new(1), &buffer);
    let bandwidth = gigabytes(cpu, &buffer);
    println!("read {one:.1} GB/s with one thread, {bandwidth:.1} with all");
    let peak = gigaflops(cpu);
    println!(
        "f32 multiply-add {:.0} GFLOP/s with one thread, {peak:.0} with all",
        gigaflops(&mut Cpu::new(1))
    );
    drop(buffer);
    match model {
        Some(dir) => steps::measure(Path::new(&dir), threads, bandwidth, numbers),
        None => {
            SHAPES.iter().for_each(|(name, rows, cols)| one_shape(cpu, name, *rows, *cols, bandwidth, peak))
        }
    }
}

/// A model directory, how many threads, all processors unless told, and what numbers are rounded to.
fn arguments() -> (Option<String>, usize, Numbers) {
    let (mut model, mut threads, mut numbers) = (None, Placement::of_this_machine(0).threads, Numbers::EXACT);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {} // from cargo
            "--threads" => threads = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(threads),
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
    (model, threads, numbers)
}

/// Seconds of the fastest of `rounds` runs.
fn best_of(rounds: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..rounds).map(|_| {
        let start = clock::now();
        run();
        clock::now().since(start).as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
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
    buffer.len() as f64 / best_of(5, || roofline::read(cpu, black_box(buffer))) / 1e9
}

fn gigaflops(cpu: &mut Cpu) -> f64 {
    const STEPS: usize = 2_000_000;
    let mut operations = 0;
    let seconds = best_of(5, || operations = roofline::multiply(cpu, STEPS));
    operations as f64 / seconds / 1e9
}

/// One matrix at several batch sizes. Copies of it are used in turn, so that its weights come from memory.
fn one_shape(cpu: &mut Cpu, name: &str, rows: usize, cols: usize, bandwidth: f64, peak: f64) {
    let bytes = rows * cols * 2;
    let copies: Vec<WeightMatrix> = (0..(BUFFER_BYTES / bytes).clamp(1, 300))
        .map(|_| WeightMatrix::new(Storage::Bf16(noise(bytes).into()), rows, cols))
        .collect();
    let total = (copies.len() * bytes) as f64;
    print!("{name:>13} [{rows}, {cols}]:");
    for m in [1, 8, 32, 128, 512] {
        let mut x = Input::default();
        x.set(cpu, Form::F32, &vec![0.01; m * cols], cols);
        let mut y = vec![0.0; m * rows];
        // All copies at small m; at large m as many as take about a second.
        let used = copies.len().min((150_000_000_000 / (2 * m * rows * cols)).max(1));
        let seconds = best_of(if m > 8 { 2 } else { 4 }, || {
            for matrix in &copies[..used] {
                matmul(cpu, &x, &[matrix.into()], &mut y, Write::Set);
            }
        });
        black_box(&y);
        let speed = 2.0 * (m * used * rows * cols) as f64 / seconds / 1e9;
        if m == 1 {
            let read = total / seconds / 1e9;
            print!("  m=1 {read:.1} GB/s = {:.0}% of read", 100.0 * read / bandwidth);
        } else {
            print!("  m={m} {speed:.0} GFLOP/s ({:.0}%)", 100.0 * speed / peak);
        }
    }
    println!();
}
