//! The CUDA backend against the CPU backend, on the emulated device. The same Rust code drives a GPU.
#![allow(missing_docs, clippy::unwrap_used)]

mod adapters;
mod agreement;
mod attention;
mod draws;
mod dummies;
mod engine;
#[path = "../cpu_model/golden.rs"]
mod golden;
mod goldens;
mod invariance;
#[path = "../cpu_model/long_context.rs"]
mod long_context;
#[path = "../cpu_model/made_adapters.rs"]
mod made_adapters;
mod models;
mod plan;
mod quantised;
mod requests;
mod runs;
mod scores;
