//! The engine loop over the fake backend: on its own thread here, turn by turn in the submodules.

mod constraints;
mod drafts;
mod hand_back;
mod scene;
mod streams;

use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use skein_proto::delta::Delta;
use skein_proto::finish::FinishReason;
use skein_proto::placement::Placement;
use skein_proto::sampling::SamplingParams;
use skein_proto::stream_key::StreamKey;
use skein_proto::watch::Admitted;

use super::*;
use crate::TokenId;
use crate::backend::fake::{FakeBackend, FakeOptions, StepCost};
use crate::backend::{Alarm, Batch, StepOutput};
use crate::config::SchedulerConfig;
use crate::kv_cache::CacheScope;
use crate::scheduler::{NewRequest, NewSample, RequestKey};
use crate::streams::{
    AttachError, Attachment, MAX_LINGER, MAX_UNREAD_BYTES, OutOfRange, RING_BYTES, SamplePosition,
    TokenStream,
};

/// Longer than any test takes; a test that hangs fails.
const TIMEOUT: Duration = Duration::from_secs(20);

type Running = JoinHandle<Result<(), BackendError>>;

fn start(options: FakeOptions, max_streams: u32) -> (EngineHandle, Running) {
    let config = SchedulerConfig { block_size: options.block_size, ..SchedulerConfig::default() };
    let longest = options.kv_blocks * options.block_size;
    let scheduler = Scheduler::new(&config, options.kv_blocks, longest);
    let (engine, handle) = Engine::new(scheduler, Box::new(FakeBackend::new(options)), max_streams);
    (handle, std::thread::spawn(move || engine.run()))
}

fn slow() -> FakeOptions {
    let cost = StepCost { fixed: Duration::from_millis(5), ..StepCost::default() };
    FakeOptions { cost, ..FakeOptions::default() }
}

fn submission(id: &str, max_tokens: u32) -> Submission {
    let request = NewRequest {
        key: RequestKey(0),
        prompt: (0..40).collect(),
        params: Arc::new(SamplingParams { max_tokens, ..SamplingParams::default() }),
        samples: vec![NewSample::default()],
        scope: CacheScope::new("model", ""),
        call: None,
        priority: 0,
        deadline: None,
        adapter: None,
    };
    let placement = Some(Placement { router: 7, sequence: 3 });
    Submission {
        id: id.into(),
        request,
        placement,
        stream_key: None,
        linger: Duration::ZERO,
        trace: Default::default(),
        constraint: None,
    }
}

/// Reads a stream to its end and checks that its positions have no gaps.
async fn read(stream: &mut TokenStream) -> Result<Vec<Delta>, StreamFault> {
    let mut all = Vec::new();
    let mut position = 40;
    while let Some(deltas) = tokio::time::timeout(TIMEOUT, stream.next()).await.expect("the stream goes on") {
        for delta in deltas? {
            assert_eq!(delta.from_position, position, "positions have no holes");
            position += delta.tokens.len() as u32;
            all.push(delta);
        }
    }
    Ok(all)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, wait).await.is_ok(), "{what}");
}

async fn stop(handle: EngineHandle, running: Running) {
    handle.stop().await;
    assert!(running.join().expect("no panic").is_ok());
}

#[tokio::test]
async fn a_request_streams_to_its_end_and_is_logged() {
    let (handle, running) = start(FakeOptions::default(), 8);
    let mut stream = handle.submit(submission("a", 20)).await.expect("taken");
    let deltas = read(&mut stream).await.expect("no fault");
    assert_eq!(deltas.iter().map(|delta| delta.tokens.len()).sum::<usize>(), 20);
    assert_eq!(deltas.last().expect("an end").finish, Some(FinishReason::Length));
    assert_eq!(deltas[0].cached_tokens, Some(0));
    assert!(deltas[1..].iter().all(|delta| delta.cached_tokens.is_none()));
    let mut again = handle.submit(submission("a", 1)).await.expect("an id is free again after its end");
    assert_eq!(read(&mut again).await.expect("no fault")[0].cached_tokens, Some(32));
    let snapshot = handle.snapshot().await.expect("it runs");
    // 59 tokens have keys and values: three full blocks in one run.
    assert_eq!(snapshot.runs.iter().map(|run| run.hashes.len()).collect::<Vec<_>>(), [3]);
    let entries = handle.log().entries_from(1, 100).expect("all of it");
    let admitted = |depth, hashes| {
        let placement = Placement { router: 7, sequence: 3 };
        LogEntry::Admitted(Admitted { placement, depth, hashes, stream_key: None })
    };
    assert_eq!(*entries[0], admitted(0, snapshot.runs[0].hashes[..2].to_vec()));
    assert!(entries.contains(&Arc::new(admitted(2, Vec::new()))));
    assert_eq!(handle.log().last_placement(7), 3);
    assert_eq!(handle.log().load().running, 0);
    stop(handle, running).await;
}

#[tokio::test]
async fn a_dropped_stream_frees_its_blocks() {
    let (handle, running) = start(slow(), 8);
    let mut stream = handle.submit(submission("a", 10_000)).await.expect("taken");
    assert!(stream.next().await.is_some());
    let log = handle.log().clone();
    assert!(log.load().free_blocks < 1024);
    drop(stream);
    until("blocks come back", || log.load().free_blocks == 1024).await;
    stop(handle, running).await;
}

#[tokio::test]
async fn ids_and_streams_are_bounded() {
    let (handle, running) = start(slow(), 2);
    let _first = handle.submit(submission("a", 10_000)).await.expect("taken");
    let duplicate = handle.submit(submission("a", 1)).await.map(drop);
    assert_eq!(duplicate, Err(SubmitError::Duplicate { id: "a".into() }));
    let mut second = handle.submit(submission("b", 1)).await.expect("taken");
    read(&mut second).await.expect("no fault");
    let third = handle.submit(submission("c", 1)).await.map(drop);
    assert_eq!(third, Err(SubmitError::TooManyStreams { open: 2, limit: 2 }));
    drop(second);
    assert!(handle.submit(submission("c", 1)).await.is_ok());
    stop(handle, running).await;
}

#[tokio::test]
async fn an_aborted_sample_ends_with_abort() {
    let (handle, running) = start(slow(), 8);
    let mut stream = handle.submit(submission("a", 10_000)).await.expect("taken");
    assert!(stream.next().await.is_some());
    assert!(!handle.abort("b".into(), 0).await);
    assert!(!handle.abort("a".into(), 1).await);
    assert!(handle.abort("a".into(), 0).await);
    assert!(!handle.abort("a".into(), 0).await, "only once");
    let mut last = None;
    while let Some(deltas) = stream.next().await {
        last = deltas.expect("no fault").pop();
    }
    assert_eq!(last.expect("an end").finish, Some(FinishReason::Abort));
    stop(handle, running).await;
}

#[tokio::test]
async fn a_failed_backend_ends_every_stream_with_its_reason() {
    let (handle, running) = start(FakeOptions { fail_at_step: Some(5), ..FakeOptions::default() }, 8);
    let mut stream = handle.submit(submission("a", 1000)).await.expect("taken");
    let fault = read(&mut stream).await.expect_err("it fails");
    assert!(fault.to_string().contains("resumed on another worker"), "{fault}");
    assert!(running.join().expect("no panic").is_err());
    let late = handle.submit(submission("b", 1)).await.map(drop);
    assert_eq!(late, Err(SubmitError::Stopped));
}

#[tokio::test]
async fn a_reader_that_never_reads_loses_its_request_not_the_workers_memory() {
    let (handle, running) = start(FakeOptions { kv_blocks: 8192, ..FakeOptions::default() }, 8);
    let mut greedy = submission("a", 100_000);
    let params = SamplingParams { max_tokens: 100_000, logprobs: Some(20), ..SamplingParams::default() };
    // Large logprob lists, so that few tokens reach the limit.
    greedy.request.params = Arc::new(params);
    greedy.request.samples = (0..32).map(|index| NewSample { index, delivered: Vec::new() }).collect();
    let mut lazy = handle.submit(greedy).await.expect("taken");
    let log = handle.log().clone();
    until("it is cancelled", || log.step() > 10 && log.load().running == 0).await;
    let fault = lazy.next().await.expect("an end").expect_err("a fault");
    let StreamFault::SlowReader { bytes } = fault else { panic!("{fault}") };
    assert!((MAX_UNREAD_BYTES..2 * MAX_UNREAD_BYTES).contains(&bytes));
    stop(handle, running).await;
}

#[tokio::test]
async fn a_slow_reader_gets_everything_in_fewer_deltas() {
    let (handle, running) = start(FakeOptions::default(), 8);
    let mut stream = handle.submit(submission("a", 2000)).await.expect("taken");
    let log = handle.log().clone();
    until("it is done", || log.step() >= 2000 && log.load().running == 0).await;
    let deltas = read(&mut stream).await.expect("no fault");
    assert_eq!(deltas.iter().map(|delta| delta.tokens.len()).collect::<Vec<_>>(), [1024, 976]);
    stop(handle, running).await;
}

/// The fake backend with `depth` steps in flight, recording launches (+n) and collects (-n).
struct Noting {
    backend: FakeBackend,
    depth: usize,
    notes: Arc<Mutex<Vec<i64>>>,
}

impl Backend for Noting {
    fn kv_blocks(&self) -> u32 {
        self.backend.kv_blocks()
    }

    fn steps_in_flight(&self) -> usize {
        self.depth
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let step = self.backend.launch(batch)?;
        self.notes.lock().expect("no panic").push(step.0 as i64);
        Ok(step)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        self.notes.lock().expect("no panic").push(-(step.0 as i64));
        self.backend.collect(step)
    }
}

#[tokio::test]
async fn the_next_step_is_launched_before_the_last_one_is_collected() {
    for (depth, expected) in [(1, [1, -1, 2, -2, 3, -3, 4, -4]), (2, [1, 2, -1, 3, -2, 4, -3, -4])] {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let backend = FakeBackend::new(FakeOptions::default());
        let backend = Noting { backend, depth, notes: notes.clone() };
        let scheduler = Scheduler::new(&SchedulerConfig::default(), 64, 1024);
        let (engine, handle) = Engine::new(scheduler, Box::new(backend), 8);
        let running = std::thread::spawn(move || engine.run());
        let mut stream = handle.submit(submission("a", 4)).await.expect("taken");
        read(&mut stream).await.expect("no fault");
        stop(handle, running).await;
        assert_eq!(*notes.lock().expect("no panic"), expected);
    }
}

/// Panics at launch, like a bug in a kernel.
struct Panicking;

impl Backend for Panicking {
    fn kv_blocks(&self) -> u32 {
        64
    }

    fn launch(&mut self, _: Batch) -> Result<StepHandle, BackendError> {
        panic!("a broken invariant");
    }

    fn collect(&mut self, _: StepHandle) -> Result<StepOutput, BackendError> {
        unreachable!("nothing was launched")
    }
}

#[tokio::test]
async fn a_panic_of_the_engine_ends_every_stream() {
    let scheduler = Scheduler::new(&SchedulerConfig::default(), 64, 1024);
    let (engine, handle) = Engine::new(scheduler, Box::new(Panicking), 8);
    let running = std::thread::spawn(move || engine.run());
    let mut stream = handle.submit(submission("a", 10)).await.expect("taken");
    let fault = read(&mut stream).await.expect_err("the engine is gone");
    assert!(matches!(fault, StreamFault::Failed { .. }), "{fault}");
    assert!(running.join().is_err());
    handle.ended().await;
}

/// Fails once its alarm is taken; nothing is submitted to it.
struct Dying {
    alarm: Arc<Mutex<Option<Alarm>>>,
}

impl Backend for Dying {
    fn kv_blocks(&self) -> u32 {
        64
    }
    fn launch(&mut self, _: Batch) -> Result<StepHandle, BackendError> {
        unreachable!("nothing is submitted")
    }
    fn collect(&mut self, _: StepHandle) -> Result<StepOutput, BackendError> {
        unreachable!("nothing is submitted")
    }
    fn on_failure(&mut self, alarm: Alarm) {
        *self.alarm.lock().unwrap() = Some(alarm);
    }
    fn health(&mut self) -> Result<(), BackendError> {
        if self.alarm.lock().unwrap().is_some() {
            return Ok(());
        }
        Err(BackendError::Stopped { backend: "dying", reason: "an illegal address".into() })
    }
}

#[tokio::test]
async fn an_idle_engine_ends_when_its_backend_dies_or_its_handles_are_dropped() {
    let config = SchedulerConfig::default();
    for dies in [true, false] {
        let alarm = Arc::<Mutex<Option<Alarm>>>::default();
        let backend = Dying { alarm: Arc::clone(&alarm) };
        let (engine, handle) = Engine::new(Scheduler::new(&config, 64, 512), Box::new(backend), 8);
        let running = std::thread::spawn(move || engine.run());
        assert!(handle.snapshot().await.is_some(), "it runs");
        if dies {
            let ring = alarm.lock().unwrap().take().unwrap();
            ring();
            tokio::time::timeout(TIMEOUT, handle.ended()).await.expect("the alarm wakes the engine");
            assert!(running.join().unwrap().unwrap_err().to_string().contains("an illegal address"));
        } else {
            drop(handle);
            let joined = tokio::task::spawn_blocking(|| running.join().unwrap());
            let ended = tokio::time::timeout(TIMEOUT, joined).await;
            assert!(ended.expect("an alarm keeps no engine alive").unwrap().is_ok());
        }
    }
}
