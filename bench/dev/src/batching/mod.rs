//! `skein-dev batching`: compares the real scheduler with textbook batchers, using the same model of step
//! times and the same arrivals. It shows the cost of each batching rule and of each way to reserve KV memory.
//! Simulated: no model runs, and the result of a run depends only on its seed. The step time is that of a
//! published machine, or of a worker, which the `skein` beside this program measures first (`machine`).
//!
//! - `padded`: batches that start and end together, as on a server without in-flight batching
//! - `orca`: iteration-level batching over contiguous reservations (Orca, Yu et al. 2022)
//! - `paged`: Skein's scheduler with its paged KV cache

mod batcher;
pub mod command;
mod comparison;
mod contiguous;
mod fit;
mod jobs;
mod kv_use;
mod machine;
mod orca;
mod padded;
mod paged;
mod report;
mod run;
mod step_time;
mod sweep;

#[cfg(test)]
mod tests;
