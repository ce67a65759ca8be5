//! Every CUDA kernel against its CPU reference, on the emulation. `TEST_SEED` chooses the inputs,
//! `TEST_FILTER` the cases (those whose name contains it), `EMU_SEED` the order of threads.

use skein_kernel_check::cases::{Scale, run};
use skein_kernels::cuda::Device;

#[test]
fn kernels_agree_with_their_references() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let device = Device::open(0).unwrap();
    let seed = std::env::var("TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let filter = std::env::var("TEST_FILTER").unwrap_or_default();
    let report = run(&device, Scale::Small, seed, &filter, |outcome| {
        println!("{:<60} {:>10.3} {:>8.1?}", outcome.name, outcome.error, outcome.took);
    })
    .unwrap();
    assert!(!report.outcomes.is_empty());
    assert_eq!(report.failures().count(), 0, "TEST_SEED={seed} replays it");
}
