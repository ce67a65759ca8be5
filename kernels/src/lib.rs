//! Tensor operations: the CPU kernels, which are the specification of every other device's, the threads they
//! run on, and the mapped files that weights are read from. Knows nothing of requests, models or protocols.
//!
//! The one crate where `unsafe` may live.

pub mod cpu;
pub mod mapped;
pub mod threads;
