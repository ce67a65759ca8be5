//! The workers as requests and links share them: the fleet behind its lock, and the connection to each worker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rand::rngs::StdRng;
use skein_node::clock;
use skein_node::signal::{Listener, Signal};
use skein_proto::TokenId;
use skein_proto::block_hash;
use skein_proto::stream_key::StreamKey;

use super::errands::Errands;
use super::transport::Connector;
use super::worker_client::WorkerClient;
use crate::admission::{Admission, Ask, Permit};
use crate::fleet::policy::Demand;
use crate::fleet::{self, Action, Fleet, Job, Notice, Placement, WorkerEpoch, WorkerId};
use crate::refusal::Refusal;
use crate::request::TokenRequest;

/// What a client is told to wait when no worker is ready.
const RETRY_WHEN_NOBODY_READY: Duration = Duration::from_secs(1);

/// What links and requests share.
pub(crate) struct Workers {
    state: Mutex<State>,
    /// The fleet's block sizes. They have a lock of their own because a request is hashed before it asks the fleet.
    block_sizes: RwLock<Arc<[u32]>>,
    changes: Signal,
    rechecks: Signal,
    attempts: AtomicU64,
    model: String,
    /// How long a stream goes on without a reader.
    pub(crate) linger: Duration,
    pub(crate) router_id: u64,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) errands: Errands,
}

/// Held for microseconds, never across a wait.
struct State {
    fleet: Fleet,
    clients: BTreeMap<WorkerId, WorkerClient>,
    rng: StdRng,
}

/// A request that asks to be let in.
pub(crate) struct Arrival<'a> {
    pub job: &'a Job,
    pub stream_key: StreamKey,
    /// Its client has part of the answer already.
    pub resumes: bool,
    /// What its client still waits.
    pub time_left: Option<Duration>,
}

/// An entry in a worker's account, and the way to that worker. The entry is struck out when dropped.
pub(crate) struct Place {
    pub placed: Placed,
    pub client: WorkerClient,
}

/// A placement's entry in the worker's account, struck out when dropped.
pub(crate) struct Placed {
    workers: Arc<Workers>,
    pub placement: Placement,
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.workers.with_fleet(|fleet| fleet.ended(self.placement));
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
            changes: Signal::default(),
            rechecks: Signal::default(),
            attempts: AtomicU64::new(0),
            model: model.to_owned(),
            linger,
            connector,
            errands,
        }
    }

    /// Tells the fleet what happened. Wakes requests that wait for a worker if one takes requests now, and streams whose
    /// worker may be lost.
    pub(crate) fn handle(&self, event: fleet::Event) -> Vec<Action> {
        let connected = matches!(event, fleet::Event::Connected(..));
        let actions = self.with_fleet(|fleet| {
            let actions = fleet.handle(clock::now(), event);
            if connected || actions.iter().any(|action| matches!(action, Action::Unfollow(_))) {
                *self.block_sizes.write().unwrap_or_else(PoisonError::into_inner) =
                    fleet.block_sizes().into();
            }
            actions
        });
        if actions.contains(&Action::Wake) {
            self.changes.send();
        }
        if actions.iter().any(|action| matches!(action, Action::Recheck(_))) {
            self.rechecks.send();
        }
        for action in &actions {
            if let Action::Log(notice) = action {
                log(notice);
            }
        }
        actions
    }

    pub(crate) fn with_fleet<T>(&self, look: impl FnOnce(&mut Fleet) -> T) -> T {
        look(&mut self.lock().fleet)
    }

    /// Keeps a worker's connection, unless the worker has left.
    pub(crate) fn connect(&self, worker: WorkerId, client: WorkerClient) {
        let State { fleet, clients, .. } = &mut *self.lock();
        if fleet.has(worker) {
            clients.insert(worker, client);
        }
    }

    pub(crate) fn has(&self, worker: WorkerId) -> bool {
        self.with_fleet(|fleet| fleet.has(worker))
    }

    pub(crate) fn disconnect(&self, worker: WorkerId) {
        self.lock().clients.remove(&worker);
    }

    pub(crate) fn watch_from(&self, worker: WorkerId) -> (u64, u64) {
        self.with_fleet(|fleet| fleet.watch_from(worker))
    }

    pub(crate) fn fleet_changes(&self) -> Listener {
        self.changes.subscribe()
    }

    /// Changes when streams should ask whether their worker is lost or drains.
    pub(crate) fn rechecks(&self) -> Listener {
        self.rechecks.subscribe()
    }

    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// What is left of a request as work for the fleet: `sequences` samples, of which the longest has `delivered`.
    /// Hashes without the fleet's lock.
    pub(crate) fn job(&self, request: &TokenRequest, delivered: &[TokenId], sequences: u32) -> Job {
        let block_sizes = self.block_sizes.read().unwrap_or_else(PoisonError::into_inner).clone();
        let output_tokens_left = request.sampling.max_tokens.saturating_sub(delivered.len() as u32);
        let demand = Demand::new(request.prompt.len() + delivered.len(), output_tokens_left, sequences);
        let root = block_hash::root(&self.model, "", &request.cache_salt);
        Job::new(root, &request.prompt, delivered, &block_sizes, demand)
    }

    /// Lets a request in, or refuses it, and enters it into the account of the worker that admission counted on: under one
    /// lock, so that nothing changes in between.
    ///
    /// `None` in place of a place: its stream is somewhere already, or no worker takes requests now, or there is nothing
    /// left to compute.
    pub(crate) fn admit(
        self: &Arc<Self>,
        arrival: &Arrival<'_>,
        admission: &Admission,
    ) -> Result<(Permit, Option<Place>), Refusal> {
        let now = clock::now();
        let Arrival { job, stream_key, resumes, time_left } = *arrival;
        let State { fleet, clients, rng } = &mut *self.lock();
        let pick = fleet.choose(now, job, &[], rng);
        let is_somewhere = fleet.find_stream(now, stream_key).is_some();
        // A client that has part of its answer is not sent away, nor one whose stream only has to be read on.
        if pick.is_none() && !resumes && !is_somewhere {
            return Err(nobody_ready(fleet));
        }
        let hit_tokens = pick.as_ref().map_or(0, |pick| pick.hit_tokens);
        let uncached = u64::from(job.demand.prompt_tokens.saturating_sub(hit_tokens));
        let permit = admission.admit(Ask {
            tokens: uncached + u64::from(job.demand.expected_output_tokens),
            first_token_after: pick
                .as_ref()
                .filter(|_| fleet.has_measured())
                .map(|pick| pick.first_token_after),
            time_left,
        })?;
        let place = pick.filter(|_| !is_somewhere && job.demand.sequences > 0).and_then(|pick| {
            let client = clients.get(&pick.worker)?.clone();
            Some(self.placed(fleet.place(now, job, &pick)?, client))
        });
        Ok((permit, place))
    }

    /// Chooses a worker and enters the job into its account.
    pub(crate) fn place(self: &Arc<Self>, job: &Job, without: &[WorkerId]) -> Option<Place> {
        let now = clock::now();
        let State { fleet, clients, rng } = &mut *self.lock();
        let pick = fleet.choose(now, job, without, rng)?;
        let client = clients.get(&pick.worker)?.clone();
        Some(self.placed(fleet.place(now, job, &pick)?, client))
    }

    /// Who may have a stream: the worker it broke on, if perhaps only the connection broke, else whoever says so.
    pub(crate) fn holder(self: &Arc<Self>, key: StreamKey, broken: Option<WorkerEpoch>) -> Option<Place> {
        let now = clock::now();
        let State { fleet, clients, .. } = &mut *self.lock();
        let at = broken
            .filter(|&at| !self.linger.is_zero() && fleet.may_have_kept(now, at))
            .or_else(|| fleet.find_stream(now, key))?;
        Some(self.placed(Placement::nothing(at), clients.get(&at.worker)?.clone()))
    }

    pub(crate) fn nobody_ready(&self) -> Refusal {
        self.with_fleet(|fleet| nobody_ready(fleet))
    }

    fn placed(self: &Arc<Self>, placement: Placement, client: WorkerClient) -> Place {
        Place { placed: Placed { workers: self.clone(), placement }, client }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        super::tests::count_lock();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nobody_ready(fleet: &Fleet) -> Refusal {
    // A big fleet that is all down says the same thing many times.
    let workers = fleet.status(clock::now()).into_iter().take(4);
    let states: Vec<String> = workers.map(|worker| format!("one is {}", worker.state())).collect();
    let reason = if states.is_empty() { "none has joined".to_owned() } else { states.join(", ") };
    Refusal::NoReadyWorker { reason, retry_after: RETRY_WHEN_NOBODY_READY }
}

fn log(notice: &Notice) {
    match notice {
        Notice::NotUsed(worker, reason) => tracing::warn!(worker, "worker not used: {reason}"),
        Notice::Lost(worker) => {
            tracing::warn!(worker, "worker is lost: silent, or its engine stands still");
        }
        Notice::OutOfStep(worker, desync) => {
            tracing::debug!(worker = worker.0, %desync, "asking for a snapshot of the worker's cache");
        }
    }
}
