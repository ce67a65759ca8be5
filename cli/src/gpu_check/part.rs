//! One process of a group of cases: runs the cases and tells its parent about each.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skein_kernel_check::cases::{Event, Group, Outcome, Part};
use skein_kernels::cuda::{CudaError, Device};
use skein_sys::process::{die_with_parent, exit_without_handlers};

use super::options::CheckOptions;
use crate::exit::{DEVICE, Failure, OTHER};

/// What the parent asks of this process.
pub(super) struct Asked {
    pub group: &'static Group,
    pub part: Part,
    /// The parent's process: if it ends, so does this one.
    pub parent: u32,
    /// Longest wait for the device's work.
    pub wait_limit: Duration,
    /// Whether results are not reported, only what the cases cost.
    pub is_dry: bool,
}

/// Runs the cases of a part of a group. Each event is a line of JSON on standard output.
///
/// # Errors
/// No usable device. If the device fails later, the process tells its parent and ends at once: the exit
/// handlers of a driver with a stuck device may never return.
pub(super) fn run(asked: &Asked, options: &CheckOptions) -> Result<(), Failure> {
    if !die_with_parent(asked.parent) {
        exit_without_handlers(OTHER.into());
    }
    let device = Device::open(options.ordinal).map_err(|why| Failure::new(DEVICE, why.to_string()))?;
    device.limit_waits(asked.wait_limit);
    let Err(error) = run_cases(asked, options, &device) else {
        outln!("{}", json!({"cpu_seconds": cpu_seconds()}));
        return Ok(());
    };
    outln!("{}", json!({"error": explained(&error)}));
    exit_without_handlers(OTHER.into());
}

fn run_cases(asked: &Asked, options: &CheckOptions, device: &Arc<Device>) -> Result<(), CudaError> {
    let report = if asked.is_dry { report_start } else { report };
    asked.group.run(device, &options.of_cases(asked.part), report).map(drop)
}

fn report(event: Event<'_>) {
    match event {
        Event::Ended(outcome) => outln!("{}", of_outcome(outcome)),
        other => report_start(other),
    }
}

fn report_start(event: Event<'_>) {
    match event {
        Event::Listed(names) => outln!("{}", json!({"cases": names})),
        Event::Starts(name) => outln!("{}", json!({"starts": name})),
        Event::Ended(_) => {}
    }
}

fn of_outcome(outcome: &Outcome) -> Value {
    // JSON has no infinity, so an error that is not finite is written as null.
    let error = outcome.error.is_finite().then_some(outcome.error);
    json!({"name": outcome.name, "passed": outcome.passed(), "of_allowed": error,
        "ms": outcome.took.as_secs_f64() * 1e3, "why": outcome.why})
}

fn explained(error: &CudaError) -> String {
    match error {
        CudaError::Stuck { within } => format!(
            "the device did not finish its work within {within:?}: a kernel waits for something that never comes, \
             such as a barrier or a copy"
        ),
        _ => error.to_string(),
    }
}

/// Processor time of this process, all threads, in seconds; 0 where the system does not tell.
fn cpu_seconds() -> f64 {
    /// Unit of the times in `/proc`, the same on all of Linux's architectures.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields behind the command's name, which may hold spaces: user and system time are fields 14 and 15.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}
