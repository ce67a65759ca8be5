//! The run of one seed, from the first process to the last check.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Client, Outcome, SETTLED_AFTER};
use crate::plan::Plan;
use crate::random::Random;
use crate::report::Log;
use crate::world::World;
use crate::{executor, faults, quiescence, workload};

/// Time before the first request.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time after the faults within which every waiting client must have its answer.
const CLIENTS_END_WITHIN: Duration = Duration::from_secs(600);
/// One request in this many is sent twice at the same time with the same id.
const TWINS: u64 = 8;
/// Added to the client's number for the second of two such requests.
const TWIN: u32 = 1_000_000;
/// Interval of checks for violations and panics.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Result of a seed.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The seed that was run.
    pub seed: u64,
    /// Hash of the whole log; equal runs have equal hashes.
    pub hash: u64,
    /// Number of lines in the log.
    pub lines: u64,
    /// Duration on the simulated clock.
    pub simulated: Duration,
    /// Number of requests.
    pub requests: u32,
    /// Requests that got their whole answer.
    pub completed: u32,
    /// Faults that were injected.
    pub disturbances: u64,
    /// Draft tokens that were right.
    pub accepted: u64,
    /// The violated invariant, if any.
    pub violation: Option<String>,
    /// The end of the log, if an invariant was violated.
    pub tail: Vec<String>,
}

/// Runs `seed`; `loud` prints the log as it grows.
pub fn run_seed(seed: u64, loud: bool) -> Summary {
    let log = Arc::new(if loud { Log::loud() } else { Log::default() });
    let plan = Plan::new(seed);
    log.say("plan", format_args!("{plan:?}"));
    let (log_of_life, requests) = (log.clone(), plan.requests);
    let (simulated, completed) = executor::run(async move {
        let world = World::new(plan, log_of_life);
        let outcomes = tokio::select! {
            biased;
            () = until_wrong(&world.log) => BTreeMap::new(),
            outcomes = act(&world) => outcomes,
        };
        let completed = outcomes.values().filter(|&&outcome| outcome == Outcome::Completed).count();
        (executor::elapsed(), completed as u32)
    });
    if let Some(panic) = executor::take_panic() {
        log.violated("all", format_args!("a task panicked: {panic}"));
    }
    let disturbances = log.disturbances_since(Duration::ZERO) as u64;
    let ((hash, lines), violation) = (log.digest(), log.violation());
    let accepted = log.all_accepted();
    let tail = if violation.is_some() { log.tail() } else { Vec::new() };
    Summary { seed, hash, lines, simulated, requests, completed, disturbances, accepted, violation, tail }
}

/// Waits for a violation or a panic.
async fn until_wrong(log: &Log) {
    while log.violation().is_none() && !executor::has_panicked() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn act(world: &Arc<World>) -> BTreeMap<u32, Outcome> {
    world.start();
    tokio::time::sleep(WARM_UP).await;
    let calm_at = Instant::now() + world.plan.busy_for;
    tokio::spawn(faults::disturb(world.clone(), Random::new(world.plan.seed, "faults"), calm_at));
    let outcomes = serve_clients(world, calm_at).await;
    tokio::time::sleep_until(calm_at + SETTLED_AFTER).await;
    quiescence::check(world).await;
    outcomes
}

/// Starts all clients and waits for the last one.
async fn serve_clients(world: &Arc<World>, calm_at: Instant) -> BTreeMap<u32, Outcome> {
    let random = Random::new(world.plan.seed, "clients");
    let busy_ms = world.plan.busy_for.as_millis() as u64;
    let mut clients = JoinSet::new();
    for number in 0..world.plan.requests {
        let comes_after = Duration::from_millis(random.between(0, busy_ms));
        let spec = workload::client(&random, &world.plan.flavour, number);
        let own = Random::new(random.number(), "client");
        let twin = random.once_in(TWINS);
        for (number, own) in [(number, own)]
            .into_iter()
            .chain(twin.then(|| (number + TWIN, Random::new(random.number(), "twin"))))
        {
            let (world, spec) = (world.clone(), spec.clone());
            clients.spawn(async move {
                tokio::time::sleep(comes_after).await;
                (number, Client::new(world, spec, own, calm_at).await.run().await)
            });
        }
    }
    let mut outcomes = BTreeMap::new();
    let all = async {
        while let Some(Ok((number, outcome))) = clients.join_next().await {
            outcomes.insert(number, outcome);
        }
    };
    let ended = tokio::time::timeout_at(calm_at + CLIENTS_END_WITHIN, all).await.is_ok();
    if !ended {
        let waiting: Vec<u32> =
            (0..world.plan.requests).filter(|number| !outcomes.contains_key(number)).collect();
        world.log.violated("all", format_args!("clients still wait: {waiting:?}"));
    }
    outcomes
}
