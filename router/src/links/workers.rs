//! State that requests and links share: the fleet behind its lock, and the connection to each worker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use rand::rngs::StdRng;
use skein_choice::fleet::{
    self, Action, Fleet, Job, KnownAdapters, LogPosition, Loss, Notice, WorkerPlacement,
};
use skein_choice::policy::{Demand, Pick};
use skein_choice::receipt::Receipt;
use skein_choice::worker_id::{WorkerEpoch, WorkerId};
use skein_node::clock;
use skein_node::discovery::Member;
use skein_node::signal::{Listener, Signal};
use skein_proto::TokenId;
use skein_proto::adapter;
use skein_proto::block_hash;
use skein_proto::stream_key::StreamKey;
use skein_proto::version::Version;
use skein_proto::watch::WatchBody;

use super::adapter_changes::AdapterChanges;
use super::errands::Errands;
use super::moves::Moves;
use super::requests_by_version::RequestsByVersion;
use super::seats::{Seats, Ticket};
use super::totals::Totals;
use super::transport::Connector;
use super::worker_client::WorkerClient;
use crate::admission::{Admission, Candidate, Permit};
use crate::refusal::Refusal;
use crate::request::TokenRequest;

/// Retry time for clients while no worker is ready.
const RETRY_WHEN_NONE_READY: Duration = Duration::from_secs(1);

/// Callback for a lost worker, with its name and address.
pub(crate) type OnLost = Box<dyn Fn(Member) + Send + Sync>;

/// State shared by links and requests.
pub(crate) struct Workers {
    state: Mutex<State>,
    /// The fleet's block sizes. They have their own lock because a request is hashed before the fleet is
    /// locked.
    block_sizes: RwLock<Arc<[u32]>>,
    /// The fleet's adapters, which each request looks up before the fleet is locked.
    adapters: RwLock<Arc<KnownAdapters>>,
    changes: Signal,
    rechecks: Signal,
    attempts: AtomicU64,
    /// Called for each worker that becomes lost.
    on_lost: OnceLock<OnLost>,
    model: String,
    /// How long a stream continues without a reader.
    pub(crate) linger: Duration,
    pub(crate) router_id: u64,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) errands: Errands,
    /// Queue of requests that wait because all workers are full.
    pub(crate) seats: Seats,
    /// Sums of the workers' counters, for metrics.
    pub(crate) totals: Totals,
    /// Adapters loaded and unloaded at run time.
    pub(crate) adapter_changes: AdapterChanges,
    /// Running requests by the version of the model that they began on.
    pub(crate) requests_by_version: RequestsByVersion,
    /// The latest moves, for people.
    pub(crate) moves: Moves,
    /// Held while an operator's order is carried out.
    pub(crate) orders: tokio::sync::Mutex<()>,
}

/// Locked for microseconds, never across an await.
struct State {
    fleet: Fleet,
    clients: BTreeMap<WorkerId, WorkerClient>,
    rng: StdRng,
}

/// A request that asks for admission.
pub(crate) struct Arrival<'a> {
    pub job: &'a Job,
    pub stream_key: StreamKey,
    /// Whether its client already has part of the answer.
    pub resumes: bool,
    /// Whether it waits for a worker if one was ready before.
    pub waits: bool,
    /// Time until the client's deadline.
    pub time_left: Option<Duration>,
    /// Workers excluded from the choice.
    pub without: &'a [WorkerId],
    /// Place in the queue for a seat; `None` if it does not wait.
    pub ticket: Option<&'a Ticket>,
}

/// A placement, and the connection to its worker.
pub(crate) struct Place {
    pub placed: Placed,
    pub client: WorkerClient,
    /// Name of the worker, for spans.
    pub name: Option<Arc<str>>,
    /// Details of the choice; `None` for a worker that already has the stream.
    pub pick: Option<Pick>,
    /// Explanation of the choice, if the request asked for it.
    pub receipt: Option<Receipt>,
}

/// A placement in a worker's ledger; dropping it removes it from the ledger.
pub(crate) struct Placed {
    workers: Arc<Workers>,
    pub placement: WorkerPlacement,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.workers.with_fleet(|fleet| fleet.ended(self.placement)) {
            self.workers.seats.call();
        }
    }
}

impl Workers {
    pub(crate) fn new(
        model: &str,
        fleet: Fleet,
        rng: StdRng,
        connector: Arc<dyn Connector>,
        errands: Errands,
        linger: Duration,
    ) -> Self {
        Self {
            router_id: fleet.router_id(),
            state: Mutex::new(State { fleet, clients: BTreeMap::new(), rng }),
            block_sizes: RwLock::default(),
            adapters: RwLock::default(),
            changes: Signal::default(),
            rechecks: Signal::default(),
            attempts: AtomicU64::new(0),
            on_lost: OnceLock::new(),
            model: model.to_owned(),
            linger,
            connector,
            errands,
            seats: Seats::default(),
            totals: Totals::default(),
            adapter_changes: AdapterChanges::default(),
            requests_by_version: RequestsByVersion::default(),
            moves: Moves::default(),
            orders: tokio::sync::Mutex::default(),
        }
    }

    /// Passes an event to the fleet. Wakes waiting requests if a worker became ready, and streams whose
    /// worker may be lost.
    pub(crate) fn handle(&self, event: fleet::Event) -> Vec<Action> {
        let connected = matches!(event, fleet::Event::Connected(..));
        let is_of_adapters = matches!(&event, fleet::Event::Watched(_, event) if matches!(event.body, WatchBody::Adapters(..)));
        if let fleet::Event::Watched(worker, event) = &event
            && let WatchBody::Adapters(_, Some(records)) = &event.body
        {
            self.adapter_changes.reported(*worker, records);
        }
        let actions = self.with_fleet(|fleet| {
            let actions = fleet.handle(clock::now(), event);
            if connected || actions.iter().any(|action| matches!(action, Action::Unfollow(_))) {
                *self.block_sizes.write().unwrap_or_else(PoisonError::into_inner) =
                    fleet.block_sizes().into();
            }
            if is_of_adapters {
                self.set_adapters(fleet);
            }
            actions
        });
        if actions.contains(&Action::Wake) {
            self.changes.send();
        }
        if actions.iter().any(|action| matches!(action, Action::Wake | Action::SeatFree)) {
            self.seats.call();
        }
        if actions.iter().any(|action| matches!(action, Action::Recheck(_))) {
            self.rechecks.send();
        }
        for action in &actions {
            match (action, self.on_lost.get()) {
                (Action::Log(notice), _) => log(notice),
                (Action::Lost(member), Some(on_lost)) => on_lost(member.clone()),
                _ => {}
            }
        }
        actions
    }

    /// Sets the callback for lost workers; only the first call has an effect.
    pub(crate) fn report_lost(&self, on_lost: OnLost) {
        let _ = self.on_lost.set(on_lost);
    }

    pub(crate) fn with_fleet<T>(&self, look: impl FnOnce(&mut Fleet) -> T) -> T {
        look(&mut self.lock().fleet)
    }

    /// Stores a worker's connection, unless the worker has left.
    pub(crate) fn connect(&self, worker: WorkerId, client: WorkerClient) {
        let State { fleet, clients, .. } = &mut *self.lock();
        if fleet.has(worker) {
            clients.insert(worker, client);
        }
    }

    /// Looks up the adapters of all workers again, after a change of which they may know later.
    pub(crate) fn resolve_adapters(&self) {
        self.with_fleet(|fleet| self.set_adapters(fleet));
    }

    fn set_adapters(&self, fleet: &Fleet) {
        let resolved = self.adapter_changes.lock().resolve(&fleet.adapters());
        *self.adapters.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(resolved);
    }

    /// Adapters of all workers.
    pub(crate) fn adapters(&self) -> Arc<KnownAdapters> {
        self.adapters.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections to all workers.
    pub(crate) fn clients(&self) -> Vec<WorkerClient> {
        self.lock().clients.values().cloned().collect()
    }

    /// The same, with the workers.
    pub(crate) fn clients_by_id(&self) -> Vec<(WorkerId, WorkerClient)> {
        self.lock().clients.iter().map(|(worker, client)| (*worker, client.clone())).collect()
    }

    pub(crate) fn has(&self, worker: WorkerId) -> bool {
        self.with_fleet(|fleet| fleet.has(worker))
    }

    pub(crate) fn disconnect(&self, worker: WorkerId) {
        self.totals.forget(worker);
        self.adapter_changes.lock().forget(worker);
        self.lock().clients.remove(&worker);
    }

    pub(crate) fn watch_from(&self, worker: WorkerId) -> Option<LogPosition> {
        self.with_fleet(|fleet| fleet.watch_from(worker))
    }

    /// Wakes the requests that wait for a worker.
    pub(crate) fn fleet_changed(&self) {
        self.changes.send();
        self.seats.call();
    }

    pub(crate) fn fleet_changes(&self) -> Listener {
        self.changes.subscribe()
    }

    /// Notifies streams that they should check whether their worker is lost or drains.
    pub(crate) fn rechecks(&self) -> Listener {
        self.rechecks.subscribe()
    }

    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// The rest of a request as work for the fleet: `sequences` samples, of which the longest has
    /// `delivered`. Hashes without holding the fleet's lock.
    pub(crate) fn job(&self, request: &TokenRequest, delivered: &[TokenId], sequences: u32) -> Job {
        let block_sizes = self.block_sizes.read().unwrap_or_else(PoisonError::into_inner).clone();
        let output_tokens_left = request.sampling.max_tokens.saturating_sub(delivered.len() as u32);
        let demand = Demand::new(request.prompt.len() + delivered.len(), output_tokens_left, sequences);
        let adapter = request.adapter.as_ref().map(|adapter| adapter.id);
        let root = block_hash::root(&self.model, &adapter::text_of(adapter), &request.cache_salt);
        let grammar_fingerprint = request.sampling.grammar.as_ref().map_or(0, |grammar| grammar.fingerprint);
        let job = Job::new(root, &request.prompt, delivered, &block_sizes, demand);
        let explained = request.receipts.is_some();
        let (version, picked) = (request.version, request.picked_worker.clone());
        Job { grammar_fingerprint, version, adapter, picked, explained, ..job }
    }

    /// Admits a request or refuses it, and places it at the worker that admission counted on, under one lock,
    /// so that nothing changes in between.
    ///
    /// The place is `None` if the stream already runs at some worker, no worker is ready, or nothing is left
    /// to generate.
    pub(crate) fn admit(
        self: &Arc<Self>,
        arrival: &Arrival<'_>,
        admission: &Admission,
    ) -> Result<(Permit, Option<Place>), Refusal> {
        let now = clock::now();
        let Arrival { job, stream_key, resumes, waits, time_left, without, ticket } = *arrival;
        let State { fleet, clients, rng } = &mut *self.lock();
        let is_behind = waits && ticket.is_some_and(|ticket| self.seats.is_behind(ticket));
        let pick = if is_behind { None } else { fleet.choose(now, job, without, rng) };
        let is_running = fleet.find_stream(now, stream_key, job.version).is_some();
        // A worker was ready before, so it is probably restarting.
        let waits = waits && fleet.was_ready(now);
        // A client with part of its answer is not refused, nor one whose stream already runs.
        if pick.is_none() && !resumes && !is_running && !waits {
            return Err(if fleet.is_full(now, job.version) { all_full() } else { none_ready(fleet) });
        }
        let hit_tokens = pick.as_ref().map_or(0, |pick| pick.hit_tokens);
        let uncached = u64::from(job.demand.prompt_tokens.saturating_sub(hit_tokens));
        let predicted = pick.as_ref().filter(|_| fleet.has_measured());
        let permit = admission.admit(Candidate {
            tokens: uncached + u64::from(job.demand.expected_output_tokens),
            first_token_after: predicted.map(Pick::first_token_not_before),
            prefill_takes: predicted.map(|pick| pick.prefill_takes),
            time_left,
        })?;
        let place = pick.filter(|_| !is_running && job.demand.sequences > 0).and_then(|pick| {
            let client = clients.get(&pick.worker)?.clone();
            let (name, receipt) = (fleet.name(pick.worker), job.explained.then(|| fleet.explain(job, &pick)));
            let place = self.placed(fleet.place(now, job, &pick)?, client, name, Some(pick));
            Some(Place { receipt, ..place })
        });
        Ok((permit, place))
    }

    /// Chooses a worker and records the placement in its ledger.
    pub(crate) fn place(self: &Arc<Self>, job: &Job, without: &[WorkerId]) -> Option<Place> {
        let now = clock::now();
        let State { fleet, clients, rng } = &mut *self.lock();
        let pick = fleet.choose(now, job, without, rng)?;
        let client = clients.get(&pick.worker)?.clone();
        let (name, receipt) = (fleet.name(pick.worker), job.explained.then(|| fleet.explain(job, &pick)));
        let place = self.placed(fleet.place(now, job, &pick)?, client, name, Some(pick));
        Some(Place { receipt, ..place })
    }

    /// The worker to attach to: the one whose stream broke, if only the connection may have failed, else the
    /// one of this version that last reported the stream.
    pub(crate) fn holder(
        self: &Arc<Self>,
        key: StreamKey,
        version: Version,
        broken: Option<WorkerEpoch>,
    ) -> Option<Place> {
        let now = clock::now();
        let State { fleet, clients, .. } = &mut *self.lock();
        let at = broken
            .filter(|&at| !self.linger.is_zero() && fleet.may_have_kept(now, at))
            .or_else(|| fleet.find_stream(now, key, version))?;
        let client = clients.get(&at.worker)?.clone();
        Some(self.placed(WorkerPlacement::outside_ledger(at), client, fleet.name(at.worker), None))
    }

    pub(crate) fn none_ready(&self) -> Refusal {
        self.with_fleet(|fleet| none_ready(fleet))
    }

    fn placed(
        self: &Arc<Self>,
        placement: WorkerPlacement,
        client: WorkerClient,
        name: Option<Arc<str>>,
        pick: Option<Pick>,
    ) -> Place {
        Place { placed: Placed { workers: self.clone(), placement }, client, name, pick, receipt: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        super::tests::count_lock();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn all_full() -> Refusal {
    Refusal::Overloaded { reason: "every worker is full".to_owned(), retry_after: RETRY_WHEN_NONE_READY }
}

fn none_ready(fleet: &Fleet) -> Refusal {
    // Limited, because a big fleet that is all down repeats the same state.
    let states = fleet.states(clock::now()).take(4);
    let states: Vec<String> = states.map(|state| format!("one is {state}")).collect();
    let reason = if states.is_empty() { "none has joined".to_owned() } else { states.join(", ") };
    Refusal::NoReadyWorker { reason, retry_after: RETRY_WHEN_NONE_READY }
}

fn log(notice: &Notice) {
    match notice {
        Notice::Version(worker, version) => {
            tracing::info!(
                worker,
                %version,
                "this worker serves another version of the model than the others; a request stays on the version that it \
                 began on"
            );
        }
        Notice::NotUsed(worker, reason) => tracing::warn!(worker, "worker not used: {reason}"),
        Notice::OtherGrammars(worker) => tracing::warn!(
            worker,
            "this worker cannot constrain answers (response_format, tools, guided_*): its release or its tokenizer is not \
             this router's; give both the same tokenizer.json byte for byte, or the same GGUF file"
        ),
        Notice::Lost(worker, loss) => {
            let why = match loss {
                Loss::Unreachable => "it cannot be reached",
                Loss::Silent => "it is connected, but reports nothing",
                Loss::Stuck => "it has requests, but its engine makes no progress",
            };
            tracing::warn!(worker, "worker is lost: {why}");
        }
        Notice::Left(worker) => tracing::info!(worker, "worker has left after it drained"),
        Notice::OutOfStep(worker, desync) => {
            tracing::debug!(worker = worker.0, %desync, "asking for a snapshot of the worker's cache");
        }
    }
}
