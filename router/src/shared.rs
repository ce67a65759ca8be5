//! What the links to workers and the requests under way share: the fleet behind a lock, the bounds, the ids in use.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use skein_node::clock::{self, Timestamp};
use skein_node::signal::{Listener, Signal};

use crate::admission::{Admission, Ask};
use crate::config::RouterConfig;
use crate::fleet::{self, Action, Fleet, Job, Placement};
use crate::policy::{Demand, EXPECTED_OUTPUT_TOKENS};
use crate::prefix_index::{DEFAULT_MAX_BYTES, WorkerId};
use crate::refusal::Refusal;
use crate::request::{TokenId, TokenRequest};
use crate::transport::Connector;
use crate::worker_client::WorkerClient;

/// What a client is told to wait when no worker is ready.
const RETRY_WHEN_NOBODY_READY: Duration = Duration::from_secs(1);

/// What nobody but a test sets.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// A worker whose step counter stands still this long, with work to do, is stuck; longer where its measured
    /// rates say that one step may take longer.
    pub wedge_after: Duration,
    /// Memory that the prefix index may take.
    pub max_index_bytes: usize,
    /// Seed of the policy's ties; `None` = random, so that routers differ.
    pub seed: Option<u64>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { wedge_after: Duration::from_secs(5), max_index_bytes: DEFAULT_MAX_BYTES, seed: None }
    }
}

/// What links and requests share.
pub(crate) struct Shared {
    state: Mutex<State>,
    changes: Signal,
    pub(crate) admission: Admission,
    pub(crate) running_ids: Arc<Mutex<HashSet<String>>>,
    attempts: AtomicU64,
    model: String,
    pub(crate) migration_limit: u32,
    pub(crate) router_id: u64,
    pub(crate) tuning: Tuning,
    pub(crate) connector: Arc<dyn Connector>,
}

/// Held for microseconds, never across a wait.
struct State {
    fleet: Fleet,
    clients: BTreeMap<WorkerId, WorkerClient>,
    rng: StdRng,
}

impl Shared {
    pub(crate) fn new(
        config: &RouterConfig,
        model: &str,
        tuning: Tuning,
        router_id: u64,
        fleet: Fleet,
        rng: StdRng,
        connector: Arc<dyn Connector>,
    ) -> Self {
        Self {
            state: Mutex::new(State { fleet, clients: BTreeMap::new(), rng }),
            changes: Signal::default(),
            admission: Admission::new(config.admission.clone()),
            running_ids: Arc::default(),
            attempts: AtomicU64::new(0),
            model: model.to_owned(),
            migration_limit: config.migration_limit,
            router_id,
            tuning,
            connector,
        }
    }

    /// Tells the fleet what happened, and wakes requests that wait for a worker if one may be had now.
    pub(crate) fn handle(&self, event: fleet::Event) -> Vec<Action> {
        let actions = self.with_fleet(|fleet| fleet.handle(clock::now(), event));
        if actions.contains(&Action::Wake) {
            self.changes.send();
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

    pub(crate) fn disconnect(&self, worker: WorkerId) {
        self.lock().clients.remove(&worker);
    }

    pub(crate) fn watch_from(&self, worker: WorkerId) -> (u64, u64) {
        self.with_fleet(|fleet| fleet.watch_from(worker))
    }

    pub(crate) fn fleet_changes(&self) -> Listener {
        self.changes.subscribe()
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

    pub(crate) fn ask(&self, request: &TokenRequest, time_left: Option<Duration>) -> Result<Ask, Refusal> {
        let sampling = &request.sampling;
        let prompt_logprobs = sampling.prompt_logprobs.is_some();
        let job = self.job(request, &request.prompt, sampling.max_tokens, request.n, prompt_logprobs);
        let State { fleet, rng, .. } = &mut *self.lock();
        let pick = fleet.choose(clock::now(), &job, &[], rng);
        let measured = fleet.has_measured();
        let Some(pick) = pick else { return Err(nobody_ready(fleet)) };
        let uncached = u64::from(job.demand.prompt_tokens.saturating_sub(pick.hit_tokens));
        Ok(Ask {
            tokens: uncached + u64::from(job.demand.expected_output_tokens),
            first_token_after: measured.then_some(pick.first_token_after),
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

/// A running request's id; another request with it is refused meanwhile.
#[derive(Debug)]
pub(crate) struct Claim {
    id: String,
    running_ids: Arc<Mutex<HashSet<String>>>,
}

impl Claim {
    pub(crate) fn new(running_ids: &Arc<Mutex<HashSet<String>>>, id: &str) -> Result<Self, Refusal> {
        let mut running = running_ids.lock().unwrap_or_else(PoisonError::into_inner);
        if !running.insert(id.to_owned()) {
            return Err(Refusal::DuplicateId(id.to_owned()));
        }
        Ok(Self { id: id.to_owned(), running_ids: running_ids.clone() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.running_ids.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Waits until `deadline`; for ever without one.
pub(crate) async fn until(deadline: Option<Timestamp>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
