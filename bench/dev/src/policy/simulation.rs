//! Replays a trace in simulated time: the router's real fleet places requests on simulated workers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use skein_choice::fleet::{Action, Event, Fleet, HealthLimits, Job, WorkerPlacement};
use skein_choice::policy::{Demand, Pick, Policy};
use skein_choice::prefix_index::PrefixIndex;
use skein_choice::worker_id::WorkerId;
use skein_node::clock::{self, Timestamp};
use skein_node::discovery::{Change, Member};
use skein_proto::info::WorkerInfo;
use skein_proto::placement::Placement;
use skein_proto::watch::{Admitted, Snapshot, WatchBody, WatchEvent};

use super::stepping::StepEnd;
use super::trace::Recorded;
use super::worker::{Machine, Placed, Prefilled, Prompt, SimWorker};

/// Interval of load reports in nanoseconds, as with real workers.
const REPORT_EVERY: u64 = 50_000_000;
pub(super) const EPOCH: u64 = 1;
/// Memory limit of the index: more than any trace needs, so that only policies differ.
const INDEX_BYTES: usize = 4 << 30;
const LIMITS: HealthLimits =
    HealthLimits { worker_timeout: Duration::from_secs(5), wedge_timeout: Some(Duration::from_secs(3600)) };

/// What a trace is replayed over.
#[derive(Debug, Clone, Copy)]
pub struct Cluster {
    /// Number of workers, all of the same kind.
    pub workers: usize,
    /// Number of routers that share them without knowing each other. Each request arrives at a random one.
    pub routers: usize,
    /// Speed and size of each worker.
    pub machine: Machine,
    /// By how much the rates that workers report differ from their actual one at most, as a fraction of it.
    pub rate_noise: f32,
    /// Nanoseconds until a router hears what a worker says.
    pub delay: u64,
}

/// Decides where requests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placer {
    /// A router, which knows only the workers' reports.
    Router(Policy),
    /// Sees every worker's actual queue and cache, and picks the earliest first token.
    Oracle,
}

/// A router, and its own number for each worker.
pub(super) struct Router {
    pub fleet: Fleet,
    pub ids: Vec<WorkerId>,
}

/// Result of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Served {
    /// Worker that ran it.
    pub worker: usize,
    /// Nanoseconds from arrival to the first token.
    pub first_token: u64,
    /// What the router predicted for it, in nanoseconds.
    pub predicted: u64,
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
pub(super) enum Happening {
    Prefilled {
        worker: usize,
    },
    Ended {
        request: usize,
    },
    Report {
        worker: usize,
    },
    /// The routers hear the oldest of the messages that are under way.
    Heard,
    Tick,
    Arrival {
        request: usize,
    },
}

/// What a router hears.
#[derive(Debug)]
pub(super) enum Message {
    Watched { worker: usize, event: WatchEvent },
    FirstToken(WorkerPlacement),
    Ended(WorkerPlacement),
}

pub(super) struct Simulation<'a> {
    trace: &'a [Recorded],
    pub(super) cluster: Cluster,
    placer: Placer,
    pub(super) routers: Vec<Router>,
    /// Number of the next event in each worker's log.
    pub(super) logs: Vec<u64>,
    pub(super) workers: Vec<SimWorker>,
    /// Router of each running request, with its placement.
    placements: Vec<Option<(usize, WorkerPlacement)>>,
    happenings: BinaryHeap<Reverse<(u64, Happening)>>,
    /// Messages under way, each to one router, oldest first.
    pub(super) messages: VecDeque<(usize, Message)>,
    rng: StdRng,
    left: usize,
    replay: Replay,
}

/// Replays `trace` over `cluster`, `speed` times as fast as recorded.
pub fn replay(trace: &[Recorded], speed: f64, cluster: Cluster, placer: Placer) -> Replay {
    let mut simulation = Simulation::new(trace, cluster, placer);
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

fn prompt_of(recorded: &Recorded) -> Prompt<'_> {
    Prompt { blocks: &recorded.blocks, tokens: recorded.prompt_tokens }
}

fn arrival(recorded: &Recorded, speed: f64) -> u64 {
    (recorded.at as f64 / speed) as u64
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a [Recorded], cluster: Cluster, placer: Placer) -> Self {
        let policy = match placer {
            Placer::Router(policy) => policy,
            Placer::Oracle => Policy::default(),
        };
        let router = |number: usize| {
            let index = PrefixIndex::new(INDEX_BYTES);
            let fleet = Fleet::new("m", router_id(number), LIMITS, index).with_policy(policy);
            Router { fleet, ids: Vec::new() }
        };
        let Cluster { workers, routers, machine, rate_noise, delay: _ } = cluster;
        let mut noise = StdRng::seed_from_u64(2);
        let mut worker = |_| {
            let measured = 1.0 + rate_noise * noise.random_range(-1.0..=1.0);
            SimWorker::new(machine, measured, routers)
        };
        let mut simulation = Self {
            trace,
            cluster,
            placer,
            routers: (0..routers).map(router).collect(),
            logs: vec![1; workers],
            workers: (0..workers).map(&mut worker).collect(),
            placements: vec![None; trace.len()],
            happenings: BinaryHeap::new(),
            messages: VecDeque::new(),
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
        for router in &mut self.routers {
            let joins = Event::Member(Change::Join(member.clone()));
            let actions = router.fleet.handle(Timestamp::ZERO, joins);
            let id = actions.iter().find_map(|action| match action {
                Action::Follow(id, _) => Some(*id),
                _ => None,
            });
            let id = id.expect("a new member is followed");
            router.ids.push(id);
            router.fleet.handle(Timestamp::ZERO, Event::Connected(id, info(&self.cluster.machine)));
        }
        for router in 0..self.routers.len() {
            let body = WatchBody::Snapshot(Snapshot::default());
            let event = WatchEvent { epoch: EPOCH, sequence: self.logs[worker], body };
            self.hear(0, router, Message::Watched { worker, event });
        }
        // Staggered, so that not all report at once.
        let first = REPORT_EVERY * worker as u64 / self.workers.len().max(1) as u64;
        self.at(first, Happening::Report { worker });
    }

    pub(super) fn at(&mut self, time: u64, happening: Happening) {
        self.happenings.push(Reverse((time, happening)));
    }

    fn run(&mut self) {
        while self.left > 0 {
            let Some(Reverse((now, happening))) = self.happenings.pop() else { return };
            match happening {
                Happening::Arrival { request } => self.arrive(now, request),
                Happening::Prefilled { worker } => self.prefilled(now, worker),
                Happening::Ended { request } => self.ended(now, request),
                Happening::Heard => {
                    let (router, message) = self.messages.pop_front().expect("a message is under way");
                    self.hear(now, router, message);
                }
                Happening::Report { worker } => {
                    self.report(now, worker);
                    self.at(now + REPORT_EVERY, Happening::Report { worker });
                }
                Happening::Tick => {
                    for router in &mut self.routers {
                        router.fleet.handle(time(now), Event::Tick);
                    }
                    self.at(now + 250_000_000, Happening::Tick);
                }
            }
        }
    }

    fn arrive(&mut self, now: u64, request: usize) {
        let recorded = &self.trace[request];
        let at = self.rng.random_range(0..self.routers.len());
        let block_size = self.cluster.machine.block_size;
        let job = Job {
            chains: vec![(block_size, recorded.blocks.clone())],
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
        let fleet = &mut self.routers[at].fleet;
        let pick = fleet.choose(time(now), &job, &[], &mut self.rng).expect("all workers are ready");
        self.replay.decisions.push(clock::now().since(begun).as_secs_f64());
        let pick = match self.placer {
            Placer::Router(_) => pick,
            Placer::Oracle => Pick { worker: self.routers[at].ids[self.earliest(now, recorded)], ..pick },
        };
        let Router { fleet, ids } = &mut self.routers[at];
        let placement = fleet.place(time(now), &job, &pick).expect("the worker is a member");
        self.placements[request] = Some((at, placement));
        let worker = ids.iter().position(|&id| id == pick.worker).expect("one of ours");
        let prompt = prompt_of(recorded);
        let placed = Placed { router: at, placement: placement.sequence };
        let ends = self.workers[worker].arrive(now, request, placed, prompt);
        let predicted = pick.first_token_after.as_nanos() as u64;
        self.replay.served[request] = Served { worker, predicted, ..Served::default() };
        let depth = pick.hit_tokens / block_size;
        let admitted = Admitted {
            placement: Placement { router: router_id(at), sequence: placement.sequence },
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
        if self.cluster.machine.step_tokens > 0 {
            let request = |request: usize| (prompt_of(&trace[request]), trace[request].output_tokens);
            let StepEnd { done, ended, next_ends } = self.workers[worker].step_ended(now, request);
            next_ends.into_iter().for_each(|ends| self.at(ends, Happening::Prefilled { worker }));
            done.into_iter().for_each(|done| self.answered(now, worker, done));
            return ended.into_iter().for_each(|request| self.ended(now, request));
        }
        let prompt = |request: usize| prompt_of(&trace[request]);
        let Some(done) = self.workers[worker].prefilled(now, prompt) else { return };
        done.next_ends.into_iter().for_each(|ends| self.at(ends, Happening::Prefilled { worker }));
        let request = done.request;
        self.answered(now, worker, done);
        let rest = u64::from(trace[request].output_tokens - 1) * self.cluster.machine.token_ns;
        self.at(now + rest, Happening::Ended { request });
    }

    /// Handles a request's first token.
    fn answered(&mut self, now: u64, worker: usize, done: Prefilled) {
        self.replay.served[done.request].cached_tokens = done.cached_tokens;
        self.replay.served[done.request].first_token = now;
        if let Some((router, placement)) = self.placements[done.request] {
            self.send(now, router, Message::FirstToken(placement));
        }
        self.tell(now, worker, WatchBody::Cache(done.change));
    }

    fn ended(&mut self, now: u64, request: usize) {
        self.left -= 1;
        if self.cluster.machine.step_tokens == 0 {
            self.workers[self.replay.served[request].worker].ended();
        }
        if let Some((router, placement)) = self.placements[request].take() {
            self.send(now, router, Message::Ended(placement));
        }
    }
}

fn router_id(number: usize) -> u64 {
    number as u64 + 1
}

pub(super) fn time(nanoseconds: u64) -> Timestamp {
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
        pooled: None,
    }
}
