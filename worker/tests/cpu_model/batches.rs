//! Hand-made batches over one pool of blocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use skein_model::on_cpu::packed_cache::PackedCache;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::cpu::{CpuBackend, CpuModel, CpuOptions, NumberTypes};
use skein_worker::backend::{Backend, BackendError, Batch, KvBlocks};
use skein_worker::check::{Draw, Sequence};
use skein_worker::config::SchedulerConfig;
use skein_worker::draft_model::DraftModel;
use skein_worker::engine::{Engine, EngineHandle};
use skein_worker::scheduler::{Drafts, Scheduler};

pub const BLOCK_SIZE: u32 = 16;
/// Tokens per block in tests where blocks should run out.
pub const SMALL_BLOCK: u32 = 4;
const MAX_MODEL_LEN: u32 = 64;

/// The thread of an engine.
pub type Running = JoinHandle<Result<(), BackendError>>;

/// A model directory among the repository's goldens, or the one at an absolute path.
pub fn golden(name: &str) -> PathBuf {
    skein_golden::path(Path::new("models").join(name))
}

/// Names of all golden models.
pub fn goldens() -> Vec<String> {
    let names = skein_golden::names("models");
    assert!(names.len() >= 20, "{names:?}");
    names
}

pub fn load(name: &str, threads: usize, block_size: u32) -> CpuModel {
    load_from(&golden(name), threads, block_size)
}

/// [`load`] from a directory.
pub fn load_from(directory: &Path, threads: usize, block_size: u32) -> CpuModel {
    let options = CpuOptions {
        threads,
        kv_blocks: 4096 / block_size,
        window_blocks: None,
        state_slots: 16,
        block_size,
        max_rows: 64,
        numbers: NumberTypes::STORED,
    };
    CpuModel::load(directory, options, &PackedCache::none(), &mut |_, _| {}).unwrap()
}

/// The `index`-th sequence of up to 128 tokens.
pub fn sequence_of(tokens: Vec<u32>, index: u32, block_size: u32) -> Sequence {
    Sequence::new(tokens, index, 128u32.div_ceil(block_size), block_size)
}

/// Adds to `batch` a sample from the last row of `sequence`, which must be the last one added.
pub fn sample(sequence: &Sequence, batch: &mut Batch, params: &Arc<SamplingParams>, prompt_len: u32) {
    sequence.sample(batch, params, Draw { prompt_len, ..Draw::default() });
}

/// Models whose layers differ: dense, with windows and two rotations, with experts, with sinks and coded
/// experts, with latent attention, with windows that do not slide, with states, with heads of two sizes and
/// keys of earlier layers, with only a mixer or only ungated experts in a layer, with states beside latent
/// attention.
pub const KINDS: [&str; 12] = [
    "llama-gqa",
    "gemma3",
    "mixtral-v5",
    "gpt-oss-mxfp4",
    "deepseek-v3",
    "llama4",
    "qwen3-5",
    "qwen3-next",
    "lfm2-v5",
    "gemma4-per-layer",
    "nemotron-h-moe",
    "kimi-linear",
];

/// The CPU backend with a golden model in exact arithmetic and `kv_blocks` blocks of [`SMALL_BLOCK`] tokens.
pub fn small_backend(model: &str, kv_blocks: u32) -> CpuBackend {
    backend_of(model, KvBlocks { states: Some(16), ..kv_blocks.into() })
}

/// [`small_backend`] with other sizes.
pub fn backend_of(model: &str, blocks: KvBlocks) -> CpuBackend {
    let options = CpuOptions {
        threads: 2,
        kv_blocks: blocks.blocks,
        window_blocks: blocks.window,
        state_slots: blocks.states.unwrap_or(0),
        block_size: SMALL_BLOCK,
        max_rows: 64,
        numbers: NumberTypes::STORED,
    };
    CpuBackend::load(&golden(model), options, &mut |_, _| {}).unwrap()
}

/// An engine over `backend` with small steps and sequences of up to 64 tokens.
pub fn start(
    backend: impl Backend + 'static,
    share_prefixes: bool,
    max_streams: u32,
) -> (EngineHandle, Running) {
    let config = SchedulerConfig {
        block_size: SMALL_BLOCK,
        max_num_seqs: 8,
        max_num_batched_tokens: 40,
        enable_prefix_caching: share_prefixes,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(&config, backend.all_blocks(), MAX_MODEL_LEN);
    scheduler.set_stages(backend.stages() as u32);
    run(scheduler, backend, max_streams)
}

/// An engine that verifies drafts, with small steps and sequences of up to 64 tokens.
pub fn start_drafting(
    backend: impl Backend + 'static,
    (drafts, model): (Option<Drafts>, Option<DraftModel>),
    max_streams: u32,
) -> (EngineHandle, Running) {
    let config = SchedulerConfig {
        block_size: SMALL_BLOCK,
        max_num_seqs: 8,
        max_num_batched_tokens: 40,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(&config, backend.all_blocks(), MAX_MODEL_LEN);
    scheduler.set_stages(backend.stages() as u32);
    drafts.into_iter().for_each(|drafts| scheduler.set_drafts(drafts));
    let (mut engine, handle) = Engine::new(scheduler, Box::new(backend), max_streams);
    model.into_iter().for_each(|model| engine.draft_with(model));
    (handle, std::thread::spawn(move || engine.run()))
}

fn run(scheduler: Scheduler, backend: impl Backend + 'static, max_streams: u32) -> (EngineHandle, Running) {
    let (engine, handle) = Engine::new(scheduler, Box::new(backend), max_streams);
    (handle, std::thread::spawn(move || engine.run()))
}
