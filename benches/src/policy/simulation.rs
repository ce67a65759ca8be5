//! Replays a trace in simulated time: the router's real fleet places requests on simulated workers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use skein_node::clock::{self, Timestamp};
use skein_node::discovery::{Change, Member};
use skein_proto::info::WorkerInfo;
use skein_proto::placement::Placement;
use skein_proto::watch::{Admitted, Snapshot, WatchBody, WatchEvent};
use skein_router::fleet::policy::Demand;
use skein_router::fleet::prefix_index::PrefixIndex;
use skein_router::fleet::{Action, Event, Fleet, HealthLimits, Job, Pick, Policy, WorkerId, WorkerPlacement};

use super::trace::Recorded;
use super::worker::{Machine, SimWorker};

/// Interval of load reports in nanoseconds, as with real workers.
const REPORT_EVERY: u64 = 50_000_000;
const ROUTER: u64 = 1;
const EPOCH: u64 = 1;
/// Memory limit of the index: more than any trace needs, so that only policies differ.
const INDEX_BYTES: usize = 4 << 30;
const LIMITS: HealthLimits =
    HealthLimits { worker_timeout: Duration::from_secs(5), wedge_timeout: Some(Duration::from_secs(3600)) };

/// Decides where requests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placer {
    /// A router, which knows only the workers' reports.
    Router(Policy),
    /// Sees every worker's actual queue and cache, and picks the earliest first token.
    Oracle,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Served {
    /// Worker that ran it.
    pub worker: usize,
    /// Nanoseconds from arrival to the first token.
    pub first_token: u64,
    /// Number of cached prompt tokens.
    pub cached_tokens: u64,
}

/// Result of a replay.
#[derive(Debug)]
pub struct Replay {
    /// One entry per request, in order of arrival.
    pub served: Vec<Served>,
    /// Duration of each decision on this machine, in seconds.
    pub decisions: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Prefilled { worker: usize },
    Ended { request: usize },
    Report { worker: usize },
    Tick,
    Arrival { request: usize },
}

struct Simulation<'a> {
    trace: &'a [Recorded],
    machine: Machine,
    placer: Placer,
    fleet: Fleet,
    ids: Vec<WorkerId>,
    /// Number of the next event in each worker's log.
    logs: Vec<u64>,
    workers: Vec<SimWorker>,
    placements: Vec<Option<WorkerPlacement>>,
    happenings: BinaryHeap<Reverse<(u64, Happening)>>,
    rng: StdRng,
    left: usize,
    replay: Replay,
}

/// Replays `trace` over `workers` machines, `speed` times as fast as recorded.
pub fn replay(trace: &[Recorded], speed: f64, workers: usize, machine: Machine, placer: Placer) -> Replay {
    let mut simulation = Simulation::new(trace, workers, machine, placer);
    for (request, recorded) in trace.iter().enumerate() {
        let at = arrival(recorded, speed);
        simulation.at(at, Happening::Arrival { request });
    }
    simulation.run();
    for (served, recorded) in simulation.replay.served.iter_mut().zip(trace) {
        served.first_token -= arrival(recorded, speed);
    }
    simulation.replay
}

fn arrival(recorded: &Recorded, speed: f64) -> u64 {
    (recorded.at as f64 / speed) as u64
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a [Recorded], workers: usize, machine: Machine, placer: Placer) -> Self {
        let policy = match placer {
            Placer::Router(policy) => policy,
            Placer::Oracle => Policy::default(),
        };
        let fleet = Fleet::new("m", ROUTER, LIMITS, PrefixIndex::new(INDEX_BYTES)).with_policy(policy);
        let mut simulation = Self {
            trace,
            machine,
            placer,
            fleet,
            ids: Vec::new(),
            logs: vec![1; workers],
            workers: (0..workers).map(|_| SimWorker::new(machine)).collect(),
            placements: vec![None; trace.len()],
            happenings: BinaryHeap::new(),
            rng: StdRng::seed_from_u64(1),
            left: trace.len(),
            replay: Replay { served: vec![Served::default(); trace.len()], decisions: Vec::new() },
        };
        (0..workers).for_each(|worker| simulation.join(worker));
        simulation.at(0, Happening::Tick);
        simulation
    }

    fn join(&mut self, worker: usize) {
        let member = Member { id: format!("w{worker}"), address: format!("host:{worker}") };
        let actions = self.fleet.handle(Timestamp::ZERO, Event::Member(Change::Join(member)));
        let id = actions.iter().find_map(|action| match action {
            Action::Follow(id, _) => Some(*id),
            _ => None,
        });
        let id = id.expect("a new member is followed");
        self.ids.push(id);
        self.fleet.handle(Timestamp::ZERO, Event::Connected(id, info(&self.machine)));
        self.tell(0, worker, WatchBody::Snapshot(Snapshot::default()));
        // Staggered, so that not all report at once.
        let first = REPORT_EVERY * worker as u64 / self.workers.len().max(1) as u64;
        self.at(first, Happening::Report { worker });
    }

    fn at(&mut self, time: u64, happening: Happening) {
        self.happenings.push(Reverse((time, happening)));
    }

    fn run(&mut self) {
        while self.left > 0 {
            let Some(Reverse((now, happening))) = self.happenings.pop() else { return };
            match happening {
                Happening::Arrival { request } => self.arrive(now, request),
                Happening::Prefilled { worker } => self.prefilled(now, worker),
                Happening::Ended { request } => self.ended(request),
                Happening::Report { worker } => {
                    let report = self.workers[worker].report(now);
                    self.tell(now, worker, WatchBody::Load(report, Vec::new()));
                    self.at(now + REPORT_EVERY, Happening::Report { worker });
                }
                Happening::Tick => {
                    self.fleet.handle(time(now), Event::Tick);
                    self.at(now + 250_000_000, Happening::Tick);
                }
            }
        }
    }

    /// Appends an event to a worker's log, which the router reads immediately.
    fn tell(&mut self, now: u64, worker: usize, body: WatchBody) {
        let sequence = self.logs[worker];
        if !matches!(body, WatchBody::Load(..) | WatchBody::Snapshot(_)) {
            self.logs[worker] += 1;
        }
        let event = WatchEvent { epoch: EPOCH, sequence, body };
        let actions = self.fleet.handle(time(now), Event::Watched(self.ids[worker], event));
        let is_lost = actions.iter().any(|action| matches!(action, Action::Resubscribe(_)));
        assert!(!is_lost, "the simulated worker {worker} keeps to the protocol: {actions:?}");
    }

    fn arrive(&mut self, now: u64, request: usize) {
        let recorded = &self.trace[request];
        let job = Job {
            chains: vec![(self.machine.block_size, recorded.blocks.clone())],
            affinity: recorded.blocks.get(3).or(recorded.blocks.last()).copied().unwrap_or(request as u64),
            ..Job::new(
                0,
                &[],
                &[],
                &[],
                Demand::new(recorded.prompt_tokens as usize, recorded.output_tokens, 1),
            )
        };
        let begun = clock::now();
        let pick = self.fleet.choose(time(now), &job, &[], &mut self.rng).expect("all workers are ready");
        self.replay.decisions.push(clock::now().since(begun).as_secs_f64());
        let pick = match self.placer {
            Placer::Router(_) => pick,
            Placer::Oracle => Pick { worker: self.ids[self.earliest(now, recorded)], ..pick },
        };
        let placement = self.fleet.place(time(now), &job, &pick).expect("the worker is a member");
        self.placements[request] = Some(placement);
        let worker = self.ids.iter().position(|&id| id == pick.worker).expect("one of ours");
        let prompt = (&recorded.blocks[..], recorded.prompt_tokens);
        let ends = self.workers[worker].arrive(now, request, placement.sequence, prompt);
        self.replay.served[request].worker = worker;
        let depth = pick.hit_tokens / self.machine.block_size;
        let admitted = Admitted {
            placement: Placement { router: ROUTER, sequence: placement.sequence },
            depth,
            hashes: recorded.blocks[(depth as usize).min(recorded.blocks.len())..].to_vec(),
            stream_key: None,
        };
        self.tell(now, worker, WatchBody::Admitted(admitted));
        ends.into_iter().for_each(|ends| self.at(ends, Happening::Prefilled { worker }));
    }

    /// Worker with the earliest first token; among equals the one with the emptiest cache.
    fn earliest(&self, now: u64, recorded: &Recorded) -> usize {
        let after =
            |worker: &SimWorker| worker.first_token_after(now, &recorded.blocks, recorded.prompt_tokens);
        (0..self.workers.len())
            .min_by_key(|&worker| (after(&self.workers[worker]), self.workers[worker].cached_blocks()))
            .expect("there are workers")
    }

    fn prefilled(&mut self, now: u64, worker: usize) {
        let trace = self.trace;
        let prompt = |request: usize| (&trace[request].blocks[..], trace[request].prompt_tokens);
        let Some(done) = self.workers[worker].prefilled(now, prompt) else { return };
        let (request, recorded) = (done.request, &trace[done.request]);
        done.next_ends.into_iter().for_each(|ends| self.at(ends, Happening::Prefilled { worker }));
        self.replay.served[request].cached_tokens = done.cached_tokens;
        self.replay.served[request].first_token = now;
        if let Some(placement) = self.placements[request] {
            self.fleet.handle(time(now), Event::FirstToken(placement));
        }
        self.tell(now, worker, WatchBody::Cache(done.change));
        let rest = u64::from(recorded.output_tokens - 1) * self.machine.token_ns;
        self.at(now + rest, Happening::Ended { request });
    }

    fn ended(&mut self, request: usize) {
        self.left -= 1;
        self.workers[self.replay.served[request].worker].ended();
        if let Some(placement) = self.placements[request].take() {
            self.fleet.ended(placement);
        }
    }
}

fn time(nanoseconds: u64) -> Timestamp {
    Timestamp::from_start(Duration::from_nanos(nanoseconds))
}

fn info(machine: &Machine) -> WorkerInfo {
    WorkerInfo {
        epoch: EPOCH,
        model: "m".into(),
        max_model_len: 1 << 20,
        vocab_size: 1 << 20,
        block_size: machine.block_size,
        kv_blocks: machine.blocks as u32,
        max_num_seqs: machine.seats,
        max_num_batched_tokens: 8192,
        resume_exact: true,
        version: String::new(),
        backend: "simulated".into(),
        fingerprint: 1,
        grammar_fingerprint: 0,
        tokenizer_fingerprint: 0,
        serving_since_ms: 0,
    }
}
