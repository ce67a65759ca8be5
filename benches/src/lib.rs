//! Benchmarks: load over HTTP (behind `skein bench serve`) and models of real shapes to run it on. The kernels'
//! own benchmarks are in `micro/`.

pub mod load;
pub mod make_model;
