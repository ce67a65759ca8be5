//! The router's core with real workers on the fake backend, all in this process: resumes, cache hits and load
//! reports over the real wire, without a model. The fake backend reads its tokens back through the block
//! tables, so a mistake on either side shows as a wrong token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use skein_choice::fleet::NotReady;
use skein_model::pooling::PoolingSpec;
use skein_node::clock;
use skein_node::discovery::{self, Change, Member};
use skein_proto::sampling::SamplingParams;
use skein_router::cluster::Cluster;
use skein_router::generator::TokenSource;
use skein_router::refusal::Refusal;
use skein_router::request::TokenRequest;
use skein_router::request::tenant::Tenant;
use skein_worker::backend::fake::{FakeBackend, FakeOptions, StepCost};
use skein_worker::config::{BackendKind, SchedulerConfig, WorkerConfig};
use skein_worker::load::LoadedBackend;
use skein_worker::service::serve_backend;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{Answer, MODEL, TIMEOUT, fresh_id, next_of, router_config, wait_for_ready};

const VOCAB_SIZE: u32 = 1000;

/// A worker on its own runtime. Killing it closes its sockets like those of a dead process.
pub struct Worker {
    pub address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    shutdown: Option<oneshot::Sender<()>>,
}

impl Worker {
    pub fn config() -> WorkerConfig {
        WorkerConfig {
            backend: BackendKind::Fake,
            threads: 1,
            scheduler: SchedulerConfig { max_num_batched_tokens: 128, ..SchedulerConfig::default() },
            // Streams should leave a draining worker at once if they can.
            drain_grace: Duration::ZERO,
            shutdown_timeout: TIMEOUT,
            ..WorkerConfig::new("", MODEL)
        }
    }

    pub async fn start_as(config: WorkerConfig, cost: StepCost) -> Self {
        Self::start_pooling(config, cost, None).await
    }

    async fn start_pooling(config: WorkerConfig, cost: StepCost, pooling: Option<PoolingSpec>) -> Self {
        let reads_whole = pooling.as_ref().is_some_and(PoolingSpec::reads_whole);
        let options = FakeOptions {
            vocab_size: VOCAB_SIZE,
            kv_blocks: 2048,
            cost,
            reads_whole,
            ..FakeOptions::default()
        };
        let load = move || {
            let loaded = LoadedBackend::fake(FakeBackend::new(options), VOCAB_SIZE, 4096);
            Ok(LoadedBackend { eos_token_ids: vec![7], pooling, ..loaded })
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let (ready, address) = oneshot::channel();
        let (shutdown, stopped) = oneshot::channel::<()>();
        runtime.spawn(async move {
            let on_ready = |address| ready.send(address).expect("the test waits for it");
            let served = serve_backend(config, load, on_ready, async { drop(stopped.await) }).await;
            served.expect("the worker serves");
        });
        let address = address.await.expect("the worker gets ready");
        Self { address, runtime: Some(runtime), shutdown: Some(shutdown) }
    }

    pub fn kill(&mut self) {
        // Leak the sender: dropping it would shut the worker down gracefully.
        std::mem::forget(self.shutdown.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Scene {
    pub workers: Vec<Worker>,
    changes: mpsc::Sender<Change>,
    pub cluster: Cluster,
    cost: StepCost,
    /// How the workers make vectors, if they do that instead of generating tokens.
    pooling: Option<PoolingSpec>,
}

impl Scene {
    pub async fn new(workers: usize, cost: StepCost) -> Self {
        Self::pooling(workers, cost, None).await
    }

    /// Workers that make vectors.
    pub async fn pooling(workers: usize, cost: StepCost, pooling: Option<PoolingSpec>) -> Self {
        let (changes, receiver) = discovery::in_process();
        let cluster = Cluster::start(&router_config(), receiver, MODEL);
        let mut scene = Self { workers: Vec::new(), changes, cluster, cost, pooling };
        for index in 0..workers {
            let worker = scene.worker().await;
            scene.workers.push(worker);
            scene.join(index).await;
        }
        scene.wait_for_ready(workers).await;
        scene
    }

    async fn join(&self, index: usize) {
        let address = self.workers[index].address.to_string();
        let joined = self.changes.send(Change::Join(Member { id: format!("w{index}"), address })).await;
        joined.expect("the cluster listens");
    }

    async fn worker(&self) -> Worker {
        Worker::start_pooling(Worker::config(), self.cost, self.pooling.clone()).await
    }

    pub async fn restart(&mut self, index: usize) {
        self.workers[index] = self.worker().await;
        self.join(index).await;
    }

    pub async fn wait_for_ready(&self, workers: usize) {
        wait_for_ready(&self.cluster, workers).await;
    }

    pub fn spawn(&self, request: &TokenRequest) -> JoinHandle<Result<Outcome, Refusal>> {
        tokio::spawn(run(self.cluster.clone(), request.clone()))
    }

    /// Spawns requests, and answers once each runs on a worker.
    async fn spawn_running(&self, requests: &[TokenRequest]) -> Vec<JoinHandle<Result<Outcome, Refusal>>> {
        let (began, mut begun) = mpsc::channel(requests.len());
        let spawned = requests.iter().map(|request| {
            let (cluster, request, began) = (self.cluster.clone(), request.clone(), began.clone());
            tokio::spawn(run_telling(cluster, request, move || began.try_send(()).expect("there is room")))
        });
        let spawned = spawned.collect();
        for _ in requests {
            let one = tokio::time::timeout(TIMEOUT, begun.recv());
            one.await.expect("each begins").expect("one tells it");
        }
        spawned
    }
}

#[derive(Debug)]
pub struct Outcome {
    pub answer: Answer,
    pub cached_tokens: Option<u32>,
    longest_gap: Duration,
}

pub async fn run(cluster: Cluster, request: TokenRequest) -> Result<Outcome, Refusal> {
    run_telling(cluster, request, || ()).await
}

/// [`run`] that calls `began` when the first token is there.
async fn run_telling(
    cluster: Cluster,
    request: TokenRequest,
    began: impl FnOnce(),
) -> Result<Outcome, Refusal> {
    let request = TokenRequest { id: fresh_id().into(), ..request };
    let mut answer = Answer::to(&request);
    let (mut cached_tokens, mut longest_gap) = (None, Duration::ZERO);
    let (mut last, mut began) = (None, Some(began));
    let mut stream = cluster.submit(request.clone()).await?;
    while let Some(delta) = next_of(&mut stream).await {
        let delta = delta?;
        if let Some(began) = began.take() {
            began();
        }
        let now = clock::now();
        if let Some(last) = last.replace(now) {
            longest_gap = longest_gap.max(now.since(last));
        }
        cached_tokens = cached_tokens.or(delta.cached_tokens);
        answer.add(&request, delta);
    }
    assert!(answer.samples.iter().all(|(_, _, finish)| finish.is_some()), "every sample ends");
    Ok(Outcome { answer, cached_tokens, longest_gap })
}

/// Requests of six kinds: greedy, seeded, stop tokens, n = 3, output or prompt log-probabilities.
pub fn request(index: u32, max_tokens: u32) -> TokenRequest {
    let kind = index % 6;
    let sampling = SamplingParams {
        temperature: if kind == 0 { 0.0 } else { 1.0 },
        seed: u64::from(index),
        max_tokens,
        stop_token_ids: if kind == 2 { (0..40).collect() } else { Vec::new() },
        ignore_eos: kind != 2,
        logprobs: (kind == 4).then_some(2),
        prompt_logprobs: (kind == 5).then_some(1),
        ..SamplingParams::default()
    };
    let prompt: Arc<[_]> = (0..100 + index).map(|position| (position * 7 + index) % VOCAB_SIZE).collect();
    let n = if kind == 3 { 3 } else { 1 };
    TokenRequest { n, ..TokenRequest::new("", MODEL, prompt, sampling) }
}

#[tokio::test]
async fn killed_workers_change_no_stream() {
    let cost = StepCost {
        fixed: Duration::from_millis(2),
        per_row: Duration::from_micros(10),
        ..StepCost::default()
    };
    let mut scene = Scene::new(3, cost).await;
    let requests: Vec<TokenRequest> = (0..48).map(|index| request(index, 64)).collect();
    let mut expected = Vec::new();
    for request in &requests {
        expected.push(run(scene.cluster.clone(), request.clone()).await.expect("undisturbed"));
    }
    let mut gaps = Vec::new();
    for round in 0..6 {
        let streams: Vec<_> = requests.iter().map(|request| scene.spawn(request)).collect();
        tokio::time::sleep(Duration::from_millis(10 + 37 * round)).await;
        let victim = round as usize % 3;
        scene.workers[victim].kill();
        // In every second round the worker is missing for a moment; otherwise it is back at once.
        tokio::time::sleep(Duration::from_millis(50 * (round % 2))).await;
        scene.restart(victim).await;
        for (index, stream) in streams.into_iter().enumerate() {
            let got = stream.await.expect("no panic");
            let got = got.unwrap_or_else(|refusal| panic!("round {round}, stream {index}: {refusal}"));
            assert_eq!(got.answer, expected[index].answer, "round {round}, stream {index}");
            gaps.push(got.longest_gap);
        }
        scene.wait_for_ready(3).await;
    }
    gaps.sort_unstable();
    let p99 = gaps[gaps.len() * 99 / 100];
    println!("{} streams, longest gap p50 {:?} p99 {p99:?}", gaps.len(), gaps[gaps.len() / 2]);
    assert!(p99 < Duration::from_secs(2), "{p99:?}");
    assert_eq!(scene.cluster.snapshot().running.requests, 0);
}

#[tokio::test]
async fn a_repeated_prompt_hits_the_cache_and_leaves_the_other_worker_alone() {
    let scene = Scene::new(2, StepCost::default()).await;
    let long = TokenRequest { prompt: (0..800).map(|token| token % VOCAB_SIZE).collect(), ..request(1, 8) };
    let first = run(scene.cluster.clone(), long.clone()).await.expect("it ends");
    assert_eq!(first.cached_tokens, Some(0));
    for round in 0..10 {
        let again = run(scene.cluster.clone(), long.clone()).await.expect("it ends");
        assert_eq!(again.answer, first.answer);
        assert!(again.cached_tokens >= Some(784), "round {round}: {:?}", again.cached_tokens);
    }
    let blocks = || -> Vec<usize> {
        scene.cluster.snapshot().workers.iter().map(|worker| worker.cached_blocks).collect()
    };
    // A worker's report may take a while.
    let reported = async {
        while blocks().iter().all(|&blocks| blocks == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reported).await.expect("a worker reports its blocks");
    assert_eq!(blocks().iter().filter(|&&blocks| blocks == 0).count(), 1, "{:?}", blocks());
}

#[tokio::test]
async fn tenants_share_no_id_and_no_cached_prefix() {
    let cost = StepCost { fixed: Duration::from_millis(2), ..StepCost::default() };
    let scene = Scene::new(1, cost).await;
    let of = |key: &str| {
        let tenant = Tenant::of_key(key);
        let prompt: Arc<[_]> = (0..800).map(|token| token % VOCAB_SIZE).collect();
        TokenRequest { prompt, cache_salt: tenant.cache_salt(""), tenant, ..request(1, 40) }
    };
    let cached = async |key: &str| run(scene.cluster.clone(), of(key)).await.expect("it ends").cached_tokens;
    assert_eq!(cached("one").await, Some(0));
    assert!(cached("one").await >= Some(784), "its own prefix");
    assert_eq!(cached("other").await, Some(0), "another tenant's prefix tells nothing");
    // The same id at the same time is neither refused nor attached.
    let order = |key: &str| TokenRequest { id: "order-1001".into(), ..of(key) };
    let one = scene.cluster.submit(order("one")).await.expect("it is taken");
    let other = scene.cluster.submit(order("other")).await.expect("the id is free for another tenant");
    drop((one, other));
}

#[tokio::test]
async fn work_is_spread_and_follow_ups_stay_where_their_history_is() {
    let cost = StepCost {
        fixed: Duration::from_millis(1),
        per_row: Duration::from_micros(50),
        ..StepCost::default()
    };
    let scene = Scene::new(3, cost).await;
    // Twelve concurrent conversations of three turns; each turn's prompt contains the history.
    let conversations: Vec<_> = (0..12u32)
        .map(|conversation| {
            let cluster = scene.cluster.clone();
            tokio::spawn(async move {
                let mut request = TokenRequest { n: 1, ..request(1, 24) };
                request.prompt =
                    (0..300).map(|position| (position * (conversation + 3)) % VOCAB_SIZE).collect();
                let mut cached = Vec::new();
                for _ in 0..3 {
                    let turn = run(cluster.clone(), request.clone()).await.expect("it ends");
                    cached.push(turn.cached_tokens.unwrap_or(0) as f64 / request.prompt.len() as f64);
                    request.prompt =
                        [&request.prompt[..], &turn.answer.samples[0].0, &[conversation; 20]].concat().into();
                }
                cached
            })
        })
        .collect();
    let mut follow_ups = Vec::new();
    for conversation in conversations {
        follow_ups.extend_from_slice(&conversation.await.expect("no panic")[1..]);
    }
    let hits = follow_ups.iter().sum::<f64>() / follow_ups.len() as f64;
    assert!(hits > 0.8, "share of follow-up prompts found in a cache: {hits:.2}");
    let blocks: Vec<usize> =
        scene.cluster.snapshot().workers.iter().map(|worker| worker.cached_blocks).collect();
    assert!(blocks.iter().all(|&blocks| blocks > 40), "every worker got conversations: {blocks:?}");
}

#[tokio::test]
async fn a_draining_worker_ends_its_streams_and_gets_no_more() {
    let cost = StepCost { fixed: Duration::from_millis(3), ..StepCost::default() };
    let mut scene = Scene::new(2, cost).await;
    let requests: Vec<TokenRequest> = (0..12).map(|index| request(index, 50)).collect();
    let streams: Vec<_> = requests.iter().map(|request| scene.spawn(request)).collect();
    tokio::time::sleep(Duration::from_millis(40)).await;
    scene.workers[0].shutdown.take().expect("it runs").send(()).expect("it listens");
    let more: Vec<_> = requests.iter().map(|request| scene.spawn(request)).collect();
    for (one, other) in streams.into_iter().zip(more) {
        let one = one.await.expect("no panic").expect("it ends");
        let other = other.await.expect("no panic").expect("it ends");
        assert_eq!(one.answer, other.answer);
    }
    scene.wait_for_ready(1).await;
}

#[tokio::test]
async fn streams_leave_a_draining_worker_only_when_there_is_another() {
    let cost = StepCost { fixed: Duration::from_millis(3), ..StepCost::default() };
    let mut scene = Scene::new(1, cost).await;
    let requests: Vec<TokenRequest> = (0..4).map(|index| request(index, 300)).collect();
    let alone = scene.spawn_running(&requests).await;
    scene.workers[0].shutdown.take().expect("it runs").send(()).expect("it listens");
    let mut contents = Vec::new();
    for stream in alone {
        contents.push(stream.await.expect("no panic").expect("the only worker ends what it runs"));
    }
    let mut scene = Scene::new(2, cost).await;
    let start = clock::now();
    let moved = scene.spawn_running(&requests).await;
    scene.workers[0].shutdown.take().expect("it runs").send(()).expect("it listens");
    scene.wait_for_ready(1).await;
    let gone = async {
        while !scene
            .cluster
            .snapshot()
            .workers
            .iter()
            .any(|worker| worker.refuses == Some(NotReady::NotHeardFrom))
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, gone).await.expect("rid of its streams, the worker ends");
    let left_after = clock::now().since(start);
    for (stream, expected) in moved.into_iter().zip(contents) {
        assert_eq!(stream.await.expect("no panic").expect("it ends").answer, expected.answer);
    }
    assert!(left_after < clock::now().since(start), "the worker ended before its streams did");
}

/// Waits until the number of sequences at all workers is as wanted.
pub async fn wait_for_sequences(scene: &Scene, wanted: impl Fn(u32) -> bool) {
    let running = || scene.cluster.snapshot().workers.iter().map(|worker| worker.load.sequences).sum::<u32>();
    let wait = async {
        while !wanted(running()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.expect("the sequences are as wanted");
}

#[tokio::test]
async fn an_aborted_sample_ends_and_a_dropped_stream_frees_the_worker() {
    let cost = StepCost { fixed: Duration::from_millis(2), ..StepCost::default() };
    let scene = Scene::new(1, cost).await;
    let request = TokenRequest { id: "abort".into(), n: 2, ..request(1, 400) };
    let expected = run(scene.cluster.clone(), request.clone()).await.expect("it ends");
    let mut stream = scene.cluster.submit(request.clone()).await.expect("it is taken");
    stream.abort_sample(0);
    let mut tokens = Vec::new();
    while let Some(delta) = stream.next().await {
        let delta = delta.expect("no error");
        if delta.sample_index == 1 {
            tokens.extend(delta.tokens);
        }
    }
    assert_eq!(tokens, expected.answer.samples[1].0);
    let stream = scene.cluster.submit(request).await.expect("it is taken");
    drop(stream);
    let start = clock::now();
    while scene.cluster.snapshot().workers[0].load.sequences > 0 {
        assert!(
            clock::now().since(start) < Duration::from_millis(700),
            "a cancelled request is still running"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
