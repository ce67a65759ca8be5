//! The scheduler under random load over the fake backend. Every step is checked against the invariants, and
//! every stream against the same request run alone. The tokens are the same with one step at a time and with
//! steps planned and launched ahead.

mod background;
mod drafts;
mod fair_share;
mod overlap;
mod overtake;
mod pauses;
mod pipeline;
mod pooling;
mod scenarios;
mod states;
mod windows;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use drafts::Answers;
use skein_node::clock::Timestamp;
use skein_node::random::SplitMix64;
use skein_proto::adapter::AdapterId;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::runs::{Gap, RunTruncated};
use skein_proto::sampling::SamplingParams;

use super::budget::STREAMING_STEP;
use super::*;
use crate::TokenId;
use crate::backend::fake::{FakeBackend, FakeOptions};
use crate::backend::{Answer, Backend, LoadedAdapter, StepHandle, Want};
use crate::kv_cache::CacheScope;

const VOCAB: u32 = 40;

/// Seeded; a failure names its seed, and the seed replays it.
struct Rng(SplitMix64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn within(&mut self, range: std::ops::RangeInclusive<u32>) -> u32 {
        range.start() + (self.next() % u64::from(range.end() - range.start() + 1)) as u32
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.within(1..=100) <= percent
    }
}

/// Output of one sample.
#[derive(Debug, Clone, Default, PartialEq)]
struct Stream {
    tokens: Vec<TokenId>,
    logprobs: Vec<Option<TokenLogprobs>>,
    stop_logprobs: Option<TokenLogprobs>,
    finish: Option<FinishReason>,
}

/// The cache as a router reconstructs it from the changes.
#[derive(Debug, Default)]
struct Mirror(BTreeMap<u64, RunStored>, BTreeSet<BlockHash>);

impl Mirror {
    /// `are_ends`: a gap is closed by what a prompt can resume from.
    fn apply(&mut self, change: CacheChange, are_ends: bool) {
        for Gap { hash, is_open } in change.gaps {
            let changed = if is_open != are_ends { self.1.insert(hash) } else { self.1.remove(&hash) };
            assert!(changed, "a gap opens and closes in turn");
        }
        for RunTruncated { handle, new_end } in change.truncated {
            let run = self.0.get_mut(&handle).expect("a truncated run is known");
            assert!(new_end < run.depth + run.hashes.len() as u32, "a truncation shortens");
            run.hashes.truncate(new_end.saturating_sub(run.depth) as usize);
            if run.hashes.is_empty() {
                self.0.remove(&handle);
            }
        }
        for stored in change.stored {
            match self.0.get_mut(&stored.handle) {
                Some(run) => {
                    assert_eq!(stored.depth, run.depth + run.hashes.len() as u32, "a run grows at its end");
                    run.hashes.extend(stored.hashes);
                }
                None => drop(self.0.insert(stored.handle, stored)),
            }
        }
        for run in self.0.values() {
            let parent = self.0.get(&run.parent);
            let end = parent.map_or(0, |parent| parent.depth + parent.hashes.len() as u32);
            assert!(end >= run.depth, "what is cached is prefix-closed: {run:?} under {parent:?}");
        }
    }
}

struct World {
    scheduler: Scheduler,
    backend: FakeBackend,
    mirror: Mirror,
    /// Most steps in flight.
    depth: usize,
    /// Launched and not collected, oldest first, each with the time at which the device finishes it.
    in_flight: VecDeque<(Step, StepHandle, Timestamp)>,
    device_done: Timestamp,
    now: Timestamp,
    last_step: Duration,
    rows: u32,
    /// Tokens carried on the device because they were unknown when the next step was planned.
    carried: usize,
    /// Draws for sequences that were gone.
    dropped: usize,
    /// Draft tokens, and those of them that were right.
    drafted: usize,
    accepted: usize,
    streams: HashMap<(RequestKey, u32), Stream>,
    hits: HashMap<RequestKey, u32>,
    scores: HashMap<RequestKey, Vec<TokenLogprobs>>,
    vectors: HashMap<RequestKey, Vec<f32>>,
    cancelled: Vec<RequestKey>,
    /// Requests in the order of their first tokens.
    first_tokens: Vec<RequestKey>,
}

impl World {
    /// One step at a time.
    fn new(config: &SchedulerConfig, kv_blocks: impl Into<KvBlocks>) -> Self {
        Self::at_depth(1, config, kv_blocks)
    }

    fn at_depth(depth: usize, config: &SchedulerConfig, kv_blocks: impl Into<KvBlocks>) -> Self {
        Self::with_habits(0..0, depth, config, kv_blocks)
    }

    fn with_habits(
        habits: Range<TokenId>,
        depth: usize,
        config: &SchedulerConfig,
        kv_blocks: impl Into<KvBlocks>,
    ) -> Self {
        let (block_size, kv_blocks) = (config.block_size, kv_blocks.into());
        let max_model_len = config.max_model_len.unwrap_or(kv_blocks.blocks * block_size);
        let options = FakeOptions {
            vocab_size: VOCAB,
            block_size,
            kv_blocks: kv_blocks.blocks,
            window_blocks: kv_blocks.window,
            state_slots: kv_blocks.states,
            steps_in_flight: depth,
            habits,
            ..FakeOptions::default()
        };
        Self {
            scheduler: Scheduler::new(config, kv_blocks, max_model_len),
            backend: FakeBackend::new(options),
            mirror: Mirror::default(),
            depth,
            in_flight: VecDeque::new(),
            device_done: Timestamp::ZERO,
            now: Timestamp::ZERO,
            last_step: Duration::ZERO,
            rows: 0,
            carried: 0,
            dropped: 0,
            drafted: 0,
            accepted: 0,
            streams: HashMap::new(),
            hits: HashMap::new(),
            scores: HashMap::new(),
            vectors: HashMap::new(),
            cancelled: Vec::new(),
            first_tokens: Vec::new(),
        }
    }

    fn submit(&mut self, request: NewRequest) {
        let key = request.key;
        for sample in &request.samples {
            self.streams.insert((key, sample.index), Stream::default());
        }
        let prompt_len = request.prompt.len() as u32;
        for sample in &request.samples {
            assert!(
                prompt_len + sample.delivered.len() as u32 <= self.scheduler.limits.max_model_len,
                "a legal request"
            );
        }
        let accepted = self.scheduler.submit(request).expect("the queue has room");
        self.take(accepted.events);
    }

    fn take(&mut self, events: Vec<RequestEvent>) {
        for event in events {
            match event {
                RequestEvent::Started { request, cached_tokens } => {
                    self.hits.entry(request).or_insert(cached_tokens);
                }
                RequestEvent::PromptScored { request, from, scores } => {
                    let known = self.scores.entry(request).or_default();
                    assert_eq!(from as usize, known.len() + 1, "prompt scores come in order, without gaps");
                    known.extend(scores);
                }
                RequestEvent::Token { request, sample, token, logprobs, .. } => {
                    assert!(self.hits.contains_key(&request), "started before its first token");
                    if !self.first_tokens.contains(&request) {
                        self.first_tokens.push(request);
                    }
                    let stream = self.streams.get_mut(&(request, sample)).expect("a known sample");
                    assert_eq!(stream.finish, None, "nothing follows the end");
                    stream.tokens.push(token);
                    stream.logprobs.push(logprobs);
                }
                RequestEvent::StopScored { request, sample, logprobs } => {
                    let stream = self.streams.get_mut(&(request, sample)).expect("a known sample");
                    assert_eq!(stream.stop_logprobs.replace(logprobs), None, "a sample ends once");
                }
                RequestEvent::Pooled { request, vector, .. } => {
                    assert_eq!(self.vectors.insert(request, vector), None, "a request has one vector");
                }
                RequestEvent::Finished { request, sample, reason, .. } => {
                    assert!(!self.cancelled.contains(&request), "a cancelled request is forgotten");
                    let stream = self.streams.get_mut(&(request, sample)).expect("a known sample");
                    assert_eq!(stream.finish.replace(reason), None, "a sample ends once");
                }
            }
        }
    }

    fn step(&mut self) -> bool {
        self.step_that_takes(|_| Duration::from_millis(1))
    }

    /// One engine turn with all checks; false when idle. `time_of` gives a step's duration by its rows.
    fn step_that_takes(&mut self, time_of: impl Fn(u32) -> Duration) -> bool {
        let launched = self.launch(time_of);
        if launched && self.in_flight.len() < self.depth {
            return true;
        }
        self.collect()
    }

    fn launch(&mut self, time_of: impl Fn(u32) -> Duration) -> bool {
        let Some(plan) = self.scheduler.plan(self.now) else { return false };
        let rows = plan.batch.tokens.len() as u32;
        assert_eq!(rows, plan.step.rows, "the plan counts its rows");
        let is_one_prompt = self.scheduler.limits.whole_prompts && plan.batch.sequences.len() == 1;
        let budget = self.scheduler.limits.max_num_batched_tokens;
        assert!(rows <= budget || is_one_prompt, "the token budget is kept");
        let seats = self.scheduler.limits.max_num_seqs as usize;
        let samples = plan.batch.wants.iter().filter(|want| !matches!(want, Want::Score(_))).count();
        assert!(samples <= seats && plan.batch.sequences.len() <= seats, "so is max_num_seqs");
        for &slot in &plan.batch.slots {
            let block = crate::BlockId(slot / self.scheduler.kv.block_size());
            assert_eq!(self.scheduler.kv.holders(block), 1, "only blocks of one holder are written");
        }
        self.check_blocks();
        self.rows += rows;
        self.carried += plan.batch.carried.len();
        self.drafted += plan.batch.wants.iter().map(drafted).sum::<usize>();
        self.last_step = time_of(rows);
        self.device_done = self.device_done.max(self.now) + self.last_step;
        let handle = self.backend.launch(plan.batch).expect("the fake backend runs");
        self.in_flight.push_back((plan.step, handle, self.device_done));
        true
    }

    fn collect(&mut self) -> bool {
        let Some((step, handle, done)) = self.in_flight.pop_front() else { return false };
        let output = self.backend.collect(handle).expect("the fake backend runs");
        self.now = self.now.max(done);
        self.accepted += output.answers.iter().map(accepted).sum::<usize>();
        let events = self.scheduler.commit(step, &output, self.now);
        let is_draw = |event: &&RequestEvent| {
            matches!(
                event,
                RequestEvent::Token { .. } | RequestEvent::Finished { reason: FinishReason::Stop(_), .. }
            )
        };
        let pooled = output.answers.iter().filter(|answer| matches!(answer, Answer::Pooled(_))).count();
        let drawn = output.drawn().count() + pooled;
        self.dropped += drawn - events.iter().filter(is_draw).count();
        self.take(events);
        self.check_blocks();
        true
    }

    fn check_blocks(&mut self) {
        let scheduler = &mut self.scheduler;
        assert_eq!(scheduler.audit(), Ok(()));
        let are_ends = scheduler.cache_gaps().are_ends;
        for change in scheduler.take_cache_changes() {
            self.mirror.apply(change, are_ends);
        }
        let snapshot: Vec<RunStored> = scheduler.cache_snapshot();
        assert!(self.mirror.0.values().eq(snapshot.iter()), "events add up to the cache's content");
        let gaps: BTreeSet<BlockHash> = scheduler.cache_gaps().hashes.into_iter().collect();
        assert_eq!(self.mirror.1, gaps, "so do those of gaps");
    }

    fn run(&mut self) {
        while self.step() {}
        assert!(self.scheduler.is_idle());
        assert_eq!(self.scheduler.kv.counts().held, 0, "nothing runs, so nothing is held");
    }
}

/// Draft tokens to verify.
fn drafted(want: &Want) -> usize {
    if let Want::Verify(verify) = want { verify.rows.len() - 1 } else { 0 }
}

/// Draft tokens that were right.
fn accepted(answer: &Answer) -> usize {
    if let Answer::Verified(drawn) = answer { drawn.len() - 1 } else { 0 }
}

fn roomy() -> SchedulerConfig {
    SchedulerConfig {
        block_size: 4,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        ..SchedulerConfig::default()
    }
}

fn request(key: u64, prompt: Vec<TokenId>, params: SamplingParams) -> NewRequest {
    NewRequest {
        key: RequestKey(key),
        prompt,
        params: Arc::new(params),
        samples: vec![NewSample::default()],
        scope: CacheScope::new("model", ""),
        call: None,
        priority: 0,
        deadline: None,
        adapter: None,
    }
}

fn random_request(rng: &mut Rng, key: u64, longest: u32) -> NewRequest {
    let prompt_len = rng.within(1..=longest - 1);
    // Few distinct prefixes, so that the cache is hit and blocks are shared.
    let family = rng.within(0..=2);
    let parts_at = rng.within(0..=prompt_len);
    let tail = rng.next() % 5;
    let prompt = (0..prompt_len)
        .map(|at| if at < parts_at { (family * 7 + at) % VOCAB } else { (at * 3 + tail as u32) % VOCAB })
        .collect();
    let max_tokens = rng.within(1..=longest);
    let params = SamplingParams {
        temperature: if rng.chance(70) { 1.0 } else { 0.0 },
        seed: rng.next() % 3,
        max_tokens,
        min_tokens: if rng.chance(30) { rng.within(0..=max_tokens) } else { 0 },
        stop_token_ids: if rng.chance(40) { vec![1, 2] } else { Vec::new() },
        frequency_penalty: if rng.chance(20) { 0.5 } else { 0.0 },
        logprobs: rng.chance(20).then_some(2),
        prompt_logprobs: rng.chance(15).then_some(1),
        ..SamplingParams::default()
    };
    let salt = if rng.chance(15) { "other" } else { "" };
    let adapter = rng.chance(30).then(|| AdapterId(1 + rng.next() % 2));
    NewRequest {
        call: key.is_multiple_of(2).then_some(key % 3),
        priority: [-1, 0, 1, BACKGROUND][rng.within(0..=3) as usize],
        deadline: rng.chance(30).then(|| Timestamp::from_start(Duration::from_millis(rng.next() % 500))),
        scope: CacheScope::with_adapter("model", adapter, salt),
        adapter: adapter.map(|id| Arc::new(LoadedAdapter::new(id, None, Arc::default()))),
        ..request(key, prompt, params)
    }
}

/// The streams of a request's samples when it runs alone.
fn alone(request: &NewRequest, longest: u32) -> Vec<Stream> {
    alone_with_habits(0..0, request, longest)
}

fn alone_with_habits(habits: Range<TokenId>, request: &NewRequest, longest: u32) -> Vec<Stream> {
    let config = SchedulerConfig { max_model_len: Some(longest), ..roomy() };
    let run_one = |sample: &NewSample| {
        let mut world = World::with_habits(habits.clone(), 1, &config, 64);
        let samples = vec![NewSample { index: sample.index, delivered: Vec::new() }];
        world.submit(NewRequest { samples, ..request.clone() });
        world.run();
        world.streams.remove(&(request.key, sample.index)).expect("it ran")
    };
    request.samples.iter().map(run_one).collect()
}

#[test]
fn a_resume_at_any_position_continues_the_same_way() {
    for seed in 0..40 {
        let rng = &mut Rng::new(seed);
        let whole_request = random_request(rng, 1, 30);
        let whole = &alone(&whole_request, 30)[0];
        for had in 1..=whole.tokens.len() {
            let mut world = World::new(&SchedulerConfig { max_model_len: Some(30), ..roomy() }, 64);
            let samples = vec![NewSample { index: 0, delivered: whole.tokens[..had].to_vec() }];
            world.submit(NewRequest { samples, ..whole_request.clone() });
            world.run();
            let resumed = &world.streams[&(RequestKey(1), 0)];
            assert_eq!(resumed.tokens, whole.tokens[had..], "seed {seed}, {had} delivered");
            assert_eq!(resumed.finish, whole.finish, "seed {seed}, {had} delivered");
        }
    }
}

#[test]
fn first_tokens_come_one_after_another() {
    let config = SchedulerConfig { max_num_batched_tokens: 16, ..roomy() };
    let mut world = World::new(&config, 256);
    for key in 1..=6 {
        let params = SamplingParams { max_tokens: 40, ..SamplingParams::default() };
        world.submit(request(key, vec![key as u32; 24], params));
    }
    let mut seen = Vec::new();
    while world.first_tokens.len() < 6 {
        world.step();
        seen.push(world.first_tokens.len());
    }
    assert_eq!(world.first_tokens, (1..=6).map(RequestKey).collect::<Vec<_>>());
    assert!(seen.windows(2).all(|pair| pair[1] - pair[0] <= 1), "not all at once: {seen:?}");
    // Six prompts of 24 tokens in steps of 16, some of them spent on decoding.
    assert!(seen.len() <= 14, "no step is wasted: {seen:?}");
}

#[test]
fn a_shared_prefix_is_computed_once() {
    let mut world = World::new(&roomy(), 64);
    let prompt: Vec<u32> = (0..21).collect();
    world.submit(request(1, prompt.clone(), SamplingParams::default()));
    world.run();
    world.submit(request(2, prompt.clone(), SamplingParams::default()));
    let params = SamplingParams { prompt_logprobs: Some(1), ..SamplingParams::default() };
    world.submit(request(3, prompt.clone(), params));
    world.submit(NewRequest {
        scope: CacheScope::new("model", "x"),
        ..request(4, prompt, SamplingParams::default())
    });
    // Four full prompt blocks and two of output; a hit never covers the whole prompt.
    world.submit(request(5, (0..20).collect(), SamplingParams::default()));
    world.run();
    let hits: Vec<u32> = (1..=5).map(|key| world.hits[&RequestKey(key)]).collect();
    assert_eq!(hits, [0, 20, 0, 0, 16]);
    assert_eq!(world.scores[&RequestKey(3)].len(), 20, "every prompt token but the first is scored");
}

#[test]
fn samples_share_the_prompt_until_they_write() {
    let mut world = World::new(&roomy(), 64);
    let params = SamplingParams { temperature: 1.0, max_tokens: 8, ..SamplingParams::default() };
    let samples = (0..4).map(|index| NewSample { index, delivered: Vec::new() }).collect();
    world.submit(NewRequest { samples, ..request(1, (0..10).collect(), params) });
    world.step();
    assert_eq!(world.scheduler.kv.counts().held, 3, "one table of three blocks for four samples");
    world.step();
    assert_eq!(world.scheduler.kv.counts().held, 2 + 4, "two full blocks shared, a last one for each");
    world.run();
    assert_eq!(world.streams.values().filter(|stream| stream.tokens.len() == 8).count(), 4);
}

#[test]
fn a_full_queue_and_too_many_samples_are_refused() {
    let config = SchedulerConfig { max_num_queued_reqs: 1, max_num_seqs: 2, ..roomy() };
    let mut world = World::new(&config, 64);
    let samples: Vec<NewSample> = (0..3).map(|index| NewSample { index, delivered: Vec::new() }).collect();
    let three = NewRequest { samples, ..request(1, vec![1], SamplingParams::default()) };
    let refused = world.scheduler.submit(three).err();
    assert_eq!(refused, Some(NotAdmitted::TooManySamples { got: 3, limit: 2 }));
    world.submit(request(2, vec![1], SamplingParams::default()));
    let refused = world.scheduler.submit(request(3, vec![1], SamplingParams::default())).err();
    assert_eq!(refused, Some(NotAdmitted::QueueFull { waiting: 1, limit: 1 }));
}

#[test]
fn higher_priority_takes_the_place_of_lower_and_both_end() {
    let config = SchedulerConfig { max_num_seqs: 1, ..roomy() };
    let mut world = World::new(&config, 16);
    let params = SamplingParams { max_tokens: 10, ..SamplingParams::default() };
    world.submit(NewRequest { priority: 5, ..request(1, vec![1; 8], params.clone()) });
    world.step();
    world.submit(NewRequest { priority: -5, ..request(2, vec![2; 8], params) });
    world.step();
    assert_eq!(world.first_tokens, [RequestKey(1), RequestKey(2)]);
    assert_eq!(world.scheduler.queues.running[0].request, RequestKey(2));
    world.run();
    assert!(world.streams.values().all(|stream| stream.tokens.len() == 10));
}

#[test]
fn a_delivered_sample_that_has_all_its_tokens_ends_without_a_draw() {
    let mut world = World::new(&roomy(), 16);
    let params = SamplingParams { max_tokens: 3, ..SamplingParams::default() };
    let samples = vec![NewSample { index: 7, delivered: vec![1, 2, 3] }];
    world.submit(NewRequest { samples, ..request(1, vec![1], params) });
    assert!(!world.step(), "nothing to compute");
    let stream = &world.streams[&(RequestKey(1), 7)];
    assert_eq!((stream.tokens.len(), stream.finish), (0, Some(FinishReason::Length)));
}

#[test]
fn a_prompt_short_of_blocks_waits_for_those_in_the_step_and_then_takes_theirs() {
    let config = SchedulerConfig { max_num_batched_tokens: 3, max_model_len: Some(36), ..roomy() };
    for depth in [1, 2] {
        short_of_blocks(World::at_depth(depth, &config, 9));
    }
}

fn short_of_blocks(mut world: World) {
    let params = SamplingParams { temperature: 1.0, max_tokens: 28, ..SamplingParams::default() };
    let growing = NewRequest { priority: 1, ..request(1, vec![1, 2], params.clone()) };
    let prompt = request(2, (0..28).collect(), params);
    let expected = [&growing, &prompt].map(|request| alone(request, 36).remove(0));
    world.submit(growing);
    world.step();
    world.submit(prompt);
    // Nine blocks: the prompt needs seven, and while it is computed two tokens a step, the
    // other sequence grows.
    let mut preempted = false;
    while world.step() {
        preempted |= world.scheduler.queues.waiting.values().any(|waiting| waiting.request == RequestKey(1));
    }
    assert!(preempted, "both do not fit");
    for (key, expected) in [1, 2].into_iter().zip(expected) {
        assert_eq!(world.streams[&(RequestKey(key), 0)], expected);
    }
}

#[test]
fn a_long_prompt_does_not_stall_the_streams() {
    let config = SchedulerConfig { max_num_batched_tokens: 512, ..roomy() };
    for depth in [1, 2] {
        a_long_prompt_comes(World::at_depth(depth, &config, 2048));
    }
}

fn a_long_prompt_comes(mut world: World) {
    let params = SamplingParams { max_tokens: 400, ..SamplingParams::default() };
    world.submit(request(1, vec![1; 700], params.clone()));
    let mut slowest_after_measuring = Duration::ZERO;
    for step in 0..60 {
        if step == 10 {
            world.submit(request(2, vec![2; 4000], params.clone()));
        }
        // 20 ms and 2 ms a token: 512 tokens would take a second.
        world.step_that_takes(|rows| Duration::from_millis(20 + 2 * u64::from(rows)));
        if step > 10 {
            slowest_after_measuring = slowest_after_measuring.max(world.last_step);
        }
    }
    assert!(slowest_after_measuring <= STREAMING_STEP, "{slowest_after_measuring:?}");
    assert!(slowest_after_measuring >= STREAMING_STEP / 2, "nor does it starve: {slowest_after_measuring:?}");
    assert_eq!(world.first_tokens.len(), 2, "both are running now");
}

#[test]
fn a_prompt_alone_takes_few_steps_of_about_one_size() {
    let config = SchedulerConfig { max_num_batched_tokens: 512, ..roomy() };
    let params = SamplingParams { max_tokens: 1, ..SamplingParams::default() };
    // 80 ms and 1.75 ms a token: 240 tokens take half a second; a smaller step would pay 80 ms
    // for little work.
    let time = |rows: u32| Duration::from_micros(80_000 + 1750 * u64::from(rows));
    for (prompt, expected) in [(240, 1), (260, 1), (266, 1), (290, 2), (480, 2), (500, 2), (560, 3)] {
        let mut world = World::new(&config, 2048);
        for (key, known) in [(1, 700), (2, 50)] {
            world.submit(request(key, vec![key as u32; known], params.clone()));
            while world.step_that_takes(time) {}
        }
        world.submit(request(3, vec![3; prompt], params.clone()));
        let mut steps = Vec::new();
        while world.step_that_takes(time) {
            steps.push(world.last_step);
        }
        assert_eq!(steps.len(), expected, "{prompt} tokens");
        let (shortest, longest) = (steps.iter().min().unwrap(), steps.iter().max().unwrap());
        assert!(*longest - *shortest <= Duration::from_millis(10), "{prompt} tokens: {steps:?}");
    }
}
