//! The CUDA backend against the CPU backend, on the emulation: the same Rust code that drives a GPU.
#![allow(missing_docs, clippy::unwrap_used)]

mod agreement;
mod attention;
mod draws;
mod engine;
mod invariance;
mod models;
mod runs;
mod scores;
