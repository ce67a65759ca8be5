//! A recurrent layer, compared with the machine's read bandwidth and multiply rate from the same run.
//!
//! `cargo bench -p skein-bench --bench recurrent [-- --threads N]`. States are those of several layers used
//! in turn, so that they come from memory as in a real step. A step's floor is the longer of the times to
//! read its states, though each is also written, and to multiply: for each number of a state and row a
//! multiplication and three multiply-adds. Reports the fastest of several rounds, as on an idle machine.

use std::hint::black_box;

use skein_bench::best_of;
use skein_kernels::cpu::recurrent::{
    DeltaShape, DeltaWeights, Scratch, StateCache, StatefulRows, gated_delta,
};
use skein_kernels::cpu::{Cpu, roofline};

/// Minimum bytes of states: more than any cache.
const STATE_BYTES: u64 = 512 << 20;
const READ_BYTES: usize = 1 << 30;
const ROUNDS: usize = 5;

/// Name, key heads, value heads; heads have 128 dimensions.
const MODELS: [(&str, usize, usize); 2] = [("qwen3-next", 16, 32), ("qwen3.5-0.8b", 16, 16)];
/// Sequences, rows of each, drafts among them.
const STEPS: [(usize, usize, usize); 6] =
    [(1, 1, 0), (8, 1, 0), (32, 1, 0), (1, 6, 5), (1, 512, 0), (4, 512, 0)];

fn main() {
    let cpu = &mut Cpu::new(threads());
    let bytes = vec![1u8; READ_BYTES];
    let seconds =
        roofline::READINGS.map(|reading| best_of(5, || roofline::read(cpu, black_box(&bytes), reading)));
    let read = READ_BYTES as f64 / seconds.into_iter().fold(f64::INFINITY, f64::min);
    drop(bytes);
    let mut operations = 0;
    let peak = best_of(5, || operations = roofline::multiply(cpu, roofline::Kind::F32, 2_000_000));
    // Of a multiply-add, whose product and sum count as two.
    let peak = operations as f64 / 2.0 / peak;
    let (isa, count) = (cpu.isa.name(), cpu.threads.count());
    println!("{count} threads, {isa}: read {:.1} GB/s, f32 multiply-add {:.0} G/s", read / 1e9, peak / 1e9);
    for model in MODELS {
        for step in STEPS {
            measure(cpu, model, step, read, peak);
        }
    }
}

/// Number of threads; by default all processors.
fn threads() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--threads").skip(1);
    let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
    arguments.next().and_then(|count| count.parse().ok()).unwrap_or_else(all)
}

fn measure(
    cpu: &mut Cpu,
    (name, key_heads, value_heads): (&str, usize, usize),
    (sequences, rows, drafts): (usize, usize, usize),
    read: f64,
    peak: f64,
) {
    let shape = DeltaShape { key_heads, value_heads, key_dim: 128, value_dim: 128, taps: 4 };
    let state = (value_heads * 128 * 128) as u64;
    let layers = STATE_BYTES.div_ceil(4 * state * sequences as u64) as usize;
    let Ok(mut cache) = StateCache::new(shape, layers, sequences) else { return println!("no memory") };
    let noise = |count: usize| (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.02).collect::<Vec<_>>();
    let (taps, norm, ones) = (noise(shape.channels() * 4), noise(128), vec![1.0; value_heads]);
    let weights = DeltaWeights { taps: &taps, decay_rate: &ones, decay_bias: &ones, norm: &norm, eps: 1e-6 };
    let projected = noise(sequences * rows * shape.width());
    let mut out = vec![0.0; sequences * rows * shape.values()];
    let mut scratch = Scratch::default();
    let mut position = 0;
    let mut step = |cpu: &mut Cpu| {
        let slot = |i: usize| StatefulRows {
            rows: i * rows..(i + 1) * rows,
            slot: i as u32,
            position,
            drafts,
            saves: Vec::new(),
        };
        let batch: Vec<StatefulRows> = (0..sequences).map(slot).collect();
        for layer in 0..layers {
            gated_delta(cpu, &mut cache, layer, &weights, &projected, &batch, &mut out, &mut scratch);
        }
        position += rows as u32; // all drafts are right
    };
    step(cpu); // takes memory
    let seconds = best_of(ROUNDS, || step(cpu)) / layers as f64;
    black_box(&out);
    let bytes = 4 * state * sequences as u64;
    let products = 4 * state * (sequences * rows) as u64;
    let floor = (bytes as f64 / read).max(products as f64 / peak);
    println!(
        "{name} {sequences} x {rows} ({drafts} drafts): {:.3} ms a layer, {:.1} GB/s of states, {:.0} G/s; {:.0}% \
         of its floor's speed",
        seconds * 1e3,
        bytes as f64 / seconds / 1e9,
        products as f64 / seconds / 1e9,
        100.0 * floor / seconds
    );
}
