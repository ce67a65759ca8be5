//! Checks CUDA devices, for `skein gpu-check` and for tests on the emulated device: [`cases`] compares every
//! kernel with its CPU reference, [`bench`] times it, and [`exchange`] and [`peer`] do both for exchanges
//! between GPUs.

pub mod bench;
pub mod cases;
pub mod exchange;
pub mod peer;
