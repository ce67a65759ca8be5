//! What a seed determines before the run: the members, their sizes and their faults.

use std::ops::Range;
use std::time::Duration;

use skein_exchange::limits::CREDIT;
use skein_router::config::{AdmissionConfig, RecoveryConfig, RouterConfig};
use skein_router::request::AdapterRef;
use skein_worker::TokenId;
use skein_worker::adapters::Adapters;
use skein_worker::backend::fake::StepCost;
use skein_worker::backend::{KvBlocks, WindowBlocks};
use skein_worker::config::{AdapterConfig, AdaptersConfig, BackendKind, SchedulerConfig, WorkerConfig};

use crate::faults::Fault;
use crate::model::MODEL;
use crate::network::{Host, NetworkSpec};
use crate::random::Random;
use crate::{names, workload};

/// The plan of one run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed it was drawn from.
    pub seed: u64,
    /// Hosts of the workers.
    pub workers: Vec<Host>,
    /// Hosts of the routers.
    pub routers: Vec<Host>,
    /// Delays and limits of the network.
    pub network: NetworkSpec,
    /// Settings of every worker.
    pub worker: WorkerConfig,
    /// KV blocks of every worker.
    pub kv_blocks: KvBlocks,
    /// Cost model of its steps.
    pub cost: StepCost,
    /// Tokens that the model repeats; see the fake backend.
    pub habits: Range<TokenId>,
    /// Settings of every router.
    pub router: RouterConfig,
    /// One poll of a task in this many is deferred.
    pub put_off: u64,
    /// How long faults and requests keep coming.
    pub busy_for: Duration,
    /// Number of requests.
    pub requests: u32,
    /// Properties of the requests.
    pub flavour: workload::Flavour,
    /// Kinds of faults in this run.
    pub faults: Vec<Fault>,
    /// Longest pause between two faults.
    pub fault_pause: Duration,
}

impl Plan {
    /// The plan of `seed`.
    pub fn new(seed: u64) -> Self {
        let random = Random::new(seed, "plan");
        let scheduler = scheduler(&random);
        let longest_blocks = scheduler.max_model_len.unwrap_or(128).div_ceil(scheduler.block_size);
        let kv_blocks = random.small(longest_blocks + 2, longest_blocks * 4);
        let adapters = adapters(&Random::new(seed, "adapters"));
        Self {
            seed,
            workers: names::WORKERS[..random.between(1, 4) as usize].to_vec(),
            routers: names::ROUTERS[..random.between(1, 3) as usize].to_vec(),
            network: NetworkSpec { credit: Random::new(seed, "credit").small(1, 4096), ..network(&random) },
            kv_blocks: kv_blocks_by_layer(seed, kv_blocks, &scheduler),
            cost: StepCost {
                fixed: random.millis(1, 20),
                per_row: Duration::from_micros(random.between(0, 200)),
                per_context_token: Duration::from_micros(random.between(0, 5)),
            },
            flavour: workload::Flavour::new(&random, &scheduler, known(&adapters)),
            worker: WorkerConfig { adapters, ..worker(&random, scheduler) },
            router: router(&random),
            put_off: random.pick(&[0, 0, 10, 50]),
            busy_for: random.millis(5_000, 60_000),
            requests: random.small(5, 40),
            faults: faults(&random),
            fault_pause: random.millis(200, 8_000),
            habits: habits(&random),
        }
    }
}

/// A few kinds of faults per run, because all of them at once would hide each other.
fn faults(random: &Random) -> Vec<Fault> {
    let chance = random.pick(&[2, 3, 6]);
    Fault::ALL.iter().copied().filter(|_| random.once_in(chance)).collect()
}

/// Half of the models repeat themselves, so that drafts are often right.
fn habits(random: &Random) -> Range<TokenId> {
    let first = random.pick(&[0, 0, 20, 30]);
    if first == 0 { 0..0 } else { first..first + random.between(4, 20) as TokenId }
}

/// Window blocks and slots for states, beside `blocks` blocks.
fn kv_blocks_by_layer(seed: u64, blocks: u32, scheduler: &SchedulerConfig) -> KvBlocks {
    let window = windows(&Random::new(seed, "windows"), scheduler);
    let states = states(&Random::new(seed, "states"), scheduler).filter(|_| window.is_none());
    KvBlocks { blocks, window, states }
}

/// Half of the models without windows have layers with a state, with slots for few states beside those of
/// running sequences, or for many.
fn states(random: &Random, scheduler: &SchedulerConfig) -> Option<u32> {
    let slots = scheduler.max_num_seqs + random.small(1, scheduler.max_num_seqs + 16);
    random.once_in(2).then_some(slots)
}

/// In a third of the models, some layers attend to a window.
fn windows(random: &Random, scheduler: &SchedulerConfig) -> Option<WindowBlocks> {
    let longest = scheduler.max_model_len.unwrap_or(128);
    let windows = WindowBlocks { window: random.between(1, u64::from(longest)) as u32, blocks: 0 };
    let least = windows.of_sequence(scheduler.block_size).min(longest.div_ceil(scheduler.block_size));
    let blocks = least + random.small(1, 3 * least);
    random.once_in(3).then_some(WindowBlocks { blocks, ..windows })
}

/// A third of the workers serve adapters, often more than fit in memory or may be in use at once.
fn adapters(random: &Random) -> AdaptersConfig {
    let module = |number| AdapterConfig {
        name: format!("adapter {number}"),
        directory: format!("/adapters/{number}").into(),
    };
    let modules: Vec<AdapterConfig> = (0..random.small(1, 4)).map(module).collect();
    AdaptersConfig {
        is_enabled: random.once_in(3),
        max_loras: random.small(1, 4) as usize,
        max_cpu_loras: random.small(1, 4) as usize,
        modules,
        ..AdaptersConfig::default()
    }
}

/// The adapters of `config`, as requests name them.
fn known(config: &AdaptersConfig) -> Vec<AdapterRef> {
    if !config.is_enabled {
        return Vec::new();
    }
    let adapters = Adapters::new(config, None).expect("without a model every adapter can be served");
    adapters.list().into_iter().map(|info| AdapterRef { name: info.name.into(), id: info.id }).collect()
}

fn network(random: &Random) -> NetworkSpec {
    let longest = random.millis(1, 60);
    NetworkSpec {
        delay: (Duration::from_millis(1), longest),
        window: random.between(1, 32) as usize,
        credit: CREDIT,
        keepalive: true,
    }
}

fn scheduler(random: &Random) -> SchedulerConfig {
    SchedulerConfig {
        block_size: random.pick(&[2, 4, 8]),
        max_model_len: Some(random.small(48, 128)),
        max_num_seqs: random.small(3, 8),
        max_num_batched_tokens: random.small(8, 64),
        max_num_queued_reqs: random.pick(&[4, 16, 64]),
        enable_prefix_caching: !random.once_in(8),
        ..SchedulerConfig::default()
    }
}

fn worker(random: &Random, scheduler: SchedulerConfig) -> WorkerConfig {
    WorkerConfig {
        backend: BackendKind::Fake,
        threads: 1,
        scheduler,
        drain_grace: random.pick(&[Duration::ZERO, Duration::from_millis(300), Duration::from_secs(5)]),
        shutdown_timeout: Duration::from_secs(10),
        ..WorkerConfig::new("", MODEL)
    }
}

fn router(random: &Random) -> RouterConfig {
    RouterConfig {
        admission: AdmissionConfig {
            max_num_queued_reqs: random.pick(&[8, 64]),
            max_num_queued_tokens: random.pick(&[2_000, 1_000_000]),
        },
        recovery: RecoveryConfig {
            wedge_timeout: random.pick(&[None, Some(Duration::from_secs(2))]),
            stream_linger: random.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(10)]),
            ..RecoveryConfig::default()
        },
        shutdown_timeout: Duration::from_secs(10),
        ..RouterConfig::new("", [MODEL])
    }
}
