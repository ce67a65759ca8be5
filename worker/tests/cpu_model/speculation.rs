//! With drafts of any source, requests get the same tokens, the same bits of log-probabilities and the same
//! finish reasons as plain decoding of one request at a time: for every number type, KV type and format, any
//! number of threads and ranks, in batches, and with few blocks.
//!
//! `TEST_SPECULATION=n` sets the number of requests.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use safetensors::Dtype;
use serde_json::json;
use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::packed::Format;
use skein_node::random::SplitMix64;
use skein_proto::sampling::SamplingParams;
use skein_worker::TokenId;
use skein_worker::backend::cpu::{CpuBackend, CpuOptions, NumberTypes};
use skein_worker::backend::{
    Answer, Backend, BackendError, Batch, KvBlocks, StepHandle, StepOutput, Want, WindowBlocks,
};
use skein_worker::draft::{Guesser, Speculate};
use skein_worker::draft_model::DraftModel;
use skein_worker::engine::Submission;
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::{Drafts, NewRequest, NewSample, Propose, RequestKey};

use crate::batches::{Running, SMALL_BLOCK, backend_of, small_backend, start_drafting};
use crate::groups::{group, group_of};
use crate::ranks::make;
use crate::resume::{Output, read};
use crate::states::{WITH_STATES, with_states_for_ranks};
use crate::windows::{WINDOWED, with_windows};

/// Requests in a normal test run.
const REQUESTS: usize = 640;
/// Number of concurrent requests.
const TOGETHER: usize = 8;
/// More than one request needs, fewer than all.
const KV_BLOCKS: u32 = 60;
/// Ids that all models here have.
const VOCAB: u32 = 128;

/// Whole texts by their prompts, for proposers that know the answers.
type Answers = Arc<Mutex<Vec<Vec<TokenId>>>>;

fn number_types() -> Vec<(NumberTypes, usize)> {
    let kv = [KvType::F32, KvType::Bf16, KvType::F16, KvType::Int8];
    let kinds = kv.map(|kv| NumberTypes { kv, bf16: kv != KvType::F32, weights: None });
    let formats = [Format::INT8, Format::INT8_GROUP, Format::INT4, Format::INT4_ZERO];
    let rounded = formats.map(|format| NumberTypes { weights: Some(format), ..NumberTypes::STORED });
    kinds.into_iter().chain(rounded).zip([1, 2, 3].into_iter().cycle()).collect()
}

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end)
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn params(&mut self) -> SamplingParams {
        let max_tokens = 1 + self.below(28) as u32;
        let few = self.below(200) as u32;
        SamplingParams {
            temperature: self.pick(&[0.0, 0.0, 0.2, 0.7, 1.0, 1.5]),
            seed: self.below(5) as u64,
            top_k: self.pick(&[0, 0, 1, 5, 40]),
            top_p: self.pick(&[1.0, 1.0, 0.9, 0.5]),
            min_p: self.pick(&[0.0, 0.0, 0.05]),
            repetition_penalty: self.pick(&[1.0, 1.0, 1.3, 0.8]),
            presence_penalty: self.pick(&[0.0, 0.0, 0.6]),
            frequency_penalty: self.pick(&[0.0, 0.0, 0.4, -0.5]),
            logit_bias: if self.once_in(5) { vec![(few, 4.0), (few + 1, -3.0)] } else { Vec::new() },
            // With few tokens, texts repeat soon, so that drafts have matches.
            allowed_token_ids: if self.once_in(2) { (few..few + 4).collect() } else { Vec::new() },
            bad_words: if self.once_in(6) { vec![vec![few, few + 1], vec![few + 2]] } else { Vec::new() },
            stop_token_ids: if self.once_in(3) { vec![few + 3, 7, 11] } else { Vec::new() },
            min_tokens: if self.once_in(4) { self.below(max_tokens as usize + 1) as u32 } else { 0 },
            max_tokens,
            logprobs: self.once_in(3).then_some(2),
            ..SamplingParams::default()
        }
    }

    fn request(&mut self) -> NewRequest {
        let family = self.below(4);
        let len = 1 + self.below(30);
        let prompt = (0..len).map(|at| ((at * at / 3 + family * 17) % 40 + 2) as TokenId).collect();
        let samples = if self.once_in(4) { 3 } else { 1 };
        NewRequest {
            key: RequestKey(0),
            prompt,
            params: Arc::new(self.params()),
            samples: (0..samples).map(|index| NewSample { index, delivered: Vec::new() }).collect(),
            scope: CacheScope::new("model", self.pick(&["", "", "salt"])),
            call: None,
            priority: self.below(3) as i32,
            deadline: None,
            adapter: None,
        }
    }
}

/// Proposes right tokens, garbage, and right ones followed by garbage, in turn.
fn knowing(answers: Answers) -> Propose {
    let mut turn = 0;
    Box::new(move |tokens, most, draft| {
        turn += 1;
        let right = [most, 0, most / 2][turn % 3];
        let answers = answers.lock().unwrap();
        let answer = answers.iter().find(|answer| answer.len() > tokens.len() && answer.starts_with(tokens));
        draft.extend(answer.iter().flat_map(|answer| &answer[tokens.len()..]).take(right));
        draft.extend((draft.len()..most).map(|at| (at * 31 + turn) as TokenId % VOCAB));
    })
}

fn sources(answers: &Answers, models: &[&Path]) -> Vec<(&'static str, Drafts, Option<DraftModel>)> {
    let guessed = |speculate| Drafts::guessed(Guesser::new(speculate, true).expect("it is on"));
    let garbage: Propose = Box::new(|tokens, most, draft| {
        draft.extend((0..most).map(|at| (tokens.len() * 7 + at) as TokenId % VOCAB));
    });
    let mut sources = vec![
        ("ngram", guessed(Speculate::Ngram), None),
        ("auto", guessed(Speculate::Auto), None),
        ("garbage", Drafts::new(5, garbage), None),
        ("knowing", Drafts::new(6, knowing(answers.clone())), None),
    ];
    for (name, model) in ["rounded model", "other model"].into_iter().zip(models) {
        // Not the model's own number types.
        let numbers = NumberTypes { kv: KvType::Bf16, bf16: false, weights: Some(Format::INT8) };
        let backend = Box::new(backend(model, numbers, 1));
        let model = DraftModel::start(backend, SMALL_BLOCK, (VOCAB, VOCAB), true).unwrap();
        sources.push((name, Drafts::modelled(4), Some(model)));
    }
    sources
}

/// Number of draft tokens, and number of right ones.
type Counts = Arc<(AtomicUsize, AtomicUsize)>;

/// The same by source.
type Tried = HashMap<&'static str, (usize, usize)>;

/// A backend that counts drafts.
struct Counting<B>(B, Counts);

impl<B: Backend> Backend for Counting<B> {
    fn kv_blocks(&self) -> u32 {
        self.0.kv_blocks()
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.0.window_blocks()
    }

    fn state_slots(&self) -> Option<u32> {
        self.0.state_slots()
    }

    fn steps_in_flight(&self) -> usize {
        self.0.steps_in_flight()
    }

    fn stages(&self) -> usize {
        self.0.stages()
    }

    fn verifies(&self) -> bool {
        self.0.verifies()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let drafted = |want: &Want| if let Want::Verify(verify) = want { verify.rows.len() - 1 } else { 0 };
        self.1.0.fetch_add(batch.wants.iter().map(drafted).sum(), Relaxed);
        self.0.launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        let output = self.0.collect(step)?;
        let right = |answer: &Answer| if let Answer::Verified(drawn) = answer { drawn.len() - 1 } else { 0 };
        self.1.1.fetch_add(output.answers.iter().map(right).sum(), Relaxed);
        Ok(output)
    }
}

/// Outputs of `requests`, with limited concurrency.
async fn run(
    backend: impl Backend + 'static,
    drafts: (Option<Drafts>, Option<DraftModel>),
    requests: &[NewRequest],
    together: usize,
) -> Vec<Vec<Output>> {
    let (handle, running): (_, Running) = start_drafting(backend, drafts, requests.len() as u32);
    let mut outputs = Vec::new();
    for (wave, requests) in requests.chunks(together).enumerate() {
        let mut streams = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let submission = Submission::alone(format!("{wave}/{at}"), request.clone());
            streams.push((handle.submit(submission).await.unwrap(), request.samples.len()));
        }
        for (stream, samples) in streams {
            outputs.push(read(stream, samples).await);
        }
    }
    handle.stop().await;
    running.join().unwrap().unwrap();
    outputs
}

async fn check<A: Backend + 'static, B: Backend + 'static>(
    name: &str,
    seed: u64,
    count: usize,
    plain: impl Fn() -> A,
    drafting: impl Fn() -> B,
    models: &[&Path],
    tried: &mut Tried,
) {
    let mut random = Random(SplitMix64::new(seed));
    let requests: Vec<NewRequest> = (0..count).map(|_| random.request()).collect();
    let expected = run(plain(), (None, None), &requests, 1).await;
    let answers = Answers::default();
    let whole = |(request, outputs): (&NewRequest, &Vec<Output>)| -> Vec<Vec<TokenId>> {
        outputs.iter().map(|output| [&request.prompt[..], &output.tokens].concat()).collect()
    };
    answers.lock().unwrap().extend(requests.iter().zip(&expected).flat_map(whole));
    for (source, drafts, model) in sources(&answers, models) {
        let counts = Counts::default();
        let got = run(Counting(drafting(), counts.clone()), (Some(drafts), model), &requests, TOGETHER).await;
        let (drafted, right) = (counts.0.load(Relaxed), counts.1.load(Relaxed));
        println!("{name}, {source}: {drafted} tokens drafted, {right} right");
        let of_source = tried.entry(source).or_default();
        *of_source = (of_source.0 + drafted, of_source.1 + right);
        let pairs: HashMap<usize, _> = got.iter().zip(&expected).enumerate().collect();
        for at in 0..count {
            let (got, expected) = pairs[&at];
            assert_eq!(got, expected, "{name}, {source}, request {at} of seed {seed}: {:?}", requests[at]);
        }
    }
}

fn backend(model: &Path, numbers: NumberTypes, threads: usize) -> CpuBackend {
    let options = CpuOptions {
        threads,
        kv_blocks: KV_BLOCKS,
        window_blocks: None,
        state_slots: 16,
        block_size: SMALL_BLOCK,
        max_rows: 64,
        numbers,
    };
    CpuBackend::load(model, options, &mut |_, _| {}).unwrap()
}

#[tokio::test]
async fn drafts_change_no_bit_of_any_request() {
    let requests = std::env::var("TEST_SPECULATION").ok().map(|count| count.parse().expect("a number"));
    let requests: usize = requests.unwrap_or(REQUESTS);
    let changes = json!({"vocab_size": VOCAB});
    let model = make("qwen2-tied-v5", Dtype::BF16, changes.clone());
    let other = make("llama-gqa", Dtype::BF16, changes);
    let models = [model.path(), other.path()];
    let (kinds, mut tried) = (number_types(), Tried::new());
    for (seed, (numbers, threads)) in kinds.iter().enumerate() {
        let name = format!("{numbers:?}, {threads} threads");
        let drafting = || backend(model.path(), *numbers, *threads);
        let plain = || backend(model.path(), *numbers, 2);
        check(&name, seed as u64, requests.div_ceil(kinds.len()), plain, drafting, &models, &mut tried).await;
    }
    for (source, (drafted, right)) in tried {
        let is_tried = right < drafted && (right > 0 || source == "garbage");
        assert!(is_tried, "{source}: {drafted} tokens drafted, {right} right");
    }
}

#[tokio::test]
async fn drafts_change_no_bit_with_window_blocks() {
    for (seed, model) in WINDOWED.into_iter().enumerate() {
        let plain = || small_backend(model, KV_BLOCKS);
        let drafting = || backend_of(model, with_windows(model, KV_BLOCKS, 5));
        check(model, 200 + seed as u64, 24, plain, drafting, &[], &mut Tried::new()).await;
    }
}

/// The rows of wrong drafts never reach a state.
#[tokio::test]
async fn drafts_change_no_bit_with_states() {
    for (seed, name) in WITH_STATES.into_iter().enumerate() {
        let model = make(name, Dtype::F32, with_states_for_ranks(name));
        let path = model.path().to_str().unwrap();
        let plain = || small_backend(path, KV_BLOCKS);
        let blocks = KvBlocks { states: Some(11), ..KV_BLOCKS.into() };
        let mut tried = Tried::new();
        check(name, 300 + seed as u64, 48, plain, || backend_of(path, blocks), &[], &mut tried).await;
        assert!(tried.values().map(|(_, right)| right).sum::<usize>() > 100, "{name}: {tried:?}");
        let group = || group_of(model.path(), (2, 2), blocks);
        let of_group = format!("{name} on 2 x 2 ranks");
        check(&of_group, 310 + seed as u64, 16, plain, group, &[], &mut Tried::new()).await;
    }
}

#[tokio::test]
async fn a_draft_model_changes_no_bit_with_states() {
    let draft = make("qwen2-tied-v5", Dtype::BF16, json!({"vocab_size": VOCAB}));
    for (seed, name) in ["qwen3-5", "lfm2", "granite-hybrid"].into_iter().enumerate() {
        let mut changes = with_states_for_ranks(name);
        changes["vocab_size"] = json!(VOCAB);
        let model = make(name, Dtype::F32, changes);
        let path = model.path().to_str().unwrap();
        let plain = || small_backend(path, KV_BLOCKS);
        let blocks = KvBlocks { states: Some(11), ..KV_BLOCKS.into() };
        let mut tried = Tried::new();
        let models = [draft.path()];
        check(name, 330 + seed as u64, 24, plain, || backend_of(path, blocks), &models, &mut tried).await;
        assert!(tried["rounded model"].0 > 100, "{name}: {tried:?}");
    }
}

#[tokio::test]
async fn drafts_change_no_bit_on_ranks_and_stages() {
    let model = make("llama-gqa", Dtype::F32, json!({"num_hidden_layers": 4, "vocab_size": VOCAB}));
    let plain = || backend(model.path(), NumberTypes::STORED, 2);
    for (seed, shape) in [(1, 2), (2, 1), (2, 2)].into_iter().enumerate() {
        let drafting = || group(model.path(), shape, KV_BLOCKS);
        check(&format!("{shape:?}"), 100 + seed as u64, 32, plain, drafting, &[], &mut Tried::new()).await;
    }
}
