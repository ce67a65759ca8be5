//! Workers under a supervisor: what a command gives them, and their process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Arg;
use serde::{Deserialize, Serialize};
use skein_node::shutdown::Shutdown;
use skein_node::supervisor::{
    Lifecycle, Secret, WorkerStart, end_with_supervisor, report_alive, settings_from_supervisor,
};
use skein_node::telemetry::{self, LogOptions};
use skein_node::{config, trace};
use skein_worker::config::{BackendKind, CudaConfig, WorkerConfig};
use skein_worker::service;

use crate::exit::{Failure, USAGE};
use crate::settings::{self, EngineSettings};
use crate::worker::{failure, rank_command};

/// Hidden flag of `skein worker`: the name of a worker under a supervisor, which sends it all its settings.
pub const SUPERVISED: &str = "supervised";
/// The command of all workers, by which `ps` and `pkill` find them.
const WORKER: &str = "worker";
/// Drain time of a worker whose supervisor has closed its input. The router has drained before, so nothing
/// should be running.
const DRAIN: Duration = Duration::from_secs(5);
/// Part of it in which requests may continue; then they are handed back, which takes the rest of the time.
const GRACE: Duration = Duration::from_secs(2);
/// `service.name` of workers in traces.
const TRACED_AS: &str = "skein-worker";

/// All settings of a supervised worker. They travel as one line of JSON on its standard input: no other user
/// of the machine sees them, and no environment or file is applied a second time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SupervisedWorker {
    config: WorkerConfig,
    log: LogOptions,
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
    /// The log and traces of the process that starts them.
    pub log: LogOptions,
}

impl Launch {
    /// The start of worker `index`, called `name`, which computes with `threads` threads.
    pub fn start(&self, index: usize, name: &str, engine: &EngineSettings, threads: usize) -> WorkerStart {
        let mut command = tokio::process::Command::new(&self.binary);
        // Secrets among our variables are not for workers.
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in config::own_variables(ours, &settings::FOREIGN_VARIABLES) {
            command.env_remove(name);
        }
        command.arg(WORKER).arg(format!("--{SUPERVISED}={name}"));
        let worker =
            SupervisedWorker { config: self.config(index, engine, threads), log: of_worker(&self.log, name) };
        let settings = serde_json::to_string(&worker)
            .unwrap_or_else(|error| unreachable!("each setting has a form in JSON: {error}"));
        WorkerStart { command, settings }
    }

    fn config(&self, index: usize, engine: &EngineSettings, threads: usize) -> WorkerConfig {
        let given = &engine.worker;
        let cuda = match given.backend {
            BackendKind::Auto | BackendKind::Cuda => {
                let each = given.ranks.on_node() as usize;
                let gpu = self.gpu_of(index, each, engine.device.ordinal);
                CudaConfig { ordinal: gpu.ordinal, sharers: gpu.sharers, ..given.cuda.clone() }
            }
            BackendKind::Cpu | BackendKind::Fake => given.cuda.clone(),
        };
        WorkerConfig {
            model: self.model.clone(),
            served_model_name: self.served_model_name.clone(),
            memory_sharers: self.workers as u32,
            memory_beside: self.memory_beside,
            serving_since_ms: Some(self.serving_since_ms),
            threads,
            cuda,
            drain_grace: GRACE,
            shutdown_timeout: DRAIN,
            ..given.clone()
        }
    }

    /// The first GPU of worker `index`, which uses `each` consecutive GPUs. If a GPU was `named`, all workers
    /// share that one.
    fn gpu_of(&self, index: usize, each: usize, named: Option<u32>) -> SharedGpu {
        let runs = (self.gpus / each).max(1);
        let run = index % runs;
        let sharers = |count: usize| count.max(1) as u32;
        match named {
            Some(ordinal) => SharedGpu { ordinal, sharers: sharers(self.workers) },
            None => SharedGpu {
                ordinal: (run * each) as u32,
                sharers: sharers(self.workers.saturating_sub(run).div_ceil(runs)),
            },
        }
    }
}

/// A GPU and the number of workers that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SharedGpu {
    ordinal: u32,
    sharers: u32,
}

/// The log of a worker called `name` beside that of its supervisor, whose traces it joins. The supervisor
/// exports the metrics.
fn of_worker(log: &LogOptions, name: &str) -> LogOptions {
    let traced = log.otlp.clone().filter(|otlp| otlp.traces.is_some());
    let otlp = traced.map(|otlp| trace::Options {
        metrics: None,
        service: TRACED_AS.into(),
        instance: name.to_owned(),
        ..otlp
    });
    LogOptions { process: name.to_owned(), otlp, ..log.clone() }
}

/// The flag's definition.
pub fn flag() -> Arg {
    Arg::new(SUPERVISED).long(SUPERVISED).value_name("NAME").hide(true)
}

/// Runs the worker until its supervisor closes its input.
///
/// # Errors
/// Settings that are not from a supervisor, or a model that cannot be served.
pub async fn run() -> Result<(), Failure> {
    let outcome = serve().await;
    if let Err(failure) = &outcome {
        // The supervisor prints it, once for all its workers.
        Lifecycle::Failed(failure.for_supervisor()).emit();
        telemetry::flush(settings::FLUSH_TRACES);
        // A thread may hang in the driver of a stuck GPU, and the driver's exit handlers may hang, too. The
        // supervisor must see the exit at once, so that streams continue on other workers.
        skein_sys::process::exit_without_handlers(failure.code.into())
    }
    outcome
}

async fn serve() -> Result<(), Failure> {
    let secret = Secret::from_supervisor().map_err(Failure::other)?;
    let given = settings_from_supervisor().map_err(Failure::other)?;
    let SupervisedWorker { mut config, log } = serde_json::from_str(&given).map_err(|error| {
        Failure::new(USAGE, format!("the supervisor's settings are not readable: {error}"))
    })?;
    config.secret = Some(secret);
    config.ranks.command = Some(rank_command()?);
    telemetry::init(&log).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let shutdown = Shutdown::supervised().map_err(Failure::other)?;
    end_with_supervisor(shutdown.clone()).map_err(Failure::other)?;
    let alive = report_alive();
    let progress = |done, total| Lifecycle::Progress { done, total }.emit();
    let ready = move |address: SocketAddr| {
        alive.abort();
        Lifecycle::Ready { address: address.to_string() }.emit();
    };
    let served = service::serve(config, progress, ready, shutdown.requested()).await;
    served.map_err(|error| failure(&error))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use skein_node::telemetry::LogFormat;
    use skein_node::trace::{Endpoint, Protocol, Sampling};
    use skein_tls::ClientFiles;
    use skein_worker::config::{AdapterConfig, CpuConfig, FakeConfig, GroupSecret, NodesConfig, RanksConfig};

    use super::*;

    fn log() -> LogOptions {
        let endpoint = Endpoint {
            url: "https://collector:4317".into(),
            tls: ClientFiles { ca: Some("/ca.pem".into()), identity: None },
            protocol: Protocol::Grpc,
        };
        let otlp = trace::Options {
            traces: Some(endpoint.clone()),
            metrics: Some(endpoint),
            sampling: Sampling { follows_parent: true, ratio: 0.05 },
            slow_after: Duration::from_millis(1500),
            service: "skein-router".into(),
            instance: String::new(),
        };
        LogOptions {
            format: LogFormat::Json,
            level: Some("debug".into()),
            process: "serve".into(),
            otlp: Some(otlp),
        }
    }

    fn launch(workers: usize, gpus: usize) -> Launch {
        Launch {
            binary: PathBuf::new(),
            model: PathBuf::new(),
            served_model_name: String::new(),
            workers,
            memory_beside: 0,
            serving_since_ms: 0,
            gpus,
            log: log(),
        }
    }

    #[test]
    fn workers_are_assigned_to_the_gpus_in_turn() {
        let check = |workers, gpus, each, named, expected: &[(u32, u32)]| {
            let launch = launch(workers, gpus);
            let gpus = (0..workers).map(|index| launch.gpu_of(index, each, named));
            let assigned: Vec<_> = gpus.map(|gpu| (gpu.ordinal, gpu.sharers)).collect();
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

    #[test]
    fn a_worker_gets_the_settings_that_its_supervisor_has_bit_for_bit() {
        let mut config = WorkerConfig::new("model", "name");
        config.cuda.memory_utilization = 0.1 + 0.2;
        config.cuda.step_timeout = Duration::from_nanos(1_234_567_891);
        config.merged_adapter = Some(AdapterConfig { name: "a".into(), directory: "/a \" b".into() });
        config.model = OsStr::from_bytes(b"/no\xfeUnicode").into();
        config.cpu =
            CpuConfig { packed_cache_dir: None, draft_model: Some(OsStr::from_bytes(b"\xff").into()) };
        config.fake = FakeConfig { kv_blocks: Some(7), ..FakeConfig::default() };
        config.kv_cache_memory_bytes = Some(u64::MAX);
        let nodes = NodesConfig { count: 2, secret: GroupSecret("s".into()), ..NodesConfig::default() };
        config.ranks = RanksConfig { tensor_parallel: 4, nodes, ..RanksConfig::default() };
        let given = SupervisedWorker { config, log: log() };
        let line = serde_json::to_string(&given).expect("plain values");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<SupervisedWorker>(&line).expect("it reads back"), given);
    }

    #[test]
    fn a_worker_joins_the_traces_and_leaves_the_metrics_to_its_supervisor() {
        let worker = of_worker(&log(), "worker-1");
        let otlp = worker.otlp.expect("traces are on");
        assert_eq!((&*otlp.service, &*otlp.instance, otlp.metrics), ("skein-worker", "worker-1", None));
        assert!(otlp.traces.is_some());
        assert_eq!((&*worker.process, worker.level.as_deref()), ("worker-1", Some("debug")));
        let metrics_only =
            LogOptions { otlp: log().otlp.map(|otlp| trace::Options { traces: None, ..otlp }), ..log() };
        assert_eq!(of_worker(&metrics_only, "worker-1").otlp, None);
    }
}
