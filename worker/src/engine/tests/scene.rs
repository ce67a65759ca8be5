//! An engine driven by a test in simulated time. The test decides when it takes its turns, and audits it
//! after each.

use std::cell::Cell;
use std::collections::BTreeMap;

use skein_proto::logprobs::TokenLogprobs;

use super::*;
use crate::scheduler::Drafts;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

pub struct Scene {
    pub engine: Engine,
    pub handle: EngineHandle,
}

/// A backend whose steps take this much simulated time.
pub struct Ticking(pub FakeBackend, pub Duration);

impl Backend for Ticking {
    fn kv_blocks(&self) -> u32 {
        self.0.kv_blocks()
    }

    fn steps_in_flight(&self) -> usize {
        self.0.steps_in_flight()
    }

    fn verifies(&self) -> bool {
        true
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        self.0.launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        NOW.set(NOW.get() + self.1);
        self.0.collect(step)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        clock::simulate(None);
    }
}

impl Scene {
    pub fn new(options: FakeOptions) -> Self {
        Self::over(FakeBackend::new(options.clone()), &options)
    }

    pub fn over(backend: impl Backend + 'static, options: &FakeOptions) -> Self {
        Self::of(scheduler(options), backend)
    }

    /// An engine that drafts tokens for its streams.
    pub fn drafting(options: FakeOptions, drafts: Drafts) -> Self {
        let mut scheduler = scheduler(&options);
        scheduler.set_drafts(drafts);
        Self::of(scheduler, Ticking(FakeBackend::new(options), Duration::from_millis(1)))
    }

    fn of(scheduler: Scheduler, backend: impl Backend + 'static) -> Self {
        NOW.set(Duration::ZERO);
        clock::simulate(Some(|| NOW.get()));
        let (engine, handle) = Engine::new(scheduler, Box::new(backend), 64);
        Self { engine, handle }
    }

    pub fn pass(&self, time: Duration) {
        NOW.set(NOW.get() + time);
    }

    pub fn turn(&mut self) -> Turn {
        let turn = self.engine.turn().expect("the fake backend runs");
        assert_eq!(self.engine.audit(), Ok(()));
        turn
    }

    /// Takes turns until nothing is left to compute.
    pub fn run(&mut self) {
        while self.turn() == Turn::Worked {}
    }

    /// Awaits a reply that needs one turn.
    async fn ask<T>(&mut self, question: impl Future<Output = T>) -> T {
        let turn = async { self.turn() };
        tokio::join!(biased; question, turn).0
    }

    pub async fn submit(&mut self, submission: Submission) -> Result<TokenStream, SubmitError> {
        let handle = self.handle.clone();
        self.ask(handle.submit(submission)).await
    }

    pub async fn attach(&mut self, id: &str, from: &[(u32, u32)]) -> Result<TokenStream, AttachError> {
        let handle = self.handle.clone();
        self.ask(handle.attach(attachment(id, from))).await
    }

    pub async fn release(&mut self, id: &str) -> bool {
        let handle = self.handle.clone();
        self.ask(handle.release(id.into())).await
    }

    pub async fn abort(&mut self, id: &str, sample: u32) -> bool {
        let handle = self.handle.clone();
        self.ask(handle.abort(id.into(), sample)).await
    }

    pub fn free_blocks(&self) -> u32 {
        self.engine.scheduler.load().free_blocks
    }
}

fn scheduler(options: &FakeOptions) -> Scheduler {
    let config = SchedulerConfig { block_size: options.block_size, ..SchedulerConfig::default() };
    Scheduler::new(&config, options.kv_blocks, options.kv_blocks * options.block_size)
}

pub const KEY: StreamKey = StreamKey(u128::from_be_bytes(*b"the stream's key"));
pub const LINGER: Duration = Duration::from_secs(10);

pub fn attachment(id: &str, from: &[(u32, u32)]) -> Attachment {
    let samples = from.iter().map(|&(index, from)| SamplePosition { index, from }).collect();
    Attachment { id: id.into(), key: KEY, samples, from_score: 0, linger: LINGER }
}

/// A submission whose stream other readers can join.
pub fn keyed(id: &str, request: NewRequest) -> Submission {
    Submission { stream_key: Some(KEY), linger: LINGER, ..Submission::alone(id, request) }
}

pub const PROMPT_LEN: u32 = 40;

pub fn request(params: SamplingParams, n: u32) -> NewRequest {
    let samples = (0..n).map(|index| NewSample { index, delivered: Vec::new() }).collect();
    NewRequest { params: Arc::new(params), samples, ..submission("", 1).request }
}

/// A reader's accumulated output, each position once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Got {
    pub samples: BTreeMap<u32, Output>,
    pub scores: BTreeMap<u32, TokenLogprobs>,
    pub hit: Option<u32>,
    pub handed_back: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    pub tokens: BTreeMap<u32, (TokenId, Option<TokenLogprobs>)>,
    pub finish: Option<FinishReason>,
}

impl Got {
    /// Adds the next delta; panics if a position repeats or is missing.
    pub fn add(&mut self, delta: Delta) {
        assert!(!self.handed_back, "nothing follows a hand-back");
        self.handed_back = delta.hand_back;
        if delta.hand_back {
            assert!(delta.tokens.is_empty() && delta.finish.is_none() && delta.prompt_logprobs.is_empty());
            return;
        }
        assert_eq!(self.hit.is_none(), delta.cached_tokens.is_some(), "the first delta tells the hit, alone");
        self.hit = self.hit.or(delta.cached_tokens);
        for (position, score) in (delta.from_prompt_position..).zip(delta.prompt_logprobs) {
            let before = self.scores.last_key_value().map(|(&last, _)| last + 1);
            assert!(before.is_none_or(|next| next == position), "no score is left out");
            self.scores.insert(position, score);
        }
        let output = self.samples.entry(delta.sample_index).or_default();
        assert_eq!(output.finish, None, "nothing follows a sample's end");
        assert!(delta.logprobs.is_empty() || delta.logprobs.len() == delta.tokens.len());
        let mut logprobs = delta.logprobs.into_iter();
        for (position, token) in (delta.from_position..).zip(delta.tokens) {
            let next = output.tokens.last_key_value().map(|(&last, _)| last + 1);
            assert!(next.is_none_or(|next| next == position), "no position is left out or comes twice");
            output.tokens.insert(position, (token, logprobs.next()));
        }
        output.finish = delta.finish;
    }

    /// Reads everything available; `Some` if the stream has ended.
    pub fn read(&mut self, stream: &mut TokenStream) -> Option<Result<(), StreamFault>> {
        use std::task::{Context, Poll, Waker};
        loop {
            let next = std::pin::pin!(stream.next());
            match next.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return None,
                Poll::Ready(None) => return Some(Ok(())),
                Poll::Ready(Some(Err(fault))) => return Some(Err(fault)),
                Poll::Ready(Some(Ok(deltas))) => deltas.into_iter().for_each(|delta| self.add(delta)),
            }
        }
    }

    pub fn tokens(&self, sample: u32) -> Vec<TokenId> {
        let output = self.samples.get(&sample);
        output.into_iter().flat_map(|output| output.tokens.values().map(|(token, _)| *token)).collect()
    }
}

/// Complete output of a request on its own engine.
pub async fn undisturbed(request: NewRequest) -> Got {
    undisturbed_in(fake(), request).await
}

pub async fn undisturbed_in(options: FakeOptions, request: NewRequest) -> Got {
    let mut scene = Scene::new(options);
    let mut stream = scene.submit(Submission::alone("undisturbed", request)).await.expect("taken");
    let mut got = Got::default();
    while scene.turn() == Turn::Worked {
        got.read(&mut stream);
    }
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    got
}

/// Small enough that stop tokens occur.
pub const VOCAB: u32 = 50;

pub fn fake() -> FakeOptions {
    FakeOptions { vocab_size: VOCAB, kv_blocks: 256, ..FakeOptions::default() }
}
