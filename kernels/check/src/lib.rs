//! What a CUDA device makes of Skein's kernels: [`cases`] runs each of them against its CPU reference, [`bench`] times it.
//! For `skein gpu-check`, and for tests on the emulated device.

pub mod bench;
pub mod cases;
