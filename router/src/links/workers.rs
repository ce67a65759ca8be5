//! What the links to workers and the requests under way share: the fleet behind a lock, the bounds, the ids in use.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use skein_node::clock::{self, Timestamp};
use skein_node::signal::{Listener, Signal};

use super::errands::Errands;
use super::transport::Connector;
use super::worker_client::WorkerClient;
use crate::admission::{Admission, Ask};
use crate::claims::RunningIds;
use crate::config::{RecoveryConfig, RouterConfig};
use crate::dispatch::delivery;
use crate::fleet::policy::{Demand, EXPECTED_OUTPUT_TOKENS};
use crate::fleet::{self, Action, Fleet, Job, Placement, WorkerId};
use crate::refusal::Refusal;
use crate::request::{StreamKey, TokenId, TokenRequest};

/// What a client is told to wait when no worker is ready.
const RETRY_WHEN_NOBODY_READY: Duration = Duration::from_secs(1);

/// What nobody but a test sets.
#[derive(Debug, Clone, Default)]
pub struct Tuning {
    /// Seed of the policy's ties and of the router's id; `None` = random, so that routers differ.
    pub seed: Option<u64>,
}

/// What links and requests share.
pub(crate) struct Workers {
    state: Mutex<State>,
    changes: Signal,
    losses: Signal,
    pub(crate) admission: Admission,
    pub(crate) running: RunningIds,
    attempts: AtomicU64,
    model: String,
    pub(crate) delivery_limits: delivery::Limits,
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

impl Workers {
    pub(crate) fn new(
        config: &RouterConfig,
        model: &str,
        fleet: Fleet,
        rng: StdRng,
        connector: Arc<dyn Connector>,
        errands: Errands,
    ) -> Self {
        let RecoveryConfig { stream_linger, patience, .. } = config.recovery;
        Self {
            router_id: fleet.router_id(),
            state: Mutex::new(State { fleet, clients: BTreeMap::new(), rng }),
            changes: Signal::default(),
            losses: Signal::default(),
            admission: Admission::new(config.admission.clone()),
            running: RunningIds::default(),
            attempts: AtomicU64::new(0),
            model: model.to_owned(),
            delivery_limits: delivery::Limits { migration_limit: config.migration_limit, patience },
            linger: stream_linger,
            connector,
            errands,
        }
    }

    /// Tells the fleet what happened, and wakes requests that wait for a worker if one may be had now, and those whose
    /// worker may be lost.
    pub(crate) fn handle(&self, event: fleet::Event) -> Vec<Action> {
        let actions = self.with_fleet(|fleet| fleet.handle(clock::now(), event));
        if actions.contains(&Action::Wake) {
            self.changes.send();
        }
        if actions.iter().any(|action| matches!(action, Action::Lost(_))) {
            self.losses.send();
        }
        actions
    }

    pub(crate) fn with_fleet<T>(&self, look: impl FnOnce(&mut Fleet) -> T) -> T {
        look(&mut self.lock().fleet)
    }

    /// Keeps a worker's connection, unless it has left meanwhile.
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

    /// Changes when a worker is lost.
    pub(crate) fn losses(&self) -> Listener {
        self.losses.subscribe()
    }

    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// What is left of a request as work for the fleet. Hashing happens outside the lock.
    pub(crate) fn job(
        &self,
        request: &TokenRequest,
        tokens: &[TokenId],
        output_tokens_left: u32,
        sequences: u32,
        prompt_logprobs: bool,
    ) -> Job {
        let block_sizes = self.with_fleet(|fleet| fleet.block_sizes());
        let demand = demand(tokens.len(), output_tokens_left, sequences);
        let job = Job::new(&self.model, &request.cache_salt, tokens, &block_sizes, demand);
        Job { cacheable: !prompt_logprobs, ..job }
    }

    /// Chooses a worker and enters the job into its account.
    pub(crate) fn place(&self, job: &Job, without: &[WorkerId]) -> Option<(Placement, WorkerClient)> {
        let now = clock::now();
        let State { fleet, clients, rng } = &mut *self.lock();
        let pick = fleet.choose(now, job, without, rng)?;
        let client = clients.get(&pick.worker)?.clone();
        Some((fleet.place(now, job, &pick)?, client))
    }

    /// Who may have a stream: the worker it broke on, if perhaps only the connection broke, else whoever says so.
    pub(crate) fn holder(
        &self,
        key: StreamKey,
        broken: Option<(WorkerId, u64)>,
    ) -> Option<(Placement, WorkerClient)> {
        let now = clock::now();
        let State { fleet, clients, .. } = &mut *self.lock();
        let (worker, epoch) = broken
            .filter(|&(worker, epoch)| !self.linger.is_zero() && fleet.may_have_kept(now, worker, epoch))
            .or_else(|| fleet.find_stream(now, key))?;
        Some((Placement::nothing(worker, epoch), clients.get(&worker)?.clone()))
    }

    /// What admission has to know of a request; an error when no worker could take it.
    pub(crate) fn ask(
        &self,
        request: &TokenRequest,
        stream_key: StreamKey,
        time_left: Option<Duration>,
    ) -> Result<Ask, Refusal> {
        let now = clock::now();
        let sampling = &request.sampling;
        let prompt_logprobs = sampling.prompt_logprobs.is_some();
        let job = self.job(request, &request.prompt, sampling.max_tokens, request.n, prompt_logprobs);
        let State { fleet, rng, .. } = &mut *self.lock();
        let pick = fleet.choose(now, &job, &[], rng);
        // A client that has part of its answer is not sent away, nor one whose stream only has to be read on.
        if pick.is_none() && request.resume.is_none() && fleet.find_stream(now, stream_key).is_none() {
            return Err(nobody_ready(fleet));
        }
        let measured = fleet.has_measured();
        let hit_tokens = pick.as_ref().map_or(0, |pick| pick.hit_tokens);
        let uncached = u64::from(job.demand.prompt_tokens.saturating_sub(hit_tokens));
        Ok(Ask {
            tokens: uncached + u64::from(job.demand.expected_output_tokens),
            first_token_after: pick.filter(|_| measured).map(|pick| pick.first_token_after),
            time_left,
        })
    }

    pub(crate) fn nobody_ready(&self) -> Refusal {
        self.with_fleet(|fleet| nobody_ready(fleet))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nobody_ready(fleet: &Fleet) -> Refusal {
    let mut states: Vec<String> =
        fleet.status(clock::now()).into_iter().map(|worker| format!("one is {}", worker.state)).collect();
    // A big fleet that is all down says the same thing many times.
    states.truncate(4);
    let reason = if states.is_empty() { "none has joined".to_owned() } else { states.join(", ") };
    Refusal::NoReadyWorker { reason, retry_after: RETRY_WHEN_NOBODY_READY }
}

/// What [`Demand`] a request has left.
fn demand(prompt_tokens: usize, output_tokens_left: u32, sequences: u32) -> Demand {
    let each = output_tokens_left.min(EXPECTED_OUTPUT_TOKENS);
    Demand {
        prompt_tokens: prompt_tokens as u32,
        expected_output_tokens: each.saturating_mul(sequences),
        sequences,
    }
}

/// Waits until `deadline`; for ever without one.
pub(crate) async fn until(deadline: Option<Timestamp>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
