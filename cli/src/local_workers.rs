//! Workers on this machine: how many there are, with how many threads, and how they are started.

use skein_node::config::{Settings, count};
use skein_node::telemetry::LogOptions;
use skein_sys::threads::ThreadPlacement;
use skein_worker::config::BackendKind;

use crate::exit::Failure;
use crate::front::Served;
use crate::settings::EngineSettings;
use crate::supervised::Launch;
use crate::swap::{now_ms, resolved};

/// Most workers on one machine.
pub const MAX_WORKERS: u64 = 64;
/// Workers on a machine without a GPU: if one dies, the other serves on.
const CPU_WORKERS: usize = 2;
/// `--workers`; `None` = as many as fit the machine.
pub fn worker_count(settings: &mut Settings) -> Option<usize> {
    settings.value("workers", count(1..=MAX_WORKERS)).map(|count| count as usize)
}

/// GPUs that the workers may use. Does not load the driver if they use none.
pub fn visible_gpus(engine: &EngineSettings) -> usize {
    match engine.worker.backend {
        BackendKind::Auto | BackendKind::Cuda => skein_worker::visible_gpus() as usize,
        BackendKind::Cpu | BackendKind::Fake => 0,
    }
}

/// One worker per GPU, or per as many GPUs as it has ranks: two on one would share its memory and read the
/// weights twice.
pub fn default_workers(engine: &EngineSettings, gpus: usize) -> usize {
    let ranks = engine.worker.ranks.on_node() as usize;
    match (gpus, engine.device.ordinal) {
        _ if engine.worker.ranks.nodes.count > 1 => 1,
        (0, _) => CPU_WORKERS,
        (_, Some(_)) => 1,
        (gpus, None) => (gpus / ranks).clamp(1, MAX_WORKERS as usize),
    }
}

/// `--threads`, or an even share of the cores for each worker.
pub fn threads_each(engine: &EngineSettings, workers: usize) -> usize {
    let machine = ThreadPlacement::of_this_machine(0);
    match (engine.worker.threads, workers) {
        (0, 0 | 1) => machine.threads,
        (0, workers) => (machine.cores.min(machine.limit) / workers).max(1),
        (threads, _) => threads,
    }
}

/// How to start `workers` workers, which log like this process.
///
/// # Errors
/// If the system cannot tell the path of this binary.
pub fn launch(served: &Served, workers: usize, log: &LogOptions) -> Result<Launch, Failure> {
    Ok(Launch {
        binary: std::env::current_exe().map_err(Failure::other)?,
        model: resolved(served.model.clone()),
        memory_beside: 0,
        serving_since_ms: now_ms(),
        served_model_name: served.name().to_owned(),
        workers,
        gpus: 0,
        log: log.clone(),
    })
}
