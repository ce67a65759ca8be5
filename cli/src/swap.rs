//! Replaces the model of `skein serve` while it serves. Workers with the new version start beside the running
//! ones; once all of them are ready, new requests go to them, and the old ones run on until the last request
//! that began on them has ended. If anything fails before that, the old ones serve on.
//!
//! While generation stands still, the new ones can also take the old ones' place: the old ones end first, so
//! that memory for one version is enough, and start again if the new ones fail.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use skein_choice::fleet::{NewRequests, NotReady};
use skein_hub::Need;
use skein_model::fingerprint::fingerprint;
use skein_node::clock;
use skein_node::supervisor::{Report, Supervisor, WorkerSet, WorkerStart};
use skein_proto::version::Version;
use skein_router::app::App;
use skein_router::cluster::Cluster;
use skein_router::metrics::SwapOutcome;
use skein_router::refusal::Refusal;
use skein_router::swap::{ModelSwaps, Place, Swapped};
use skein_text::files::TextFiles;
use skein_worker::config::{LoadFormat, WorkerConfig};
use skein_worker::load;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::model::{self, ModelArgument};
use crate::probe::start_renderer;
use crate::settings::EngineSettings;
use crate::supervised::Launch;
use crate::worker::failure;

/// How long the router may take to see workers that have reported ready.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// How often the router's view of the workers is checked.
const POLL: Duration = Duration::from_millis(50);
/// How much longer than the longest request the old version is kept: streams without a reader may linger.
const LONGEST_LINGER: Duration = Duration::from_secs(300);
/// Orders that wait: one runs at a time, and others are refused.
const ORDERS_WAITING: usize = 1;

/// A request to replace the model, and where to send its result.
struct Order {
    /// Directory or name; `None` = what the command line says.
    model: Option<String>,
    place: Place,
    answer: oneshot::Sender<Result<Swapped, Refusal>>,
}

/// Takes orders to replace the model. Cheap to clone.
#[derive(Clone)]
pub struct Orders {
    sender: mpsc::Sender<Order>,
    under_way: UnderWay,
}

/// What is being done, for orders that come meanwhile.
#[derive(Clone, Default)]
struct UnderWay(Arc<Mutex<Option<String>>>);

impl UnderWay {
    fn set(&self, what: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Begins if nothing is under way.
    fn begin(&self, what: &str) -> Result<(), Refusal> {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*now {
            Some(other) => Err(Refusal::Conflict(format!("{other}. Try again after that."))),
            None => {
                *now = Some(what.to_owned());
                Ok(())
            }
        }
    }
}

impl ModelSwaps for Orders {
    fn swap(&self, model: Option<String>, place: Place) -> BoxFuture<'_, Result<Swapped, Refusal>> {
        Box::pin(async move {
            self.under_way.begin("A new version of the model is being loaded")?;
            let (answer, answered) = oneshot::channel();
            // Both fail only at the end of this process.
            self.sender.send(Order { model, place, answer }).await.map_err(|_| Refusal::Draining)?;
            answered.await.map_err(|_| Refusal::Draining)?
        })
    }
}

/// The files of a model that serves.
#[derive(Debug, Clone, Copy)]
struct Files {
    fingerprint: u64,
    /// Planned memory of its workers; 0 = not planned, as on a GPU.
    planned_bytes: u64,
}

/// How to start workers for any version of the model.
#[derive(Clone)]
pub struct Starts {
    /// For the version that serves first.
    pub launch: Launch,
    /// Settings of the workers.
    pub engine: Arc<EngineSettings>,
    /// Compute threads of each worker.
    pub threads: usize,
}

impl Starts {
    /// Fingerprint of `model`, and the memory of its workers, which must fit next to the `running_bytes` of
    /// the current version.
    fn files(&self, model: &Path, running_bytes: u64) -> Result<Files, String> {
        let fingerprint = fingerprint(model).map_err(|error| error.to_string())?;
        if self.launch.gpus > 0 {
            // The workers compare their plan with the free memory of the device.
            return Ok(Files { fingerprint, planned_bytes: 0 });
        }
        let workers = self.launch.workers as u32;
        let config = WorkerConfig {
            model: model.to_owned(),
            memory_sharers: workers,
            memory_beside: running_bytes,
            ..self.engine.worker.clone()
        };
        let plan = load::plan(&config).map_err(|error| failure(&error).to_string())?;
        Ok(Files { fingerprint, planned_bytes: plan.bytes_of(u64::from(workers)) })
    }
}

/// Replaces the model on order.
pub struct Swapper {
    starts: Starts,
    supervisor: Arc<Supervisor>,
    cluster: Cluster,
    app: App,
    /// The model as the command line gives it.
    argument: ModelArgument,
    /// Directory of the running version.
    directory: PathBuf,
    /// Those of the running version; `None` if they could not be read at the start.
    files: Option<Files>,
    /// Number of the newest set of workers; the first is 1.
    generation: u32,
    orders: mpsc::Receiver<Order>,
    under_way: UnderWay,
}

/// Result of a swap before new requests go to the new version.
enum Loaded {
    /// The files are those of the version that runs.
    Unchanged,
    /// The workers are ready.
    New { workers: WorkerSet, version: Version, files: Files, model: PathBuf },
}

impl Swapper {
    /// Replaces the workers of `supervisor` on the orders of the second value.
    pub fn new(
        starts: Starts,
        supervisor: Arc<Supervisor>,
        cluster: Cluster,
        argument: ModelArgument,
        app: App,
    ) -> (Self, Orders) {
        let (sender, orders) = mpsc::channel(ORDERS_WAITING);
        let under_way = UnderWay::default();
        let handle = Orders { sender, under_way: under_way.clone() };
        let swapper = Self {
            directory: starts.launch.model.clone(),
            starts,
            supervisor,
            cluster,
            app,
            argument,
            files: None,
            generation: 1,
            orders,
            under_way,
        };
        (swapper, handle)
    }

    /// Carries out orders, one after the other.
    pub async fn run(mut self) {
        let (starts, model) = (self.starts.clone(), self.starts.launch.model.clone());
        self.files = blocking(move || starts.files(&model, 0)).await.ok();
        while let Some(Order { model, place, answer }) = self.orders.recv().await {
            if place == Place::Instead {
                let result = self.replace(model).await;
                self.under_way.set(None);
                let _ = answer.send(result);
                continue;
            }
            let running = self.cluster.current_version();
            let loaded = self.load(model).await;
            let (result, old) = match loaded {
                Ok(Loaded::Unchanged) => (Ok(self.unchanged(running)), None),
                Ok(Loaded::New { workers, version, files, model }) => {
                    let old = self.commit(workers, version, files, &model);
                    let running_on_old = self.running_on_others_than(version);
                    tracing::info!(
                        %version, before = %running, running_on_old, model = %model.display(),
                        "swapped: new requests go to the new version; those that have begun end on the one before"
                    );
                    self.app.metrics.swapped(SwapOutcome::Swapped);
                    (Ok(Swapped { version, changed: true, running_on_old }), Some((old, version)))
                }
                Err(reason) => (Err(self.refused(&reason, running)), None),
            };
            if let Some((old, version)) = old {
                self.under_way.set(Some(format!(
                    "Requests may still end on version {running} of the model, or their clients come back within \
                     --stream-linger; those that stand still end after /resume"
                )));
                // An error means that the client has left.
                let _ = answer.send(result);
                self.see_off(old, running, version).await;
                self.under_way.set(None);
            } else {
                self.under_way.set(None);
                let _ = answer.send(result);
            }
        }
    }

    /// A swap has failed for this reason.
    fn refused(&self, reason: &str, running: Version) -> Refusal {
        tracing::warn!(version = %running, reason, "not swapped: the running version serves on");
        self.app.metrics.swapped(SwapOutcome::Refused);
        let reason = reason.trim_end_matches('.');
        let end = if reason.ends_with('?') { "" } else { "." };
        Refusal::invalid("model_path", format!("{reason}{end} Version {running} serves on."))
    }

    /// The files of that version run already.
    fn unchanged(&self, running: Version) -> Swapped {
        tracing::info!(version = %running, "the model's files are those that run: nothing to swap");
        self.app.metrics.swapped(SwapOutcome::Unchanged);
        Swapped { version: running, changed: false, running_on_old: 0 }
    }

    /// Ends the running version's workers and starts those of the ordered one.
    async fn replace(&mut self, model: Option<String>) -> Result<Swapped, Refusal> {
        let hold = self.app.pauses.as_ref().ok_or(Refusal::Internal)?.hold()?;
        let running = self.cluster.current_version();
        let (model, found) = match self.find_with_fingerprint(model).await {
            Ok(found) => found,
            Err(reason) => return Err(self.refused(&reason, running)),
        };
        if self.files.is_some_and(|running| running.fingerprint == found) {
            return Ok(self.unchanged(running));
        }
        tracing::info!(model = %model.display(), "loading a new version of the model in the place of the running one");
        self.supervisor.replace(WorkerSet::default()).stop().await;
        match self.load_alone(&model).await {
            Ok((workers, version, files)) => {
                hold.abort_begun();
                self.commit(workers, version, files, &model);
                tracing::info!(%version, before = %running, model = %model.display(), "swapped in place");
                self.app.metrics.swapped(SwapOutcome::Swapped);
                Ok(Swapped { version, changed: true, running_on_old: 0 })
            }
            Err(reason) => {
                self.start_again().await;
                Err(self.refused(&reason, running))
            }
        }
    }

    /// Starts workers with `model` while no others run, so that all memory is theirs.
    async fn load_alone(&mut self, model: &Path) -> Result<(WorkerSet, Version, Files), String> {
        let files = self.files_of(model, 0).await?;
        let (workers, version) = self.start_seen(model, 0).await?;
        Ok((workers, version, files))
    }

    /// Starts the workers of the version that ran.
    async fn start_again(&mut self) {
        let directory = self.directory.clone();
        let (names, start) = self.next_workers(&directory, 0);
        let (workers, mut reports) = self.supervisor.start_lasting(names, start);
        if let Err(reason) = all_ready(&mut reports, workers.names().len()).await {
            let model = directory.display();
            tracing::error!(reason, %model, "the version that ran does not start again: order another one");
        }
        read_on(reports);
        self.supervisor.replace(workers);
    }

    /// Loads the ordered version beside the running one.
    async fn load(&mut self, model: Option<String>) -> Result<Loaded, String> {
        let beside = self.files.map_or(0, |files| files.planned_bytes);
        let model = self.find(model).await?;
        let files = self.files_of(&model, beside).await?;
        if self.files.is_some_and(|running| running.fingerprint == files.fingerprint) {
            return Ok(Loaded::Unchanged);
        }
        tracing::info!(model = %model.display(), "loading a new version of the model beside the running one");
        let (workers, version) = self.start_seen(&model, beside).await?;
        if version == self.cluster.current_version() {
            workers.stop().await;
            return Ok(Loaded::Unchanged);
        }
        Ok(Loaded::New { workers, version, files, model })
    }

    async fn find_with_fingerprint(&self, model: Option<String>) -> Result<(PathBuf, u64), String> {
        let model = self.find(model).await?;
        let directory = model.clone();
        let found = blocking(move || fingerprint(&directory).map_err(|error| error.to_string())).await?;
        Ok((model, found))
    }

    /// Fingerprint of `model`, and the memory of its workers, which must fit next to `beside` bytes.
    async fn files_of(&self, model: &Path, beside: u64) -> Result<Files, String> {
        let (starts, directory) = (self.starts.clone(), model.to_owned());
        blocking(move || starts.files(&directory, beside)).await
    }

    /// Finds the ordered version, which must have the running one's tokenizer and chat template.
    async fn find(&self, model: Option<String>) -> Result<PathBuf, String> {
        let worker = &self.starts.engine.worker;
        if worker.ranks.nodes.count > 1 {
            return Err("a model on several machines is not swapped, because the other machines run one version: start \
                        a second cluster with the new version and move clients to it"
                .into());
        }
        if worker.cuda.load_format == LoadFormat::Dummy {
            return Err("--load-format dummy reads no weights".into());
        }
        let argument = match model {
            Some(given) => ModelArgument { given: Some(given), revision: None },
            None => self.argument.clone(),
        };
        let runtime = Handle::current();
        // On a thread of its own: the hub's client keeps borrows that a task cannot.
        let find = move || {
            runtime.block_on(model::find(&argument, Need::All)).map_err(|failure| failure.to_string())
        };
        let found = blocking(find).await?;
        let model = resolved(found);
        self.check_text(&model).await?;
        Ok(model)
    }

    /// Starts workers until the router can use all of them; returns the version that they serve, too.
    async fn start_seen(&mut self, model: &Path, beside: u64) -> Result<(WorkerSet, Version), String> {
        let workers = self.start(model, beside).await?;
        match self.seen(&workers).await {
            Ok(version) => Ok((workers, version)),
            Err(reason) => {
                workers.stop().await;
                Err(reason)
            }
        }
    }

    /// Refuses a version with another tokenizer or chat template: this process keeps its own.
    async fn check_text(&self, model: &Path) -> Result<(), String> {
        let (directory, sources) = (model.to_owned(), self.app.config.text.clone());
        let files = move || TextFiles::read(&directory, &sources).map_err(|error| error.to_string());
        if blocking(files).await?.fingerprint() == self.app.text.fingerprint {
            return Ok(());
        }
        Err(format!(
            "{} has another tokenizer, chat template or set of special tokens than the running model, so its tokens \
             mean another text; give it the same files, or start a new server for it",
            model.display()
        ))
    }

    /// Starts the workers and waits until all are ready.
    async fn start(&mut self, model: &Path, beside: u64) -> Result<WorkerSet, String> {
        let (names, start) = self.next_workers(model, beside);
        let (workers, mut reports) = self.supervisor.start_beside(names, start);
        if let Err(reason) = all_ready(&mut reports, workers.names().len()).await {
            workers.stop().await;
            return Err(reason);
        }
        read_on(reports);
        Ok(workers)
    }

    /// Names of the next workers, and how to start each.
    fn next_workers(
        &mut self,
        model: &Path,
        beside: u64,
    ) -> (Vec<String>, impl Fn(usize) -> WorkerStart + Clone + Send + Sync + use<>) {
        self.generation += 1;
        let launch = Launch {
            model: model.to_owned(),
            memory_beside: beside,
            serving_since_ms: now_ms(),
            ..self.starts.launch.clone()
        };
        let names: Vec<String> =
            (0..launch.workers).map(|worker| format!("worker-{worker}-v{}", self.generation)).collect();
        let (engine, threads, called) = (self.starts.engine.clone(), self.starts.threads, names.clone());
        let start = move |worker: usize| launch.start(worker, &called[worker], &engine, threads);
        (names, start)
    }

    /// Waits until the router can use all of `workers`; returns the version that they serve.
    async fn seen(&self, workers: &WorkerSet) -> Result<Version, String> {
        let start = clock::now();
        loop {
            let all = self.cluster.snapshot().workers;
            let new: Vec<_> = all.iter().filter(|worker| workers.names().contains(&worker.id)).collect();
            let mismatch = new.iter().find_map(|worker| match &worker.refuses {
                Some(NotReady::Mismatch(reason)) => Some(reason),
                _ => None,
            });
            if let Some(reason) = mismatch {
                return Err(format!("the router cannot use a worker with the new version: it {reason}"));
            }
            if new.len() == workers.names().len() && new.iter().all(|worker| worker.is_ready()) {
                let infos = new.iter().filter_map(|worker| worker.info.as_ref());
                let versions: BTreeSet<Version> = infos.map(|info| info.model_version()).collect();
                return match versions.into_iter().collect::<Vec<_>>()[..] {
                    [version] if version.is_known() => Ok(version),
                    [_] => Err("workers on this device do not say which version they serve".into()),
                    _ => Err(
                        "the files changed while they were loaded: the new workers serve several versions"
                            .into(),
                    ),
                };
            }
            if clock::now().since(start) >= SEEN_WITHIN {
                let seconds = SEEN_WITHIN.as_secs();
                return Err(format!("the router has not seen all new workers within {seconds} s"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Moves new requests to `workers`; returns the old ones.
    fn commit(&mut self, workers: WorkerSet, version: Version, files: Files, model: &Path) -> WorkerSet {
        self.cluster.set_new_requests(NewRequests::Only(version));
        self.files = Some(files);
        model.clone_into(&mut self.directory);
        if let Some(processes) = &self.app.text.render_processes {
            // The old version's directory may go.
            processes.start_by(start_renderer(model, &self.app.config.text));
        }
        self.supervisor.replace(workers)
    }

    /// Requests on other versions than `version`: those that run, and those that stand still.
    fn running_on_others_than(&self, version: Version) -> usize {
        let standing = self.app.pauses.as_ref().map_or(0, |pauses| pauses.standing_on_others_than(version));
        self.cluster.running_on_others_than(version) + standing
    }

    /// Stops the workers of version `before` once nothing runs on it any more and no reader can come back to
    /// it.
    async fn see_off(&self, old: WorkerSet, before: Version, version: Version) {
        let config = &self.app.config;
        let (linger, start) = (config.recovery.stream_linger, clock::now());
        let at_most = config.limits.request_timeout + LONGEST_LINGER;
        let mut idle_since = None;
        loop {
            let now = clock::now();
            if self.running_on_others_than(version) > 0 {
                idle_since = None;
            } else if now.since(*idle_since.get_or_insert(now)) >= linger {
                break;
            }
            if now.since(start) >= at_most {
                tracing::warn!(version = %before, at_most_s = at_most.as_secs(), "requests of the old version are cut");
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        old.stop().await;
        tracing::info!(version = %before, "the version before has ended");
    }
}

/// Waits until all of `workers` workers are ready.
async fn all_ready(reports: &mut mpsc::Receiver<Report>, workers: usize) -> Result<(), String> {
    let mut ready = BTreeSet::new();
    while ready.len() < workers {
        match reports.recv().await {
            Some(Report::Progress { worker, done, total }) => {
                tracing::debug!(worker, done, total, "a new version of the model loads");
            }
            Some(Report::Ready { worker, .. }) => drop(ready.insert(worker)),
            Some(Report::Hopeless(failed)) => {
                return Err(format!("a worker with the new version did not start: {}", failed.message));
            }
            None => return Err("the workers with the new version have ended".into()),
        }
    }
    Ok(())
}

/// Reads `reports` for as long as the workers run: the supervisor blocks unless somebody does.
fn read_on(mut reports: mpsc::Receiver<Report>) {
    tokio::spawn(async move { while reports.recv().await.is_some() {} });
}

/// `path` without symbolic links: a worker that restarts must find the version that it served.
pub fn resolved(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX)
}

/// Runs work that reads files.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
