//! Requests that run through the engine together: shared prefixes, several samples, penalties, a reader that
//! leaves.

use std::sync::Arc;

use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;
use skein_worker::TokenId;
use skein_worker::backend::Backend;
use skein_worker::config::SchedulerConfig;
use skein_worker::engine::{Engine, Submission};
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::{Drafts, NewRequest, NewSample, RequestKey, Scheduler};

use crate::runs::{limits, prompt};

/// Tokens of a sample, and their log-probabilities if asked for.
pub type Output = (Vec<TokenId>, Vec<TokenLogprobs>);

pub const REQUESTS: u32 = 10;
const SAMPLES: u32 = 2;
/// Tokens of the shortest answer. Every answer crosses the end of a block.
pub const SHORTEST: u32 = 14;
const MAX_MODEL_LEN: u32 = 128;

pub fn request(index: u32) -> NewRequest {
    let mut params =
        SamplingParams { max_tokens: SHORTEST + index, seed: u64::from(index), ..SamplingParams::default() };
    if index % 2 == 1 {
        (params.temperature, params.top_p) = (1.1, 0.95);
    }
    params.logprobs = index.is_multiple_of(4).then_some(2);
    if index.is_multiple_of(3) {
        (params.repetition_penalty, params.presence_penalty) = (1.2, 0.3);
    }
    NewRequest {
        key: RequestKey(0),
        prompt: prompt(index % 3, 20 + index as usize * 3),
        params: Arc::new(params),
        samples: (0..1 + index % SAMPLES).map(|index| NewSample { index, delivered: Vec::new() }).collect(),
        scope: CacheScope::new("model", ""),
        call: None,
        priority: 0,
        deadline: None,
        adapter: None,
    }
}

/// Limits of the engine and of its backend.
pub fn served() -> SchedulerConfig {
    SchedulerConfig { max_model_len: Some(MAX_MODEL_LEN), ..limits() }
}

/// Tokens of all samples of simultaneous requests on `backend`, with the drafts of `drafts` if it is given.
pub async fn serve(backend: Box<dyn Backend>, drafts: Option<Drafts>) -> Vec<Vec<Output>> {
    serve_with(backend, drafts, |_, _| ()).await
}

/// As [`serve`], with requests changed by `change`, which gets their number.
pub async fn serve_with(
    backend: Box<dyn Backend>,
    drafts: Option<Drafts>,
    change: impl Fn(u32, &mut NewRequest),
) -> Vec<Vec<Output>> {
    let request = |index| {
        let mut request = request(index);
        change(index, &mut request);
        request
    };
    let kv_blocks = backend.all_blocks();
    let mut scheduler = Scheduler::new(&served(), kv_blocks, MAX_MODEL_LEN);
    scheduler.set_stages(backend.stages() as u32);
    if let Some(drafts) = drafts {
        scheduler.set_drafts(drafts);
    }
    let (engine, handle) = Engine::new(scheduler, backend, REQUESTS + 1);
    let running = std::thread::spawn(move || engine.run());
    let mut streams = Vec::new();
    for index in 0..REQUESTS {
        let submission = Submission::alone(index.to_string(), request(index));
        streams.push(handle.submit(submission).await.unwrap());
    }
    // Its reader leaves after the first tokens.
    let abandoned = Submission::alone("abandoned".to_owned(), request(REQUESTS));
    let mut abandoned = handle.submit(abandoned).await.unwrap();
    let leaving = tokio::spawn(async move { abandoned.next().await.is_some() });
    let mut outputs = Vec::new();
    for (index, mut stream) in (0..REQUESTS).zip(streams) {
        let mut samples = vec![Output::default(); 1 + (index % SAMPLES) as usize];
        while let Some(deltas) = stream.next().await {
            for delta in deltas.unwrap() {
                let (tokens, logprobs) = &mut samples[delta.sample_index as usize];
                tokens.extend(delta.tokens);
                logprobs.extend(delta.logprobs);
            }
        }
        outputs.push(samples);
    }
    assert!(leaving.await.unwrap(), "the abandoned request had begun");
    handle.snapshot().await.unwrap(); // the load now includes all ends
    assert_eq!(handle.log().load().free_blocks, kv_blocks.blocks, "nobody runs, nothing is held");
    handle.stop().await;
    running.join().unwrap().unwrap();
    outputs
}
