//! `skein worker`: one model replica in its own process, alone or under a supervisor.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use skein_hub::Need;
use skein_node::config::{Settings, duration, text};
use skein_node::hangup::Hangups;
use skein_node::shutdown::Shutdown;
use skein_node::supervisor::{Lifecycle, Secret, end_with_supervisor, report_alive};
use skein_node::telemetry::{self, LogOptions};
use skein_node::trace;
use skein_worker::backend::cuda::{CudaLoadError, NotUsable};
use skein_worker::config::{BackendKind, CudaConfig, DRAIN_GRACE, LoadFormat, RanksConfig, WorkerConfig};
use skein_worker::group;
use skein_worker::service::{self, WorkerError};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::exit::{ADDRESS, DEVICE, Failure, MODEL, OTHER, USAGE};
use crate::membership::Presence;
use crate::model::{self, ModelArgument};
use crate::progress::LoadProgress;
use crate::settings::{
    self, DiscoverySettings, EngineSettings, FakeSettings, OtlpSettings, RegistrationSettings, table,
};

/// Hidden command: a rank of a worker's group, started only by a worker, which sends it all its settings.
pub const RANK: &str = "rank";
/// Hidden flag: name of a supervised worker.
pub const SUPERVISED: &str = "supervised";
/// Hidden flag: number of supervised workers that share this machine's memory.
pub const MEMORY_SHARERS: &str = "memory-sharers";
/// Hidden flag: the GPU that a supervised worker uses, if it uses one.
pub const GPU_ORDINAL: &str = "gpu-ordinal";
/// Hidden flag: number of supervised workers that share that GPU.
pub const GPU_SHARERS: &str = "gpu-sharers";
/// Hidden flag: bytes of memory that are planned for the version of the model that runs beside.
pub const MEMORY_BESIDE: &str = "memory-beside";
/// Hidden flag: when this version of the model was put into service, in milliseconds since 1970.
pub const SERVING_SINCE: &str = "serving-since";
/// Environment variable with the value of `--group-secret`.
const GROUP_SECRET: &str = "SKEIN_GROUP_SECRET";
/// Drain time of a worker whose supervisor has closed its input. The router has drained before, so nothing
/// should be running.
const SUPERVISED_DRAIN: Duration = Duration::from_secs(5);
/// Part of it in which requests may continue; then they are handed back, which takes the rest of the time.
const SUPERVISED_GRACE: Duration = Duration::from_secs(2);
/// Upper bound of `--drain-grace`.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Runs the worker until shutdown.
///
/// # Errors
/// Invalid settings, a model that cannot be served, or an address that cannot be used.
pub async fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let supervised = matches.get_one::<String>(SUPERVISED).cloned();
    let outcome = serve(matches, supervised.as_deref()).await;
    if let Err(failure) = &outcome {
        match &supervised {
            // The supervisor prints it, once for all its workers.
            Some(_) => Lifecycle::Failed(failure.for_supervisor()).emit(),
            None => eprintln!("error: {failure}"),
        }
        trace::flush(settings::FLUSH_TRACES);
        // A thread may hang in the driver of a stuck GPU, and the driver's exit handlers may hang, too. The
        // supervisor must see the exit at once, so that streams continue on other workers.
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
    let outcome = tokio::task::spawn_blocking(service::run_rank).await;
    match outcome.map_err(|error| error.to_string()).flatten() {
        Ok(()) => Ok(()),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "error: a rank failed: {why}");
            skein_sys::process::exit_without_handlers(OTHER.into())
        }
    }
}

async fn serve(matches: &ArgMatches, supervised: Option<&str>) -> Result<(), Failure> {
    let mut settings = settings::load(table::WORKER, matches)?;
    let name = supervised.unwrap_or_default();
    let otlp = OtlpSettings::read(&mut settings, "skein-worker", name).without_metrics().options;
    let log = LogOptions { otlp, ..settings::log_options(&mut settings, name, None) };
    let memory_sharers = matches.get_one(MEMORY_SHARERS).copied().unwrap_or(1);
    let discovery = DiscoverySettings::read(&mut settings);
    let listen = listen_address(&mut settings);
    let registration = RegistrationSettings::read(&mut settings, discovery.source.as_ref(), listen.ip());
    let (config, fakes) = configure(&mut settings).await?;
    let mut config = WorkerConfig { memory_sharers, listen, ..config };
    config.memory_beside = matches.get_one(MEMORY_BESIDE).copied().unwrap_or(0);
    config.serving_since_ms = matches.get_one(SERVING_SINCE).copied();
    config.cuda.ordinal = matches.get_one(GPU_ORDINAL).copied().unwrap_or(config.cuda.ordinal);
    config.cuda.sharers = matches.get_one(GPU_SHARERS).copied().unwrap_or(1);
    config.ranks.command = Some(group::this_binary(&[RANK]).map_err(Failure::other)?);
    if settings.switch("plan") {
        return print_plan(&config);
    }
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let outcome = match supervised {
        Some(_) => {
            config.secret = Some(Secret::from_supervisor().map_err(Failure::other)?);
            let shutdown = Shutdown::supervised().map_err(Failure::other)?;
            end_with_supervisor(shutdown.clone()).map_err(Failure::other)?;
            let alive = report_alive();
            let progress = |done, total| Lifecycle::Progress { done, total }.emit();
            let ready = move |address: SocketAddr| {
                alive.abort();
                Lifecycle::Ready { address: address.to_string() }.emit();
            };
            service::serve(config, progress, ready, shutdown.requested()).await
        }
        None => {
            settings::log_effective(&settings);
            let shutdown = Shutdown::on_signals().map_err(Failure::other)?;
            let hangups = Hangups::receive().map_err(Failure::other)?;
            tokio::spawn(answer_hangups(hangups, shutdown.clone()));
            if config.ranks.nodes.rank > 0 {
                return follow_leader(config, &shutdown).await;
            }
            if fakes > 1 {
                check_fakes(&discovery, listen, fakes)?;
                return serve_fakes(config, fakes, &shutdown).await.map_err(|error| failure(&error));
            }
            let presence = Presence::prepare(discovery, registration, &config.served_model_name).await?;
            serve_alone(config, &presence, &shutdown).await
        }
    };
    outcome.map_err(|error| failure(&error))
}

/// Says that a worker does not read its model again: its port belongs to this process, and so do its streams.
async fn answer_hangups(mut hangups: Hangups, shutdown: Shutdown) {
    loop {
        hangups.next(&shutdown).await;
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
    let plan = service::plan(config).map_err(|error| failure(&error))?;
    out!("{plan}");
    Ok(())
}

/// Runs this node's ranks for the leader on another node, until shutdown or until the leader refuses the
/// node.
async fn follow_leader(config: WorkerConfig, shutdown: &Shutdown) -> Result<(), Failure> {
    let following = tokio::task::spawn_blocking(move || service::follow_leader(&config));
    tokio::select! {
        // The ranks end with this process; the leader sees their connections close.
        () = shutdown.requested() => {
            trace::flush(settings::FLUSH_TRACES);
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

/// Fails if fake workers would register, or if the ports after `listen` do not suffice.
fn check_fakes(discovery: &DiscoverySettings, listen: SocketAddr, count: u16) -> Result<(), Failure> {
    if discovery.source.is_some() {
        return Err(Failure::new(USAGE, "--fake-workers cannot be used with --discovery".to_owned()));
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
async fn configure(settings: &mut Settings) -> Result<(WorkerConfig, u16), Failure> {
    let engine = EngineSettings::read(settings);
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

/// How to start supervised workers.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Path of the binary.
    pub binary: PathBuf,
    /// Directory of the model.
    pub model: PathBuf,
    /// The name that workers use for the model.
    pub served_model_name: String,
    /// Number of workers; each takes its share of the free memory.
    pub workers: usize,
    /// Bytes of memory that are planned for the version of the model that runs beside.
    pub memory_beside: u64,
    /// When this version of the model was put into service, in milliseconds since 1970.
    pub serving_since_ms: u64,
    /// Number of visible GPUs, which are assigned to the workers in turn.
    pub gpus: usize,
    /// `--log-level`, if set.
    pub log_level: Option<String>,
    /// Value of `--log-format` for the workers.
    pub log_format: &'static str,
    /// OTLP flags as they were given.
    pub otlp_flags: Vec<(&'static str, String)>,
}

impl Launch {
    /// The command for worker `index`, called `name`. All settings are passed as flags, so that the worker
    /// does not apply the environment or a configuration file a second time.
    pub fn command(&self, index: usize, name: &str, engine: &EngineSettings, threads: usize) -> Command {
        let mut command = Command::new(&self.binary);
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            let is_foreign = settings::FOREIGN_VARIABLES.contains(&&*name);
            if name.starts_with(skein_node::config::ENV_PREFIX) && !is_foreign {
                command.env_remove(&variable);
            }
        }
        command.arg("worker").arg(&self.model);
        let mut flag = |name: &str, value: &dyn std::fmt::Display| {
            command.arg(format!("--{name}={value}"));
        };
        let config = &engine.worker;
        let scheduler = &config.scheduler;
        flag(SUPERVISED, &name);
        flag(MEMORY_SHARERS, &self.workers);
        flag(MEMORY_BESIDE, &self.memory_beside);
        flag(SERVING_SINCE, &self.serving_since_ms);
        flag("served-model-name", &self.served_model_name);
        flag("listen", &"127.0.0.1:0");
        flag("threads", &threads);
        let RanksConfig { tensor_parallel, pipeline_parallel, nodes, .. } = &config.ranks;
        flag("tensor-parallel-size", tensor_parallel);
        flag("pipeline-parallel-size", pipeline_parallel);
        flag("nnodes", &nodes.count);
        if nodes.count > 1 {
            flag("node-rank", &nodes.rank);
            flag("leader", &nodes.leader);
            if !nodes.secret.0.is_empty() {
                // Not on the command line, which all users of this machine can read.
                command.env(GROUP_SECRET, &nodes.secret.0);
            }
        }
        let mut flag = |name: &str, value: &dyn std::fmt::Display| {
            command.arg(format!("--{name}={value}"));
        };
        flag("device", &engine.device.text());
        if matches!(config.backend, BackendKind::Auto | BackendKind::Cuda) {
            let each = config.ranks.on_node() as usize;
            let (ordinal, sharers) = self.gpu_of(index, each, engine.device.ordinal);
            flag(GPU_ORDINAL, &ordinal);
            flag(GPU_SHARERS, &sharers);
            gpu_flags(&config.cuda, &mut flag);
        }
        for (name, value) in settings::precision_flags(&config.precision) {
            flag(name, &value);
        }
        match &config.cpu.packed_cache_dir {
            Some(directory) => flag("packed-cache-dir", &directory.display()),
            None => flag("packed-cache-dir", &"none"),
        }
        for adapter in config.merged_adapter.iter().chain(&config.adapters.modules) {
            flag("lora-modules", &format_args!("{}={}", adapter.name, adapter.directory.display()));
        }
        flag("max-loras", &config.adapters.max_loras);
        flag("max-cpu-loras", &config.adapters.max_cpu_loras);
        flag("max-lora-rank", &config.adapters.max_lora_rank);
        flag("block-size", &scheduler.block_size);
        match &config.cpu.draft_model {
            Some(model) => flag("speculate", &model.display()),
            None => flag("speculate", &settings::speculate_name(scheduler.speculate)),
        }
        flag("max-num-queued-reqs", &scheduler.max_num_queued_reqs);
        flag("drain-grace", &format_args!("{}s", SUPERVISED_GRACE.as_secs()));
        flag("shutdown-timeout", &format_args!("{}s", SUPERVISED_DRAIN.as_secs()));
        flag("log-format", &self.log_format);
        for (name, value) in &self.otlp_flags {
            flag(name, value);
        }
        for (name, value) in [
            ("max-model-len", scheduler.max_model_len.map(u64::from)),
            ("max-num-seqs", (!config.unset.max_num_seqs).then(|| scheduler.max_num_seqs.into())),
            (
                "max-num-batched-tokens",
                (!config.unset.max_num_batched_tokens).then(|| scheduler.max_num_batched_tokens.into()),
            ),
            ("kv-cache-memory-bytes", config.kv_cache_memory_bytes),
        ] {
            if let Some(value) = value {
                flag(name, &value);
            }
        }
        if let Some(level) = &self.log_level {
            flag("log-level", level);
        }
        for (switch, is_on) in [
            ("--no-enable-prefix-caching", !scheduler.enable_prefix_caching),
            ("--enable-lora", config.adapters.is_enabled),
            ("--allow-runtime-lora-updating", config.adapters.may_change),
            ("--batch-invariant", config.cuda.batch_invariant),
            ("--enforce-eager", config.cuda.enforce_eager),
            ("--disable-custom-all-reduce", config.cuda.peers.is_disabled),
        ] {
            if is_on {
                command.arg(switch);
            }
        }
        command
    }
    /// The first GPU of worker `index`, which uses `each` consecutive GPUs, and how many workers share it. If
    /// a GPU was `named`, all workers share that one.
    fn gpu_of(&self, index: usize, each: usize, named: Option<u32>) -> (u32, usize) {
        let runs = (self.gpus / each).max(1);
        let run = index % runs;
        match named {
            Some(ordinal) => (ordinal, self.workers),
            None => ((run * each) as u32, (self.workers.saturating_sub(run)).div_ceil(runs).max(1)),
        }
    }
}

fn gpu_flags(cuda: &CudaConfig, flag: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    flag("gpu-memory-utilization", &cuda.memory_utilization);
    flag("step-timeout", &format_args!("{}ms", cuda.step_timeout.as_millis()));
    if cuda.load_format == LoadFormat::Dummy {
        flag("load-format", &"dummy");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_assigned_to_the_gpus_in_turn() {
        let check = |workers, gpus, each, named, expected: &[(u32, usize)]| {
            let launch = Launch {
                binary: PathBuf::new(),
                model: PathBuf::new(),
                served_model_name: String::new(),
                workers,
                memory_beside: 0,
                serving_since_ms: 0,
                gpus,
                log_level: None,
                log_format: "auto",
                otlp_flags: Vec::new(),
            };
            let assigned: Vec<_> = (0..workers).map(|index| launch.gpu_of(index, each, named)).collect();
            assert_eq!(assigned, expected);
        };
        check(1, 0, 1, None, &[(0, 1)]);
        check(2, 2, 1, None, &[(0, 1), (1, 1)]);
        check(3, 2, 1, None, &[(0, 2), (1, 1), (0, 2)]);
        check(2, 4, 1, Some(3), &[(3, 2), (3, 2)]);
        // Two ranks per worker; the odd GPU stays unused.
        check(2, 5, 2, None, &[(0, 1), (2, 1)]);
        check(3, 4, 2, None, &[(0, 2), (2, 1), (0, 2)]);
    }
}
