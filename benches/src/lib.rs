//! Benchmarks: load over HTTP (behind `skein bench serve`), an engine without HTTP (`latency`, `throughput`), and
//! models of real shapes to run them on. The kernels' own benchmarks are in `micro/`.

pub mod engine;
pub mod load;
pub mod make_model;
