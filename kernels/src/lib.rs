//! Tensor operations: the CPU kernels, which are the specification of every other device's, and the same operations on
//! CUDA devices. Knows nothing of requests, models or protocols.
//!
//! With `sys`, the only crate of the product where `unsafe` may live.

pub mod cpu;
pub mod cuda;
pub mod gate;
