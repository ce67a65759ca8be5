//! `skein worker`: one model replica in its own process.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use clap::ArgMatches;
use skein_hub::Need;
use skein_node::config::{Settings, duration, text};
use skein_node::hangup::Hangups;
use skein_node::shutdown::Shutdown;
use skein_node::telemetry::{self, LogOptions};
use skein_worker::backend::cuda::{CudaLoadError, NotUsable};
use skein_worker::config::{DRAIN_GRACE, RankCommand, WorkerConfig};
use skein_worker::group;
use skein_worker::{WorkerError, load, service};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::certificates;
use crate::exit::{ADDRESS, DEVICE, Failure, MODEL, OTHER, USAGE};
use crate::membership::Presence;
use crate::model::{self, ModelArgument};
use crate::progress::LoadProgress;
use crate::settings::{
    self, DiscoverySettings, EngineSettings, FakeSettings, Guards, OtlpSettings, RegistrationSettings, table,
};

/// Hidden command: a rank of a worker's group, started only by a worker, which sends it all its settings.
pub const RANK: &str = "rank";
/// Upper bound of `--drain-grace`.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Runs the worker until shutdown.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or an address that cannot be used.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let outcome = serve(matches).await;
    if let Err(failure) = &outcome {
        errln!("error: {failure}");
        telemetry::flush(settings::FLUSH_TRACES);
        // A thread may hang in the driver of a stuck GPU, and the driver's exit handlers may hang, too.
        // Routers must see the exit at once, so that streams continue on other workers.
        skein_sys::process::exit_without_handlers(failure.code.into())
    }
    outcome
}

/// Runs a rank until its leader ends it.
///
/// # Errors
/// Why the rank failed; it has reported the same to the leader.
pub async fn run_rank() -> Result<(), Failure> {
    // Signals to the process group concern the leader, which drains first.
    let _signals = Shutdown::supervised().map_err(Failure::other)?;
    let outcome = tokio::task::spawn_blocking(load::run_rank).await;
    match outcome.map_err(|error| error.to_string()).flatten() {
        Ok(()) => Ok(()),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "error: a rank failed: {why}");
            telemetry::flush(settings::FLUSH_TRACES);
            skein_sys::process::exit_without_handlers(OTHER.into())
        }
    }
}

/// Command that starts a rank of this worker's group.
///
/// # Errors
/// If the system cannot tell the path of this binary.
pub fn rank_command() -> Result<RankCommand, Failure> {
    group::this_binary(&[RANK]).map_err(Failure::other)
}

async fn serve(matches: &ArgMatches) -> Result<(), Failure> {
    let mut settings = settings::load(table::WORKER, matches)?;
    let otlp = OtlpSettings::read(&mut settings, "skein-worker").without_metrics().options;
    let log = LogOptions { otlp, ..settings::log_options(&mut settings, "", None) };
    let discovery = DiscoverySettings::read(&mut settings);
    let listen = listen_address(&mut settings);
    let registration = RegistrationSettings::read(&mut settings, discovery.source.as_ref(), listen.ip());
    let guards = Guards::read(&mut settings);
    let metrics = settings::metrics_port(&mut settings, &listen.ip().to_string());
    let (config, fakes) = configure(&mut settings, &guards, listen).await?;
    let (tls, secret) = (guards.node_port(), guards.secret.clone());
    let mut config = WorkerConfig { listen, metrics, tls, secret, open_health: true, ..config };
    config.ranks.command = Some(rank_command()?);
    if settings.switch("plan") {
        return print_plan(&config);
    }
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    settings::log_effective(&settings);
    let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
    let hangups = Hangups::receive().map_err(Failure::other)?;
    discovery.watch();
    certificates::follow(&guards);
    tokio::spawn(answer_hangups(hangups, shutdown.clone(), guards));
    if config.ranks.nodes.rank > 0 {
        return follow_leader(config, &shutdown).await;
    }
    if fakes > 1 {
        check_fakes(&discovery, &config, fakes)?;
        return serve_fakes(config, fakes, &shutdown).await.map_err(|error| failure(&error));
    }
    let presence = Presence::prepare(discovery, registration, &config.served_model_name).await?;
    serve_alone(config, &presence, &shutdown).await.map_err(|error| failure(&error))
}

/// Says that a worker does not read its model again: its port belongs to this process, and so do its streams.
async fn answer_hangups(mut hangups: Hangups, shutdown: Shutdown, guards: Guards) {
    loop {
        hangups.next(&shutdown).await;
        if guards.has_certificates() {
            certificates::read_again(&guards).await;
        }
        tracing::warn!(
            "SIGHUP: a worker serves one version of its model. Start another worker with the new version, and end this one \
             with SIGTERM: routers keep each request on the version that it began on. `skein serve` does both on SIGHUP"
        );
    }
}

/// Prints the memory that a worker would need.
///
/// # Errors
/// Settings with which the model cannot be served.
pub fn print_plan(config: &WorkerConfig) -> Result<(), Failure> {
    let plan = load::plan(config).map_err(|error| failure(&error))?;
    out!("{plan}");
    Ok(())
}

/// Runs this node's ranks for the leader on another node, until shutdown or until the leader refuses the
/// node.
async fn follow_leader(config: WorkerConfig, shutdown: &Shutdown) -> Result<(), Failure> {
    let following = tokio::task::spawn_blocking(move || load::follow_leader(&config));
    tokio::select! {
        // The ranks end with this process; the leader sees their connections close.
        () = shutdown.requested() => {
            telemetry::flush(settings::FLUSH_TRACES);
            skein_sys::process::exit_without_handlers(0)
        }
        outcome = following => outcome.map_err(Failure::other)?.map_err(|error| failure(&error)),
    }
}

/// Runs a worker without a supervisor. It is registered in etcd from ready until shutdown.
async fn serve_alone(
    config: WorkerConfig,
    presence: &Presence,
    shutdown: &Shutdown,
) -> Result<(), WorkerError> {
    let mut bar = LoadProgress::new(1);
    let progress = move |done, total| bar.update(0, done, total);
    let ready = |address: SocketAddr| {
        presence.enter(address);
        let next = if presence.is_none() {
            format!("; add it to a router: skein router --workers {address}")
        } else {
            String::new()
        };
        // Not `eprintln`, which panics if the line cannot be written: the log's disk may be full.
        let _ = writeln!(std::io::stderr(), "worker is ready at {address}{next}");
    };
    let outcome = service::serve(config, progress, ready, presence.leave_after(shutdown.requested())).await;
    // Also unregister a worker that stopped by itself.
    presence.leave().await;
    outcome
}

/// Fails if fake workers would register or share a port for metrics, or if the ports after `listen` do not
/// suffice.
fn check_fakes(discovery: &DiscoverySettings, config: &WorkerConfig, count: u16) -> Result<(), Failure> {
    let WorkerConfig { listen, metrics, .. } = config;
    if discovery.source.is_some() {
        return Err(Failure::new(USAGE, "--fake-workers cannot be used with --discovery".to_owned()));
    }
    if metrics.is_some() {
        let message = "--fake-workers cannot be used with --metrics-port: each has metrics on its own port";
        return Err(Failure::new(USAGE, message.to_owned()));
    }
    if listen.port() == 0 || listen.port().checked_add(count - 1).is_none() {
        let message = format!(
            "--fake-workers {count} needs a first port of 1 to {} in --listen, got {}",
            u16::MAX - (count - 1),
            listen.port()
        );
        return Err(Failure::new(USAGE, message));
    }
    Ok(())
}

/// Serves `count` workers on consecutive ports from that of `--listen`. A worker that fails ends all.
async fn serve_fakes(config: WorkerConfig, count: u16, shutdown: &Shutdown) -> Result<(), WorkerError> {
    let first = config.listen;
    let (ready, mut all_ready) = mpsc::channel(usize::from(count));
    let mut workers = JoinSet::new();
    for index in 0..count {
        let listen = SocketAddr::new(first.ip(), first.port() + index);
        let config = WorkerConfig { listen, ..config.clone() };
        let (ready, stop) = (ready.clone(), shutdown.requested());
        let told = move |_: SocketAddr| {
            let _ = ready.try_send(());
        };
        workers.spawn(service::serve(config, |_, _| (), told, stop));
    }
    drop(ready);
    let told = async {
        for _ in 0..count {
            all_ready.recv().await;
        }
        let last = first.port() + (count - 1);
        let _ = writeln!(std::io::stderr(), "{count} fake workers are ready at {first} to port {last}");
        std::future::pending().await
    };
    let ended = async {
        while let Some(ended) = workers.join_next().await {
            ended.unwrap_or(Err(WorkerError::Panicked("worker")))?;
        }
        Ok(())
    };
    tokio::select! {
        ended = ended => ended,
        () = told => Ok(()),
    }
}

fn listen_address(settings: &mut Settings) -> SocketAddr {
    let listen = settings.value("listen", |given| {
        given.parse::<SocketAddr>().map_err(|_| format!("`{given}` is not an address such as 127.0.0.1:9000"))
    });
    listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// The configuration, and the number of workers in this process.
async fn configure(
    settings: &mut Settings,
    guards: &Guards,
    listen: SocketAddr,
) -> Result<(WorkerConfig, u16), Failure> {
    let engine = EngineSettings::read(settings);
    // Other nodes of a group serve nothing themselves.
    if engine.worker.ranks.nodes.rank == 0 && !settings.switch("plan") {
        guards.check_worker(settings, listen);
    }
    let fake = FakeSettings::read(settings, engine.worker.backend);
    let drain_grace = settings.value("drain-grace", duration(Duration::ZERO..=DAY));
    let names = settings.list("served-model-name", text);
    let config = config_of(engine, settings).await?;
    let adapter = config.merged_adapter.as_ref().map(|adapter| adapter.name.clone());
    let config = WorkerConfig {
        drain_grace: drain_grace.unwrap_or(DRAIN_GRACE),
        served_model_name: names.first().cloned().or(adapter).unwrap_or(config.served_model_name),
        fake: fake.config,
        ..config
    };
    Ok((config, fake.workers))
}

/// The configuration of a worker without a socket, for benchmarks.
///
/// # Errors
/// Invalid settings, or no model.
pub async fn configure_local(settings: &mut Settings) -> Result<WorkerConfig, Failure> {
    let engine = EngineSettings::read_compute(settings);
    config_of(engine, settings).await
}

async fn config_of(engine: EngineSettings, settings: &mut Settings) -> Result<WorkerConfig, Failure> {
    let argument = ModelArgument::read(settings);
    settings::check(settings)?;
    let model = model::find(&argument, Need::All).await?;
    Ok(WorkerConfig { served_model_name: model::default_name(&model), model, ..engine.worker })
}

/// A worker's error as the user sees it, with its exit code.
pub fn failure(error: &WorkerError) -> Failure {
    Failure::new(exit_code(error), error.to_string())
}

fn exit_code(error: &WorkerError) -> u8 {
    match error {
        WorkerError::Listen { .. } => ADDRESS,
        WorkerError::Load(why) => {
            if let Some(why) = why.downcast_ref::<NotUsable>() {
                return match why {
                    NotUsable::Model { .. } | NotUsable::Part { .. } => MODEL,
                    NotUsable::Setting { .. } | NotUsable::Heads { .. } => USAGE,
                    NotUsable::Device(_) | NotUsable::Kernels(_) => DEVICE,
                };
            }
            match why.downcast_ref::<CudaLoadError>() {
                // A device fault may be gone after a restart, so a supervisor retries.
                Some(error) if error.is_device_fault() => OTHER,
                Some(CudaLoadError::Lost(_) | CudaLoadError::Group(_)) => OTHER,
                Some(CudaLoadError::Cuda(_) | CudaLoadError::Step(_) | CudaLoadError::Differs { .. }) => {
                    DEVICE
                }
                Some(CudaLoadError::TooSmall { .. }) => USAGE,
                Some(CudaLoadError::Model(_)) | None => MODEL,
            }
        }
        WorkerError::Setting { .. } | WorkerError::Unsuitable(_) => USAGE,
        WorkerError::Thread { .. } | WorkerError::Backend(_) | WorkerError::Panicked(_) => OTHER,
    }
}
