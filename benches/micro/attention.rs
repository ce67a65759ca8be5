//! Attention of one layer, compared with the machine's read bandwidth and multiply rate from the same run.
//!
//! `cargo bench -p skein-bench --bench attention [-- f32|bf16|f16|int8] [--threads N]`. Blocks are scattered
//! over the caches of several layers used in turn, so that keys and values come from memory as in a real
//! step. Reports the fastest of several rounds, as on an idle machine.

use std::hint::black_box;

use skein_bench::best_of;
use skein_kernels::cpu::attention::{Attention, Scratch, SequenceRows, attend};
use skein_kernels::cpu::kv_cache::{KvCache, KvShape, KvType};
use skein_kernels::cpu::rope::{Projected, rotate_and_write};
use skein_kernels::cpu::{Cpu, roofline};

/// Tokens per KV block.
const BLOCK_SIZE: usize = 16;
/// Minimum bytes of keys and values to read: more than any cache.
const CACHED_BYTES: u64 = 256 << 20;
/// Most layers, to limit the time for filling small contexts.
const MOST_LAYERS: usize = 24;
const READ_BYTES: usize = 1 << 30;
const ROUNDS: usize = 3;

/// Name, query heads, KV heads, values per head.
const MODELS: [(&str, usize, usize, usize); 2] = [("0.5b", 14, 2, 64), ("1b", 32, 8, 64)];
/// Sequences, rows of each, context including these rows.
const STEPS: [(usize, usize, usize); 6] =
    [(32, 1, 256), (32, 1, 2048), (1, 1, 4096), (1, 1, 32_768), (1, 512, 512), (1, 512, 4608)];

fn main() {
    let (kinds, threads) = arguments();
    let cpu = &mut Cpu::new(threads);
    let bytes = vec![1u8; READ_BYTES];
    let seconds =
        roofline::READINGS.map(|reading| best_of(5, || roofline::read(cpu, black_box(&bytes), reading)));
    let read = READ_BYTES as f64 / seconds.into_iter().fold(f64::INFINITY, f64::min) / 1e9;
    drop(bytes);
    let mut operations = 0;
    let peak = best_of(5, || operations = roofline::multiply(cpu, roofline::Kind::F32, 2_000_000));
    let peak = operations as f64 / peak / 1e9;
    println!(
        "{threads} threads, {}: read {read:.1} GB/s, f32 multiply-add {peak:.0} GFLOP/s",
        cpu.isa.name()
    );
    for (model, kind) in MODELS.into_iter().flat_map(|model| kinds.iter().map(move |kind| (model, *kind))) {
        for step in STEPS {
            measure(cpu, model, kind, step, read, peak);
        }
    }
}

/// Cache types and number of threads to measure; by default all types and all processors.
fn arguments() -> (Vec<KvType>, usize) {
    let (mut kinds, mut threads) = (Vec::new(), std::thread::available_parallelism().map_or(1, |n| n.get()));
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--threads" => threads = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(threads),
            "f32" => kinds.push(KvType::F32),
            "bf16" => kinds.push(KvType::Bf16),
            "f16" => kinds.push(KvType::F16),
            "int8" => kinds.push(KvType::Int8),
            "fp8" => kinds.push(KvType::Fp8),
            _ => {} // cargo passes --bench
        }
    }
    (if kinds.is_empty() { KvType::ALL.to_vec() } else { kinds }, threads)
}

fn measure(
    cpu: &mut Cpu,
    (name, heads, kv_heads, head_dim): (&str, usize, usize, usize),
    kind: KvType,
    (sequences, rows, context): (usize, usize, usize),
    read: f64,
    peak: f64,
) {
    let per_sequence = context.div_ceil(BLOCK_SIZE);
    let mut shape = KvShape {
        layers: 1,
        kv_heads,
        head_dim,
        latent: None,
        block_size: BLOCK_SIZE,
        blocks: sequences * per_sequence,
        kind,
    };
    let layer_bytes = shape.block_bytes().unwrap_or(u64::MAX).saturating_mul(shape.blocks as u64);
    shape.layers = (CACHED_BYTES.div_ceil(layer_bytes) as usize).clamp(1, MOST_LAYERS);
    let Ok(mut cache) = KvCache::new(shape) else { return println!("no memory for {name} {kind:?}") };
    let stride = (heads + 2 * kv_heads) * head_dim;
    fill(cpu, &mut cache, stride);
    // Scatters the blocks of a sequence over the cache. The stride is prime, so that no block occurs twice.
    let table = |i: usize| ((i * 1009) % shape.blocks) as u32;
    let tables: Vec<u32> = (0..shape.blocks).map(table).collect();
    let batch: Vec<SequenceRows<'_>> = (0..sequences)
        .map(|i| SequenceRows {
            rows: i * rows..(i + 1) * rows,
            position: context - rows,
            end: context,
            blocks: &tables[i * per_sequence..(i + 1) * per_sequence],
        })
        .collect();
    let qkv: Vec<f32> =
        (0..sequences * rows * stride).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.02).collect();
    let mut out = vec![0.0; sequences * rows * heads * head_dim];
    let mut scratch = Scratch::default();
    let seconds = best_of(ROUNDS, || {
        for layer in 0..shape.layers {
            let (window, softcap, sinks) = (None, None, None);
            let a = Attention {
                cache: &cache,
                layer,
                q: &qkv,
                stride,
                heads,
                group: heads / kv_heads,
                skipped: 0,
                scale: 0.125,
                window,
                is_chunked: false,
                ahead: 0,
                softcap,
                sinks,
            };
            attend(cpu, &a, &batch, &mut out, &mut scratch);
        }
    }) / shape.layers as f64;
    black_box(&out);
    let seen: usize = (0..rows).map(|row| context - rows + row + 1).sum::<usize>() * sequences;
    let flops = (4 * seen * heads * head_dim) as f64 / seconds / 1e9;
    let rate = layer_bytes as f64 / seconds / 1e9;
    let write = time_writing(cpu, &mut cache, heads, sequences * rows);
    println!(
        "{name} {kind:?} {sequences} x {rows} at {context}: {:.3} ms a layer, {rate:.1} GB/s ({:.0}%), {flops:.0} GFLOP/s \
         ({:.0}%); rope and write {:.3} ms",
        seconds * 1e3,
        100.0 * rate / read,
        100.0 * flops / peak,
        write * 1e3
    );
}

/// Writes values to every slot.
fn fill(cpu: &mut Cpu, cache: &mut KvCache, stride: usize) {
    const ROWS: usize = 512;
    let shape = cache.shape();
    let x: Vec<f32> = (0..ROWS * stride).map(|i| ((i * 71 % 103) as f32 - 51.0) * 0.02).collect();
    let slots: Vec<u32> = (0..(shape.blocks * BLOCK_SIZE) as u32).collect();
    for layer in 0..shape.layers {
        for slots in slots.chunks(ROWS) {
            cache.write(cpu, layer, &x[..slots.len() * stride], stride, 0, slots);
        }
    }
}

/// Seconds to rotate and write the rows of a step in one layer.
fn time_writing(cpu: &mut Cpu, cache: &mut KvCache, heads: usize, rows: usize) -> f64 {
    let shape = cache.shape();
    let half = shape.head_dim / 2;
    let mut qkv = vec![0.5; rows * (heads + 2 * shape.kv_heads) * shape.head_dim];
    let (cos, sin) = (vec![0.6; rows * half], vec![0.8; rows * half]);
    let spread = shape.blocks * BLOCK_SIZE / rows;
    let slots: Vec<u32> = (0..rows).map(|row| (row * spread) as u32).collect();
    best_of(ROUNDS, || {
        for layer in 0..shape.layers {
            let projected = Projected { qkv: &mut qkv, heads, cos: &cos, sin: &sin, slots: &slots };
            rotate_and_write(cpu, cache, layer, projected);
        }
    }) / shape.layers as f64
}
