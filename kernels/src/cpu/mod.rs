//! The CPU operations: plain functions over slices, activations in `f32`, weights packed as multiplication reads them.
//!
//! Every result has one fixed order of arithmetic. What a row yields depends on that row alone: not on its
//! batch-mates, the chunking, the number of threads or the instruction set. [`simd`] says how.

pub mod aligned;
pub mod attention;
pub mod embed;
pub mod input;
pub mod kv_cache;
pub mod math;
pub mod matmul;
pub mod matrix;
pub mod mlp;
pub mod norm;
pub mod packed;
pub mod philox;
pub mod roofline;
pub mod rope;
pub mod sample;
pub mod simd;
pub mod softcap;

mod prefetch;
mod shared;

use simd::Isa;
use skein_sys::threads::{Placement, Threads};

/// What an operation runs on: threads and an instruction set. Neither changes a bit of any result.
pub struct Cpu {
    /// The threads.
    pub threads: Threads,
    /// The instruction set.
    pub isa: Isa,
}

impl Cpu {
    /// `threads` participants (the caller is one), with the best instruction set this machine has.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::best())
    }

    /// The same where `placement` says.
    pub fn on(placement: &Placement) -> Self {
        Self { threads: Threads::on(placement), isa: Isa::best() }
    }

    /// The same with a given instruction set; for tests and measurements.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self { threads: Threads::new(threads), isa }
    }
}

/// Values of a row where nobody says how many: those of a small model's.
const USUAL_WIDTH: usize = 1024;
/// Values that a task takes at least, some microseconds of work; an operation over no more than twice as many is left to
/// the calling thread.
const VALUES_PER_TASK: usize = 4096;

/// Calls `work` once for each row.
fn for_each_row(cpu: &mut Cpu, rows: usize, work: impl Fn(usize) + Sync) {
    for_each_row_of(cpu, rows, USUAL_WIDTH, |row, _| work(row));
}

/// Calls `work` once for each row of `width` values, several short rows a task; it also gets the number of the thread.
fn for_each_row_of(cpu: &mut Cpu, rows: usize, width: usize, work: impl Fn(usize, usize) + Sync) {
    if rows * width <= 2 * VALUES_PER_TASK {
        return (0..rows).for_each(|row| work(row, 0));
    }
    for_each_run(cpu, rows, (VALUES_PER_TASK / width.max(1)).max(1), work);
}

/// The same, so many rows a task.
fn for_each_run(cpu: &mut Cpu, rows: usize, per_task: usize, work: impl Fn(usize, usize) + Sync) {
    cpu.threads.run(rows.div_ceil(per_task), |task, participant| {
        (task * per_task..rows.min((task + 1) * per_task)).for_each(|row| work(row, participant));
    });
}
