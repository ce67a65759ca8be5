//! Checks every kernel against its CPU reference.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use skein_kernel_check::cases::{self, Outcome};
use skein_kernels::cuda::{CudaError, Device};

use super::CheckOptions;

/// Prints each case as it finishes; returns the number that failed.
pub(super) fn run(
    device: &Arc<Device>,
    options: &CheckOptions,
    report: &mut Map<String, Value>,
) -> Result<usize, CudaError> {
    if !options.as_json {
        outln!("{:<100} {:>10} {:>8}", "kernel and shape", "of allowed", "ms");
    }
    let show = if options.as_json { ignore } else { show };
    let result = cases::run(device, options.scale, options.seed, &options.only, show)?;
    let failed = result.failures().count();
    let cases = result.outcomes.len();
    if !options.as_json {
        outln!("\nkernels: {} of {cases} cases passed, seed {}\n", cases - failed, options.seed);
        result.failures().for_each(show);
    }
    let outcomes = result.outcomes.iter().map(|outcome| {
        // JSON has no infinity, so an error that is not finite is written as null.
        let error = outcome.error.is_finite().then_some(outcome.error);
        json!({"name": outcome.name, "passed": outcome.passed(), "of_allowed": error,
            "ms": outcome.took.as_secs_f64() * 1e3})
    });
    report.insert("kernels".into(), outcomes.collect());
    // A filter that matches nothing checks nothing, so it counts as a failure.
    Ok(failed + usize::from(cases == 0))
}

fn show(outcome: &Outcome) {
    let failed = if outcome.passed() { "" } else { "  FAILED" };
    outln!("{:<100} {:>10.3} {:>8.1}{failed}", outcome.name, outcome.error, outcome.took.as_secs_f64() * 1e3);
}

fn ignore(_: &Outcome) {}
