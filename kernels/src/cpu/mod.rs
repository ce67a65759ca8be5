//! The CPU operations: plain functions over slices, with activations in `f32` and weights packed in the order
//! in which products read them.
//!
//! Every result has one fixed order of arithmetic. A row's result depends on that row alone: not on the rest
//! of its batch, the chunking, the number of threads or the instruction set. [`simd`] explains how.

pub mod aligned;
pub mod attention;
pub mod blocks;
pub mod embed;
pub mod experts;
pub mod finite;
pub mod input;
pub mod join;
pub mod kv_cache;
pub mod latent;
pub mod layer_inputs;
pub mod layer_norm;
pub mod low_rank;
pub mod math;
pub mod matmul;
pub mod matrix;
pub mod mlp;
pub mod norm;
pub mod output_gate;
pub mod packed;
pub mod philox;
pub mod recurrent;
pub mod roofline;
pub mod rope;
pub mod rows;
pub mod sample;
pub mod simd;
pub mod softcap;

mod disjoint;
mod prefetch;

use simd::Isa;
use skein_sys::threads::{ThreadPlacement, Threads};

/// Threads and an instruction set for operations to run on. Neither changes a bit of any result.
pub struct Cpu {
    /// Compute threads; the caller is one of them.
    pub threads: Threads,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl Cpu {
    /// `threads` participants (the caller is one) and the best instruction set of this machine.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::best())
    }

    /// Threads as `placement` says and the best instruction set of this machine.
    pub fn on(placement: &ThreadPlacement) -> Self {
        Self { threads: Threads::on(placement), isa: Isa::best() }
    }

    /// A given instruction set; for tests and measurements.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self { threads: Threads::new(threads), isa }
    }
}

/// Row width that [`for_each_row`] assumes: that of a small model.
const ASSUMED_WIDTH: usize = 1024;
/// Fewest values per task: some microseconds of work. Up to twice as many run on the calling thread alone.
const VALUES_PER_TASK: usize = 4096;

/// Calls `work(row)` once for each row.
fn for_each_row(cpu: &mut Cpu, rows: usize, work: impl Fn(usize) + Sync) {
    for_each_row_of(cpu, rows, ASSUMED_WIDTH, |row, _| work(row));
}

/// Calls `work(row, participant)` once for each row of `width` values; a task has several short rows.
fn for_each_row_of(cpu: &mut Cpu, rows: usize, width: usize, work: impl Fn(usize, usize) + Sync) {
    if rows * width <= 2 * VALUES_PER_TASK {
        return (0..rows).for_each(|row| work(row, 0));
    }
    for_each_run(cpu, rows, (VALUES_PER_TASK / width.max(1)).max(1), work);
}

/// Calls `work(row, participant)` once for each row, `per_task` rows a task.
fn for_each_run(cpu: &mut Cpu, rows: usize, per_task: usize, work: impl Fn(usize, usize) + Sync) {
    cpu.threads.run(rows.div_ceil(per_task), |task, participant| {
        (task * per_task..rows.min((task + 1) * per_task)).for_each(|row| work(row, participant));
    });
}
