//! The long forms of the scenarios for `tests/chaos`, with their duration on two cores.

use std::time::Duration;

use super::Plan;
use crate::load::Arrivals;

/// A scenario of `tests/chaos`.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// One line of help, with the expected duration.
    pub help: &'static str,
    /// Makes the long form from a default plan.
    pub plan: fn(Plan) -> Plan,
}

const fn millis(shortest: u64, longest: u64) -> (Duration, Duration) {
    (Duration::from_millis(shortest), Duration::from_millis(longest))
}

fn router_kills(plan: Plan) -> Plan {
    let gap_p99 = Some(Duration::from_millis(500));
    Plan { rounds: 200, workers: 2, pause: millis(500, 2000), gap_p99, ..plan }
}

/// All scenarios, in the order of the help text.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "worker-kill",
        help: "1,000 times kill -9 on one of 4 workers, streams arriving all the while; about 15 min",
        plan: |plan| Plan {
            rounds: 1000,
            workers: 4,
            pause: millis(300, 1300),
            gap_p99: Some(Duration::from_secs(1)),
            ..plan
        },
    },
    Scenario {
        name: "serve-kill",
        help: "200 times kill -9 on one of 3 workers of `skein serve`, or of --workers 1; about 6 min",
        // Arrivals do not depend on answers: clients that wait for answers would not send requests that can
        // be refused.
        plan: |plan| Plan { rounds: 200, pause: millis(500, 3000), arrivals: Arrivals::Open(4.0), ..plan },
    },
    Scenario {
        name: "serve-freeze",
        help: "20 times SIGSTOP on all workers of `skein serve`, never woken; about 4 min",
        plan: |plan| Plan {
            rounds: 20,
            workers: 2,
            pause: millis(1000, 3000),
            arrivals: Arrivals::Closed(8),
            silence: Some(Duration::from_secs(15)),
            ..plan
        },
    },
    Scenario {
        name: "soak",
        help: "kill -9 on a worker of `skein serve` every 0.5 to 30 s; no memory may be lost; 15 min",
        plan: |plan| Plan {
            rounds: 1,
            lasts: Duration::from_secs(900),
            pause: millis(500, 30_000),
            arrivals: Arrivals::Closed(8),
            ..plan
        },
    },
    Scenario {
        name: "router-kill",
        help: "200 times kill -9 on one of 2 routers, clients reconnect with Last-Event-ID; about 6 min",
        plan: router_kills,
    },
    Scenario {
        name: "gateway",
        help: "the same behind `skein gateway` with clients that do not reconnect; about 6 min",
        plan: router_kills,
    },
    Scenario {
        name: "run-batch",
        help: "50 times kill -9 on run-batch, its router or a worker in a batch of 2,000 lines; about 4 min",
        plan: |plan| Plan { rounds: 50, workers: 2, requests: 2000, ..plan },
    },
    Scenario {
        name: "wedge",
        help: "20 times SIGSTOP on a worker, SIGCONT once its streams have moved; about 4 min",
        plan: |plan| Plan {
            rounds: 20,
            silence: Some(Duration::from_secs(5)),
            arrivals: Arrivals::Open(3.0),
            front_flags: vec!["--worker-timeout=3s".into()],
            ..plan
        },
    },
    Scenario {
        name: "partition",
        help: "18 partitions, half-open connections, cuts between router and worker, healed; about 6 min",
        plan: |plan| Plan {
            rounds: 18,
            silence: Some(Duration::from_secs(15)),
            arrivals: Arrivals::Open(3.0),
            ..plan
        },
    },
    Scenario {
        name: "rolling",
        help: "SIGTERM to all workers in turn, again and again, under 200 streams, 10,000 requests; about 8 min",
        plan: |plan| Plan {
            rounds: 1,
            workers: 3,
            arrivals: Arrivals::Closed(200),
            requests: 10_000,
            max_tokens: 32,
            pause: millis(1000, 1000),
            ..plan
        },
    },
    Scenario {
        name: "etcd-outage",
        help: "etcd is gone for 10 minutes under load, a worker is killed meanwhile; about 11 min",
        plan: |plan| Plan {
            workers: 3,
            outage: Duration::from_secs(600),
            arrivals: Arrivals::Open(4.0),
            ..plan
        },
    },
    Scenario {
        name: "etcd-leader",
        help: "three etcd servers lose their leader 5 times under load, workers join each time; about 2 min",
        plan: |plan| Plan { workers: 2, rounds: 5, arrivals: Arrivals::Open(4.0), ..plan },
    },
    Scenario {
        name: "scale-out",
        help: "a cluster of one worker grows to 4 under load and loses the first one; about 1 min",
        plan: |plan| Plan { workers: 4, pause: millis(5000, 5000), ..plan },
    },
    Scenario {
        name: "full-disk",
        help: "no room for any log, workers killed meanwhile; about 1 min",
        plan: |plan| Plan { rounds: 20, workers: 2, pause: millis(2000, 2000), ..plan },
    },
    Scenario {
        name: "filling-disk",
        help: "the logs' file system fills up and is emptied (mounts a tmpfs); about 1 min",
        plan: |plan| Plan { workers: 2, pause: millis(5000, 5000), ..plan },
    },
    Scenario {
        name: "descriptors",
        help: "router and worker run out of file descriptors and get them back; about 1 min",
        plan: |plan| Plan { workers: 2, pause: millis(5000, 10_000), ..plan },
    },
    Scenario {
        name: "namespace",
        help: "a worker in a network namespace of its own, whose link goes down and up (needs root); about 2 min",
        plan: |plan| Plan {
            rounds: 6,
            workers: 2,
            silence: Some(Duration::from_secs(15)),
            arrivals: Arrivals::Open(3.0),
            ..plan
        },
    },
];
