//! The CUDA backend against the CPU backend, on the emulation: the same Rust code that drives a GPU.
#![allow(missing_docs, clippy::unwrap_used)]

mod agreement;
mod draws;
mod invariance;
mod models;
mod runs;
