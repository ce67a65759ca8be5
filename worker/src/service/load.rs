//! From a configuration to a loaded backend.

use std::path::Path;
use std::sync::Arc;

use skein_grammar::Grammars;
use skein_grammar::token_bytes::TokenBytes;
use skein_kernels::cpu::matrix::Storage;
use skein_kernels::cpu::packed::Format;
use skein_node::trace::PROCESS;
use tracing::field::Empty;
use tracing::info_span;

use super::cuda_ranks::LedOnCuda;
use super::draft_model::{self, DraftModelPlan};
use super::memory_plan::Needs;
use super::sizing::{KvTokenBytes, Room};
use super::{WorkerError, cuda_ranks, precision, ranks, sizing};
use crate::TokenId;
use crate::adapters::Adapters;
use crate::backend::cpu::{CpuBackend, CpuOptions, NumberTypes};
use crate::backend::cuda::{self, CudaOptions, NotUsable, OpenDevice, ServedAdapters, StepGaps};
use crate::backend::fake::{FakeBackend, FakeOptions};
use crate::backend::{Backend, KvBlocks};
use crate::config::{
    AdaptersConfig, BackendKind, DeviceKind, KvCacheDtype, LoadFormat, Quantization, WorkerConfig,
};
use crate::draft_model::DraftModel;
use crate::group::{RankAdapters, Topology};
use crate::model::LoadError;
use crate::model::adapter::Adapter;
use crate::model::checkpoint::quantised::Scheme;
use crate::model::checkpoint::{ModelFile, Weights};
use crate::model::config::ModelConfig;
use crate::model::cost::{Product, StepCost, ValueBytes};
use crate::model::fingerprint::{computed_with, fingerprint};
use crate::model::on_cpu::adapter::AdapterWeights;
use crate::model::on_cpu::packed_cache::PackedCache;
use crate::model::served_adapter::AdapterForm;
use crate::model::spec::Spec;
use crate::model::tensors::{self, Kind};
use crate::shard::Shard;

/// Flag for made-up weights, and how to get some without a GPU.
const DUMMY: &str = "--load-format dummy (on the CPU, make a model with skein-dev make-model)";
/// Vocabulary and context length of the fake backend when it is served.
const FAKE_VOCAB_SIZE: u32 = 32_000;
const FAKE_MODEL_LEN: u32 = 8192;
/// Context length of the fake backend in measurements, enough for requests of any recorded trace.
const CLOCK_MODEL_LEN: u32 = 131_072;
/// Fingerprint of the fake backend in measurements, whose tokens differ from those of the checking one.
const CLOCK_FINGERPRINT: u64 = 1;
/// Cache bytes a token of a model with half a billion parameters, to size the cache realistically.
const FAKE_KV_BYTES_PER_TOKEN: u64 = 12 * 1024;

/// A loaded backend, and what the rest of the worker must know of its model.
pub struct LoadedBackend {
    /// Computes the steps.
    pub backend: Box<dyn Backend>,
    /// Size of the vocabulary; token ids are below it.
    pub vocab_size: u32,
    /// Longest sequence that the model was trained for.
    pub model_len: u32,
    /// Tokens that end a sample unless the request ignores them.
    pub eos_token_ids: Vec<TokenId>,
    /// Device that computes.
    pub device: DeviceKind,
    /// Whether a resumed request continues bit for bit.
    pub resume_exact: bool,
    /// Hash that tells apart models of the same name.
    pub fingerprint: u64,
    /// Least cost of a step.
    pub cost: StepCost,
    /// Compiles grammars; `None` if answers cannot be constrained.
    pub grammars: Option<Arc<Grammars>>,
    /// Idle times of the device between steps, if they are measured.
    pub gaps: Option<Arc<StepGaps>>,
    /// Adapters served beside the model; `None` = not enabled.
    pub adapters: Option<Adapters>,
    /// Smaller model that drafts tokens.
    pub draft_model: Option<DraftModel>,
}

impl LoadedBackend {
    /// Wraps a fake backend, whose tokens depend on no weights.
    pub fn fake(backend: impl Backend + 'static, vocab_size: u32, model_len: u32) -> Self {
        Self {
            backend: Box::new(backend),
            vocab_size,
            model_len,
            eos_token_ids: Vec::new(),
            device: DeviceKind::Fake,
            resume_exact: true,
            fingerprint: 0,
            cost: StepCost::default(),
            grammars: None,
            gaps: None,
            adapters: None,
            draft_model: None,
        }
    }
}

/// Loads the model of `config`. Blocks while reading the weights.
pub(super) fn load(
    config: &WorkerConfig,
    mut progress: impl FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    let span = info_span!(target: PROCESS, "load", skein.device = Empty, skein.kv_blocks = Empty);
    let loaded = span.in_scope(|| load_on(config, &mut progress))?;
    span.record("skein.device", loaded.device.name());
    span.record("skein.kv_blocks", loaded.backend.kv_blocks());
    Ok(loaded)
}

/// Loads on the device of `config`.
fn load_on(config: &WorkerConfig, progress: &mut dyn FnMut(u64, u64)) -> Result<LoadedBackend, WorkerError> {
    match config.backend {
        BackendKind::Auto => load_auto(config, progress),
        BackendKind::Cuda => {
            let opened = open_cuda(config)?.map_err(|why| WorkerError::Load(Box::new(why)))?;
            load_cuda(config, opened, progress)
        }
        BackendKind::Cpu => load_cpu(config, progress),
        BackendKind::Fake => load_fake(config),
    }
}

impl From<LoadError> for WorkerError {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}

/// Uses a usable GPU if there is one, else the CPU. A GPU that is present but does not work is an error: a
/// worker that came back on another device could not continue its earlier requests.
fn load_auto(
    config: &WorkerConfig,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    match open_cuda(config)? {
        Ok(opened) => load_cuda(config, opened, progress),
        Err(why) if why.is_fault() => Err(WorkerError::Load(Box::new(why))),
        Err(why) => {
            for (setting, is_set) in [
                ("--quantization fp8", config.precision.quantization == Some(Quantization::Fp8)),
                ("--kv-cache-dtype fp8", config.precision.kv_cache_dtype == KvCacheDtype::Fp8),
                (DUMMY, config.cuda.load_format == LoadFormat::Dummy),
            ] {
                if is_set {
                    return Err(WorkerError::Load(format!("{setting} needs a GPU: {why}").into()));
                }
            }
            tracing::info!("{why}; using the CPU");
            load_cpu(config, progress)
        }
    }
}

/// Opens the device and its kernels, or says why it cannot be used for the model.
pub(super) fn open_cuda(config: &WorkerConfig) -> Result<Result<OpenDevice, NotUsable>, WorkerError> {
    let _opening = info_span!(target: PROCESS, "open device").entered();
    let model = ModelConfig::from_dir(&config.model)?;
    match cuda::open(config.cuda.ordinal, &model, config.scheduler.block_size) {
        // A wrong flag must not turn a GPU worker into a CPU worker.
        Err(NotUsable::Setting { setting, got, allowed }) => {
            Err(WorkerError::Setting { setting, got: got as u64, allowed })
        }
        opened => Ok(opened),
    }
}

/// The model of `config` and the options of its CUDA backend.
///
/// # Errors
/// If a setting or the model is supported on the CPU only.
pub(super) fn cuda_options(config: &WorkerConfig) -> Result<(ModelConfig, CudaOptions), WorkerError> {
    let fp8 = precision::on_cuda(config.precision)?;
    if config.cpu.draft_model.is_some() {
        return Err(WorkerError::Unsuitable(
            "--speculate with a draft model needs the CPU, and this worker uses a GPU; add --device cpu, or leave it out"
                .into(),
        ));
    }
    let merged = config.merged_adapter.as_ref().map(|adapter| adapter.directory.clone());
    if merged.is_some() && config.cuda.load_format == LoadFormat::Dummy {
        return Err(WorkerError::Unsuitable(
            "--lora-modules without --enable-lora merges an adapter into the weights, and --load-format dummy reads none; \
             leave one of them out"
                .into(),
        ));
    }
    if merged.is_some() {
        check_adapter(config)?;
    }
    if config.cuda.load_format == LoadFormat::Dummy && ModelFile::open(&config.model)?.is_some() {
        return Err(WorkerError::Unsuitable(
            "--load-format dummy takes a directory with config.json, and this model is a GGUF file; leave it out, or make a \
             directory with skein-dev make-model --no-weights --quantization q4_k or another type"
                .into(),
        ));
    }
    let model = ModelConfig::from_dir(&config.model)?;
    if let Some(kind) = quantised_form(config, &model.spec)?
        && config.precision.quantization.is_some()
    {
        return Err(WorkerError::Unsuitable(format!(
            "--quantization needs 16-bit weights, but this model's are quantised with {kind}; leave it out"
        )));
    }
    let rounded = precision::rounded_on_cuda(config.precision);
    let limits = config.scheduler_on(DeviceKind::Cuda);
    sizing::check_model_len(&limits, model.max_position_embeddings)?;
    let options = CudaOptions {
        cuda: config.cuda.clone(),
        fp8,
        rounded,
        limits,
        kv_cache_memory_bytes: config.kv_cache_memory_bytes,
        window_blocks: true,
        readers: config.threads,
        merged,
        served: config.adapters.is_enabled.then_some(ServedAdapters {
            slots: config.adapters.max_loras,
            max_rank: config.adapters.max_lora_rank,
        }),
    };
    Ok((model, options))
}

fn load_cuda(
    config: &WorkerConfig,
    opened: OpenDevice,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    let (model, options) = cuda_options(config)?;
    let fp8 = options.fp8;
    let is_coded = fp8.weights || options.rounded.is_some() || quantised_form(config, &model.spec)?.is_some();
    let fingerprint = match config.cuda.load_format {
        LoadFormat::Auto => fingerprint(&config.model)?,
        // Dummy weights are determined by their sizes.
        LoadFormat::Dummy => 0,
    };
    let (backend, gaps, mut arithmetic, (ranks, form)) = if config.ranks.count() > 1 {
        let LedOnCuda { backend, arithmetic, adapters: (ranks, form) } =
            cuda_ranks::lead(config, &model, opened, &options, progress)?;
        (backend, None, arithmetic, (Some(ranks), form))
    } else {
        let whole = Shard::whole(&model.spec);
        let form = cuda::slot_form((&config.model, &model, &whole), &opened, &options)?;
        let loaded = cuda::load(&config.model, &model, opened, &options, progress);
        let (backend, arithmetic) = loaded.map_err(|error| WorkerError::Load(Box::new(error)))?;
        let gaps = backend.gaps();
        (Box::new(backend) as Box<dyn Backend>, gaps, arithmetic, (None, form))
    };
    arithmetic += &of_merged(options.merged.as_deref())?;
    let of_form = |form| adapters(config, Some((&model.spec, AdapterForm::Cuda(Arc::new(form)))));
    let adapters = on_ranks(form.map(of_form).transpose()?.flatten(), ranks)?;
    Ok(LoadedBackend {
        cost: StepCost {
            product: Product::Bf16,
            ..model.spec.cost(ValueBytes {
                layers: if is_coded { 1 } else { 2 },
                head: 2,
                kv: if fp8.kv_cache { 1 } else { 2 },
            })
        },
        fingerprint: computed_with(fingerprint, &arithmetic),
        grammars: grammars(&config.model, model.spec.vocab_size),
        gaps,
        adapters,
        draft_model: None,
        backend,
        vocab_size: model.spec.vocab_size,
        model_len: model.max_position_embeddings,
        eos_token_ids: model.eos_token_ids,
        device: DeviceKind::Cuda,
        resume_exact: config.cuda.batch_invariant,
    })
}

/// Requirements of a model on the CPU, known before loading.
pub(super) struct CpuPlan {
    pub model: ModelConfig,
    pub topology: Topology,
    /// Part of each rank, in rank order.
    pub shards: Vec<Shard>,
    pub options: CpuOptions,
    /// Whether the weights are stored as codes that are multiplied as integers.
    pub multiplies_codes: bool,
    pub draft_model: Option<DraftModelPlan>,
}

/// Plans the computation of the model of `config` on the CPU, from its file headers and the free memory.
pub(super) fn plan_cpu(config: &WorkerConfig) -> Result<CpuPlan, WorkerError> {
    // The header comes first: the size of the KV cache depends on the weights' type.
    let model = ModelConfig::from_dir(&config.model)?;
    let weights = Weights::open(&config.model)?;
    let embedding = tensors::embedding(&model.spec).find(&weights)?;
    let quantised = stored_form(&model.spec, &weights)?;
    let numbers = precision::on_cpu(config.precision, embedding.storage(), quantised)?;
    let (topology, shards) = ranks::shards(config, &model.spec)?;
    if config.merged_adapter.is_some() {
        check_adapter(config)?;
    }
    let is_in_integers = weights.scheme().map_or(quantised.is_some(), Scheme::is_of_integers);
    let multiplies_codes = is_in_integers && !numbers.decodes();
    let weight_bytes = match weights.scheme() {
        // Codes keep their size; their scales grow to single precision.
        Some(_) if !numbers.decodes() => weights.file_bytes() / 10 * 11,
        _ => model.spec.cpu_weight_bytes(bits_per_weight(&numbers, embedding.storage())),
    };
    let draft_model = config.cpu.draft_model.as_deref();
    let draft_model = draft_model.map(|path| draft_model::plan(config, path, &topology)).transpose()?;
    let mut token_bytes = ranks::kv_bytes_per_token(&model.spec, &shards, numbers.kv);
    for bytes in &mut token_bytes {
        bytes.main += draft_model.as_ref().map_or(0, |draft| draft.kv_bytes_per_token);
    }
    let rows = config.scheduler.max_num_batched_tokens.saturating_mul(topology.stages as u32);
    let blocks = kv_blocks(
        config,
        // Each worker on the machine has its own copies.
        weight_bytes
            + draft_model.as_ref().map_or(0, |draft| draft.weight_bytes)
            + shards.iter().map(|shard| adapter_bytes(config, (&model.spec, shard))).sum::<u64>()
                * u64::from(config.memory_sharers.max(1)),
        (model.spec.longest_window(), rows),
        &token_bytes,
        model.max_position_embeddings,
    )?;
    let options = CpuOptions {
        threads: if topology.ranks() > 1 { ranks::threads_each(config) } else { config.threads },
        kv_blocks: blocks.blocks,
        window_blocks: blocks.window,
        block_size: config.scheduler.block_size,
        max_rows: config.scheduler.max_num_batched_tokens,
        numbers,
    };
    Ok(CpuPlan { model, topology, shards, options, multiplies_codes, draft_model })
}

fn load_cpu(config: &WorkerConfig, progress: &mut dyn FnMut(u64, u64)) -> Result<LoadedBackend, WorkerError> {
    let reading = info_span!(target: PROCESS, "read checkpoint").entered();
    let CpuPlan { model, topology, shards, options, multiplies_codes, draft_model } = plan_cpu(config)?;
    let numbers = options.numbers;
    let adapter = config.merged_adapter.as_ref().map(|adapter| adapter.directory.as_path());
    let arithmetic = precision::cpu_arithmetic(&numbers) + &of_merged(adapter)?;
    let fingerprint = computed_with(fingerprint(&config.model)?, &arithmetic);
    drop(reading);
    tracing::info!(arithmetic, "computing on the CPU");
    let form = AdapterForm::Cpu(Box::new(shards[0].clone()));
    let adapters = adapters(config, Some((&model.spec, form)))?;
    let (backend, ranks, weight_bytes): (Box<dyn Backend>, _, u64) = if topology.ranks() > 1 {
        let (group, adapters, weight_bytes) =
            ranks::lead_on_cpu(config, (&model.spec, topology), options, progress)?;
        (Box::new(group), Some(adapters), weight_bytes)
    } else {
        let cache = config.cpu.packed_cache_dir.clone().map_or(PackedCache::none(), PackedCache::at);
        let backend = CpuBackend::load_with((&config.model, adapter), options, &cache, progress)?;
        let weight_bytes = backend.weight_bytes();
        (Box::new(backend), None, weight_bytes)
    };
    let adapters = on_ranks(adapters, ranks)?;
    let load = |plan: DraftModelPlan| plan.load(config, &options, model.spec.vocab_size);
    let draft_model = draft_model.map(load).transpose()?;
    Ok(LoadedBackend {
        cost: StepCost {
            product: Product::on_cpu(
                numbers.bf16,
                numbers.weights.is_some_and(Format::is_integer) || multiplies_codes,
            ),
            ..model.spec.cpu_cost(weight_bytes, numbers.kv)
        },
        fingerprint,
        backend,
        vocab_size: model.spec.vocab_size,
        model_len: model.max_position_embeddings,
        eos_token_ids: model.eos_token_ids,
        device: DeviceKind::Cpu,
        grammars: grammars(&config.model, model.spec.vocab_size),
        gaps: None,
        adapters,
        draft_model,
        resume_exact: true,
    })
}

/// The part of the description of arithmetic of the merged adapter in `directory`; empty without one.
pub(super) fn of_merged(directory: Option<&Path>) -> Result<String, LoadError> {
    let fingerprint = directory.map(|directory| Adapter::open(directory)?.fingerprint()).transpose()?;
    Ok(fingerprint.map_or(String::new(), |fingerprint| format!(" adapter {fingerprint:016x}")))
}

/// Memory that adapters may take on the rank of a shard, in bytes.
pub(super) fn adapter_bytes(config: &WorkerConfig, part: (&Spec, &Shard)) -> u64 {
    let AdaptersConfig { is_enabled, max_cpu_loras, max_lora_rank, .. } = config.adapters;
    let each = if is_enabled { AdapterWeights::most_bytes(part, max_lora_rank) } else { 0 };
    each.saturating_mul(max_cpu_loras as u64)
}

/// The adapters of `config` for a model, whose backend keeps them in a form; `None` if they are not enabled.
fn adapters(
    config: &WorkerConfig,
    model: Option<(&Spec, AdapterForm)>,
) -> Result<Option<Adapters>, WorkerError> {
    let name = &config.served_model_name;
    if config.adapters.modules.iter().any(|module| module.name == *name) {
        let what =
            format!("--lora-modules names an adapter `{name}`, which is the model's name; choose another");
        return Err(WorkerError::Unsuitable(what));
    }
    let of_config = || Adapters::new(&config.adapters, model);
    let adapters = config.adapters.is_enabled.then(of_config).transpose();
    adapters.map_err(|error| WorkerError::Load(Box::new(error)))
}

/// `adapters` on all ranks of a group.
fn on_ranks(
    adapters: Option<Adapters>,
    ranks: Option<RankAdapters>,
) -> Result<Option<Adapters>, WorkerError> {
    if let (Some(adapters), Some(ranks)) = (&adapters, ranks) {
        adapters.follow_on(ranks).map_err(|error| WorkerError::Load(Box::new(error)))?;
    }
    Ok(adapters)
}

/// Bits per weight in memory, including scales.
pub(super) fn bits_per_weight(numbers: &NumberTypes, stored: &Storage) -> u64 {
    numbers.weights.map_or(stored.bits_of_256().div_ceil(256) as u64, |format| u64::from(format.bits()) + 1)
}

/// Refuses an adapter where merging is not supported.
fn check_adapter(config: &WorkerConfig) -> Result<(), WorkerError> {
    if ModelFile::open(&config.model)?.is_none() {
        return Ok(());
    }
    let why = "--lora-modules needs a model in safetensors, and this one is a GGUF file; merge the adapter before the \
         model is converted";
    Err(WorkerError::Unsuitable(why.into()))
}

/// Name of the scheme of the model's codes, or the type of its first matrix in blocks; `None` if its weights
/// are numbers.
pub(crate) fn stored_form(spec: &Spec, weights: &Weights) -> Result<Option<&'static str>, LoadError> {
    if let Some(scheme) = weights.scheme() {
        return Ok(Some(scheme.name()));
    }
    for tensor in tensors::all(spec).iter().filter(|tensor| matches!(tensor.kind, Kind::Matrix(..))) {
        if let Some(kind) = tensor.find_stored(weights)?.storage().blocks() {
            return Ok(Some(kind.name()));
        }
    }
    Ok(None)
}

/// Name of the scheme or of the blocks in which the weights of `config`'s model are quantised, if they are.
fn quantised_form(config: &WorkerConfig, spec: &Spec) -> Result<Option<&'static str>, WorkerError> {
    if let Some(scheme) = Scheme::of(&config.model)? {
        return Ok(Some(scheme.name()));
    }
    // Dummy weights need no files.
    if config.cuda.load_format == LoadFormat::Dummy {
        return Ok(None);
    }
    Ok(stored_form(spec, &Weights::open(&config.model)?)?)
}

/// Content of a tokenizer.json, or its equivalent from a GGUF file.
pub(super) fn tokenizer_json(path: &Path) -> Result<Vec<u8>, String> {
    match ModelFile::open(path).map_err(|error| error.to_string())? {
        Some(file) => file.tokenizer().ok_or_else(|| format!("{} has no usable tokenizer", path.display())),
        None => std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display())),
    }
}

fn load_fake(config: &WorkerConfig) -> Result<LoadedBackend, WorkerError> {
    if config.cpu.draft_model.is_some() {
        let what = "--device fake computes no model, so that a draft model of --speculate is of no use; leave it out";
        return Err(WorkerError::Unsuitable(what.into()));
    }
    let is_clock = config.fake.is_clock();
    let model_len = if is_clock { CLOCK_MODEL_LEN } else { FAKE_MODEL_LEN };
    // Ids beyond the model's vocabulary would have no text.
    let of_model = || ModelConfig::from_dir(&config.model).ok().map(|model| model.spec.vocab_size);
    let vocab_size = is_clock.then(of_model).flatten().unwrap_or(FAKE_VOCAB_SIZE);
    sizing::check_model_len(&config.scheduler, model_len)?;
    let kv_blocks = match config.fake.kv_blocks {
        Some(blocks) => blocks,
        None => {
            let bytes = KvTokenBytes { main: FAKE_KV_BYTES_PER_TOKEN, windowed: 0 };
            kv_blocks(config, 0, (None, 0), &[bytes], model_len)?.blocks
        }
    };
    let options = FakeOptions {
        vocab_size,
        block_size: config.scheduler.block_size,
        kv_blocks,
        cost: config.fake.cost,
        reads_context: !is_clock,
        ..FakeOptions::default()
    };
    let loaded = LoadedBackend::fake(FakeBackend::new(options), vocab_size, model_len);
    Ok(LoadedBackend {
        adapters: adapters(config, None)?,
        grammars: grammars(&config.model, vocab_size),
        fingerprint: if is_clock { CLOCK_FINGERPRINT } else { loaded.fingerprint },
        ..loaded
    })
}

/// Grammars of the model in `directory`; its tokens are read on first use. `None` without a tokenizer.json,
/// because token ids alone do not determine text.
pub fn grammars(directory: &Path, vocab_size: u32) -> Option<Arc<Grammars>> {
    let (path, identity) = match ModelFile::open(directory) {
        Ok(Some(file)) => (directory.to_owned(), file.tokenizer_digest()?.to_le_bytes().to_vec()),
        Ok(None) | Err(_) => {
            let path = directory.join("tokenizer.json");
            let json = tokenizer_json(&path).ok()?;
            (path, json)
        }
    };
    let load = move || {
        let json = tokenizer_json(&path)?;
        let tree = serde_json::from_slice(&json).map_err(|error| format!("{}: {error}", path.display()))?;
        TokenBytes::from_tokenizer_json(&tree).map(Arc::new).map_err(|error| error.to_string())
    };
    Some(Arc::new(Grammars::new(&identity, vocab_size, load)))
}

/// Number of KV blocks that fit beside `weight_bytes`; fails if they do not fit. Takes the longest window,
/// the most rows in flight, and each rank's bytes of a token.
fn kv_blocks(
    config: &WorkerConfig,
    weight_bytes: u64,
    windows: (Option<u32>, u32),
    bytes: &[KvTokenBytes],
    model_len: u32,
) -> Result<KvBlocks, WorkerError> {
    let bytes_per_token = bytes.iter().map(KvTokenBytes::all).max().unwrap_or(0);
    sizing::check_model_len(&config.scheduler, model_len)?;
    let given = config.kv_cache_memory_bytes;
    let needs = Needs {
        // Nodes have nearly equal parts.
        weight_bytes: weight_bytes / u64::from(config.ranks.nodes.count.max(1)),
        kv_bytes: given,
        least_kv_bytes: bytes_per_token * u64::from(config.scheduler.block_size),
        // Each rank on this node has a cache of this size; together the ranks hold the weights once.
        workers: u64::from(config.memory_sharers.max(1)) * u64::from(config.ranks.on_node()),
        beside: config.memory_beside,
    };
    let memory = skein_sys::memory_limit::of_this_process();
    memory.as_ref().map_or(Ok(()), |memory| needs.check(memory))?;
    let available = memory.as_ref().map(|memory| memory.available / needs.workers);
    let left = memory.as_ref().map_or(u64::MAX, |memory| needs.left(memory));
    let room = Room { given, available, left };
    Ok(sizing::kv_blocks_by_layer(&config.scheduler, windows, bytes, model_len, room))
}
