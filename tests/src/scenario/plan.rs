//! How large and how hard a scenario is.

use std::time::Duration;

use crate::load::Arrivals;

/// Size and difficulty of a scenario.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `skein` binary; `TEST_BINARY` takes precedence.
    pub binary: String,
    /// Determines arrivals, victims and times. The timing of the processes themselves is not reproducible.
    pub seed: u64,
    /// Number of kills, stops, partitions or restarts.
    pub rounds: u32,
    /// Minimum duration, for scenarios that run for a time.
    pub lasts: Duration,
    /// Number of worker processes.
    pub workers: usize,
    /// Arrivals of requests.
    pub arrivals: Arrivals,
    /// Minimum number of requests, for scenarios that run until they have sent enough.
    pub requests: u64,
    /// Number of different requests.
    pub cases: usize,
    /// `max_tokens` of the requests.
    pub max_tokens: u32,
    /// Shortest and longest time between two rounds.
    pub pause: (Duration, Duration),
    /// How long etcd is down.
    pub outage: Duration,
    /// Limit for the 99th percentile of the gap of streams that were hit; `None` = only reported.
    pub gap_p99: Option<Duration>,
    /// Limit for the longest silence of any stream that was hit, before its first token or later; `None` =
    /// only reported.
    pub silence: Option<Duration>,
    /// Additional flags for routers and gateways.
    pub front_flags: Vec<String>,
    /// Additional flags for workers.
    pub worker_flags: Vec<String>,
    /// As in [`crate::nodes::Extras::model`]; read where workers and routers are processes of their own.
    pub model: Option<String>,
    /// Adapters that requests use in turn with the model alone.
    pub adapters: Vec<String>,
}

impl Plan {
    /// Default numbers for a short form, which each scenario adjusts.
    pub fn short(binary: &str) -> Self {
        Self {
            binary: binary.to_owned(),
            seed: 1,
            rounds: 2,
            lasts: Duration::ZERO,
            workers: 3,
            // A closed loop: with an open one, streams would pile up on a shared machine.
            arrivals: Arrivals::Closed(8),
            requests: 0,
            cases: 18,
            max_tokens: 200,
            pause: (Duration::from_millis(500), Duration::from_millis(1500)),
            outage: Duration::from_secs(12),
            gap_p99: None,
            silence: None,
            front_flags: Vec::new(),
            worker_flags: Vec::new(),
            model: None,
            adapters: Vec::new(),
        }
    }
}
