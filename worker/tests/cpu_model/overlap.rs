//! Whole requests through the engine. Launching the next step before reading the last one's tokens must not
//! change any bit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors::Dtype;
use serde_json::json;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;
use skein_worker::TokenId;
use skein_worker::backend::cpu::CpuBackend;
use skein_worker::backend::{Backend, BackendError, Batch, KvBlocks, StepHandle, StepOutput, WindowBlocks};
use skein_worker::engine::Submission;
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::{NewRequest, NewSample, RequestKey};

use crate::batches::{KINDS, backend_of, small_backend, start};
use crate::groups::{group, group_of};
use crate::ranks::make;
use crate::states::{WITH_STATES, with_states_for_ranks};
use crate::windows::{WINDOWED, with_windows};

/// Enough for two of the longest sequences: most requests wait, and some are preempted.
const KV_BLOCKS: u32 = 36;
const SAMPLES: u32 = 3;

/// CPU backend with `depth` steps in flight. Counts the tokens and histories carried between steps.
struct Watched {
    backend: CpuBackend,
    depth: usize,
    carried: Arc<AtomicUsize>,
    carried_history: Arc<AtomicUsize>,
}

impl Backend for Watched {
    fn kv_blocks(&self) -> u32 {
        self.backend.kv_blocks()
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.backend.window_blocks()
    }

    fn state_slots(&self) -> Option<u32> {
        self.backend.state_slots()
    }

    fn steps_in_flight(&self) -> usize {
        self.depth
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        self.carried.fetch_add(batch.carried.len(), Ordering::Relaxed);
        self.carried_history.fetch_add(batch.carried_history.len(), Ordering::Relaxed);
        self.backend.launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        self.backend.collect(step)
    }
}

/// One sample's output, floats as their bits.
#[derive(Debug, Default, PartialEq)]
struct Output {
    tokens: Vec<TokenId>,
    logprobs: Vec<Bits>,
    finish: Option<FinishReason>,
}

type Bits = (TokenId, u32, u32, Vec<(TokenId, u32)>);

fn bits(logprobs: TokenLogprobs) -> Bits {
    let top = logprobs.top.into_iter().map(|(token, logprob)| (token, logprob.to_bits())).collect();
    (logprobs.token, logprobs.logprob.to_bits(), logprobs.rank, top)
}

/// Requests that cover every kind of parameter, by `index`.
fn request(index: u32) -> NewRequest {
    let mut params = SamplingParams { max_tokens: 10 + index, ..SamplingParams::default() };
    if index % 2 == 1 {
        (params.temperature, params.top_p, params.seed) = (1.3, 0.98, u64::from(index));
    }
    if index.is_multiple_of(3) {
        (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) = (1.2, 0.6, 0.3);
    }
    if index % 4 < 2 {
        params.stop_token_ids = (0..256).filter(|token| token % 9 == index % 9).collect();
        params.min_tokens = index % 7;
    }
    params.logprobs = (index % 5 != 4).then_some(index % 3);
    params.prompt_logprobs = (index % 6 == 5).then_some(2);
    let prompt_len = 3 + index * 5 % 29;
    NewRequest {
        key: RequestKey(0),
        // Some prompts share a prefix.
        prompt: (0..prompt_len).map(|at| (at * at + 7 * at + index % 3 * 31) % 120 + 2).collect(),
        params: Arc::new(params),
        samples: (0..1 + index % SAMPLES).map(|index| NewSample { index, delivered: Vec::new() }).collect(),
        scope: CacheScope::new("model", ""),
        call: None,
        priority: (index % 4 == 3).into(),
        deadline: None,
        adapter: None,
    }
}

/// Outputs of simultaneous `requests`, and the number of rows and histories carried.
async fn serve(
    model: &str,
    depth: usize,
    share_prefixes: bool,
    requests: u32,
) -> (Vec<(Vec<Output>, Vec<Bits>)>, [usize; 2]) {
    serve_with(small_backend(model, KV_BLOCKS), depth, share_prefixes, requests).await
}

async fn serve_with(
    backend: CpuBackend,
    depth: usize,
    share_prefixes: bool,
    requests: u32,
) -> (Vec<(Vec<Output>, Vec<Bits>)>, [usize; 2]) {
    let [carried, carried_history] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let counters = [carried.clone(), carried_history.clone()];
    let backend = Watched { backend, depth, carried, carried_history };
    let outputs = serve_on(backend, share_prefixes, requests).await;
    (outputs, counters.map(|counter| counter.load(Ordering::Relaxed)))
}

/// Outputs of simultaneous `requests` to an engine over `backend`.
async fn serve_on(
    backend: impl Backend + 'static,
    share_prefixes: bool,
    requests: u32,
) -> Vec<(Vec<Output>, Vec<Bits>)> {
    let (handle, running) = start(backend, share_prefixes, requests);
    let mut streams = Vec::new();
    for index in 0..requests {
        let submission = Submission::alone(index.to_string(), request(index));
        streams.push(handle.submit(submission).await.unwrap());
    }
    let mut outputs = Vec::new();
    for (index, mut stream) in (0..requests).zip(streams) {
        let mut samples: Vec<Output> = (0..1 + index % SAMPLES).map(|_| Output::default()).collect();
        let mut scores = Vec::new();
        while let Some(deltas) = stream.next().await {
            for delta in deltas.unwrap() {
                let output = &mut samples[delta.sample_index as usize];
                output.tokens.extend(delta.tokens);
                output.logprobs.extend(delta.logprobs.into_iter().map(bits));
                output.finish = output.finish.or(delta.finish);
                scores.extend(delta.prompt_logprobs.into_iter().map(bits));
            }
        }
        outputs.push((samples, scores));
    }
    handle.snapshot().await.unwrap(); // the load now includes all ends
    let free = handle.log().load().free_blocks;
    assert_eq!(free, KV_BLOCKS, "nobody runs, nothing is held");
    handle.stop().await;
    running.join().unwrap().unwrap();
    outputs
}

#[tokio::test]
async fn overlapped_steps_give_every_bit_of_steps_one_by_one() {
    for model in KINDS {
        check(model).await;
    }
}

#[tokio::test]
async fn requests_that_give_window_blocks_back_get_every_bit_of_those_that_keep_all() {
    const REQUESTS: u32 = 40;
    for model in WINDOWED {
        let (expected, _) = serve(model, 1, true, REQUESTS).await;
        for (depth, share_prefixes) in [(1, true), (1, false), (2, true)] {
            // Few enough that some sequences are preempted for them.
            let backend = backend_of(model, with_windows(model, KV_BLOCKS, 3));
            let (got, _) = serve_with(backend, depth, share_prefixes, REQUESTS).await;
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{model}, request {index}, {depth} in flight, {share_prefixes}");
            }
        }
    }
}

#[tokio::test]
async fn a_group_with_window_blocks_gives_every_bit_of_one_rank_without() {
    const REQUESTS: u32 = 24;
    let model = make("gemma3", Dtype::F32, json!({"num_hidden_layers": 4, "vocab_size": 256}));
    let path = model.path().to_str().unwrap();
    let (expected, _) = serve(path, 1, true, REQUESTS).await;
    let blocks = with_windows(path, KV_BLOCKS, 4);
    // With four stages, some have no layer without a window.
    for shape in [(2, 1), (1, 4), (2, 2)] {
        let got = serve_on(group_of(model.path(), shape, blocks), true, REQUESTS).await;
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{shape:?}, request {index}");
        }
    }
}

/// Few slots for states: some sequences wait for one, and cached states give way to those that run.
#[tokio::test]
async fn requests_with_few_slots_for_states_get_every_bit_of_those_with_many() {
    const REQUESTS: u32 = 40;
    for model in WITH_STATES {
        let (expected, _) = serve(model, 1, false, REQUESTS).await;
        for (slots, depth, share_prefixes) in [(3, 1, true), (5, 2, true), (8, 2, false), (40, 2, true)] {
            let backend = backend_of(model, KvBlocks { states: Some(slots), ..KV_BLOCKS.into() });
            let (got, _) = serve_with(backend, depth, share_prefixes, REQUESTS).await;
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{model}, request {index}, {slots} slots, {depth} in flight");
            }
        }
    }
}

#[tokio::test]
async fn a_group_with_states_gives_every_bit_of_one_rank() {
    const REQUESTS: u32 = 24;
    for name in WITH_STATES {
        let model = make(name, Dtype::F32, with_states_for_ranks(name));
        let (expected, _) = serve(model.path().to_str().unwrap(), 1, false, REQUESTS).await;
        let blocks = KvBlocks { states: Some(9), ..KV_BLOCKS.into() };
        // With four stages, some have no layer that attends.
        for shape in [(2, 1), (4, 1), (1, 4), (2, 2)] {
            let got = serve_on(group_of(model.path(), shape, blocks), true, REQUESTS).await;
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{name}, {shape:?}, request {index}");
            }
        }
    }
}

#[tokio::test]
async fn a_group_gives_every_bit_of_one_rank() {
    const REQUESTS: u32 = 24;
    let model = make("llama-gqa", Dtype::F32, json!({"num_hidden_layers": 4, "vocab_size": 256}));
    let (expected, _) = serve(model.path().to_str().unwrap(), 1, true, REQUESTS).await;
    for (tensor, stages) in [(4, 1), (1, 3), (2, 2)] {
        for share_prefixes in [true, false] {
            let group = group(model.path(), (tensor, stages), KV_BLOCKS);
            let got = serve_on(group, share_prefixes, REQUESTS).await;
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{tensor} x {stages}, request {index}, prefixes {share_prefixes}");
            }
        }
    }
}

async fn check(model: &str) {
    const REQUESTS: u32 = 40;
    let (expected, carried) = serve(model, 1, true, REQUESTS).await;
    assert_eq!(carried, [0, 0], "one step at a time knows all its tokens");
    let outputs = || expected.iter().flat_map(|(samples, _)| samples);
    assert!(outputs().any(|output| matches!(output.finish, Some(FinishReason::Stop(_)))));
    assert!(outputs().any(|output| output.finish == Some(FinishReason::Length)));
    for share_prefixes in [true, false] {
        let (got, [carried, carried_history]) = serve(model, 2, share_prefixes, REQUESTS).await;
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{model}, request {index}, prefixes shared: {share_prefixes}");
        }
        assert!(
            carried > 500 && carried_history > 100,
            "{carried} rows and {carried_history} histories carried"
        );
    }
}
