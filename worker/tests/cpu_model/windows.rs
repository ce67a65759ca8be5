//! Models with layers that attend to a window, with their keys in window blocks. `overlap`, `resume` and
//! `speculation` run them.

use std::sync::Arc;

use safetensors::Dtype;
use serde_json::json;
use skein_node::clock::Timestamp;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::fake::{FakeBackend, FakeOptions};
use skein_worker::backend::{Backend, KvBlocks, WindowBlocks};
use skein_worker::config::{BackendKind, SchedulerConfig, WorkerConfig};
use skein_worker::kv_cache::CacheScope;
use skein_worker::model::config::ModelConfig;
use skein_worker::scheduler::{NewRequest, NewSample, RequestKey, Scheduler};
use skein_worker::service::plan;

use crate::batches::{SMALL_BLOCK, golden};
use crate::ranks::make;

/// Models in which some layers have a window, with softcaps, two rotations, sinks, chunks, and those in which
/// all have one.
pub const WINDOWED: [&str; 7] =
    ["gemma2", "gemma3", "gpt-oss-mxfp4", "llama4", "qwen2-window", "mistral-window", "starcoder2"];

/// Window blocks of a model for `sequences` sequences.
pub fn windows_of(model: &str, sequences: u32) -> WindowBlocks {
    let window = ModelConfig::from_dir(&golden(model)).unwrap().spec.longest_window().unwrap();
    let windows = WindowBlocks { window, blocks: 0 };
    WindowBlocks { blocks: sequences * windows.of_sequence(SMALL_BLOCK), ..windows }
}

const LONG: u32 = 32_768;

/// Five layers of six with a window of 1024 tokens, as in Gemma 3.
#[test]
fn a_long_context_holds_the_planned_bytes() {
    let changes = json!({
        "num_hidden_layers": 12, "sliding_window": 1024, "sliding_window_pattern": 6,
        "max_position_embeddings": LONG,
    });
    let model = make("gemma3", Dtype::F32, changes);
    let scheduler = SchedulerConfig { max_num_seqs: 2, ..SchedulerConfig::default() };
    let config = WorkerConfig {
        backend: BackendKind::Cpu,
        threads: 1,
        scheduler: scheduler.clone(),
        ..WorkerConfig::new(model.path(), "m")
    };
    let plan = plan(&config).unwrap();
    let (blocks, windows) = (plan.kv_blocks, plan.window_blocks.unwrap());
    let [main, windowed] = plan.ranks[0].token_bytes;
    let bytes = |blocks: u32, windows: u32| {
        u64::from(scheduler.block_size) * (main * u64::from(blocks) + windowed * u64::from(windows))
    };
    assert_eq!(plan.ranks[0].allocated.kv_cache, bytes(blocks, windows.blocks));
    let kv_blocks = KvBlocks { blocks, window: Some(windows) };
    let mut queue = Scheduler::new(&scheduler, kv_blocks, LONG);
    let mut backend = FakeBackend::new(FakeOptions {
        kv_blocks: blocks,
        window_blocks: Some(windows),
        block_size: scheduler.block_size,
        ..FakeOptions::default()
    });
    let params = SamplingParams { max_tokens: 40, ..SamplingParams::default() };
    let request = NewRequest {
        key: RequestKey(1),
        prompt: (0..LONG - 40).map(|at| at * 7 % 250).collect(),
        params: Arc::new(params),
        samples: vec![NewSample::default()],
        scope: CacheScope::new("model", ""),
        call: None,
        priority: 0,
        deadline: None,
        adapter: None,
    };
    queue.submit(request).unwrap();
    let mut held = (0, 0);
    while let Some(step) = queue.plan(Timestamp::ZERO) {
        held = (queue.blocks_held(), queue.window_blocks_held());
        let handle = backend.launch(step.batch).unwrap();
        let output = backend.collect(handle).unwrap();
        queue.commit(step.step, &output, Timestamp::ZERO);
    }
    let (got, planned) = (bytes(held.0, held.1), plan.sequence_bytes(LONG));
    let before = bytes(held.0, held.0);
    println!("{plan}{LONG} tokens hold {got} bytes, {planned} are planned; {before} with all positions kept");
    assert_eq!(held.0, LONG / scheduler.block_size, "the last step had all tokens");
    assert!(got.abs_diff(planned) * 100 <= planned, "{got} bytes are held, {planned} planned");
    assert!(got * 5 < before, "{before} bytes without window blocks");
}
