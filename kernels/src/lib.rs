//! Tensor operations: the CPU kernels, which specify the results of every other device, and the same
//! operations on CUDA devices. Has no notion of requests, models or protocols.
//!
//! With `sys`, the only crate of the product where `unsafe` may live.

pub mod collective;
pub mod cpu;
pub mod cuda;
pub mod gate;
pub mod leaves;
