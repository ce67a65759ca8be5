//! Every CUDA kernel against its CPU reference, on the emulation. `TEST_SEED` chooses the inputs,
//! `TEST_FILTER` the cases (those whose name contains it), `EMU_SEED` the order of threads.

use skein_kernel_check::cases::{Event, GROUPS, Options, Part, Scale, run};
use skein_kernels::cuda::Device;

#[test]
fn kernels_agree_with_their_references() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let device = Device::open(0).unwrap();
    let seed = std::env::var("TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let filter = std::env::var("TEST_FILTER").unwrap_or_default();
    let options = Options { scale: Scale::Small, seed, filter, part: Part::WHOLE };
    let report = run(&device, &options, |event| {
        if let Event::Ended(outcome) = event {
            println!("{:<60} {:>10.3} {:>8.1?}", outcome.name, outcome.error, outcome.took);
        }
    })
    .unwrap();
    assert!(!report.outcomes.is_empty());
    assert_eq!(report.failures().count(), 0, "TEST_SEED={seed} replays it");
}

#[test]
fn parts_of_a_group_are_its_cases() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let device = Device::open(0).unwrap();
    let options = |part| Options { scale: Scale::Full, seed: 1, filter: String::new(), part };
    for group in GROUPS {
        let whole = group.names(&device, &options(Part::WHOLE)).unwrap();
        assert!(whole.len() >= group.processes, "{} has {} cases", group.name, whole.len());
        let of = group.processes;
        let mut parts = Vec::new();
        for index in 0..of {
            parts.push(group.names(&device, &options(Part { index, of })).unwrap());
        }
        let joined = (0..whole.len()).map(|number| parts[number % of][number / of].clone());
        assert_eq!(joined.collect::<Vec<_>>(), whole, "{}", group.name);
    }
}
