//! Checks a CUDA device: [`cases`] compares every kernel with its CPU reference, [`bench`] times it. For
//! `skein gpu-check`, and for tests on the emulated device. [`exchange`] does both for exchanges between GPUs.

pub mod bench;
pub mod cases;
pub mod exchange;
