//! Tests with real `skein` processes and real sockets: what a user sees, also when workers are killed.

mod adapter_records;
mod adapters;
mod chaos;
mod doctor;
mod etcd;
mod faults;
mod gguf;
mod gpu_groups;
mod groups;
mod models;
mod moves;
mod nodes;
mod rank_adapters;
mod replaced;
mod responses;
mod serving;
mod swap;
mod tools;
mod traces;
mod wide_model;

/// The binary under test.
const SKEIN: &str = env!("CARGO_BIN_EXE_skein");

/// A runtime with one worker thread for one test.
fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime starts")
        .block_on(future)
}
