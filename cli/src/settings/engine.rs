//! Reads the settings of a worker's engine into their types.

use std::path::PathBuf;
use std::time::Duration;

use skein_gguf::is_gguf;
use skein_model::adapter::MAX_SERVED_RANK;
use skein_node::config::{Settings, bytes, duration, number, one_of, text};
use skein_worker::config::{
    AdapterConfig, AdaptersConfig, BackendKind, CpuConfig, CudaConfig, LoadFormat, PeerConfig, Precision,
    SchedulerConfig, UnsetLimits, WorkerConfig,
};
use skein_worker::draft::Speculate;

use super::device_choice::DeviceChoice;
use super::precision::precision;
use super::ranks::{ranks, same_on_nodes};
use super::read::{A_DAY, shutdown_timeout, small, user_cache};

/// Settings of a worker's engine.
#[derive(Debug)]
pub struct EngineSettings {
    /// The `--device` setting as given.
    pub device: DeviceChoice,
    /// Other settings. The model and its name are filled in later, the GPU's sharers at the start of the
    /// worker.
    pub worker: WorkerConfig,
}

impl EngineSettings {
    /// Reads the settings; problems are recorded in `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        let mut engine = Self::read_compute(settings);
        let queued = &mut engine.worker.scheduler.max_num_queued_reqs;
        *queued = small(settings, "max-num-queued-reqs", 1, 1_000_000).unwrap_or(*queued);
        engine.worker.shutdown_timeout = shutdown_timeout(settings);
        engine.worker.ranks = ranks(settings, |name| std::env::var(name).ok());
        engine.worker.ranks.nodes.settings = same_on_nodes(settings, &engine.worker);
        engine
    }

    /// Like [`EngineSettings::read`], without the settings that only a server has: queue and drain.
    pub fn read_compute(settings: &mut Settings) -> Self {
        let defaults = SchedulerConfig::default();
        let max_num_seqs = small(settings, "max-num-seqs", 1, 4096);
        let max_num_batched_tokens = small(settings, "max-num-batched-tokens", 1, 1 << 20);
        let scheduler = SchedulerConfig {
            block_size: small(settings, "block-size", 1, 256).unwrap_or(defaults.block_size),
            max_model_len: max_model_len(settings),
            max_num_seqs: max_num_seqs.unwrap_or(defaults.max_num_seqs),
            max_num_batched_tokens: max_num_batched_tokens.unwrap_or(defaults.max_num_batched_tokens),
            max_num_queued_reqs: defaults.max_num_queued_reqs,
            enable_prefix_caching: settings.switch("enable-prefix-caching"),
            ..defaults
        };
        let unset = UnsetLimits {
            max_num_seqs: max_num_seqs.is_none(),
            max_num_batched_tokens: max_num_batched_tokens.is_none(),
        };
        Self::with_limits(settings, scheduler, unset)
    }

    /// For `skein run`, with one user: `max_num_seqs` sequences at once and defaults for the other limits.
    pub fn read_for_one(settings: &mut Settings, max_num_seqs: u32) -> Self {
        let max_model_len = max_model_len(settings);
        let scheduler = SchedulerConfig { max_model_len, max_num_seqs, ..SchedulerConfig::default() };
        let unset = UnsetLimits { max_num_seqs: false, max_num_batched_tokens: true };
        Self::with_limits(settings, scheduler, unset)
    }

    fn with_limits(settings: &mut Settings, scheduler: SchedulerConfig, unset: UnsetLimits) -> Self {
        let (device, precision, cuda) = device(settings);
        let (adapter, adapters) = adapters(settings);
        let (speculate, draft_model) = speculate(settings);
        let worker = WorkerConfig {
            backend: device.kind,
            precision,
            cpu: CpuConfig { draft_model, ..cpu(settings) },
            merged_adapter: adapter,
            adapters,
            cuda,
            threads: threads(settings),
            scheduler: SchedulerConfig { speculate, ..scheduler },
            unset,
            kv_cache_memory_bytes: kv_bytes(settings),
            drain_grace: Duration::ZERO,
            shutdown_timeout: Duration::ZERO,
            ..WorkerConfig::new("", "")
        };
        Self { device, worker }
    }
}

/// Reads `--device`, the number types and the GPU settings. A device that was named must support them all.
pub(super) fn device(settings: &mut Settings) -> (DeviceChoice, Precision, CudaConfig) {
    let auto = DeviceChoice { kind: BackendKind::Auto, ordinal: None };
    let device = settings.value("device", DeviceChoice::parse).unwrap_or(auto);
    let defaults = CudaConfig::default();
    let cuda = CudaConfig {
        ordinal: device.ordinal.unwrap_or(0),
        sharers: 1,
        memory_utilization: settings
            .value("gpu-memory-utilization", number(0.01..=1.0))
            .unwrap_or(defaults.memory_utilization),
        load_format: settings
            .value("load-format", one_of(&[("auto", LoadFormat::Auto), ("dummy", LoadFormat::Dummy)]))
            .unwrap_or(defaults.load_format),
        batch_invariant: settings.switch("batch-invariant"),
        enforce_eager: settings.switch("enforce-eager"),
        step_timeout: settings
            .value("step-timeout", duration(Duration::from_millis(100)..=A_DAY))
            .unwrap_or(defaults.step_timeout),
        times_gaps: false,
        window_blocks: defaults.window_blocks,
        peers: PeerConfig { is_disabled: settings.switch("disable-custom-all-reduce"), ..defaults.peers },
    };
    let is_dummy = cuda.load_format == LoadFormat::Dummy;
    if is_dummy && matches!(device.kind, BackendKind::Cpu | BackendKind::Fake) {
        settings.problem(format!(
            "load-format = dummy needs a GPU, but device is {}; leave one of them out (on the CPU, make a model \
             with skein-dev make-model)",
            device.text()
        ));
    }
    (device, precision(settings, device), cuda)
}

/// `--packed-cache-dir`: a directory, or `none`. The default is in the user's cache directory (XDG Base
/// Directory Specification).
fn cpu(settings: &mut Settings) -> CpuConfig {
    let given = settings.value("packed-cache-dir", text);
    let packed_cache_dir = match given.as_deref() {
        Some("none") => None,
        Some(directory) => Some(directory.into()),
        None => user_cache().map(|directory| directory.join("skein").join("packed")),
    };
    CpuConfig { packed_cache_dir, draft_model: None }
}

/// The adapter to merge, and those to serve beside the model.
fn adapters(settings: &mut Settings) -> (Option<AdapterConfig>, AdaptersConfig) {
    let mut modules = settings.list("lora-modules", module);
    let is_enabled = settings.switch("enable-lora");
    let may_change = settings.switch("allow-runtime-lora-updating");
    let defaults = AdaptersConfig::default();
    let max_loras = small(settings, "max-loras", 1, 4096).map_or(defaults.max_loras, |count| count as usize);
    let max_cpu_loras =
        small(settings, "max-cpu-loras", 1, 1 << 16).map_or(max_loras, |count| count as usize);
    let max_lora_rank = small(settings, "max-lora-rank", 1, MAX_SERVED_RANK as u32);
    let max_lora_rank = max_lora_rank.map_or(defaults.max_lora_rank, |rank| rank as usize);
    if max_cpu_loras < max_loras {
        settings
            .problem(format!("max-cpu-loras is {max_cpu_loras}, it must be at least max-loras, {max_loras}"));
    }
    if may_change && !is_enabled {
        settings.problem("allow-runtime-lora-updating needs enable-lora");
    }
    if let Some(twice) = first_named_twice(&modules) {
        settings.problem(format!("lora-modules names two adapters `{twice}`; give each its own name"));
    }
    if is_enabled {
        let config =
            AdaptersConfig { is_enabled, modules, max_loras, max_cpu_loras, max_lora_rank, may_change };
        return (None, config);
    }
    if modules.len() > 1 {
        settings.problem(format!(
            "lora-modules has {} adapters; without enable-lora one is merged into the weights",
            modules.len()
        ));
    }
    (modules.pop(), defaults)
}

/// An adapter of `--lora-modules`: `NAME=DIR`, or vLLM's JSON with `name` and `path`.
fn module(given: &str) -> Result<AdapterConfig, String> {
    if given.starts_with('{') {
        let parsed: serde_json::Value = serde_json::from_str(given).map_err(|error| error.to_string())?;
        let text = |field: &str| parsed[field].as_str().filter(|text| !text.is_empty());
        let (name, path) = text("name").zip(text("path")).ok_or("JSON needs the texts `name` and `path`")?;
        return Ok(AdapterConfig { name: name.to_owned(), directory: path.into() });
    }
    let named = given.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty());
    let (name, path) = named.ok_or_else(|| format!("`{given}` is not NAME=DIR"))?;
    Ok(AdapterConfig { name: name.to_owned(), directory: path.into() })
}

fn first_named_twice(modules: &[AdapterConfig]) -> Option<&str> {
    let mut seen = std::collections::HashSet::new();
    modules.iter().map(|module| &*module.name).find(|name| !seen.insert(*name))
}

/// The `--threads` setting; 0 if unset.
fn threads(settings: &mut Settings) -> usize {
    small(settings, "threads", 0, 1024).unwrap_or(0) as usize
}

/// The `--kv-cache-memory-bytes` setting; `None` if unset.
fn kv_bytes(settings: &mut Settings) -> Option<u64> {
    settings.value("kv-cache-memory-bytes", bytes(1 << 20..=1 << 50))
}

/// The `--speculate` setting, or its default: the sources of drafts, and a draft model. With a draft model,
/// all other sources are used, too.
fn speculate(settings: &mut Settings) -> (Speculate, Option<PathBuf>) {
    let parse = |given: &str| {
        let path = PathBuf::from(given);
        match one_of(&SPECULATE)(given) {
            Ok(named) => Ok((named, None)),
            Err(_) if path.join("config.json").is_file() || is_gguf(&path) => {
                Ok((Speculate::Auto, Some(path)))
            }
            Err(not_named) => Err(format!(
                "{not_named}, and no draft model either: a directory with a config.json, or a GGUF file (skein \
                 pull prints the directory of a model by name)"
            )),
        }
    };
    settings.value("speculate", parse).unwrap_or_default()
}

/// Values of `--speculate`.
const SPECULATE: [(&str, Speculate); 4] = [
    ("auto", Speculate::Auto),
    ("off", Speculate::Off),
    ("ngram", Speculate::Ngram),
    ("suffix", Speculate::Suffix),
];

fn max_model_len(settings: &mut Settings) -> Option<u32> {
    small(settings, "max-model-len", 2, 1 << 24)
}
