//! Starts the workers of a model and the router's part for it, and ends them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use skein_node::discovery;
use skein_node::shutdown::Shutdown;
use skein_node::supervisor::{Report, Supervisor};
use skein_router::api::of_model::ModelRoutes;
use skein_router::config::RouterConfig;
use skein_router::repository::{LoadedModel, Loader};
use skein_text::model_text::ModelText;
use skein_worker::load;
use tokio::sync::{mpsc, oneshot};

use crate::front;
use crate::settings::EngineSettings;
use crate::supervised::Launch;
use crate::swap::now_ms;
use crate::worker::failure;

/// How long the router may take to see a worker that has reported ready.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// How to start a model.
#[derive(Clone)]
pub struct Start {
    /// Its workers.
    pub launch: Launch,
    /// Their settings.
    pub engine: Arc<EngineSettings>,
    /// Compute threads of each.
    pub threads: usize,
    /// The router's part for it.
    pub config: RouterConfig,
    /// What its workers are called, before their number.
    pub slug: String,
    /// Memory of its workers by the plan at the start of the server.
    pub planned_bytes: u64,
}

/// Starts models.
pub struct Loads {
    starts: Vec<Start>,
    shutdown: Shutdown,
}

impl Loads {
    /// Starts the models of `starts`; all workers are killed when `shutdown` is forced.
    pub fn new(starts: Vec<Start>, shutdown: Shutdown) -> Self {
        Self { starts, shutdown }
    }
}

impl Loader for Loads {
    fn text(&self, model: usize) -> BoxFuture<'static, Result<ModelText, String>> {
        let config = self.starts[model].config.clone();
        async move { front::load_text(&config).await.map_err(|failure| failure.to_string()) }.boxed()
    }

    fn load(&self, model: usize) -> BoxFuture<'static, Result<LoadedModel, String>> {
        let (start, shutdown) = (self.starts[model].clone(), self.shutdown.clone());
        self::load(start, shutdown).boxed()
    }
}

/// A load that failed.
struct LoadFailed {
    reason: String,
    /// Whether another try would fail, too.
    permanent: bool,
}

impl LoadFailed {
    fn once(error: impl ToString) -> Self {
        Self { reason: error.to_string(), permanent: false }
    }
}

/// Loads a model. If a process was killed on the way, a second try follows.
async fn load(start: Start, shutdown: Shutdown) -> Result<LoadedModel, String> {
    start.check_plan().await?;
    match attempt(start.clone(), shutdown.clone()).await {
        Err(LoadFailed { reason, permanent: false }) => {
            tracing::warn!(model = start.launch.served_model_name, reason, "loading a model once more");
            attempt(start, shutdown).await.map_err(|failed| failed.reason)
        }
        loaded => loaded.map_err(|failed| failed.reason),
    }
}

impl Start {
    /// Refuses files that need more memory than when the server started.
    async fn check_plan(&self) -> Result<(), String> {
        let (config, workers, planned) =
            (self.engine.worker.clone(), self.launch.workers as u64, self.planned_bytes);
        let plan = tokio::task::spawn_blocking(move || load::plan(&config)).await;
        let plan = plan.map_err(|error| error.to_string())?.map_err(|error| failure(&error).to_string())?;
        let bytes = plan.bytes_of(workers);
        if bytes <= planned {
            return Ok(());
        }
        Err(format!(
            "its files have changed: its plan has {bytes} bytes of memory, and had {planned} when the server started; \
             start the server again"
        ))
    }
}

async fn attempt(start: Start, shutdown: Shutdown) -> Result<LoadedModel, LoadFailed> {
    let Start { launch, engine, threads, config, slug, .. } = start;
    let (changes, seen) = discovery::in_process();
    let launch = Launch { serving_since_ms: now_ms(), ..launch };
    let names: Vec<String> = (0..launch.workers).map(|worker| format!("{slug}-{worker}")).collect();
    let (called, workers) = (names.clone(), names.len());
    let of_worker = move |worker: usize| launch.start(worker, &called[worker], &engine, threads);
    let (supervisor, mut reports) = Supervisor::start_named(names, of_worker, &changes);
    let killing = supervisor.kill_after(async move { shutdown.forced().await });
    let started = front::start_over(&supervisor, config, seen);
    let started = async {
        let (app, cluster) = started.await.map_err(LoadFailed::once)?;
        first_ready(&mut reports).await?;
        cluster.wait_ready(SEEN_WITHIN).await.map_err(LoadFailed::once)?;
        Ok::<_, LoadFailed>(app)
    };
    match started.await {
        Ok(app) => {
            let end = async move {
                supervisor.stop().await;
                killing.abort();
            };
            let routes = Arc::new(ModelRoutes::of(&app));
            Ok(LoadedModel { app, routes, end: end.boxed(), lost: lost(reports, workers) })
        }
        Err(failed) => {
            supervisor.stop().await;
            killing.abort();
            Err(failed)
        }
    }
}

/// Waits until a worker is ready.
async fn first_ready(reports: &mut mpsc::Receiver<Report>) -> Result<(), LoadFailed> {
    loop {
        match reports.recv().await {
            Some(Report::Progress { worker, done, total }) => {
                tracing::debug!(worker, done, total, "a model loads");
            }
            Some(Report::Ready { .. }) => return Ok(()),
            Some(Report::Hopeless(failed)) => {
                return Err(LoadFailed { reason: failed.message, permanent: failed.permanent });
            }
            None => return Err(LoadFailed::once("its workers have ended")),
        }
    }
}

/// Reads the reports for as long as the workers run, because the supervisor blocks unless somebody does.
/// Completes once none of the workers can be started again.
fn lost(mut reports: mpsc::Receiver<Report>, workers: usize) -> BoxFuture<'static, Option<String>> {
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut hopeless, mut tell) = (0, Some(tell));
        while let Some(report) = reports.recv().await {
            let Report::Hopeless(failed) = report else { continue };
            hopeless += 1;
            if hopeless == workers
                && let Some(tell) = tell.take()
            {
                // An error means that the model was unloaded.
                let _ = tell.send(failed.message);
            }
        }
    });
    told.map(Result::ok).boxed()
}
