//! The cluster as the APIs see it: requests go in, tokens come out, whatever happens to the workers. Connects
//! fleet, admission and dispatch, and makes no decisions itself.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use skein_choice::fleet::capacity::Capacity;
use skein_choice::fleet::{Fleet, HealthLimits, KnownAdapters, NewRequests, WorkerStatus};
use skein_choice::limits::ModelLimits;
use skein_choice::prefix_index::PrefixIndex;
use skein_node::discovery::{Change, Member};
use skein_node::{clock, random, task};
use skein_proto::adapter::{AdapterId, AdapterRecord};
use skein_proto::pooling::PooledModel;
use skein_proto::totals::Total;
use skein_proto::version::Version;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::admission::{Admission, Rejections, Running};
use crate::config::{RecoveryConfig, RouterConfig};
use crate::dispatch::claims::RunningIds;
use crate::dispatch::delivery;
use crate::dispatch::driver::{Driver, NewRequest};
use crate::generator::{Adapters, FleetView, Generator, TokenSource};
use crate::links::adapters;
use crate::links::drains;
use crate::links::errands::{self, Errands};
use crate::links::follow;
use crate::links::moves::LatestMoves;
use crate::links::picks::{Endpoints, Picked};
use crate::links::transport::{Connector, Grpc};
use crate::links::workers::Workers;
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

/// A cluster of workers that serve one model. Cheap to clone; its links close with the last clone.
#[derive(Clone)]
pub struct Cluster {
    workers: Arc<Workers>,
    admission: Admission,
    running: RunningIds,
    limits: delivery::Limits,
    _tasks: Arc<EndOnDrop>,
}

/// Settings for tests only.
#[derive(Debug, Clone, Default)]
pub struct Tuning {
    /// Seed of the policy's tie-breaks and of the router's id; `None` = random, so that routers differ.
    pub seed: Option<u64>,
}

/// State of the cluster, for people.
#[derive(Debug, Clone)]
pub struct ClusterState {
    /// The workers, in the order in which they joined.
    pub workers: Vec<WorkerStatus>,
    /// The admitted requests.
    pub running: Running,
}

impl Cluster {
    /// Starts to follow `changes`. `model_name`, the first served name, is what workers must serve. Must be
    /// called within a tokio runtime.
    pub fn start(config: &RouterConfig, changes: mpsc::Receiver<Change>, model_name: &str) -> Self {
        Self::start_with(config, changes, model_name, Tuning::default(), Arc::new(Grpc::default()))
    }

    /// [`Cluster::start`] with a seed and another transport, for tests.
    pub fn start_with(
        config: &RouterConfig,
        changes: mpsc::Receiver<Change>,
        model_name: &str,
        tuning: Tuning,
        connector: Arc<dyn Connector>,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(tuning.seed.unwrap_or_else(random::seed));
        let router_id = rng.next_u64();
        let RecoveryConfig { worker_timeout, wedge_timeout, max_index_bytes, queue_timeout, stream_linger } =
            config.recovery;
        let limits = HealthLimits { worker_timeout, wedge_timeout };
        let fleet = Fleet::new(model_name, router_id, limits, PrefixIndex::new(max_index_bytes));
        let fleet = fleet.with_policy(config.policy);
        let (errands, to_run) = Errands::new();
        let workers = Arc::new(Workers::new(model_name, fleet, rng, connector, errands, stream_linger));
        let tasks = [
            task::spawn(follow::follow_members(workers.clone(), changes)),
            task::spawn(adapters::follow_changes(workers.clone())),
            task::spawn(follow::tick(workers.clone())),
            task::spawn(errands::run(to_run)),
        ];
        Self {
            workers,
            admission: Admission::new(config.admission.clone()),
            running: RunningIds::default(),
            limits: delivery::Limits { migration_limit: config.migration_limit, queue_timeout },
            _tasks: Arc::new(EndOnDrop(tasks)),
        }
    }

    /// Admits, places and starts a request. On an error nothing was started.
    pub async fn submit(&self, request: TokenRequest) -> Result<TokenStream, Refusal> {
        if request.deadline.is_some_and(|deadline| deadline.since(clock::now()).is_zero()) {
            return Err(Refusal::DeadlineExceeded { timeout: Duration::ZERO });
        }
        self.check_grammar(&request)?;
        let stream_key = request.stream_key();
        let claim = self.running.claim(&request.tenant, &request.id, stream_key)?;
        let (aborts, aborts_in) = mpsc::channel(request.n.max(1) as usize);
        let new = NewRequest { request, stream_key, claim, aborts: aborts_in };
        let mut driver = Driver::admit(&self.workers, &self.admission, self.limits, new)?;
        driver.start().await?;
        let (journey, worker) = (driver.journey(), driver.worker());
        // Not `unfold`, which keeps room for the driver in its state and again in its future.
        let deltas = async_stream::stream! {
            while let Some(delta) = driver.next().await {
                yield delta;
            }
        };
        Ok(TokenStream { deltas: Box::pin(deltas), journey, worker, aborts, aborted: HashSet::new() })
    }

    /// Refuses a grammar that no worker can apply.
    fn check_grammar(&self, request: &TokenRequest) -> Result<(), Refusal> {
        let Some(grammar) = &request.sampling.grammar else { return Ok(()) };
        let lacking =
            |fleet: &skein_choice::fleet::Fleet| fleet.lacks_grammars(clock::now(), grammar.fingerprint);
        if !self.workers.with_fleet(|fleet| lacking(fleet)) {
            return Ok(());
        }
        let message = "No worker can constrain this answer: that needs workers with this router's release and \
                       tokenizer. The router's log names those that have another.";
        Err(Refusal::invalid("response_format", message))
    }

    /// Prepares for the exit of this process: streams dropped from now on continue at their workers for a
    /// while, so that clients can resume them through another router.
    pub fn leave(&self) {
        self.workers.errands.leave();
    }

    /// Registers a callback for each lost worker, so that a supervisor can replace it. Only the first
    /// callback is kept.
    pub fn report_lost(&self, on_lost: impl Fn(Member) + Send + Sync + 'static) {
        self.workers.report_lost(Box::new(on_lost));
    }

    /// Limits that every ready worker accepts. While none is ready, the last known limits; an error if no
    /// worker was ever ready.
    pub fn model_limits(&self) -> Result<ModelLimits, Refusal> {
        let limits = self.workers.with_fleet(|fleet| fleet.limits(clock::now()));
        limits.ok_or_else(|| self.workers.none_ready())
    }

    /// Fails if no worker would accept a request now.
    pub fn ready(&self) -> Result<(), Refusal> {
        let ready = self.workers.with_fleet(|fleet| fleet.is_ready(clock::now()));
        if ready { Ok(()) } else { Err(self.workers.none_ready()) }
    }

    /// Sets the fingerprints of the router's own tokenizer.json and of its grammars: workers with another
    /// tokenizer are not used, and those with other grammars are reported. 0 = unknown.
    pub fn expect_tokenizer(&self, fingerprint: u64, grammars: u64) {
        self.workers.with_fleet(|fleet| fleet.expect_tokenizer(fingerprint, grammars));
    }

    /// Sets which version of the model gets new requests.
    pub fn set_new_requests(&self, new_requests: NewRequests) {
        self.workers.with_fleet(|fleet| fleet.set_new_requests(new_requests));
        // Requests may wait for a worker of this version.
        self.workers.fleet_changed();
    }

    /// Version of the model that new requests go to now; unknown if no worker says what it serves.
    pub fn current_version(&self) -> Version {
        self.workers.with_fleet(|fleet| fleet.current_version(clock::now()))
    }

    /// Requests that run on versions other than `version`: those that have begun, wherever they wait, and
    /// those at a worker, even without a reader.
    pub fn running_on_others_than(&self, version: Version) -> usize {
        let at_workers = self.workers.with_fleet(|fleet| fleet.running_on_others_than(version));
        self.workers.requests_by_version.on_others_than(version).max(at_workers)
    }

    /// The current state of the cluster.
    pub fn snapshot(&self) -> ClusterState {
        let workers = self.workers.with_fleet(|fleet| fleet.status(clock::now()));
        ClusterState { workers, running: self.admission.running() }
    }

    /// Waits at most `at_most` until a worker is ready.
    pub async fn wait_ready(&self, at_most: Duration) -> Result<(), Refusal> {
        let mut changes = self.workers.fleet_changes();
        let ready = async {
            while self.ready().is_err() {
                changes.changed().await;
            }
        };
        // Either way, the answer is the current state.
        let _ = tokio::time::timeout(at_most, ready).await;
        self.ready()
    }
}

impl Generator for Cluster {
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>> {
        Box::pin(async move { Ok(Box::new(Cluster::submit(self, request).await?) as Box<dyn TokenSource>) })
    }

    fn leave(&self) {
        Cluster::leave(self);
    }
}

impl FleetView for Cluster {
    fn pick(&self, request: &TokenRequest, from: &Endpoints) -> Result<Picked, Refusal> {
        Picked::now(&self.workers, &self.admission, request, from)
    }

    fn model_limits(&self) -> Result<ModelLimits, Refusal> {
        Cluster::model_limits(self)
    }

    fn pooled(&self) -> Result<Option<Arc<PooledModel>>, Refusal> {
        self.model_limits()?;
        Ok(self.workers.with_fleet(|fleet| fleet.pooled()))
    }

    fn ready(&self) -> Result<(), Refusal> {
        Cluster::ready(self)
    }

    fn capacity(&self) -> Result<Capacity, Refusal> {
        Capacity::of(&self.snapshot().workers).ok_or_else(|| self.workers.none_ready())
    }

    fn version(&self) -> Version {
        self.current_version()
    }

    fn workers(&self) -> Vec<WorkerStatus> {
        self.workers.with_fleet(|fleet| fleet.status(clock::now()))
    }

    fn totals(&self) -> Vec<Total> {
        self.workers.totals.sums()
    }

    fn running(&self) -> Running {
        self.admission.running()
    }

    fn rejections(&self) -> Rejections {
        self.admission.rejections()
    }

    fn moves(&self) -> LatestMoves {
        self.workers.moves.latest()
    }

    fn drain<'a>(&'a self, worker: &'a str, on: bool) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(drains::drain(&self.workers, worker, on))
    }
}

impl Adapters for Cluster {
    fn known(&self) -> Arc<KnownAdapters> {
        self.workers.adapters()
    }

    fn load<'a>(&'a self, name: &'a str, path: &'a str) -> BoxFuture<'a, Result<AdapterId, Refusal>> {
        Box::pin(adapters::load(&self.workers, name, path))
    }

    fn unload<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(adapters::unload(&self.workers, name))
    }

    fn records(&self) -> Vec<AdapterRecord> {
        self.workers.adapter_changes.lock().all()
    }

    fn check<'a>(&'a self, name: &'a str, path: &'a str) -> BoxFuture<'a, Result<AdapterId, Refusal>> {
        Box::pin(adapters::check(&self.workers, name, path))
    }

    fn change(&self, record: AdapterRecord, is_repeated: bool) -> BoxFuture<'_, Result<bool, Refusal>> {
        Box::pin(async move {
            let changed = adapters::apply(&self.workers, record, is_repeated).await;
            changed.map_err(|error| Refusal::invalid("lora_name", error.to_string()))
        })
    }
}

/// The tokens of one request. Dropping it cancels the request.
pub struct TokenStream {
    deltas: BoxStream<'static, Result<TokenDelta, Refusal>>,
    journey: Arc<Mutex<Journey>>,
    worker: Arc<Mutex<Option<Arc<str>>>>,
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
            // There is room for every sample once. The channel can be full only for an invalid index, which
            // is ignored.
            let _ = self.aborts.try_send(sample_index);
        }
    }

    fn worker(&self) -> Option<Arc<str>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn journey(&self) -> Journey {
        *self.journey.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct EndOnDrop([JoinHandle<()>; 4]);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
