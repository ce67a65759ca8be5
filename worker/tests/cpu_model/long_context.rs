//! The bytes that a long sequence holds in blocks of a plan, as the scheduler gives them out.

use std::sync::Arc;

use skein_node::clock::Timestamp;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::fake::{FakeBackend, FakeOptions};
use skein_worker::backend::{Backend, KvBlocks, WindowBlocks};
use skein_worker::config::SchedulerConfig;
use skein_worker::kv_cache::CacheScope;
use skein_worker::load::MemoryPlan;
use skein_worker::scheduler::{NewRequest, NewSample, RequestKey, Scheduler};

/// Length of the sequence, in tokens.
pub const LONG: u32 = 32_768;
const ANSWER: u32 = 40;

/// Checks that a sequence of [`LONG`] tokens holds the bytes of `plan`, within 1%, and less than a fifth of
/// those without window blocks.
pub fn check_plan(plan: &MemoryPlan, limits: &SchedulerConfig) {
    let (kv_blocks, windows) = (plan.kv_blocks, plan.window_blocks.unwrap());
    let [main, windowed] = plan.ranks[0].token_bytes;
    let bytes = |blocks: u32, windows: u32| {
        u64::from(limits.block_size) * (main * u64::from(blocks) + windowed * u64::from(windows))
    };
    assert_eq!(plan.ranks[0].allocated.kv_cache, bytes(kv_blocks, windows.blocks));
    let held = held(limits, kv_blocks, windows);
    let (got, planned) = (bytes(held.0, held.1), plan.sequence_bytes(LONG));
    let before = bytes(held.0, held.0);
    println!("{plan}{LONG} tokens hold {got} bytes, {planned} are planned; {before} with all positions kept");
    assert_eq!(held.0, LONG / limits.block_size, "the last step had all tokens");
    assert!(got.abs_diff(planned) * 100 <= planned, "{got} bytes are held, {planned} planned");
    assert!(got * 5 < before, "{before} bytes without window blocks");
}

/// Blocks and window blocks that the sequence holds in its last step.
fn held(limits: &SchedulerConfig, kv_blocks: u32, windows: WindowBlocks) -> (u32, u32) {
    let window_blocks = Some(windows);
    let mut queue = Scheduler::new(limits, KvBlocks { window: window_blocks, ..kv_blocks.into() }, LONG);
    let block_size = limits.block_size;
    let mut backend =
        FakeBackend::new(FakeOptions { kv_blocks, window_blocks, block_size, ..FakeOptions::default() });
    let params = SamplingParams { max_tokens: ANSWER, ..SamplingParams::default() };
    let request = NewRequest {
        key: RequestKey(1),
        prompt: (0..LONG - ANSWER).map(|at| at * 7 % 250).collect(),
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
    held
}
