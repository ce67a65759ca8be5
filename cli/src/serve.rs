//! `skein serve`: a whole cluster on this machine. The router runs here, each worker is a child process.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::ArgMatches;
use skein_hub::Need;
use skein_node::clock;
use skein_node::discovery;
use skein_node::hangup::Hangups;
use skein_node::shutdown::Shutdown;
use skein_node::supervisor::{Report, Supervisor};
use skein_node::telemetry;
use skein_router::cluster::Cluster;
use skein_router::refusal::Refusal;
use skein_router::swap::{ModelSwaps, Place};
use tokio::sync::mpsc;

use crate::banner::{Banner, Capacity};
use crate::certificates;
use crate::exit::{Failure, USAGE};
use crate::front::{self, Served};
use crate::local_workers::{default_workers, launch, threads_each, visible_gpus};
use crate::model;
use crate::models::{self, Listed};
use crate::progress::LoadProgress;
use crate::serve_settings::ServeSettings;
use crate::settings::{self, table};
use crate::supervised::Launch;
use crate::swap::{Orders, Starts, Swapper};

/// How long the router may take to see a worker that has reported ready.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Runs the cluster until shutdown.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or an address that cannot be used.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::SERVE, matches)?;
    let read = ServeSettings::read(&mut settings);
    read.check_nodes(&mut settings);
    let listed = Listed::read(&mut settings, matches);
    settings::check(&settings)?;
    if let Some(listed) = listed {
        return models::run(matches, settings, read, listed).await;
    }
    let ServeSettings { log, front, mut engine, workers: worker_count_setting, named, .. } = read;
    let named = named.or_adapter(engine.worker.merged_adapter.as_ref().map(|adapter| adapter.name.as_str()));
    if settings.switch("plan") {
        let served = named.find(Need::All).await?;
        engine.worker.model.clone_from(&served.model);
        let workers = worker_count_setting.unwrap_or_else(|| default_workers(&engine, visible_gpus(&engine)));
        engine.worker.memory_sharers = workers as u32;
        return crate::worker::print_plan(&engine.worker);
    }
    let engine = Arc::new(engine);
    let argument = named.argument.clone();
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let served = named.find(Need::All).await?;
    settings::log_effective(&settings);

    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    let hangups = Hangups::receive().map_err(Failure::other)?;
    let (listener, listen) = front::bind(&front.host, front.port).await?;
    front::warn_if_exposed(&front);
    let (scheme, has_key, guards) = (front.scheme(), front.router.has_keys(), front.guards.clone());
    let config = front::router_config(front, &served, listen)?;
    let (changes, seen) = discovery::in_process();
    let gpus = visible_gpus(&engine);
    let workers = worker_count_setting.unwrap_or(default_workers(&engine, gpus));
    let threads = threads_each(&engine, workers);
    let launch = Launch { gpus, ..launch(&served, workers, &log)? };
    let starts = Starts { launch: launch.clone(), engine: engine.clone(), threads };
    let start = move |worker| launch.start(worker, &format!("worker-{worker}"), &engine, threads);
    let (supervisor, reports) = Supervisor::start(workers, start, &changes);
    supervisor.kill_after(shutdown.forced());
    let supervisor = Arc::new(supervisor);

    // SIGHUP means to read the model again.
    certificates::follow(&guards);
    let starting = front::start_over(&supervisor, config, seen);
    let started = front::trace_start(served.name(), starting).await;
    let (mut app, cluster) = match started {
        Ok(started) => started,
        Err(failure) => {
            supervisor.stop().await;
            return Err(failure);
        }
    };
    let (swapper, orders) = Swapper::new(starts, supervisor.clone(), cluster.clone(), argument, app.clone());
    let swapping = tokio::spawn(swapper.run());
    app.swap_models(Arc::new(orders.clone()));
    let _metrics = front::metrics_port(&app).await?;
    let mut server = tokio::spawn(skein_router::serve::serve(listener, app, shutdown.requested()));
    let welcome = Welcome { served, workers, threads, listen, scheme, has_key };
    let mut ended = None;
    let mut outcome = Ok(());
    tokio::select! {
        failure = welcome.follow(reports, &cluster) => outcome = Err(failure),
        early = &mut server => ended = Some(early),
        () = shutdown.requested() => front::announce_shutdown(),
        () = swap_on_hangup(hangups, &shutdown, &orders) => {}
    }
    shutdown.request();
    let ended = match ended {
        Some(ended) => ended,
        None => server.await,
    };
    // Workers that start or end beside the others are killed: no request needs them any more.
    swapping.abort();
    supervisor.stop().await;
    outcome?;
    ended.map_err(Failure::other)?.map_err(Failure::other)
}

/// Reads the model again on each SIGHUP; never returns.
async fn swap_on_hangup(mut hangups: Hangups, shutdown: &Shutdown, orders: &Orders) {
    loop {
        hangups.next(shutdown).await;
        tracing::info!("SIGHUP: reading the model again");
        let orders = orders.clone();
        tokio::spawn(async move {
            // What becomes of it is in the log, unless it does not begin.
            if let Err(refusal @ Refusal::Conflict(_)) = orders.swap(None, Place::Beside).await {
                tracing::warn!("SIGHUP: {refusal}");
            }
        });
    }
}

/// What to print while the cluster starts.
struct Welcome {
    served: Served,
    workers: usize,
    threads: usize,
    listen: SocketAddr,
    scheme: &'static str,
    has_key: bool,
}

impl Welcome {
    /// Shows the workers' loading progress and prints the banner once the first worker serves; returns only
    /// if a worker reports that it can never serve.
    async fn follow(&self, mut reports: mpsc::Receiver<Report>, cluster: &Cluster) -> Failure {
        let mut progress = Some(LoadProgress::new(self.workers));
        while let Some(report) = reports.recv().await {
            match report {
                Report::Progress { worker, done, total } => {
                    if let Some(progress) = &mut progress {
                        progress.update(worker, done, total);
                    }
                }
                Report::Ready { worker, address } => {
                    tracing::debug!(worker, address, "worker is ready");
                    if let Some(progress) = progress.take() {
                        progress.finish();
                        self.print_banner(cluster).await;
                    }
                }
                Report::Hopeless(failed) => {
                    if let Some(progress) = progress.take() {
                        progress.finish();
                    }
                    return Failure::of_worker(failed);
                }
            }
        }
        // The supervisor's tasks end only when stopped, or after such a report.
        std::future::pending().await
    }

    async fn print_banner(&self, cluster: &Cluster) {
        if let Err(refusal) = cluster.wait_ready(SEEN_WITHIN).await {
            tracing::warn!(%refusal, "a worker is ready, but the router has not seen it yet");
        }
        let seen = cluster.snapshot().workers;
        let workers_ready = seen.iter().filter(|worker| worker.is_ready()).count();
        let info = seen.into_iter().find_map(|worker| worker.info);
        let backend = info.as_ref().map_or("cpu".into(), |info| info.backend.clone());
        let capacity = info.map(|info| Capacity {
            kv_blocks: info.kv_blocks,
            block_size: info.block_size,
            max_model_len: info.max_model_len,
        });
        let seconds = clock::now().since_start().as_secs_f64();
        if std::io::stdout().is_terminal() {
            let banner = Banner {
                model: self.served.name().to_owned(),
                facts: model::facts(&self.served.model),
                workers: self.workers,
                threads: self.threads,
                backend,
                capacity,
                listen: self.listen,
                scheme: self.scheme,
                has_key: self.has_key,
                seconds,
            };
            out!("{}", banner.text());
        } else {
            let (model, workers, listen, scheme) =
                (self.served.name(), self.workers, self.listen, self.scheme);
            tracing::info!(model, workers_ready, workers, url = %format_args!("{scheme}://{listen}/v1"), seconds, "ready");
        }
    }
}
