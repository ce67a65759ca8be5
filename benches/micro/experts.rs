//! Experts of a layer, computed as one group or one by one, alternating in one run.
//!
//! `cargo bench -p skein-bench --bench experts [-- THREADS]`. The layer has the shape of OLMoE-1B-7B: 64
//! experts with 2048 inputs and 1024 inner values, 8 per row, chosen at random.

use std::ops::Range;

use skein_bench::best_of;
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Gated, Linear, Write};
use skein_kernels::cpu::matmul::{gated_matmul, grouped_gated_matmul, grouped_matmul, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Format, Packed};
use skein_kernels::gate::Gate;
use skein_sys::threads::ThreadPlacement;

const EXPERTS: usize = 64;
const PER_ROW: usize = 8;
const HIDDEN: usize = 2048;
const INNER: usize = 1024;
const ROUNDS: usize = 15;

/// Gate, up and down.
type Network = [Packed; 3];

fn main() {
    let placed = ThreadPlacement::of_this_machine(0).threads;
    let threads = std::env::args().filter_map(|word| word.parse().ok()).next_back().unwrap_or(placed);
    let cpu = &mut Cpu::new(threads);
    println!("{threads} threads, {}; medians of {ROUNDS} rounds", cpu.isa.name());
    for (name, format) in [("16 bits", Format::BF16), ("8 bits", Format::INT8), ("4 bits", Format::INT4)] {
        let networks: Vec<Network> = (0..EXPERTS).map(|seed| network(cpu, seed as u64, format)).collect();
        for rows in [1, 8, 32, 512] {
            compare(cpu, name, &networks, rows);
        }
    }
}

fn network(cpu: &mut Cpu, seed: u64, format: Format) -> Network {
    let mut matrix = |rows: usize, cols: usize| {
        let mut state = seed.wrapping_mul(977).wrapping_add(1);
        let mut word = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 32) as u32 & 0x80ff_80ff) | 0x3c00_3c00
        };
        let bytes: Vec<u8> = (0..rows * cols / 2).flat_map(|_| word().to_le_bytes()).collect();
        let stored = WeightMatrix::new(Storage::Bf16(bytes.into()), rows, cols);
        Packed::of(cpu, &stored, format).unwrap_or_else(|error| panic!("small finite weights: {error}"))
    };
    [matrix(INNER, HIDDEN), matrix(INNER, HIDDEN), matrix(HIDDEN, INNER)]
}

/// Experts chosen by at least one of `rows` rows, with their ranges of pairs.
fn chosen(rows: usize) -> Vec<(Range<usize>, usize)> {
    let mut counts = [0; EXPERTS];
    let mut state = 7u64;
    for _ in 0..rows {
        let mut of_row = Vec::with_capacity(PER_ROW);
        while of_row.len() < PER_ROW {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let expert = (state >> 40) as usize % EXPERTS;
            if !of_row.contains(&expert) {
                of_row.push(expert);
                counts[expert] += 1;
            }
        }
    }
    let mut start = 0;
    let ranges = counts.into_iter().enumerate().map(|(expert, count)| {
        start += count;
        (start - count..start, expert)
    });
    ranges.filter(|(range, _)| !range.is_empty()).collect()
}

fn compare(cpu: &mut Cpu, name: &str, networks: &[Network], rows: usize) {
    let chosen = chosen(rows);
    let pairs = rows * PER_ROW;
    let x: Vec<f32> = (0..pairs * HIDDEN).map(|i| ((i * 71) % 997) as f32 / 498.5 - 1.0).collect();
    let encoding = networks[0][0].layout().encoding(true);
    let of_inner = networks[0][2].layout().encoding(true);
    let (mut input, mut inner) = (Input::default(), Input::default());
    let (mut one_by_one, mut grouped) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let alone = best_of(1, || {
            for (range, expert) in &chosen {
                let part = range.start * HIDDEN..range.end * HIDDEN;
                input.set(cpu, encoding, &x[part.clone()], HIDDEN);
                gated_matmul(cpu, &input, gated(&networks[*expert]), of_inner, &mut inner);
                matmul(cpu, &inner, &[(&networks[*expert][2]).into()], &mut one_by_one[part], Write::Set);
            }
        });
        let together = best_of(1, || {
            run_group(
                cpu,
                &chosen,
                networks,
                (encoding, of_inner),
                &x,
                (&mut input, &mut inner),
                &mut grouped,
            );
        });
        times.push((alone, together));
    }
    assert!(one_by_one == grouped, "the same bits");
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let alone = median(times.iter().map(|(alone, _)| *alone).collect());
    let together = median(times.iter().map(|(_, together)| *together).collect());
    let ratio = median(times.iter().map(|(alone, together)| alone / together).collect());
    let (alone, together) = (alone * 1e3, together * 1e3);
    println!("{name} {rows:>4} rows: {alone:8.2} ms one by one, {together:8.2} ms in a group, {ratio:.2} x");
}

fn gated(network: &Network) -> Gated<'_> {
    Gated { activation: Gate::Silu, gate: (&network[0]).into(), up: (&network[1]).into() }
}

fn run_group(
    cpu: &mut Cpu,
    chosen: &[(Range<usize>, usize)],
    networks: &[Network],
    (encoding, of_inner): (Encoding, Encoding),
    x: &[f32],
    (input, inner): (&mut Input, &mut Input),
    y: &mut [f32],
) {
    let inputs: Vec<_> =
        chosen.iter().map(|(range, expert)| (range.clone(), gated(&networks[*expert]))).collect();
    let outputs: Vec<(Range<usize>, Linear<'_>)> =
        chosen.iter().map(|(range, expert)| (range.clone(), (&networks[*expert][2]).into())).collect();
    input.set(cpu, encoding, x, HIDDEN);
    grouped_gated_matmul(cpu, input, &inputs, of_inner, inner);
    grouped_matmul(cpu, inner, &outputs, y);
}
