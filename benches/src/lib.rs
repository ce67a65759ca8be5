//! Benchmarks: load over HTTP (behind `skein bench serve`), an engine without HTTP (`latency`, `throughput`), and
//! models of real shapes to run them on. The kernels' own benchmarks are in `micro/`.

pub mod engine;
pub mod load;
pub mod make_model;

use skein_node::clock;

/// Seconds of the fastest of `rounds` runs.
pub fn best_of(rounds: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..rounds).map(|_| {
        let start = clock::now();
        run();
        clock::now().since(start).as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}
