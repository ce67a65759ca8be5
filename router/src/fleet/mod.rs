//! The live picture of the workers: who belongs, who is ready, what each caches and carries. Pure: events and
//! the time go in, actions come out. `links` feeds it from the network.
//!
//! A worker takes requests only while its `Info` is read, its watch is alive, it does not drain, its breaker lets
//! requests through, and no stream has just broken on it. It knows no requests and no client.

pub mod breaker;
mod event;
mod job;
pub mod ledger;
mod members;
pub mod policy;
pub mod prefix_index;
mod status;
mod streams;
mod worker;
mod worker_id;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rand::Rng;
use skein_node::clock::Timestamp;
use skein_node::discovery::Change;
use skein_proto::info::WorkerInfo;
use skein_proto::stream_key::StreamKey;
use skein_proto::watch::{Admitted, Snapshot, WatchBody, WatchEvent};

use crate::request::ModelLimits;

use breaker::Outcome;
pub use event::{Action, Event, Notice};
pub use job::{Job, Placement};
use ledger::Cost;
use policy::{Demand, Pick, WorkerView};
use prefix_index::{Desync, Expectation, PrefixIndex};
pub use status::WorkerStatus;
use streams::StreamDirectory;
pub use worker::{HealthLimits, Refused};
use worker::{Model, Step, Worker};
pub use worker_id::{WorkerEpoch, WorkerId};

/// The fleet looks at its workers' health this often; who calls [`Fleet::handle`] with [`Event::Tick`] keeps the time.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// A worker that has just been heard of can be asked whether it still has a stream.
const JUST_HEARD: Duration = Duration::from_secs(1);
/// A stream of a worker that was replaced may go on while it flows; silent for this long, it moves.
const GONE: Duration = Duration::from_millis(500);

/// The picture.
#[derive(Debug)]
pub struct Fleet {
    model: Model,
    router_id: u64,
    limits: HealthLimits,
    members: HashMap<String, WorkerId>,
    workers: BTreeMap<WorkerId, Worker>,
    index: PrefixIndex,
    streams: StreamDirectory,
    ticked_at: Option<Timestamp>,
    next_id: u32,
}

impl Fleet {
    /// A fleet without workers. Workers of another model are not used.
    pub fn new(model: &str, router_id: u64, limits: HealthLimits, index: PrefixIndex) -> Self {
        let (members, workers) = (HashMap::new(), BTreeMap::new());
        let model = Model { name: model.to_owned(), fingerprint: None };
        let streams = StreamDirectory::default();
        Self { model, router_id, limits, members, workers, index, streams, ticked_at: None, next_id: 0 }
    }

    /// The router's own name on the wire.
    pub fn router_id(&self) -> u64 {
        self.router_id
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        match event {
            Event::Member(Change::Join(member)) => self.join(now, member),
            Event::Member(Change::Leave(id)) => self.leave(now, &id),
            Event::Connected(id, info) => self.update(now, id, |fleet| fleet.connected(now, id, info)),
            Event::Watched(id, event) => self.update(now, id, |fleet| fleet.watched(now, id, event)),
            Event::Lost(id) => self.link_lost(id),
            Event::FirstToken(placement) => {
                self.with(placement.at.worker, |worker| worker.ledger.prefilled(placement.sequence));
                self.dispatched(now, placement.at, Outcome::Success)
            }
            Event::Dispatched(at, outcome) => self.dispatched(now, at, outcome),
            Event::HandedBack(at) => {
                self.with(at.worker, |worker| worker.handed_back(at.epoch));
                Vec::new()
            }
            Event::Tick => self.tick(now),
        }
    }

    /// The best worker for a job by now, of those that take requests and are not among `without`.
    pub fn choose(
        &self,
        now: Timestamp,
        job: &Job,
        without: &[WorkerId],
        rng: &mut impl Rng,
    ) -> Option<Pick> {
        let takers: Vec<_> = self.takers(now).filter(|(id, _)| !without.contains(id)).collect();
        // One that is on its way to be lost gets requests only if there is no other.
        let doubtful = |worker: &Worker| worker.is_silent(now, self.limits.worker_timeout / 2);
        let all_doubtful = takers.iter().all(|(_, worker)| doubtful(worker));
        let views: Vec<WorkerView> = takers
            .into_iter()
            .filter(|(_, worker)| all_doubtful || !doubtful(worker))
            .filter_map(|(&id, worker)| self.view(id, worker, job))
            .collect();
        policy::pick(&job.demand, &views, rng)
    }

    /// Enters a choice into the worker's account.
    pub fn place(&mut self, now: Timestamp, job: &Job, pick: &Pick) -> Option<Placement> {
        let worker = self.workers.get_mut(&pick.worker)?;
        let info = worker.info.as_ref()?;
        let Demand { prompt_tokens, expected_output_tokens, sequences } = job.demand;
        let uncached_tokens = prompt_tokens.saturating_sub(pick.hit_tokens);
        let blocks = (uncached_tokens + expected_output_tokens).div_ceil(info.block_size);
        let cost = Cost { uncached_tokens: u64::from(uncached_tokens), blocks, sequences };
        let sequence = worker.ledger.place(cost);
        worker.breaker.dispatched(now);
        if let (true, Some(chain)) = (job.cacheable, job.chain(info.block_size)) {
            let held = (pick.hit_tokens / info.block_size) as usize;
            self.index.expect(
                pick.worker,
                Expectation::Placed(sequence),
                &chain[held.min(chain.len())..],
                now,
            );
        }
        Some(Placement { at: WorkerEpoch { worker: pick.worker, epoch: info.epoch }, sequence })
    }

    /// A placement has ended, in whatever way.
    pub fn ended(&mut self, placement: Placement) {
        let worker_id = placement.at.worker;
        let Some(worker) = self.workers.get_mut(&worker_id) else { return };
        // What gave tokens is cached; the worker's word for it may still be on its way.
        if !worker.ledger.end(placement.sequence) {
            self.index.withdraw(worker_id, placement.sequence);
        }
    }

    /// Whether a stream that has been silent since `silent_since` will stay so: its worker is gone or silent, its
    /// engine stands still, or it has lost the request.
    pub fn is_stuck(&self, now: Timestamp, placement: Placement, silent_since: Timestamp) -> bool {
        let Some(worker) = self.workers.get(&placement.at.worker) else {
            return now.since(silent_since) >= GONE;
        };
        !worker.lives(placement.at.epoch) || worker.is_stuck(now, &self.limits, silent_since)
    }

    /// Whether a stream should leave its worker, which drains and asks for it, because another one takes requests.
    pub fn should_leave(&self, now: Timestamp, placement: Placement) -> bool {
        let asked = self
            .workers
            .get(&placement.at.worker)
            .is_some_and(|worker| worker.lives(placement.at.epoch) && worker.is_giving_back());
        // One that drains is not among them.
        asked && self.takers(now).next().is_some()
    }

    /// Whether a worker would hear a call now, as far as is known.
    pub fn is_reachable(&self, now: Timestamp, at: WorkerEpoch) -> bool {
        self.workers.get(&at.worker).is_some_and(|worker| {
            worker.watching && worker.lives(at.epoch) && !worker.is_lost(now, &self.limits)
        })
    }

    /// Whether a worker whose stream has just broken may still have it: then only the connection broke.
    pub fn may_have_kept(&self, now: Timestamp, at: WorkerEpoch) -> bool {
        self.is_reachable(now, at)
            && self.workers.get(&at.worker).is_some_and(|worker| !worker.is_silent(now, JUST_HEARD))
    }

    /// The worker that runs or keeps a stream, if it can be asked for it.
    pub fn find_stream(&self, now: Timestamp, key: StreamKey) -> Option<WorkerEpoch> {
        // A worker that came back with other weights may have been given the stream before that was known.
        let ours = |id| self.workers.get(&id).is_some_and(Worker::serves_our_model);
        self.streams.find(key).filter(|&at| self.is_reachable(now, at) && ours(at.worker))
    }

    /// A worker has taken a stream.
    pub fn stream_opened(&mut self, key: StreamKey, at: WorkerEpoch) {
        if self.workers.get(&at.worker).is_some_and(|worker| worker.lives(at.epoch)) {
            self.streams.insert(key, at);
        }
    }

    /// A worker does not have a stream (any more).
    pub fn stream_gone(&mut self, key: StreamKey, id: WorkerId) {
        self.streams.forget(key, id);
    }

    /// Whether a worker promises that a resumed request goes on bit for bit.
    pub fn resumes_exactly(&self, id: WorkerId) -> bool {
        self.workers.get(&id).and_then(|worker| worker.info.as_ref()).is_some_and(|info| info.resume_exact)
    }

    /// From where a link watches: (epoch, next sequence number), or (0, 0) for a snapshot.
    pub fn watch_from(&self, id: WorkerId) -> (u64, u64) {
        self.workers.get(&id).map_or((0, 0), Worker::watch_from)
    }

    /// Whether a worker belongs here (still).
    pub fn has(&self, id: WorkerId) -> bool {
        self.workers.contains_key(&id)
    }

    /// Bounds that hold at every worker that takes requests; `None` without any.
    pub fn limits(&self, now: Timestamp) -> Option<ModelLimits> {
        let limits = self
            .ready(now)
            .map(|info| ModelLimits { max_model_len: info.max_model_len, vocab_size: info.vocab_size });
        limits.reduce(|one, other| ModelLimits {
            max_model_len: one.max_model_len.min(other.max_model_len),
            vocab_size: one.vocab_size.min(other.vocab_size),
        })
    }

    /// Whether any worker takes requests.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        self.ready(now).next().is_some()
    }

    /// Whether the rates behind predictions have been measured by any worker that takes requests.
    pub fn has_measured(&self) -> bool {
        self.workers.values().any(|worker| worker.ledger.last_report().load.prefill_tokens_per_second > 0.0)
    }

    /// The block sizes in use, each once.
    pub fn block_sizes(&self) -> Vec<u32> {
        let mut sizes: Vec<u32> =
            self.workers.values().filter_map(|worker| Some(worker.info.as_ref()?.block_size)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// How the workers stand.
    pub fn status(&self, now: Timestamp) -> Vec<WorkerStatus> {
        let status = |(&id, worker): (&WorkerId, &Worker)| WorkerStatus {
            id: worker.member.id.clone(),
            address: worker.member.address.clone(),
            refuses: worker.refuses(now, &self.limits),
            info: worker.info.clone(),
            load: worker.ledger.current(),
            cached_blocks: self.index.blocks(id),
        };
        self.workers.iter().map(status).collect()
    }

    fn ready(&self, now: Timestamp) -> impl Iterator<Item = &WorkerInfo> {
        self.takers(now).filter_map(|(_, worker)| worker.info.as_ref())
    }

    /// Who takes requests: the workers that nothing speaks against. If there are none, those against which only their
    /// breaker speaks: its pause spares a request a bad worker, as long as there is a better one.
    fn takers(&self, now: Timestamp) -> impl Iterator<Item = (&WorkerId, &Worker)> {
        let good = move |worker: &Worker| worker.refuses(now, &self.limits).is_none();
        let any_good = self.workers.values().any(good);
        self.workers.iter().filter(move |(_, worker)| {
            good(worker) || !any_good && worker.cannot(now, &self.limits).is_none()
        })
    }

    fn view(&self, id: WorkerId, worker: &Worker, job: &Job) -> Option<WorkerView> {
        let info = worker.info.as_ref()?;
        let chain = if job.cacheable { job.chain(info.block_size) } else { None };
        let blocks = chain.map_or(0, |chain| self.index.leading_blocks(id, chain)) as u32;
        // The last prompt token is always computed: its logits are what the first output token is drawn from.
        let hit_tokens = (blocks * info.block_size).min(job.demand.prompt_tokens.saturating_sub(1));
        let (max_num_seqs, block_size) = (info.max_num_seqs, info.block_size);
        Some(WorkerView { id, hit_tokens, load: worker.ledger.current(), max_num_seqs, block_size })
    }

    /// Applies a change of one worker, and wakes those who wait if it takes requests from now on.
    fn update(
        &mut self,
        now: Timestamp,
        id: WorkerId,
        change: impl FnOnce(&mut Self) -> Vec<Action>,
    ) -> Vec<Action> {
        let takes = |fleet: &Self| {
            fleet.workers.get(&id).is_some_and(|worker| worker.refuses(now, &fleet.limits).is_none())
        };
        let before = takes(self);
        let mut actions = change(self);
        if !before && takes(self) {
            actions.push(Action::Wake);
        }
        actions
    }

    /// Changes a worker that may have left by now.
    fn with(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker)) {
        if let Some(worker) = self.workers.get_mut(&id) {
            change(worker);
        }
    }

    fn dispatched(&mut self, now: Timestamp, at: WorkerEpoch, outcome: Outcome) -> Vec<Action> {
        self.update(now, at.worker, |fleet| {
            fleet.with(at.worker, |worker| worker.dispatched(now, at.epoch, outcome));
            Vec::new()
        })
    }

    fn connected(&mut self, now: Timestamp, id: WorkerId, info: WorkerInfo) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(&id) else { return Vec::new() };
        let mut actions = Vec::new();
        if !worker.lives(info.epoch) {
            self.index.remove(id);
            self.streams.forget_worker(id);
            if worker.info.is_some() {
                actions.push(Action::Recheck(id));
            }
        }
        if info.model == self.model.name {
            self.model.fingerprint.get_or_insert(info.fingerprint);
        }
        worker.connected(now, info, &self.model);
        if let Some(mismatch) = worker.mismatch() {
            actions.push(Action::Log(Notice::NotUsed(worker.member.id.clone(), mismatch)));
        }
        actions
    }

    fn watched(&mut self, now: Timestamp, id: WorkerId, event: WatchEvent) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(&id) else { return Vec::new() };
        if !worker.lives(event.epoch) {
            worker.watching = false;
            return vec![Action::Reconnect(id)];
        }
        let applied = match worker.follow(now, &event) {
            Step::Old => Ok(()),
            Step::Gap => Err(Desync { handle: 0 }),
            Step::Next => self.apply(now, WorkerEpoch { worker: id, epoch: event.epoch }, event.body),
        };
        if let Err(desync) = applied {
            self.with(id, Worker::ask_for_snapshot);
            return vec![Action::Log(Notice::OutOfStep(id, desync)), Action::Resubscribe(id)];
        }
        Vec::new()
    }

    fn apply(&mut self, now: Timestamp, at: WorkerEpoch, body: WatchBody) -> Result<(), Desync> {
        let id = at.worker;
        match body {
            WatchBody::Snapshot(Snapshot { runs, stream_keys }) => {
                self.streams.forget_worker(id);
                stream_keys.into_iter().for_each(|key| self.streams.insert(key, at));
                return self.index.replace(id, &runs);
            }
            WatchBody::Cache(change) => return self.index.apply(id, &change),
            WatchBody::Load(report) => self.with(id, |worker| worker.report(now, report)),
            WatchBody::Admitted(Admitted { placement, hashes, stream_key, depth: _ }) => {
                if let Some(key) = stream_key {
                    self.streams.insert(key, at);
                }
                if placement.router == self.router_id {
                    self.index.withdraw(id, placement.sequence);
                }
                self.index.expect(id, Expectation::Admitted, &hashes, now);
            }
            WatchBody::Unknown => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
