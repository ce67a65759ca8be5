//! Benchmarks: load over HTTP (`skein bench serve`), an engine without HTTP (`latency`, `throughput`), and
//! models of real sizes for them; routing policies over simulated workers (`policy`). Benchmarks of kernels
//! are in `benches/micro/`.

pub mod batching;
pub mod engine;
pub mod load;
pub mod make_adapters;
pub mod make_model;
mod outliers;
pub mod plot;
pub mod policy;
pub mod quantised_form;

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
