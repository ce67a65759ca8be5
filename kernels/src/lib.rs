//! Tensor operations: the CPU kernels, which are the specification of every other device's, the threads they
//! run on, the mapped files that weights are read from, and the same operations on CUDA devices. Knows nothing of
//! requests, models or protocols.
//!
//! The one crate where `unsafe` may live.

pub mod allocations;
pub mod cpu;
pub mod cuda;
pub mod filling;
pub mod mapped;
pub mod process;
pub mod threads;
