//! The live state of the workers: membership, readiness, what each caches and carries. Pure: events and the
//! time go in, actions come out. The router's `links` feed it from the network.
//!
//! A worker gets requests only after its `Info` was read and while its watch is alive, it does not drain, its
//! breaker is not open, and no stream has just broken on it. Nothing here depends on clients or on a
//! request's content.
//!
//! Workers may serve several versions of the model at once. A new request goes to one version at a time (see
//! [`NewRequests`]); a request that has begun goes on only where its version is served.

mod adapter_records;
mod adapters;
pub mod capacity;
mod event;
mod job;
mod loss;
mod members;
mod standing;
mod status;
mod streams;
mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use skein_node::clock::Timestamp;
use skein_node::discovery::{Change, Member};
use skein_proto::info::WorkerInfo;
use skein_proto::pooling::PooledModel;
use skein_proto::runs::RunStored;
use skein_proto::stream_key::StreamKey;
use skein_proto::version::Version;
use skein_proto::watch::{Admitted, Snapshot, WatchBody, WatchEvent};

use crate::breaker::Outcome;
use crate::calibration::Calibration;
use crate::ledger::Cost;
use crate::limits::ModelLimits;
use crate::policy::{Demand, Pick, Picker, Policy, WorkerView};
use crate::prefix_index::{Desync, Expectation, Hits, PrefixIndex};
use crate::receipt::Receipt;
use crate::worker_id::{WorkerEpoch, WorkerId};
pub use adapter_records::AdapterRecords;
use adapters::FleetAdapters;
pub use adapters::KnownAdapters;
pub use event::{Action, Event, Notice};
pub use job::{Job, WorkerPlacement};
pub use loss::Loss;
use standing::{Standing, Standings};
pub use status::WorkerStatus;
use streams::StreamDirectory;
pub use worker::{HealthLimits, LogPosition, NotReady};
use worker::{LogFit, Model, Worker};

/// How often the caller must send [`Event::Tick`], which checks the workers' health.
pub const TICK: Duration = Duration::from_millis(250);
/// A worker heard from this recently can be asked whether it still has a stream.
const JUST_HEARD: Duration = Duration::from_secs(1);
/// A stream of a worker that was replaced continues while it flows; after this much silence it moves.
const GONE_AFTER: Duration = Duration::from_millis(500);

/// Which version of the model gets new requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NewRequests {
    /// The one that most seats serve; among equals, the newest. For workers that others start and replace.
    #[default]
    Main,
    /// The first that a worker serves, and from then on only that one, until another is set. For workers that
    /// this process starts.
    First,
    /// This one.
    Only(Version),
}

/// State of the fleet.
#[derive(Debug)]
pub struct Fleet {
    model: Model,
    new_requests: NewRequests,
    router_id: u64,
    limits: HealthLimits,
    members: HashMap<String, WorkerId>,
    workers: BTreeMap<WorkerId, Worker>,
    standings: Standings,
    index: PrefixIndex,
    picker: Picker,
    calibration: Calibration,
    scratch: Scratch,
    streams: StreamDirectory,
    adapters: FleetAdapters,
    /// Limits of the last ready workers.
    known_limits: Option<ModelLimits>,
    /// Vectors of the model, by the worker that connected last.
    pooled: Option<Arc<PooledModel>>,
    ticked_at: Option<Timestamp>,
    next_id: u32,
}

/// Buffers reused between choices.
#[derive(Debug, Default)]
struct Scratch {
    /// Hits for each chain of the job.
    hits: Vec<Hits>,
    views: Vec<WorkerView>,
}

impl Fleet {
    /// A fleet without workers. Workers that serve another model are not used.
    pub fn new(model: &str, router_id: u64, limits: HealthLimits, index: PrefixIndex) -> Self {
        let (members, workers) = (HashMap::new(), BTreeMap::new());
        let model = Model { name: model.to_owned(), tokenizer: 0, grammars: 0 };
        let streams = StreamDirectory::default();
        Self {
            model,
            new_requests: NewRequests::default(),
            router_id,
            limits,
            members,
            workers,
            standings: Standings::default(),
            index,
            picker: Picker::default(),
            calibration: Calibration::default(),
            scratch: Scratch::default(),
            streams,
            adapters: FleetAdapters::default(),
            known_limits: None,
            pooled: None,
            ticked_at: None,
            next_id: 0,
        }
    }

    /// The same fleet with a different policy.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { picker: Picker::new(policy), ..self }
    }

    /// Sets the fingerprints of the router's own tokenizer.json and of its grammars; 0 = unknown.
    pub fn expect_tokenizer(&mut self, fingerprint: u64, grammars: u64) {
        self.model.tokenizer = fingerprint;
        self.model.grammars = grammars;
        self.workers.values_mut().for_each(|worker| worker.compare(&self.model));
        let all: Vec<WorkerId> = self.workers.keys().copied().collect();
        all.into_iter().for_each(|id| self.refresh(id));
    }

    /// Sets which version gets new requests.
    pub fn set_new_requests(&mut self, new_requests: NewRequests) {
        let first = self.workers.values().find_map(Worker::usable_version);
        self.new_requests = match (new_requests, first) {
            // A worker may have connected before this call.
            (NewRequests::First, Some(version)) => NewRequests::Only(version),
            (given, _) => given,
        };
    }

    /// Version of the model that new requests go to now; unknown if no worker says what it serves.
    pub fn current_version(&self, now: Timestamp) -> Version {
        match self.new_requests {
            NewRequests::Only(version) => version,
            NewRequests::Main | NewRequests::First => self.standings.main_version(now),
        }
    }

    /// Version that a worker serves at an epoch; unknown if it has restarted since.
    pub fn version_at(&self, at: WorkerEpoch) -> Version {
        let worker = self.workers.get(&at.worker).filter(|worker| worker.is_at(at.epoch));
        worker.and_then(|worker| worker.info.as_ref()).map_or(Version::UNKNOWN, WorkerInfo::model_version)
    }

    /// This router's id on the wire.
    pub fn router_id(&self) -> u64 {
        self.router_id
    }

    /// Updates the state with `event`; returns what to do, in order.
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        let id = event.worker();
        let actions = self.changed(now, event);
        id.into_iter().for_each(|id| self.refresh(id));
        actions
    }

    fn changed(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        match event {
            Event::Member(Change::Join(member)) => self.join(now, member),
            Event::Member(Change::Leave(id)) => self.leave(now, &id),
            Event::Connected(id, info) => self.update(now, id, |fleet| fleet.connected(now, id, info)),
            Event::Watched(id, event) => self.update(now, id, |fleet| fleet.watched(now, id, event)),
            Event::SnapshotPart(at, runs) => self.snapshot_part(at, &runs),
            Event::Lost(id) => self.link_lost(id),
            Event::FirstToken(placement) => {
                let worker = self.workers.get_mut(&placement.at.worker);
                if let Some((predicted, actual)) =
                    worker.and_then(|worker| worker.ledger.prefilled(now, placement.sequence))
                {
                    self.calibration.observe(predicted, actual);
                }
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
        &mut self,
        now: Timestamp,
        job: &Job,
        without: &[WorkerId],
        rng: &mut impl Rng,
    ) -> Option<Pick> {
        let only = match self.new_requests {
            NewRequests::Only(version) => Some(version),
            NewRequests::Main | NewRequests::First => None,
        };
        self.standings.summarise(now, |main| only.unwrap_or(main));
        let version = job.version.or(self.current_version(now));
        let Self { index, standings, picker, scratch: Scratch { hits, views }, members, adapters, .. } = self;
        hits.resize_with(job.chains.len(), Hits::default);
        for ((_, chain), hits) in job.chains.iter().zip(&mut *hits) {
            index.search(if job.cacheable { chain } else { &[] }, hits);
        }
        let takers = standings.takers(now, version).filter(|standing| now >= standing.full_until);
        let takers = takers.filter(|standing| !without.contains(&standing.view.id));
        // A worker that may soon count as lost gets requests only if there is no other.
        let all_doubtful = takers.clone().all(|standing| standing.is_doubtful(now));
        let good = takers.filter(|standing| all_doubtful || !standing.is_doubtful(now));
        let picked = job.picked.as_deref().and_then(|name| members.get(name));
        let picked = picked.filter(|&&id| good.clone().any(|standing| standing.view.id == id));
        let wanted = good.filter(|standing| {
            picked.is_none_or(|&id| standing.view.id == id)
                && [0, standing.grammar_fingerprint].contains(&job.grammar_fingerprint)
                && job.adapter.is_none_or(|adapter| adapters.find(standing.view.id, adapter).is_some())
        });
        views.clear();
        views.extend(wanted.map(|standing| {
            let block_size = standing.view.block_size;
            let hits = job.chains.iter().zip(&*hits).find(|((size, _), _)| *size == block_size);
            let blocks = hits.map_or(0, |(_, hits)| hits.blocks(standing.column));
            let is_cold = job.adapter.is_some_and(|it| adapters.find(standing.view.id, it) != Some(true));
            WorkerView { reads_adapter: is_cold, ..standing.seen(now, blocks, job.demand.prompt_tokens) }
        }));
        let pick = picker.pick(&job.demand, job.affinity, views, rng)?;
        let seconds = self.calibration.seconds(pick.terms.first_token());
        let first_token_after = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Some(Pick { first_token_after, ..pick })
    }

    /// Sequences that run or wait at workers of versions other than `version`.
    pub fn running_on_others_than(&self, version: Version) -> usize {
        let others =
            self.workers.values().filter(|worker| worker.usable_version().is_some_and(|it| it != version));
        others.map(|worker| worker.ledger.current().sequences as usize).sum()
    }

    /// Explains the last [`choose`](Self::choose), which was `pick`.
    pub fn explain(&self, job: &Job, pick: &Pick) -> Receipt {
        self.picker.explain(&job.demand, pick, &self.scratch.views, |id| self.name(id))
    }

    /// Records a choice in the worker's ledger; `None` if the worker has left.
    pub fn place(&mut self, now: Timestamp, job: &Job, pick: &Pick) -> Option<WorkerPlacement> {
        let worker = self.workers.get_mut(&pick.worker)?;
        let info = worker.info.as_ref()?;
        let Demand { prompt_tokens, expected_output_tokens, sequences } = job.demand;
        let uncached_tokens = prompt_tokens.saturating_sub(pick.hit_tokens);
        let blocks = (uncached_tokens + expected_output_tokens).div_ceil(info.block_size);
        let cost = Cost { uncached_tokens: u64::from(uncached_tokens), blocks, sequences };
        let sequence = worker.ledger.place(now, cost, pick.terms.first_token());
        worker.breaker.dispatched(now);
        if let (true, Some(chain)) = (job.cacheable, job.chain(info.block_size)) {
            // A prompt that is cached whole still has a token to compute, but no block to come.
            let held = pick.hit_tokens.div_ceil(info.block_size) as usize;
            self.index.expect(
                pick.worker,
                Expectation::Placed(sequence),
                &chain[held.min(chain.len())..],
                now,
            );
        }
        let at = WorkerEpoch { worker: pick.worker, epoch: info.epoch };
        self.refresh(pick.worker);
        Some(WorkerPlacement { at, sequence })
    }

    /// Removes a finished placement; returns whether its worker now has a free seat.
    pub fn ended(&mut self, placement: WorkerPlacement) -> bool {
        let worker_id = placement.at.worker;
        let Some(worker) = self.workers.get_mut(&worker_id) else { return false };
        // The prefix of a request that sent tokens is cached, even if the worker's report is still on its
        // way.
        let was_running = worker.ledger.end(placement.sequence);
        if was_running {
            worker.seat_freed();
        } else {
            self.index.withdraw(worker_id, placement.sequence);
        }
        self.refresh(worker_id);
        was_running
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
    /// one that serves `version` is ready.
    pub fn should_leave(&self, now: Timestamp, placement: WorkerPlacement, version: Version) -> bool {
        let asked = self
            .workers
            .get(&placement.at.worker)
            .is_some_and(|worker| worker.is_at(placement.at.epoch) && worker.is_giving_back());
        // A draining worker is not among the ready ones.
        asked && self.serves(now, version)
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

    /// The worker that runs or keeps a stream of this version, if it is reachable. The key does not say the
    /// version: a request may have begun anew on another one.
    pub fn find_stream(&self, now: Timestamp, key: StreamKey, version: Version) -> Option<WorkerEpoch> {
        let serves =
            |id| self.workers.get(&id).and_then(Worker::usable_version).is_some_and(|it| it.fits(version));
        self.streams.find(key).filter(|&at| self.is_reachable(now, at) && serves(at.worker))
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

    /// Where a link's watch starts; `None` = with a snapshot.
    pub fn watch_from(&self, id: WorkerId) -> Option<LogPosition> {
        self.workers.get(&id).and_then(Worker::watch_from)
    }

    /// Whether a worker is a member.
    pub fn has(&self, id: WorkerId) -> bool {
        self.workers.contains_key(&id)
    }

    /// Workers at addresses that `is_wanted` rejects.
    pub fn at_other_addresses(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<WorkerId> {
        let others = self.workers.iter().filter(|(_, worker)| !is_wanted(&worker.member.address));
        others.map(|(&id, _)| id).collect()
    }

    /// Discovery entry of a worker.
    pub fn member(&self, id: WorkerId) -> Option<&Member> {
        self.workers.get(&id).map(|worker| &worker.member)
    }

    /// Name of a worker in discovery.
    pub fn name(&self, id: WorkerId) -> Option<Arc<str>> {
        self.workers.get(&id).map(|worker| worker.name.clone())
    }

    /// The model's vectors, if it computes these instead of tokens.
    pub fn pooled(&self) -> Option<Arc<PooledModel>> {
        self.pooled.clone()
    }

    /// Limits that every ready worker accepts. While none is ready, the last known limits; `None` if no
    /// worker was ever ready.
    pub fn limits(&self, now: Timestamp) -> Option<ModelLimits> {
        self.standings.limits(now, self.current_version(now)).or(self.known_limits)
    }

    /// Whether any worker accepts new requests.
    pub fn is_ready(&self, now: Timestamp) -> bool {
        self.serves(now, Version::UNKNOWN)
    }

    /// Whether any worker accepts requests of this version; unknown = the one for new requests.
    pub fn serves(&self, now: Timestamp, version: Version) -> bool {
        // Whatever workers accept requests, one of their versions gets the new ones.
        let version = match self.new_requests {
            NewRequests::Only(only) => version.or(only),
            NewRequests::Main | NewRequests::First => version,
        };
        self.standings.takers(now, version).next().is_some()
    }

    /// Whether all workers that accept requests of this version are full; unknown = the one for new requests.
    pub fn is_full(&self, now: Timestamp, version: Version) -> bool {
        let mut takers = self.takers_of(now, version).peekable();
        takers.peek().is_some() && takers.all(|standing| now < standing.full_until)
    }

    /// Whether no worker serves this version now, while workers serve another one or have only others.
    pub fn lacks(&self, now: Timestamp, version: Version) -> bool {
        let mut versions = self.workers.values().filter_map(Worker::usable_version).peekable();
        let has_only_others = versions.peek().is_some() && versions.all(|other| !other.fits(version));
        version.is_known() && !self.serves(now, version) && (has_only_others || self.is_ready(now))
    }

    fn takers_of(&self, now: Timestamp, version: Version) -> impl Iterator<Item = &Standing> {
        self.standings.takers(now, version.or(self.current_version(now)))
    }

    /// Whether any worker accepts requests, or ever did.
    pub fn was_ready(&self, now: Timestamp) -> bool {
        self.known_limits.is_some() || self.is_ready(now)
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

    /// For each worker `ready`, or the reason why not.
    pub fn states(&self, now: Timestamp) -> impl Iterator<Item = String> {
        let state = move |worker: &Worker| worker.refuses(now, &self.limits);
        self.workers.values().map(move |worker| WorkerStatus::state_of(state(worker).as_ref()))
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

    /// Adapters of all workers.
    pub fn adapters(&self) -> Arc<KnownAdapters> {
        self.adapters.known()
    }

    /// Whether workers accept requests, but none has the grammars of `fingerprint`.
    pub fn lacks_grammars(&self, now: Timestamp, fingerprint: u64) -> bool {
        let mut ready = self.takers_of(now, Version::UNKNOWN).peekable();
        ready.peek().is_some() && !ready.any(|standing| standing.grammar_fingerprint == fingerprint)
    }

    /// Updates a worker's standing.
    fn refresh(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(&id) else { return self.standings.remove(id) };
        let column = self.index.column(id);
        if let Some(standing) = worker.standing(id, column, &self.limits) {
            self.standings.set(standing);
        }
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
            self.refresh(id);
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
            self.adapters.forget(id);
            if worker.info.is_some() {
                actions.push(Action::Recheck(id));
            }
        }
        if info.model == self.model.name && self.model.tokenizer == 0 {
            self.model.tokenizer = info.tokenizer_fingerprint;
        }
        let version = info.model_version();
        let has_other_grammars = self.model.has_other_grammars(&info);
        let pooled = info.pooled.clone();
        worker.connected(now, info, &self.model);
        let name = worker.member.id.clone();
        if let Some(mismatch) = worker.mismatch() {
            actions.push(Action::Log(Notice::NotUsed(name, mismatch)));
            return actions;
        }
        self.pooled = pooled.map(Arc::new);
        if has_other_grammars {
            actions.push(Action::Log(Notice::OtherGrammars(name.clone())));
        }
        if self.new_requests == NewRequests::First {
            self.new_requests = NewRequests::Only(version);
        }
        let others = self.workers.iter().filter(|(other, _)| **other != id);
        let known = others.filter_map(|(_, worker)| worker.usable_version()).collect::<BTreeSet<_>>();
        if !known.is_empty() && !known.contains(&version) && version.is_known() {
            actions.push(Action::Log(Notice::Version(name, version)));
        }
        actions
    }

    fn watched(&mut self, now: Timestamp, id: WorkerId, event: WatchEvent) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(&id) else { return Vec::new() };
        if !worker.is_at(event.epoch) {
            worker.watching = false;
            return vec![Action::Reconnect(id)];
        }
        let was_full = worker.is_full(now);
        let applied = match worker.follow(now, &event) {
            LogFit::Old => Ok(()),
            LogFit::Gap => Err(Desync { handle: 0 }),
            LogFit::Next => self.apply(now, WorkerEpoch { worker: id, epoch: event.epoch }, event.body),
        };
        let is_free = was_full && self.workers.get(&id).is_some_and(|worker| !worker.is_full(now));
        match applied {
            Ok(()) => is_free.then_some(Action::SeatFree).into_iter().collect(),
            Err(desync) => self.out_of_step(id, desync),
        }
    }

    /// Adds runs to a snapshot. If they do not fit, or the worker has restarted since, a new snapshot
    /// follows.
    fn snapshot_part(&mut self, at: WorkerEpoch, runs: &[RunStored]) -> Vec<Action> {
        let Some(worker) = self.workers.get(&at.worker).filter(|worker| worker.is_at(at.epoch)) else {
            return Vec::new();
        };
        if worker.watch_from().is_none() {
            return Vec::new();
        }
        match self.index.store(at.worker, runs) {
            Ok(()) => Vec::new(),
            Err(desync) => self.out_of_step(at.worker, desync),
        }
    }

    fn out_of_step(&mut self, id: WorkerId, desync: Desync) -> Vec<Action> {
        self.with(id, Worker::request_snapshot);
        vec![Action::Log(Notice::OutOfStep(id, desync)), Action::Resubscribe(id)]
    }

    fn apply(&mut self, now: Timestamp, at: WorkerEpoch, body: WatchBody) -> Result<(), Desync> {
        let id = at.worker;
        match body {
            WatchBody::Snapshot(Snapshot { runs, gaps, stream_keys }) => {
                self.streams.forget_worker(id);
                stream_keys.into_iter().for_each(|key| self.streams.insert(key, at));
                return self.index.replace(id, &runs, &gaps);
            }
            WatchBody::Cache(change) => return self.index.apply(id, &change),
            WatchBody::Load(report, _) => self.with(id, |worker| worker.report(now, report)),
            WatchBody::Admitted(Admitted { placement, hashes, stream_key, depth: _ }) => {
                if let Some(key) = stream_key {
                    self.streams.insert(key, at);
                }
                if placement.router == self.router_id {
                    self.index.withdraw(id, placement.sequence);
                } else {
                    self.with(id, |worker| worker.admitted_from_another(now, hashes.len()));
                }
                self.index.expect(id, Expectation::Admitted, &hashes, now);
            }
            WatchBody::Adapters(adapters, _) => self.adapters.report(id, adapters),
            WatchBody::Unknown => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
