//! Benchmarks every kernel at the shapes of real models, and compares it with the device's limits, measured
//! in the same run: the bandwidth of plain reads and the speed of a large product (`skein gpu-check bench`).
//!
//! Each row of the table is one operation. It is replayed from a graph, so that launch gaps do not count,
//! over enough copies of its weights or cache that the L2 cache cannot hold them.
//!
//! Not yet run on a GPU.

mod attention;
mod decode;
mod products;
mod sampling;
mod time;

use std::sync::Arc;

use skein_kernels::cuda::{CudaError, Device, Kernels, Stream, roofline};

use crate::cases::Scale;

pub use time::{Measured, Rig};

/// Sizes of a model that matter to its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Name in the table.
    pub name: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub inner: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
}

impl Model {
    fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

const LLAMA_8B: Model =
    Model { name: "8b", hidden: 4096, inner: 14_336, heads: 32, kv_heads: 8, head_dim: 128, vocab: 128_256 };
const LLAMA_1B: Model = Model { name: "1b", hidden: 2048, inner: 8192, head_dim: 64, ..LLAMA_8B };
/// For the emulation, where times are meaningless.
const TINY: Model =
    Model { name: "tiny", hidden: 64, inner: 96, heads: 4, kv_heads: 2, head_dim: 64, vocab: 300 };

/// Measured limits of the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Bytes per second of plain reads.
    pub read_bytes_per_second: f64,
    /// Operations per second of a large bf16 product; `None` without cuBLASLt.
    pub flops_per_second: Option<f64>,
}

/// Sizes for one run.
struct Sizes {
    models: &'static [Model],
    decode_rows: &'static [usize],
    product_rows: &'static [usize],
    prefill_rows: usize,
    /// Context length of the decode table.
    context: usize,
    contexts: &'static [usize],
    batches: &'static [usize],
    sample_rows: &'static [usize],
    read_bytes: usize,
    matmul: usize,
}

const FULL: Sizes = Sizes {
    models: &[LLAMA_8B, LLAMA_1B],
    decode_rows: &[1, 16, 32, 256],
    product_rows: &[1, 2, 4, 8, 16, 17, 24, 32, 48, 64],
    prefill_rows: 8192,
    context: 1024,
    contexts: &[1024, 8192],
    batches: &[1, 32, 256],
    sample_rows: &[1, 16, 256],
    read_bytes: 4 << 30,
    matmul: 8192,
};

const SMALL: Sizes = Sizes {
    models: &[TINY],
    decode_rows: &[1, 17],
    product_rows: &[1, 17],
    prefill_rows: 40,
    context: 40,
    contexts: &[70],
    batches: &[1, 3],
    sample_rows: &[1, 3],
    read_bytes: 1 << 16,
    matmul: 64,
};

/// Measures every operation whose name contains `filter`. Calls `on_ceilings` with the device's limits, then
/// `on_measured` for each operation.
pub fn run(
    device: &Arc<Device>,
    scale: Scale,
    filter: &str,
    on_ceilings: fn(Ceilings),
    on_measured: fn(Ceilings, &Measured),
) -> Result<(Ceilings, Vec<Measured>), CudaError> {
    let sizes = if scale == Scale::Small { &SMALL } else { &FULL };
    let kernels = Kernels::load(device)?;
    let stream = Stream::new(device)?;
    let ceilings = Ceilings {
        read_bytes_per_second: roofline::read_bandwidth(&kernels, &stream, sizes.read_bytes)?,
        flops_per_second: roofline::matmul_rate(&kernels, &stream, sizes.matmul)?,
    };
    on_ceilings(ceilings);
    let mut rig = Rig::new(&kernels, stream, (scale, ceilings), filter, on_measured);
    for model in sizes.models {
        for &rows in sizes.decode_rows {
            decode::step(&mut rig, model, rows, sizes.context)?;
        }
        decode::step(&mut rig, model, sizes.prefill_rows, sizes.prefill_rows)?;
        products::by_rows(&mut rig, model, sizes.product_rows)?;
        attention::prefill(&mut rig, model, sizes.prefill_rows)?;
        for (context, batch) in sizes.contexts.iter().flat_map(|c| sizes.batches.iter().map(move |b| (c, b)))
        {
            attention::decode(&mut rig, model, *batch, *context)?;
        }
    }
    for &rows in sizes.sample_rows {
        sampling::run(&mut rig, sizes.models[0].vocab, rows)?;
    }
    Ok((ceilings, rig.finish()))
}
