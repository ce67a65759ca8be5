//! `skein serve` whose workers are killed or frozen at random times. The supervisor replaces them, streams
//! continue, and new requests wait.

use std::time::Duration;

use skein_node::clock::{self, Timestamp};

use super::{Plan, wait_until};
use crate::load::{Load, Target};
use crate::process::{Cluster, resident_bytes, send_signal};
use crate::report::{Report, moves};
use crate::requests::Corpus;
use crate::seeded::SeededRng;

/// Time limit for the supervisor to have all its workers running again.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// A stream that waits longer than this counts as hung: `--worker-timeout` and a start take about 6 s
/// together.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Upper bound of the router's peak memory in the last quarter of a run, in percent of that in the first
/// quarter.
const GROWTH_PERCENT: u64 = 125;
/// Memory is only compared in runs of at least this length, because it grows while the first streams arrive.
const MEMORY_JUDGED_AFTER: Duration = Duration::from_secs(300);

/// `kill -9` on a random worker at random times.
pub async fn kills(plan: &Plan) -> Report {
    let mut scene = Scene::start(plan, "serve-kill").await;
    while scene.goes_on() {
        scene.pause().await;
        let workers = scene.workers(1, &[]).await;
        send_signal(workers[scene.rng.below(workers.len())], "KILL");
        scene.hits += 1;
    }
    scene.end("kill -9 on workers of `skein serve`").await
}

/// SIGSTOP to all workers at once, without a SIGCONT.
pub async fn freezes(plan: &Plan) -> Report {
    let mut scene = Scene::start(plan, "serve-freeze").await;
    let mut hung = 0;
    while scene.goes_on() {
        scene.pause().await;
        let frozen = scene.workers(plan.workers, &[]).await;
        for &worker in &frozen {
            send_signal(worker, "STOP");
        }
        scene.hits += 1;
        let ended = scene.load.all_begun_have_ended(LONGEST_WAIT).await;
        scene.workers(plan.workers, &frozen).await;
        hung += u32::from(ended.is_none());
    }
    let mut report = scene.end("SIGSTOP on all workers of `skein serve`").await;
    report.require(hung == 0, || format!("in {hung} rounds streams hung for {LONGEST_WAIT:?}"));
    report
}

/// A cluster under load.
struct Scene<'a> {
    plan: &'a Plan,
    cluster: Cluster,
    load: Load,
    rng: SeededRng,
    begun: Timestamp,
    rounds: u32,
    hits: u32,
    /// The router's resident memory in bytes, by time since `begun`.
    memory: Vec<(Duration, u64)>,
}

impl<'a> Scene<'a> {
    async fn start(plan: &'a Plan, tag: &str) -> Self {
        let workers = plan.workers.to_string();
        let mut flags = vec!["--workers", &workers, "--threads", "1", "--log-format", "json"];
        flags.extend(plan.front_flags.iter().map(String::as_str));
        let cluster = Cluster::serve(&plan.binary, &flags).await;
        let corpus = Corpus::record(&cluster.url, plan.cases, plan.max_tokens, &plan.adapters).await.into();
        let load = plan.load(&corpus, Target::plain(&cluster.url), tag);
        let rng = SeededRng::new(plan.seed ^ 0x7365_7276);
        Self { plan, cluster, load, rng, begun: clock::now(), rounds: 0, hits: 0, memory: Vec::new() }
    }

    fn goes_on(&mut self) -> bool {
        let passed = clock::now().since(self.begun);
        self.memory.push((passed, resident_bytes(self.cluster.pid())));
        self.rounds += 1;
        self.rounds <= self.plan.rounds || passed < self.plan.lasts
    }

    async fn pause(&mut self) {
        let (shortest, longest) = self.plan.pause;
        tokio::time::sleep(self.rng.between(shortest, longest)).await;
    }

    /// Waits for at least `count` worker processes, none of them among `gone`.
    async fn workers(&self, count: usize, gone: &[u32]) -> Vec<u32> {
        let mut workers = Vec::new();
        let back = wait_until(BACK_WITHIN, || {
            workers = self.cluster.worker_pids();
            workers.len() >= count && !workers.iter().any(|worker| gone.contains(worker))
        });
        assert!(back.await, "{workers:?} are all workers {BACK_WITHIN:?} later:\n{}", self.cluster.log());
        workers
    }

    async fn end(self, title: &str) -> Report {
        let Self { plan, cluster, load, hits, memory, begun, .. } = self;
        let tally = load.finish().await;
        let mut report = Report::new(format!("{title}, seed {}", plan.seed));
        let minutes = clock::now().since(begun).as_secs_f64() / 60.0;
        report.say("hits", format!("{hits} in {minutes:.1} min, {} workers", plan.workers));
        report.streams(&tally);
        report.must_have_moved(&moves(&cluster.log()), &tally, plan);
        judge_memory(&mut report, &memory);
        report
    }
}

/// Compares the router's peak memory in the first and the last quarter of the run.
fn judge_memory(report: &mut Report, memory: &[(Duration, u64)]) {
    let end = memory.last().map_or(Duration::ZERO, |&(at, _)| at);
    let most = |from: Duration, to: Duration| {
        let within = memory.iter().filter(|(at, _)| (from..=to).contains(at));
        within.map(|&(_, bytes)| bytes).max().unwrap_or(0)
    };
    let (first, last) = (most(Duration::ZERO, end / 4), most(end * 3 / 4, end));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    report.say("router's memory", format!("{:.1} MiB at first, {:.1} MiB at last", mib(first), mib(last)));
    let flat = last * 100 <= first * GROWTH_PERCENT || end < MEMORY_JUDGED_AFTER;
    report.require(flat, || format!("the router's memory grows: from {first} to {last} bytes"));
}
