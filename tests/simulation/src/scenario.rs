//! A cluster of chosen sizes under chosen requests. A seed gives only what a scenario leaves open: delays of
//! messages, ties between workers, tokens of prompts.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use skein_choice::fleet::WorkerStatus;
use skein_proto::TokenId;
use skein_proto::sampling::SamplingParams;
use skein_proto::version::Version;
use skein_router::cluster::Cluster;
use skein_router::config::{AdmissionConfig, RecoveryConfig, RouterConfig};
use skein_router::generator::TokenSource;
use skein_router::refusal::Refusal;
use skein_router::request::TokenRequest;
use skein_worker::backend::fake::StepCost;
use skein_worker::config::{SchedulerConfig, WorkerConfig};
use tokio::time::{Instant, sleep};

use crate::model::{MODEL, VOCAB_SIZE};
use crate::network::{Host, NetworkSpec};
use crate::plan::Plan;
use crate::random::Random;
use crate::report::Log;
use crate::world::World;
use crate::{executor, names};

/// Within this time after the start every router knows every worker.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Interval of checks for that.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Tokens of a KV block.
pub const BLOCK: u32 = 8;
/// Sequences that a worker runs at once.
pub const SEATS: u32 = 8;
/// Time of a step without rows: about what a decoded token takes.
pub const STEP: Duration = Duration::from_millis(10);
/// Additional time of a step for each row: what a token of a prompt takes.
pub const ROW: Duration = Duration::from_millis(1);

/// A running cluster.
pub struct Scenario {
    /// Members, network and etcd.
    pub world: Arc<World>,
    /// Randomness for prompts.
    pub random: Random,
}

/// What became of a request.
#[derive(Debug, Clone)]
pub struct Served {
    /// The worker that answered last, unless the request was refused.
    pub worker: String,
    /// Why the request has no whole answer.
    pub refusal: Option<Refusal>,
    /// The output tokens.
    pub tokens: Vec<TokenId>,
    /// Prompt tokens that the worker had in its cache.
    pub cached: u32,
    /// Moves to another worker.
    pub moves: u32,
    /// Version of the model that the answer is from.
    pub version: Version,
    /// Time to the first token.
    pub first_token: Duration,
}

impl Served {
    /// Fails the test unless the request has its whole answer of `tokens` tokens.
    pub fn expect(&self, tokens: u32, context: &str) {
        assert!(self.refusal.is_none(), "{context}: refused: {:?}", self.refusal);
        assert_eq!(self.tokens.len(), tokens as usize, "{context}: tokens");
    }
}

/// Runs `act` for each of `seeds` over `routers` and `workers`; `change` adjusts the plan before.
///
/// # Panics
/// If an invariant of the simulator is violated, or a member is not ready in time.
pub fn each_seed<F: Future<Output = ()>>(
    seeds: std::ops::Range<u64>,
    (routers, workers): (usize, usize),
    change: impl Fn(&mut Plan),
    act: impl Fn(Scenario) -> F,
) {
    for seed in seeds {
        let mut plan = plan(seed, routers, workers);
        change(&mut plan);
        let log = Arc::new(Log::default());
        let log_of_life = log.clone();
        let life = async { act(Scenario::start(plan, log_of_life).await).await };
        let ended = catch_unwind(AssertUnwindSafe(|| executor::run(life)));
        let wrong = executor::take_panic().or_else(|| log.violation());
        if ended.is_err() || wrong.is_some() {
            panic!("seed {seed}: {}\n{}", wrong.unwrap_or_default(), log.tail().join("\n"));
        }
    }
}

/// A plan without faults, whose sizes do not depend on the seed.
fn plan(seed: u64, routers: usize, workers: usize) -> Plan {
    let scheduler = SchedulerConfig {
        block_size: BLOCK,
        max_model_len: Some(512),
        max_num_seqs: SEATS,
        max_num_batched_tokens: 64,
        max_num_queued_reqs: 64,
        ..SchedulerConfig::default()
    };
    Plan {
        workers: names::WORKERS[..workers].to_vec(),
        routers: names::ROUTERS[..routers].to_vec(),
        network: NetworkSpec {
            delay: (Duration::from_millis(1), Duration::from_millis(5)),
            window: 32,
            credit: skein_exchange::limits::CREDIT,
            keepalive: true,
        },
        worker: WorkerConfig {
            scheduler,
            drain_grace: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(10),
            ..WorkerConfig::new("", MODEL)
        },
        kv_blocks: 2048.into(),
        cost: StepCost { fixed: STEP, per_row: ROW, per_context_token: Duration::ZERO },
        habits: 0..0,
        router: RouterConfig {
            admission: AdmissionConfig { max_num_queued_reqs: 4096, max_num_queued_tokens: 1 << 30 },
            recovery: RecoveryConfig::default(),
            ..RouterConfig::new("", [MODEL])
        },
        put_off: 0,
        faults: Vec::new(),
        ..Plan::new(seed)
    }
}

impl Scenario {
    async fn start(plan: Plan, log: Arc<Log>) -> Self {
        let random = Random::new(plan.seed, "scenario");
        let world = World::new(plan, log);
        world.start();
        let scenario = Self { world, random };
        scenario.all_ready().await;
        scenario
    }

    /// Waits until every router knows that every worker is ready.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn all_ready(&self) {
        let until = Instant::now() + READY_WITHIN;
        let workers = self.world.plan.workers.len();
        for &router in &self.world.plan.routers {
            while self.status(router).iter().filter(|worker| worker.is_ready()).count() < workers {
                assert!(Instant::now() < until, "{router} does not know all workers");
                sleep(LOOK_EVERY).await;
            }
        }
    }

    /// The cluster of a router that runs.
    fn cluster(&self, router: Host) -> Option<Cluster> {
        self.world.router(router)?.cluster()
    }

    /// Workers as a router sees them; none while it does not run.
    pub fn status(&self, router: Host) -> Vec<WorkerStatus> {
        self.cluster(router).map_or_else(Vec::new, |cluster| cluster.snapshot().workers)
    }

    /// A prompt that no other one resembles.
    pub fn prompt(&self, tokens: u32) -> Vec<TokenId> {
        (0..tokens).map(|_| self.random.small(0, VOCAB_SIZE - 1)).collect()
    }

    /// A request for exactly `tokens` tokens.
    pub fn request(&self, prompt: &[TokenId], tokens: u32) -> TokenRequest {
        let sampling = SamplingParams { max_tokens: tokens, ignore_eos: true, ..SamplingParams::default() };
        TokenRequest::new(format!("q{}", self.random.number()), MODEL, prompt, sampling)
    }

    /// Sends a request to a router, and reads its answer in a task.
    ///
    /// # Panics
    /// If the router does not run.
    pub fn send(&self, router: Host, request: TokenRequest) -> tokio::task::JoinHandle<Served> {
        let cluster = self.cluster(router).unwrap_or_else(|| panic!("{router} does not run"));
        tokio::spawn(read(cluster, request))
    }

    /// Sends a request to a router and waits for its answer.
    ///
    /// # Panics
    /// If the router does not run.
    pub async fn ask(&self, router: Host, request: TokenRequest) -> Served {
        self.send(router, request).await.expect("it does not panic")
    }

    /// Starts `request` at `worker`, whatever the policy says.
    pub fn at(&self, worker: Host, request: TokenRequest) -> TokenRequest {
        TokenRequest { picked_worker: Some(worker.into()), ..request }
    }

    /// Number of requests by worker, with those that had none.
    pub fn by_worker(&self, served: &[Served]) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> =
            self.world.plan.workers.iter().map(|&worker| (worker.to_owned(), 0)).collect();
        for one in served {
            *counts.entry(one.worker.clone()).or_default() += 1;
        }
        counts
    }
}

async fn read(cluster: Cluster, request: TokenRequest) -> Served {
    let asked = Instant::now();
    let mut served = Served {
        worker: String::new(),
        refusal: None,
        tokens: Vec::new(),
        cached: 0,
        moves: 0,
        version: Version::UNKNOWN,
        first_token: Duration::ZERO,
    };
    let mut stream = match cluster.submit(request).await {
        Ok(stream) => stream,
        Err(refusal) => return Served { refusal: Some(refusal), ..served },
    };
    while let Some(delta) = stream.next().await {
        match delta {
            Ok(delta) => {
                if served.tokens.is_empty() {
                    served.first_token = asked.elapsed();
                }
                served.cached = delta.cached_tokens.unwrap_or(served.cached);
                served.tokens.extend(delta.tokens);
            }
            Err(refusal) => served.refusal = Some(refusal),
        }
        served.worker = stream.worker().as_deref().unwrap_or_default().to_owned();
    }
    let journey = stream.journey();
    (served.moves, served.version) = (journey.moves, journey.version);
    served
}

/// Waits for all answers.
///
/// # Panics
/// If one of the tasks did.
pub async fn all(sent: Vec<tokio::task::JoinHandle<Served>>) -> Vec<Served> {
    let mut served = Vec::new();
    for one in sent {
        served.push(one.await.expect("it does not panic"));
    }
    served
}
