//! This machine: memory, descriptors, processors, clock, and where Skein keeps files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use skein_kernels::cpu::simd::Isa;
use skein_sys::memory_limit::{self, Limit};
use skein_sys::process::address_space_limit;
use skein_sys::threads::ThreadPlacement;

use super::report::{Report, size};
use crate::settings::user_cache;

/// Below this much free memory two workers with the shipped model are tight.
const LEAST_MEMORY: u64 = 256 << 20;
/// Below this many descriptors clients are refused early: each connection takes one.
const FEW_DESCRIPTORS: u64 = 1024;
/// A server with workers needs this many for itself.
const LEAST_DESCRIPTORS: u64 = 64;
/// Address space that the trial of a tokenizer may take.
const LEAST_ADDRESS_SPACE: u64 = 4 << 30;
/// Clocks before this are wrong: 2026-01-01, in seconds since 1970.
const OLDEST_TIME: u64 = 1_767_225_600;

/// Checks the machine.
pub fn check(report: &mut Report) {
    memory(report);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    descriptors(report, limit_of(&limits, "Max open files"));
    address_space(report);
    processors(report);
    instruction_set(report);
    huge_pages(report);
    clock(report);
    cache(report, user_cache());
}

fn memory(report: &mut Report) {
    let Some(memory) = memory_limit::of_this_process() else {
        return report.warn(
            "memory",
            "the system does not say how much there is",
            "give --kv-cache-memory-bytes, so that the KV cache does not depend on it",
        );
    };
    let found = format!("{} free; {} has {}", size(memory.available), memory.of, size(memory.limit));
    if memory.available >= LEAST_MEMORY {
        return report.ok("memory", found);
    }
    let fix = match memory.of {
        Limit::Machine => "end other programs, or take a larger machine",
        Limit::Group(_) => {
            "raise the limit of the container or unit (memory.max; resources.limits.memory in Kubernetes)"
        }
    };
    report.warn("memory", found, fix);
}

/// The soft and the hard limit called `name` in `/proc/self/limits`; unlimited is the largest number.
fn limit_of(limits: &str, name: &str) -> Option<(u64, u64)> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut values = line.split_whitespace().map(|value| match value {
        "unlimited" => Some(u64::MAX),
        value => value.parse().ok(),
    });
    Some((values.next()??, values.next()??))
}

fn descriptors(report: &mut Report, limit: Option<(u64, u64)>) {
    let Some((soft, hard)) = limit else {
        return report.ok("descriptors", "the system does not say how many a process may open");
    };
    let shown = |count: u64| if count == u64::MAX { "unlimited".to_owned() } else { count.to_string() };
    let found = format!("{} for each process (at most {})", shown(soft), shown(hard));
    let fix = format!(
        "each client's connection takes one: raise it before the start (ulimit -n {}; LimitNOFILE= in a unit; --ulimit \
         nofile= of docker)",
        shown(hard.clamp(soft, 65_536))
    );
    match soft {
        ..LEAST_DESCRIPTORS => report.fail("descriptors", found, fix),
        LEAST_DESCRIPTORS..FEW_DESCRIPTORS => report.warn("descriptors", found, fix),
        _ => report.ok("descriptors", found),
    }
}

fn address_space(report: &mut Report) {
    if let Some(limit) = address_space_limit().filter(|limit| *limit < LEAST_ADDRESS_SPACE) {
        report.warn(
            "address space",
            format!("`ulimit -v` allows {}; weights are mapped, and threads reserve stacks", size(limit)),
            "raise or remove the limit (ulimit -v unlimited); limit memory by a control group instead",
        );
    }
}

fn processors(report: &mut Report) {
    let placement = ThreadPlacement::of_this_machine(0);
    let ThreadPlacement { threads, cores, nodes, limit, .. } = placement;
    let plural = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let quota = if limit < cores {
        format!("; affinity or the control group's quota allow {limit} at a time")
    } else {
        String::new()
    };
    let nodes = if nodes > 1 { format!(" on {nodes} memory nodes") } else { String::new() };
    let found = format!("{}{nodes}{quota}; {} compute", plural(cores, "core"), plural(threads, "thread"));
    report.ok("processors", found);
}

fn instruction_set(report: &mut Report) {
    let name = Isa::best().name();
    if name == "plain" && cfg!(target_arch = "x86_64") {
        return report.warn(
            "instructions",
            "no AVX2 with FMA and F16C: the CPU computes many times slower",
            "a virtual machine may hide them: give it the host's processor model (-cpu host)",
        );
    }
    report.ok("instructions", name);
}

/// Weights and KV caches ask for huge pages; the system may not have any.
fn huge_pages(report: &mut Report) {
    let Ok(modes) = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") else { return };
    let chosen = modes.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("unknown");
    let effect = if chosen == "never" { "; weights and caches are in small pages" } else { "" };
    report.ok("huge pages", format!("{chosen}{effect}"));
}

fn clock(report: &mut Report) {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_secs();
    if since >= OLDEST_TIME {
        return report.ok("clock", "plausible; --url compares it with a server's");
    }
    report.fail(
        "clock",
        "it is set before 2026, so certificates count as not yet valid, and downloads and etcds:// fail",
        "set it, and keep it right by NTP (timedatectl set-ntp true)",
    );
}

/// The shipped model, packed weights and compiled kernels are kept in `cache`.
fn cache(report: &mut Report, cache: Option<PathBuf>) {
    let Some(cache) = cache else {
        return report.warn(
            "cache directory",
            "HOME and XDG_CACHE_HOME are unset: the shipped model cannot be unpacked, and packed weights are not kept",
            "set XDG_CACHE_HOME to a directory to write to",
        );
    };
    let directory = cache.join("skein");
    match writable(&directory) {
        Ok(()) => report.ok("cache directory", directory.display().to_string()),
        Err(error) => report.warn(
            "cache directory",
            format!("cannot write to {}: {error}", directory.display()),
            "set XDG_CACHE_HOME to a directory to write to; a read-only container needs a volume there",
        ),
    }
}

fn writable(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let trial = directory.join(format!(".doctor-{}", std::process::id()));
    fs::write(&trial, b"skein doctor")?;
    fs::remove_file(trial)
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn limits_are_read_from_linux_table() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 unlimited            files\n";
        assert_eq!(limit_of(limits, "Max open files"), Some((1024, u64::MAX)));
        assert_eq!(limit_of(limits, "Max processes"), None);
    }

    #[test]
    fn few_descriptors_are_a_warning_and_very_few_a_problem() {
        for (soft, expected) in [(32, Status::Fail), (256, Status::Warn), (1024, Status::Ok)] {
            let mut report = Report::default();
            descriptors(&mut report, Some((soft, 4096)));
            assert_eq!(report.count(expected), 1, "{soft}: {}", report.text());
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut report = Report::default();
        cache(&mut report, Some(file.path().to_owned()));
        assert!(report.text().contains("XDG_CACHE_HOME"), "{}", report.text());
        let directory = tempfile::tempdir().expect("a directory");
        let mut report = Report::default();
        cache(&mut report, Some(directory.path().to_owned()));
        assert_eq!(report.count(Status::Ok), 1);
        let left = fs::read_dir(directory.path().join("skein")).expect("it was made").count();
        assert_eq!(left, 0, "the trial leaves no file");
    }
}
