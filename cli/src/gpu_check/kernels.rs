//! Checks every kernel against its CPU reference. Each group of cases has processes of its own: a kernel that
//! breaks the device or never ends costs its group, and the others go on.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use skein_kernel_check::cases::{GROUPS, Group, Part};

use super::options::{CheckOptions, GPU_CHECK, KERNELS};
use super::stop::Stop;
use super::supervise::{self, Found};
use crate::exit::Failure;
use crate::own_path::own_path;

/// Default of `--jobs` on a GPU with memory for as many.
const JOBS: usize = 4;
/// Device memory for one process: the largest case, with room to spare.
const JOB_BYTES: u64 = 16 << 30;
/// Names of cases that are printed of those that were not reached. JSON has all.
const NAMES_SHOWN: usize = 5;

/// What to check, and how.
pub(super) struct Plan {
    pub groups: Vec<&'static Group>,
    /// Processes at a time.
    pub jobs: usize,
    /// Longest time of a process.
    pub timeout: Duration,
    /// Longest wait for the device's work.
    pub wait_limit: Duration,
    /// Whether only the cost is of interest.
    pub is_dry: bool,
}

/// Default of `--jobs`: as many processes as the device has memory for, up to [`JOBS`].
pub(super) fn default_jobs(memory_bytes: u64) -> usize {
    usize::try_from(memory_bytes / JOB_BYTES).unwrap_or(JOBS).clamp(1, JOBS)
}

/// The groups named in `text`, in the order in which they run; all without a text.
///
/// # Errors
/// A name that no group has.
pub(super) fn groups_named(text: Option<&String>) -> Result<Vec<&'static Group>, String> {
    let Some(text) = text else { return Ok(GROUPS.iter().collect()) };
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    if let Some(unknown) = names.iter().find(|name| GROUPS.iter().all(|group| group.name != **name)) {
        let known: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
        return Err(format!("--group: no group is called `{unknown}`; there are {}", known.join(", ")));
    }
    Ok(GROUPS.iter().filter(|group| names.contains(&group.name)).collect())
}

/// Processes of a group; `None` for those that have not ended.
struct Progress {
    group: &'static Group,
    parts: Vec<Option<Found>>,
}

impl Progress {
    fn found(&self) -> impl Iterator<Item = &Found> {
        self.parts.iter().flatten()
    }

    fn is_complete(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    fn is_failed(&self) -> bool {
        !self.is_complete()
            || self.found().any(|part| part.broken.is_some())
            || self.passed() < self.compared()
    }

    fn passed(&self) -> usize {
        self.found().map(Found::passed).sum()
    }

    fn compared(&self) -> usize {
        self.found().map(|part| part.outcomes.len()).sum()
    }

    fn cases(&self) -> usize {
        self.found().map(|part| part.cases.len()).sum()
    }

    fn not_reached(&self) -> Vec<&str> {
        self.found().flat_map(Found::not_reached).map(String::as_str).collect()
    }

    fn seconds(&self) -> f64 {
        self.found().map(|part| part.took.as_secs_f64()).fold(0.0, f64::max)
    }

    fn cpu_seconds(&self) -> f64 {
        self.found().filter_map(|part| part.cpu_seconds).sum()
    }
}

/// How the kernels' groups ended.
#[derive(Default)]
pub(super) struct Ended {
    /// Names of the groups that failed.
    pub(super) failed: Vec<String>,
    /// Whether a signal ended the check.
    pub(super) is_stopped: bool,
}

/// Runs the plan's groups. With a dry plan, a group fails only if a process does not reach its end.
///
/// # Errors
/// If signals cannot be watched.
pub(super) fn run(
    plan: &Plan,
    options: &CheckOptions,
    report: &mut Map<String, Value>,
) -> Result<Ended, Failure> {
    let stop = Stop::on_signals().map_err(Failure::other)?;
    if !options.as_json && !plan.is_dry {
        outln!("{:<100} {:>10} {:>8}", "kernel and shape", "of allowed", "ms");
    }
    let groups = run_groups(plan, options, &stop);
    let failed: Vec<&Progress> = groups.iter().filter(|group| group.is_failed()).collect();
    let cases: usize = groups.iter().map(Progress::cases).sum();
    if options.as_json {
        add_to_report(report, plan, &groups);
    } else if plan.is_dry {
        print_cost(&groups);
        failed.iter().for_each(|group| print_failure(group));
    } else {
        let passed: usize = groups.iter().map(Progress::passed).sum();
        let compared: usize = groups.iter().map(Progress::compared).sum();
        let whole = groups.len() - failed.len();
        outln!(
            "\nkernels: {passed} of {compared} comparisons passed, {whole} of {} groups, seed {}\n",
            groups.len(),
            options.seed
        );
        failed.iter().for_each(|group| print_failure(group));
    }
    let mut names: Vec<String> = failed.iter().map(|group| group.group.name.to_owned()).collect();
    // A filter that matches nothing checks nothing, so it counts as a failure.
    if cases == 0 && names.is_empty() {
        names.push(format!("no case has `{}` in its name", options.only));
    }
    Ok(Ended { failed: names, is_stopped: stop.is_asked() })
}

/// Runs the processes of all groups, some at a time.
fn run_groups(plan: &Plan, options: &CheckOptions, stop: &Stop) -> Vec<Progress> {
    let parts = |group: &Group| group.processes.min(plan.jobs).max(1);
    let progress =
        plan.groups.iter().map(|group| Progress { group, parts: (0..parts(group)).map(|_| None).collect() });
    let groups: Mutex<Vec<Progress>> = Mutex::new(progress.collect());
    let processes: Vec<(usize, Part)> = plan
        .groups
        .iter()
        .enumerate()
        .flat_map(|(at, group)| (0..parts(group)).map(move |index| (at, index, parts(group))))
        .map(|(at, index, of)| (at, Part { index, of }))
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let (Some(&(at, part)), false) = (processes.get(next.fetch_add(1, Relaxed)), stop.is_asked()) {
            let found = run_part(plan, options, plan.groups[at], part, stop);
            let mut groups = lock(&groups);
            groups[at].parts[part.index] = Some(found);
            if groups[at].is_complete() && !options.as_json && !plan.is_dry {
                print_group(&groups[at]);
            }
        }
    };
    // Each process ends with the thread that started it, which waits for it.
    std::thread::scope(|scope| (0..plan.jobs).for_each(|_| drop(scope.spawn(work))));
    groups.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock(groups: &Mutex<Vec<Progress>>) -> MutexGuard<'_, Vec<Progress>> {
    groups.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_part(plan: &Plan, options: &CheckOptions, group: &Group, part: Part, stop: &Stop) -> Found {
    let mut command = Command::new(own_path());
    command.args([GPU_CHECK, KERNELS, "--group", group.name, "--only", &options.only]);
    command.args(["--part", &format!("{}/{}", part.index, part.of)]);
    command.args(["--parent", &std::process::id().to_string()]);
    command.args(["--wait-limit", &plan.wait_limit.as_secs().to_string()]);
    command.args(["--device", &options.ordinal.to_string(), "--seed", &options.seed.to_string()]);
    command.args(["--scale", options.scale_name()]);
    if plan.is_dry {
        command.arg("--dry-run");
    }
    let show = if options.as_json { |_: &Value| {} } else { show };
    supervise::run(command, plan.timeout, stop, &show)
}

fn show(outcome: &Value) {
    let error = outcome["of_allowed"].as_f64().unwrap_or(f64::INFINITY);
    let failed = match outcome["why"].as_str() {
        Some(why) => format!("  FAILED: {why}"),
        None if outcome["passed"] == true => String::new(),
        None => "  FAILED".to_owned(),
    };
    let (name, ms) = (outcome["name"].as_str().unwrap_or_default(), outcome["ms"].as_f64().unwrap_or(0.0));
    outln!("{name:<100} {error:>10.3} {ms:>8.1}{failed}");
}

fn print_group(group: &Progress) {
    let (name, passed, compared) = (group.group.name, group.passed(), group.compared());
    let failed = if group.is_failed() { ", FAILED" } else { "" };
    outln!(
        "group {name}: {passed} of {compared} comparisons of {} cases passed, {:.1} s{failed}",
        group.cases(),
        group.seconds()
    );
    for part in group.found() {
        if let Some(why) = &part.broken {
            outln!("group {name}: {why}");
        }
    }
}

fn print_failure(group: &Progress) {
    let name = group.group.name;
    outln!("FAILED group {name}");
    for part in group.found() {
        if let Some(why) = &part.broken {
            outln!("  {why}");
        }
        part.error_lines.iter().for_each(|line| outln!("    {line}"));
        part.outcomes.iter().filter(|outcome| outcome["passed"] != true).for_each(show);
    }
    let unstarted = group.parts.iter().filter(|part| part.is_none()).count();
    if unstarted > 0 {
        outln!("  not reached: {unstarted} of its {} processes, with their cases", group.parts.len());
    }
    let names = group.not_reached();
    if !names.is_empty() {
        let shown: Vec<String> = names.iter().take(NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
        let more = names.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        outln!("  not reached: {} cases: {}{more}", names.len(), shown.join(", "));
    }
}

fn print_cost(groups: &[Progress]) {
    outln!("cost only: nothing was compared with anything\n");
    outln!("{:<20}{:>8}{:>8}{:>12}", "group", "cases", "s", "CPU s");
    for group in groups {
        let (name, cases) = (group.group.name, group.cases());
        outln!("{name:<20}{cases:>8}{:>8.1}{:>12.2}", group.seconds(), group.cpu_seconds());
    }
    let total: f64 = groups.iter().map(Progress::cpu_seconds).sum();
    outln!("{:<20}{:>8}{:>8}{total:>12.2}\n", "all", groups.iter().map(Progress::cases).sum::<usize>(), "");
}

fn add_to_report(report: &mut Map<String, Value>, plan: &Plan, groups: &[Progress]) {
    let of_group = |group: &Progress| {
        let broken: Vec<&String> = group.found().filter_map(|part| part.broken.as_ref()).collect();
        let error_lines: Vec<&String> = group.found().flat_map(|part| &part.error_lines).collect();
        let mut value = json!({
            "name": group.group.name, "cases": group.cases(), "not_reached": group.not_reached(),
            "broken": broken, "stderr": error_lines, "processes": group.parts.len(),
            "ended_processes": group.found().count(), "s": group.seconds(),
            "cpu_s": group.cpu_seconds(),
        });
        if !plan.is_dry {
            value["passed"] = json!(!group.is_failed());
            value["comparisons"] = json!(group.compared());
            value["comparisons_passed"] = json!(group.passed());
        }
        value
    };
    report.insert("groups".into(), groups.iter().map(of_group).collect());
    if plan.is_dry {
        return;
    }
    let outcomes = groups.iter().flat_map(|group| {
        group.found().flat_map(|part| &part.outcomes).map(|outcome| {
            let mut outcome = outcome.clone();
            outcome["group"] = json!(group.group.name);
            outcome
        })
    });
    report.insert(KERNELS.into(), outcomes.collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_run_in_their_order_and_unknown_ones_are_refused() {
        let names = |text: &str| {
            let groups = groups_named(Some(&text.to_owned()))?;
            Ok::<_, String>(groups.iter().map(|group| group.name).collect::<Vec<_>>())
        };
        assert_eq!(names("norm, mma").unwrap(), ["mma", "norm"]);
        let refused = names("norm,gemm").unwrap_err();
        assert!(refused.contains("`gemm`") && refused.contains("mma, sm90, attention"), "{refused}");
        assert_eq!(groups_named(None).unwrap().len(), GROUPS.len());
    }

    #[test]
    fn a_small_device_has_one_process_at_a_time() {
        assert_eq!([1 << 30, 24 << 30, 48 << 30, 80 << 30].map(default_jobs), [1, 1, 3, 4]);
    }
}
