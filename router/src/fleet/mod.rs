//! The live state of the workers: membership, readiness, what each caches and carries. Pure: events and the
//! time go in, actions come out. `links` feeds it from the network.
//!
//! A worker gets requests only after its `Info` was read and while its watch is alive, it does not drain, its
//! breaker is not open, and no stream has just broken on it. Nothing here depends on clients or on a
//! request's content.

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
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use skein_node::clock::Timestamp;
use skein_node::discovery::{Change, Member};
use skein_proto::info::WorkerInfo;
use skein_proto::stream_key::StreamKey;
use skein_proto::watch::{Admitted, Snapshot, WatchBody, WatchEvent};

use crate::request::ModelLimits;

use breaker::Outcome;
pub use event::{Action, Event, Notice};
pub use job::{Job, WorkerPlacement};
use ledger::Cost;
pub use policy::Pick;
use policy::{Demand, WorkerView};
use prefix_index::{Desync, Expectation, PrefixIndex};
pub use status::WorkerStatus;
use streams::StreamDirectory;
pub use worker::{HealthLimits, Refused};
use worker::{LogFit, Model, Worker};
pub use worker_id::{WorkerEpoch, WorkerId};

/// How often the caller must send [`Event::Tick`], which checks the workers' health.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// A worker heard from this recently can be asked whether it still has a stream.
const JUST_HEARD: Duration = Duration::from_secs(1);
/// A stream of a worker that was replaced continues while it flows; after this much silence it moves.
const GONE_AFTER: Duration = Duration::from_millis(500);

/// State of the fleet.
#[derive(Debug)]
pub struct Fleet {
    model: Model,
    router_id: u64,
    limits: HealthLimits,
    members: HashMap<String, WorkerId>,
    workers: BTreeMap<WorkerId, Worker>,
    index: PrefixIndex,
    streams: StreamDirectory,
    /// Limits of the workers that were ready last.
    known_limits: Option<ModelLimits>,
    ticked_at: Option<Timestamp>,
    next_id: u32,
}

impl Fleet {
    /// A fleet without workers. Workers that serve another model are not used.
    pub fn new(model: &str, router_id: u64, limits: HealthLimits, index: PrefixIndex) -> Self {
        let (members, workers) = (HashMap::new(), BTreeMap::new());
        let model = Model { name: model.to_owned(), fingerprint: None };
        let streams = StreamDirectory::default();
        Self {
            model,
            router_id,
            limits,
            members,
            workers,
            index,
            streams,
            known_limits: None,
            ticked_at: None,
            next_id: 0,
        }
    }

    /// This router's id on the wire.
    pub fn router_id(&self) -> u64 {
        self.router_id
    }

    /// Updates the state with `event`; returns what to do, in order.
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

    /// The best ready worker for a job now, except those in `without`.
    pub fn choose(
        &self,
        now: Timestamp,
        job: &Job,
        without: &[WorkerId],
        rng: &mut impl Rng,
    ) -> Option<Pick> {
        let takers: Vec<_> = self.takers(now).filter(|(id, _)| !without.contains(id)).collect();
        // A worker that may soon count as lost gets requests only if there is no other.
        let doubtful = |worker: &Worker| worker.is_silent(now, self.limits.worker_timeout / 2);
        let all_doubtful = takers.iter().all(|(_, worker)| doubtful(worker));
        let good = || takers.iter().filter(|(_, worker)| all_doubtful || !doubtful(worker));
        let picked = |worker: &Worker| job.picked.as_deref() == Some(worker.member.id.as_str());
        let was_picked = good().any(|(_, worker)| picked(worker));
        let views: Vec<WorkerView> = good()
            .filter(|(_, worker)| !was_picked || picked(worker))
            .filter_map(|&(&id, worker)| self.view(id, worker, job))
            .collect();
        policy::pick(&job.demand, &views, rng)
    }

    /// Records a choice in the worker's ledger; `None` if the worker has left.
    pub fn place(&mut self, now: Timestamp, job: &Job, pick: &Pick) -> Option<WorkerPlacement> {
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
        Some(WorkerPlacement { at: WorkerEpoch { worker: pick.worker, epoch: info.epoch }, sequence })
    }

    /// Removes a placement that ended, in whatever way.
    pub fn ended(&mut self, placement: WorkerPlacement) {
        let worker_id = placement.at.worker;
        let Some(worker) = self.workers.get_mut(&worker_id) else { return };
        // The prefix of a request that sent tokens is cached, even if the worker's report is still on its
        // way.
        if !worker.ledger.end(placement.sequence) {
            self.index.withdraw(worker_id, placement.sequence);
        }
    }

    /// Whether a stream silent since `silent_since` will stay silent: its worker is gone or silent, makes no
    /// steps, or no longer has the request.
    pub fn is_stuck(&self, now: Timestamp, placement: WorkerPlacement, silent_since: Timestamp) -> bool {
        let Some(worker) = self.workers.get(&placement.at.worker) else {
            return now.since(silent_since) >= GONE_AFTER;
        };
        !worker.is_at(placement.at.epoch) || worker.is_stuck(now, &self.limits, silent_since)
    }

    /// Whether a stream should leave its worker: the worker drains and hands its streams back, and another
    /// one is ready.
    pub fn should_leave(&self, now: Timestamp, placement: WorkerPlacement) -> bool {
        let asked = self
            .workers
            .get(&placement.at.worker)
            .is_some_and(|worker| worker.is_at(placement.at.epoch) && worker.is_giving_back());
        // A draining worker is not among the ready ones.
        asked && self.takers(now).next().is_some()
    }

    /// Whether a call would reach the worker now, as far as known.
    pub fn is_reachable(&self, now: Timestamp, at: WorkerEpoch) -> bool {
        self.workers.get(&at.worker).is_some_and(|worker| {
            worker.watching && worker.is_at(at.epoch) && !worker.is_lost(now, &self.limits)
        })
    }

    /// Whether a worker may still have a stream that just broke, because only the connection failed.
    pub fn may_have_kept(&self, now: Timestamp, at: WorkerEpoch) -> bool {
        self.is_reachable(now, at)
            && self.workers.get(&at.worker).is_some_and(|worker| !worker.is_silent(now, JUST_HEARD))
    }

    /// The worker that runs or keeps a stream, if it is reachable.
    pub fn find_stream(&self, now: Timestamp, key: StreamKey) -> Option<WorkerEpoch> {
        // A worker that restarted with other weights may have got the stream before its mismatch was known.
        let ours = |id| self.workers.get(&id).is_some_and(Worker::serves_our_model);
        self.streams.find(key).filter(|&at| self.is_reachable(now, at) && ours(at.worker))
    }

    /// Records that a worker accepted a stream.
    pub fn stream_opened(&mut self, key: StreamKey, at: WorkerEpoch) {
        if self.workers.get(&at.worker).is_some_and(|worker| worker.is_at(at.epoch)) {
            self.streams.insert(key, at);
        }
    }

    /// Records that a worker does not have a stream.
    pub fn stream_gone(&mut self, key: StreamKey, id: WorkerId) {
        self.streams.forget(key, id);
    }

    /// Whether a worker resumes requests bit for bit.
    pub fn resumes_exactly(&self, id: WorkerId) -> bool {
        self.workers.get(&id).and_then(|worker| worker.info.as_ref()).is_some_and(|info| info.resume_exact)
    }

    /// Where a link's watch starts: (epoch, next sequence number), or (0, 0) for a snapshot.
    pub fn watch_from(&self, id: WorkerId) -> (u64, u64) {
        self.workers.get(&id).map_or((0, 0), Worker::watch_from)
    }

    /// Whether a worker is a member.
    pub fn has(&self, id: WorkerId) -> bool {
        self.workers.contains_key(&id)
    }

    /// The workers at addresses that `is_wanted` refuses.
    pub fn at_other_addresses(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<WorkerId> {
        let others = self.workers.iter().filter(|(_, worker)| !is_wanted(&worker.member.address));
        others.map(|(&id, _)| id).collect()
    }

    /// A worker as its member in discovery.
    pub fn member(&self, id: WorkerId) -> Option<&Member> {
        self.workers.get(&id).map(|worker| &worker.member)
    }

    /// A worker's name in discovery.
    pub fn name(&self, id: WorkerId) -> Option<Arc<str>> {
        self.workers.get(&id).map(|worker| worker.name.clone())
    }

    /// Limits that every ready worker accepts. While none is ready, those of the last ones; `None` if there
    /// never was one.
    pub fn limits(&self, now: Timestamp) -> Option<ModelLimits> {
        let limits = self
            .ready(now)
            .map(|info| ModelLimits { max_model_len: info.max_model_len, vocab_size: info.vocab_size });
        let common = limits.reduce(|one, other| ModelLimits {
            max_model_len: one.max_model_len.min(other.max_model_len),
            vocab_size: one.vocab_size.min(other.vocab_size),
        });
        common.or(self.known_limits)
    }

    /// Whether any worker accepts requests.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        self.ready(now).next().is_some()
    }

    /// Whether any worker has measured the rates behind the predictions.
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

    /// State of the workers.
    pub fn status(&self, now: Timestamp) -> Vec<WorkerStatus> {
        let status = |(&id, worker): (&WorkerId, &Worker)| WorkerStatus {
            id: worker.member.id.clone(),
            address: worker.member.address.clone(),
            refuses: worker.refuses(now, &self.limits),
            info: worker.info.clone(),
            load: worker.ledger.current(),
            reported: worker.ledger.last_report().load,
            cached_blocks: self.index.blocks(id),
        };
        self.workers.iter().map(status).collect()
    }

    /// Whether workers accept requests, and none of them has the grammars of `fingerprint`.
    pub fn lacks_grammars(&self, now: Timestamp, fingerprint: u64) -> bool {
        let mut ready = self.ready(now).peekable();
        ready.peek().is_some() && !ready.any(|info| info.grammar_fingerprint == fingerprint)
    }

    fn ready(&self, now: Timestamp) -> impl Iterator<Item = &WorkerInfo> {
        self.takers(now).filter_map(|(_, worker)| worker.info.as_ref())
    }

    /// The workers that accept requests. If there are none, those that only their breaker excludes: its pause
    /// protects requests only as long as there is a better worker.
    fn takers(&self, now: Timestamp) -> impl Iterator<Item = (&WorkerId, &Worker)> {
        let good = move |worker: &Worker| worker.refuses(now, &self.limits).is_none();
        let any_good = self.workers.values().any(good);
        self.workers.iter().filter(move |(_, worker)| {
            good(worker) || !any_good && worker.cannot(now, &self.limits).is_none()
        })
    }

    fn view(&self, id: WorkerId, worker: &Worker, job: &Job) -> Option<WorkerView> {
        let info = worker.info.as_ref()?;
        if ![0, info.grammar_fingerprint].contains(&job.grammar_fingerprint) {
            return None;
        }
        let chain = if job.cacheable { job.chain(info.block_size) } else { None };
        let blocks = chain.map_or(0, |chain| self.index.leading_blocks(id, chain)) as u32;
        // The last prompt token is always computed, because its logits give the first output token.
        let hit_tokens = (blocks * info.block_size).min(job.demand.prompt_tokens.saturating_sub(1));
        let (max_num_seqs, block_size) = (info.max_num_seqs, info.block_size);
        Some(WorkerView { id, hit_tokens, load: worker.ledger.current(), max_num_seqs, block_size })
    }

    /// Applies a change of one worker, and wakes waiting requests if it becomes ready.
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
            self.known_limits = self.limits(now);
            actions.push(Action::Wake);
        }
        actions
    }

    /// Changes a worker, unless it has left.
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
        if !worker.is_at(info.epoch) {
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
        if !worker.is_at(event.epoch) {
            worker.watching = false;
            return vec![Action::Reconnect(id)];
        }
        let applied = match worker.follow(now, &event) {
            LogFit::Old => Ok(()),
            LogFit::Gap => Err(Desync { handle: 0 }),
            LogFit::Next => self.apply(now, WorkerEpoch { worker: id, epoch: event.epoch }, event.body),
        };
        if let Err(desync) = applied {
            self.with(id, Worker::request_snapshot);
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
            WatchBody::Load(report, _) => self.with(id, |worker| worker.report(now, report)),
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
