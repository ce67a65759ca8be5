//! Resources of this process from `/proc/self` (proc(5)). A system without it has no such metrics.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::valid::VALID;

/// Clock ticks per second in `/proc`: `USER_HZ`, 100 on every architecture that Linux supports today.
const TICKS_PER_SECOND: f64 = 100.0;
/// Bytes of the unit of `/proc/self/status`.
const KIB: f64 = 1024.0;

pub(super) struct ProcessCollector(Vec<Desc>);

/// Name, help, and how it is read; counters end in `_total`.
type ProcessMetric = (&'static str, &'static str, fn() -> Option<f64>);

const METRICS: [ProcessMetric; 6] = [
    (
        "process_cpu_seconds_total",
        "Processor time of this process, user and system, in seconds.",
        cpu_seconds,
    ),
    ("process_resident_memory_bytes", "Resident memory of this process in bytes.", || status_bytes("VmRSS:")),
    ("process_virtual_memory_bytes", "Virtual memory of this process in bytes.", || status_bytes("VmSize:")),
    ("process_open_fds", "Open file descriptors.", open_files),
    ("process_max_fds", "Most file descriptors that may be open.", most_files),
    ("process_start_time_seconds", "When this process started, in seconds since 1970.", start_time),
];

impl ProcessCollector {
    pub fn new() -> Self {
        let desc = |(name, help, _): &(&str, &str, _)| {
            Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), Default::default()).expect(VALID)
        };
        Self(METRICS.iter().map(desc).collect())
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        METRICS.iter().filter_map(|(name, help, read)| Some(family(name, help, read()?))).collect()
    }
}

fn family(name: &str, help: &str, value: f64) -> MetricFamily {
    let mut metric = Metric::default();
    let mut family = MetricFamily::default();
    if name.ends_with("_total") {
        let mut counter = prometheus::proto::Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
        family.set_field_type(MetricType::COUNTER);
    } else {
        let mut gauge = prometheus::proto::Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
        family.set_field_type(MetricType::GAUGE);
    }
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_metric(vec![metric]);
    family
}

/// The fields of `/proc/self/stat` behind the command's name, which may hold spaces: the first is field 3.
fn stat() -> Option<Vec<String>> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn ticks(field: usize) -> Option<f64> {
    stat()?.get(field - 3)?.parse().ok()
}

fn cpu_seconds() -> Option<f64> {
    Some((ticks(14)? + ticks(15)?) / TICKS_PER_SECOND)
}

fn start_time() -> Option<f64> {
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + ticks(22)? / TICKS_PER_SECOND)
}

/// A line of `/proc/self/status`, which counts in KiB.
fn status_bytes(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.split_whitespace().next()?.parse::<f64>().ok()? * KIB)
}

fn open_files() -> Option<f64> {
    // One of them is the directory that is read.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

fn most_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
