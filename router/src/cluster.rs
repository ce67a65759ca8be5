//! The cluster as the edges see it: requests go in, tokens come out, whatever happens to the workers meanwhile.
//! It ties fleet, admission and dispatch together and decides nothing itself.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use skein_node::clock::{self, Timestamp};
use skein_node::discovery::Change;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::admission::{Admission, Ask, Running};
use crate::config::RouterConfig;
use crate::dispatch::driver::{self, Driver};
use crate::fleet::{self, Action, Fleet, Job, Placement, WorkerStatus, link};
use crate::generator::{Generator, ModelLimits, TokenSource};
use crate::prefix_index::{DEFAULT_MAX_BYTES, PrefixIndex, WorkerId};
use crate::refusal::Refusal;
use crate::request::{TokenDelta, TokenId, TokenRequest};
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

/// A cluster of workers of one model. Cheap to clone; its links end with the last clone.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
    _links: Arc<EndOnDrop>,
}

/// How the cluster stands, for people.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The workers, in the order they joined.
    pub workers: Vec<WorkerStatus>,
    /// What is let in.
    pub running: Running,
}

impl Cluster {
    /// Starts to follow `changes`. `model_name` is what workers must serve (the first served model name).
    /// Call it within a tokio runtime.
    pub fn start(config: &RouterConfig, changes: mpsc::Receiver<Change>, model_name: &str) -> Self {
        Self::start_with(config, changes, model_name, Tuning::default())
    }

    /// [`Cluster::start`] with other inner limits.
    pub fn start_with(
        config: &RouterConfig,
        changes: mpsc::Receiver<Change>,
        model_name: &str,
        tuning: Tuning,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(tuning.seed.unwrap_or_else(random_seed));
        let router_id = rng.next_u64();
        let index = PrefixIndex::new(tuning.max_index_bytes);
        let fleet = Fleet::new(model_name, router_id, tuning.wedge_after, index);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { fleet, clients: HashMap::new(), rng }),
            changes: watch::Sender::new(()),
            admission: Admission::new(config.admission.clone()),
            running_ids: Arc::default(),
            attempts: AtomicU64::new(0),
            model: model_name.to_owned(),
            migration_limit: config.migration_limit,
            router_id,
            tuning,
        });
        let links = tokio::spawn(link::follow_members(shared.clone(), changes));
        Self { shared, _links: Arc::new(EndOnDrop(links)) }
    }

    /// Admits, places and starts a request. An error means that nothing was started.
    pub async fn submit(&self, request: TokenRequest) -> Result<TokenStream, Refusal> {
        let now = clock::now();
        let shared = &self.shared;
        let time_left = request.deadline.map(|deadline| deadline.since(now));
        if time_left.is_some_and(|left| left.is_zero()) {
            return Err(Refusal::DeadlineExceeded { timeout: Duration::ZERO });
        }
        let claim = Claim::new(&shared.running_ids, &request.id)?;
        let permit = shared.admission.admit(shared.ask(&request, time_left)?)?;
        let (aborts, wanted) = mpsc::channel(request.n.max(1) as usize);
        let mut driver = Driver::new(shared.clone(), request, wanted, permit, claim);
        driver.start().await?;
        let deltas = futures::stream::unfold(driver, async |mut driver| Some((driver.next().await?, driver)));
        Ok(TokenStream { deltas: Box::pin(deltas), aborts, aborted: HashSet::new() })
    }

    /// What every ready worker can take.
    pub fn model_limits(&self) -> Result<ModelLimits, Refusal> {
        let limits = self.shared.with_fleet(|fleet| fleet.limits(clock::now()));
        limits.ok_or_else(|| self.shared.nobody_ready())
    }

    /// Whether a request would find a worker now.
    pub fn ready(&self) -> Result<(), Refusal> {
        let ready = self.shared.with_fleet(|fleet| fleet.is_ready(clock::now()));
        if ready { Ok(()) } else { Err(self.shared.nobody_ready()) }
    }

    /// How the cluster stands.
    pub fn snapshot(&self) -> Snapshot {
        let workers = self.shared.with_fleet(|fleet| fleet.status(clock::now()));
        Snapshot { workers, running: self.shared.admission.running() }
    }

    /// Waits until a worker takes requests, for `at_most` that long.
    pub async fn wait_ready(&self, at_most: Duration) -> Result<(), Refusal> {
        let mut changes = self.shared.fleet_changes();
        let ready = async { while self.ready().is_err() && changes.changed().await.is_ok() {} };
        // Whichever came first, the answer is how it stands now.
        let _ = tokio::time::timeout(at_most, ready).await;
        self.ready()
    }
}

impl Generator for Cluster {
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>> {
        Box::pin(async move { Ok(Box::new(Cluster::submit(self, request).await?) as Box<dyn TokenSource>) })
    }

    fn model_limits(&self) -> Result<ModelLimits, Refusal> {
        Cluster::model_limits(self)
    }

    fn ready(&self) -> Result<(), Refusal> {
        Cluster::ready(self)
    }
}

/// One request's tokens. Dropping it cancels the request.
pub struct TokenStream {
    deltas: BoxStream<'static, Result<TokenDelta, Refusal>>,
    aborts: mpsc::Sender<u32>,
    aborted: HashSet<u32>,
}

impl Stream for TokenStream {
    type Item = Result<TokenDelta, Refusal>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.deltas.as_mut().poll_next(context)
    }
}

impl TokenSource for TokenStream {
    fn abort_sample(&mut self, sample_index: u32) {
        if self.aborted.insert(sample_index) {
            // The channel has room for every sample once; an index beyond them may find it full, and means nothing.
            let _ = self.aborts.try_send(sample_index);
        }
    }
}

/// What links and requests share.
pub(crate) struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
    admission: Admission,
    running_ids: Arc<Mutex<HashSet<String>>>,
    attempts: AtomicU64,
    model: String,
    pub(crate) migration_limit: u32,
    pub(crate) router_id: u64,
    pub(crate) tuning: Tuning,
}

/// Held for microseconds, never across a wait.
struct State {
    fleet: Fleet,
    clients: HashMap<WorkerId, WorkerClient>,
    rng: StdRng,
}

impl Shared {
    /// Tells the fleet what happened, and wakes requests that wait for a worker if one may be had now.
    pub(crate) fn handle(&self, event: fleet::Event) -> Vec<Action> {
        let actions = self.with_fleet(|fleet| fleet.handle(clock::now(), event));
        if actions.contains(&Action::Wake) {
            self.changes.send_replace(());
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

    pub(crate) fn fleet_changes(&self) -> watch::Receiver<()> {
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
        let demand = driver::demand(tokens.len(), output_tokens_left, sequences);
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

    fn ask(&self, request: &TokenRequest, time_left: Option<Duration>) -> Result<Ask, Refusal> {
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

    fn nobody_ready(&self) -> Refusal {
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

/// The standard library seeds each hasher from the operating system: randomness enough for ties and for the
/// router's id, without another dependency.
fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A running request's id; another request with it is refused meanwhile.
#[derive(Debug)]
pub(crate) struct Claim {
    id: String,
    running_ids: Arc<Mutex<HashSet<String>>>,
}

impl Claim {
    fn new(running_ids: &Arc<Mutex<HashSet<String>>>, id: &str) -> Result<Self, Refusal> {
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

struct EndOnDrop(JoinHandle<()>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits until `deadline`; for ever without one.
pub(crate) async fn until(deadline: Option<Timestamp>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
