//! Scenarios: a cluster of real processes, a load whose streams are checked one by one, and faults injected
//! during it. Each has a short form for the tests and a long form for `tests/chaos`.

pub mod etcd;
pub mod exhaustion;
pub mod gateway;
pub mod long;
pub mod namespace;
pub mod partition;
mod plan;
pub mod rolling;
pub mod router_kill;
pub mod run_batch;
pub mod scale_out;
pub mod serve;
pub mod wedge;
pub mod worker_kill;

pub use plan::Plan;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skein_node::clock;

use crate::client;
use crate::load::{Arrivals, Load, Target};
use crate::nodes::{Extras, Front, Worker};
use crate::report::Report;
use crate::requests::Corpus;
use crate::seeded::SeededRng;

impl Plan {
    fn front_extras(&self) -> Extras {
        Extras { flags: self.front_flags.clone(), model: self.model.clone(), ..Extras::default() }
    }

    fn worker_extras(&self) -> Extras {
        Extras { flags: self.worker_flags.clone(), model: self.model.clone(), ..Extras::default() }
    }

    /// Whether the fault strikes once more after `rounds`: as planned, and then until it has hit a stream. A
    /// random victim may have none at that moment, and a run that hits none proves nothing.
    fn strikes_again(&self, rounds: u32, has_hit: impl FnOnce() -> bool) -> bool {
        rounds < self.rounds || (rounds < self.rounds + MORE_ROUNDS && !has_hit())
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
        Arc::new(Corpus::record(&front.url, self.cases, self.max_tokens, &self.adapters).await)
    }

    fn load(&self, corpus: &Arc<Corpus>, target: Target, tag: &str) -> Load {
        Load::start(corpus.clone(), target, self.arrivals, self.seed, tag)
    }
}

fn addresses(workers: &[Worker]) -> Vec<SocketAddr> {
    workers.iter().map(|worker| worker.address).collect()
}

/// Streams that should be in flight before a fault that has to hit one.
const STREAMS_IN_FLIGHT: usize = 6;
/// Rounds after the planned ones while none has hit a stream.
const MORE_ROUNDS: u32 = 10;
/// How long a load may take to reach that number.
const IN_FLIGHT_WITHIN: Duration = Duration::from_secs(20);

/// Waits a random time as planned, and then until there are streams to hit.
async fn wait_for_streams(plan: &Plan, load: &Load, rng: &mut SeededRng) {
    tokio::time::sleep(rng.between(plan.pause.0, plan.pause.1)).await;
    wait_until(IN_FLIGHT_WITHIN, || load.running() >= STREAMS_IN_FLIGHT).await;
}

/// Waits until `happened`; `false` if that takes longer than `within`.
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

/// How long the last worker may take to serve alone. The fault may have opened its breaker.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// Kills all workers but one and sends that one a few requests, to check that it is a full member again.
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

/// The time until a request is served; `None` if longer than [`BACK_WITHIN`].
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
