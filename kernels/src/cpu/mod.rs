//! The CPU operations: plain functions over slices, activations in `f32`, weights as they lie in the file or packed.
//!
//! Every result has one fixed order of arithmetic. What a row yields depends on that row alone: not on its
//! batch-mates, the chunking, the number of threads or the instruction set. [`simd`] says how.

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

mod shared;

use crate::threads::Threads;
use simd::Isa;

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

    /// The same with a given instruction set; for tests and measurements.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self { threads: Threads::new(threads), isa }
    }
}

/// Rows of a batch that one task takes in the operations that go row by row: enough to be worth a hand-over.
const ROWS_PER_TASK: usize = 8;

/// Calls `work` once for each row, several rows a task.
fn for_each_row(cpu: &mut Cpu, rows: usize, work: impl Fn(usize) + Sync) {
    cpu.threads.run(rows.div_ceil(ROWS_PER_TASK), |task, _| {
        (task * ROWS_PER_TASK..rows.min((task + 1) * ROWS_PER_TASK)).for_each(&work);
    });
}
