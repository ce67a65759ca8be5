//! What `skein bench` measures and draws: load over HTTP (`serve`), an engine without HTTP (`latency`,
//! `throughput`), saved results and plots; and models with random weights to measure. Benchmarks of kernels
//! are in `benches/micro`; studies, and what only developers use, in `dev/`.

pub mod engine;
pub mod load;
pub mod models;
pub mod plot;
pub mod saved;

use skein_node::clock;

/// Duration of the fastest of `rounds` runs, in seconds.
pub fn best_of(rounds: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..rounds).map(|_| {
        let start = clock::now();
        run();
        clock::now().since(start).as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}
