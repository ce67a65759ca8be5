//! Scenarios: a cluster of real processes, a load whose streams are checked one by one, and what is done to the
//! processes meanwhile. Each runs in a short form in the tests and in a long form under `tests/chaos`.

pub mod etcd;
pub mod exhaustion;
pub mod gateway;
pub mod long;
pub mod namespace;
pub mod partition;
pub mod rolling;
pub mod router_kill;
pub mod scale_out;
pub mod wedge;
pub mod worker_kill;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skein_node::clock;

use crate::client;
use crate::load::{Arrivals, Load, Target};
use crate::nodes::{Extras, Front, Worker};
use crate::report::Report;
use crate::requests::Corpus;
use crate::seeded::Seeded;

/// How much of a scenario to run, and how hard.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `skein` binary; `TEST_BINARY` goes before it.
    pub binary: String,
    /// Decides on arrivals, victims and moments. The processes' own timing stays their own.
    pub seed: u64,
    /// Kills, stops, partitions or restarts.
    pub rounds: u32,
    /// Worker processes.
    pub workers: usize,
    /// When requests come.
    pub arrivals: Arrivals,
    /// Requests to reach at least, where a scenario goes on until then.
    pub requests: u64,
    /// Different requests.
    pub cases: usize,
    /// Their `max_tokens`.
    pub max_tokens: u32,
    /// Time between two rounds, at random between these.
    pub pause: (Duration, Duration),
    /// How long etcd is away.
    pub outage: Duration,
    /// Bound on the 99th percentile of the gap of streams that were hit; `None` = it is told, not judged.
    pub gap_p99: Option<Duration>,
    /// Bound on the longest silence, before the first token or after it, of any stream that was hit.
    pub silence: Option<Duration>,
    /// More flags for routers and gateways.
    pub front_flags: Vec<String>,
    /// More flags for workers.
    pub worker_flags: Vec<String>,
}

impl Plan {
    /// A plan whose numbers a scenario's short form changes as it needs.
    pub fn short(binary: &str) -> Self {
        Self {
            binary: binary.to_owned(),
            seed: 1,
            rounds: 2,
            workers: 3,
            // A closed loop: on a machine that others use too, an open one only piles up.
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
        }
    }

    fn front_extras(&self) -> Extras {
        Extras { flags: self.front_flags.clone(), ..Extras::default() }
    }

    fn worker_extras(&self) -> Extras {
        Extras { flags: self.worker_flags.clone(), ..Extras::default() }
    }

    async fn start_workers(&self) -> Vec<Worker> {
        let extras = self.worker_extras();
        let mut workers: Vec<Worker> =
            (0..self.workers).map(|_| Worker::spawn(&self.binary, &extras)).collect();
        for worker in &mut workers {
            worker.wait_ready().await;
        }
        workers
    }

    async fn record(&self, front: &Front) -> Arc<Corpus> {
        Arc::new(Corpus::record(&front.url, self.cases, self.max_tokens).await)
    }

    fn load(&self, corpus: &Arc<Corpus>, target: Target, tag: &str) -> Load {
        Load::start(corpus.clone(), target, self.arrivals, self.seed, tag)
    }
}

fn addresses(workers: &[Worker]) -> Vec<SocketAddr> {
    workers.iter().map(|worker| worker.address).collect()
}

/// Streams that should be under way when something is broken that has to hit one.
const UNDER_WAY: usize = 6;
/// How long a load may take to have them.
const UNDER_WAY_WITHIN: Duration = Duration::from_secs(20);

/// Waits at random as the plan says, and then for streams to hit.
async fn wait_for_streams(plan: &Plan, load: &Load, dice: &mut Seeded) {
    tokio::time::sleep(dice.between(plan.pause.0, plan.pause.1)).await;
    wait_until(UNDER_WAY_WITHIN, || load.running() >= UNDER_WAY).await;
}

/// Waits until `happened`; `false` when it has not `within` that time.
async fn wait_until(within: Duration, mut happened: impl FnMut() -> bool) -> bool {
    let start = clock::now();
    while clock::now().since(start) < within {
        if happened() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    happened()
}

/// Until the last worker serves alone: its breaker may still be open after what was done to it.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// Kills all workers but one and asks that one for a few streams: is it a full member again?
async fn only_one_left(
    plan: &Plan,
    corpus: &Arc<Corpus>,
    url: &str,
    workers: &mut [Worker],
    left: usize,
) -> Report {
    let mut report = Report::new("only one left");
    for (index, worker) in workers.iter_mut().enumerate() {
        if index != left {
            worker.process.kill();
        }
    }
    let took = wait_served(corpus, url).await;
    report.require(took.is_some(), || format!("it serves nothing within {BACK_WITHIN:?}"));
    let load =
        Load::start(corpus.clone(), Target::plain(url), Arrivals::Closed(4), plan.seed, "only-one-left");
    wait_until(Duration::from_secs(20), || load.counts().1 >= 4).await;
    report.streams(&load.finish().await);
    report.say("served alone after", format!("{} ms", took.unwrap_or(BACK_WITHIN).as_millis()));
    report
}

/// How long it takes until a request is served; `None` if longer than [`BACK_WITHIN`].
async fn wait_served(corpus: &Corpus, url: &str) -> Option<Duration> {
    let client = reqwest::Client::new();
    let start = clock::now();
    while clock::now().since(start) < BACK_WITHIN {
        let case = &corpus.cases[0];
        if client::stream_once(&client, &format!("{url}{}", case.path), &case.body).await.complete() {
            return Some(clock::now().since(start));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}
