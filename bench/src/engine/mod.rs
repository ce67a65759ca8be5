//! A worker's engine without HTTP, for `skein bench latency` and `skein bench throughput`: only scheduler,
//! backend and device.

pub mod ceiling;
mod job;
pub mod report;
pub mod shares;
pub mod steps;

pub use job::{Job, run};
