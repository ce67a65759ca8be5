//! The cluster core over real sockets, with scripted worker failures: a client receives every token once,
//! whatever fails.

mod drains;
mod health;
mod mock;
mod picks;
mod receipts;
mod resume;
mod shards;
mod versions;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use skein_choice::limits::ModelLimits;
use skein_node::clock;
use skein_node::discovery::{self, Change, Member};
use skein_proto::TokenId;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::sampling::SamplingParams;
use skein_router::cluster::{Cluster, TokenStream, Tuning};
use skein_router::config::{AdmissionConfig, RecoveryConfig, RouterConfig};
use skein_router::generator::TokenSource;
use skein_router::links::transport::Grpc;
use skein_router::refusal::Refusal;
use skein_router::request::TokenRequest;
use tokio::sync::mpsc;

use mock::{Fault, MODEL, Mock, Script, VOCAB_SIZE, lock};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Scene {
    script: Arc<Script>,
    workers: Vec<Mock>,
    changes: mpsc::Sender<Change>,
    cluster: Cluster,
}

impl Scene {
    /// A cluster of `workers` workers, all ready.
    async fn new(workers: u32) -> Self {
        Self::with(workers, AdmissionConfig::default(), None).await
    }

    async fn with(workers: u32, admission: AdmissionConfig, wedge_timeout: Option<Duration>) -> Self {
        Self::recovering(workers, admission, RecoveryConfig { wedge_timeout, ..RecoveryConfig::default() })
            .await
    }

    async fn recovering(workers: u32, admission: AdmissionConfig, recovery: RecoveryConfig) -> Self {
        let config = config(admission, recovery);
        let (changes, receiver) = discovery::in_process();
        let tuning = Tuning { seed: Some(1) };
        let cluster = Cluster::start_with(&config, receiver, MODEL, tuning, Arc::new(Grpc::default()));
        let mut scene = Self { script: Arc::default(), workers: Vec::new(), changes, cluster };
        for name in 0..workers {
            let worker = Mock::start(name, 100 + u64::from(name), ANY_PORT, &scene.script);
            scene.join(name, worker.address).await;
            scene.workers.push(worker);
        }
        scene.wait_for_ready(workers as usize).await;
        scene
    }

    async fn join(&self, name: u32, address: SocketAddr) {
        let member = Member { id: format!("w{name}"), address: address.to_string() };
        self.changes.send(Change::Join(member)).await.expect("the cluster listens");
    }

    fn ready(&self) -> usize {
        self.cluster.snapshot().workers.iter().filter(|worker| worker.is_ready()).count()
    }

    async fn wait_for_ready(&self, workers: usize) {
        wait_for("workers to be ready", || self.ready() == workers).await;
    }

    async fn submit(&self, request: TokenRequest) -> Result<TokenStream, Refusal> {
        tokio::time::timeout(TIMEOUT, self.cluster.submit(request)).await.expect("an answer in time")
    }

    /// Runs a request under a unique id: a used id would find the earlier stream.
    async fn run(&self, request: TokenRequest) -> Outcome {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let id = format!("{}.{}", request.id, RUNS.fetch_add(1, Ordering::Relaxed));
        let request = TokenRequest { id: id.into(), ..request };
        match self.submit(request.clone()).await {
            Ok(stream) => collect(&request, stream).await,
            Err(refusal) => Outcome { error: Some(refusal.to_string()), ..Outcome::default() },
        }
    }
}

fn config(admission: AdmissionConfig, recovery: RecoveryConfig) -> RouterConfig {
    let shutdown_timeout = Duration::from_secs(1);
    RouterConfig { admission, recovery, shutdown_timeout, ..RouterConfig::new("", [MODEL]) }
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = clock::now();
    while !condition() {
        assert!(clock::now().since(start) < TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What a client receives.
#[derive(Debug, Default, Clone, PartialEq)]
struct Outcome {
    samples: Vec<(Vec<TokenId>, Vec<TokenLogprobs>, Option<FinishReason>)>,
    prompt_logprobs: Vec<TokenLogprobs>,
    cached_tokens: Option<u32>,
    error: Option<String>,
}

async fn collect(request: &TokenRequest, mut stream: TokenStream) -> Outcome {
    let mut outcome = Outcome { samples: vec![Default::default(); request.n as usize], ..Outcome::default() };
    while let Some(delta) = tokio::time::timeout(TIMEOUT, stream.next()).await.expect("news in time") {
        match delta {
            Ok(delta) => {
                let (tokens, logprobs, finish) = &mut outcome.samples[delta.sample_index as usize];
                assert_eq!(
                    delta.from_position as usize,
                    request.prompt.len() + tokens.len(),
                    "positions follow"
                );
                assert_eq!(*finish, None, "nothing follows an end");
                tokens.extend(delta.tokens);
                logprobs.extend(delta.logprobs);
                *finish = delta.finish;
                outcome.prompt_logprobs.extend(delta.prompt_logprobs);
                assert!(delta.cached_tokens.is_none() || outcome.cached_tokens.is_none(), "reported once");
                outcome.cached_tokens = outcome.cached_tokens.or(delta.cached_tokens);
            }
            Err(refusal) => outcome.error = Some(refusal.to_string()),
        }
    }
    outcome
}

fn request(id: &str, prompt: impl IntoIterator<Item = TokenId>, max_tokens: u32) -> TokenRequest {
    let sampling = SamplingParams { temperature: 1.0, seed: 7, max_tokens, ..SamplingParams::default() };
    TokenRequest::new(id, MODEL, prompt.into_iter().collect::<Arc<[_]>>(), sampling)
}

fn sampled(request: TokenRequest, n: u32, change: impl FnOnce(&mut SamplingParams)) -> TokenRequest {
    let mut sampling = SamplingParams::clone(&request.sampling);
    change(&mut sampling);
    TokenRequest { n, sampling: Arc::new(sampling), ..request }
}

/// Requests of every kind that must survive a cut.
fn kinds() -> Vec<TokenRequest> {
    let plain = request("plain", 0..9, 12);
    vec![
        plain.clone(),
        sampled(plain.clone(), 1, |sampling| (sampling.temperature, sampling.seed) = (0.0, 0)),
        sampled(plain.clone(), 2, |sampling| sampling.logprobs = Some(1)),
        sampled(plain, 3, |sampling| (sampling.prompt_logprobs, sampling.seed) = (Some(0), 3)),
    ]
}

#[tokio::test]
async fn a_stream_cut_at_any_position_ends_as_it_would_have() {
    let scene = Scene::new(3).await;
    for request in kinds() {
        let expected = scene.run(request.clone()).await;
        assert_eq!(expected.error, None);
        let deltas: usize = expected.samples.iter().map(|(tokens, _, _)| tokens.len() + 1).sum();
        for cut in 0..=deltas {
            for fault in [
                Fault::Break(cut),
                Fault::End(cut),
                Fault::Twice(cut),
                Fault::Hole(cut),
                Fault::OtherEpoch(cut),
            ] {
                wait_for("a worker beyond doubt", || scene.ready() > 0).await;
                scene.script.faults([fault]);
                let got = scene.run(request.clone()).await;
                assert_eq!(got.samples, expected.samples, "{fault:?}");
                assert_eq!(got.prompt_logprobs, expected.prompt_logprobs, "{fault:?}");
                assert_eq!(got.error, None, "{fault:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_resume_asks_only_for_what_is_missing_under_an_id_of_its_own() {
    let scene = Scene::new(2).await;
    let request = sampled(request("twins", 0..9, 12), 2, |sampling| sampling.prompt_logprobs = Some(0));
    let expected = scene.run(request.clone()).await;
    lock(&scene.script.calls).clear();
    scene.script.faults([Fault::Break(6)]);
    assert_eq!(scene.run(request).await.samples, expected.samples);
    let calls = lock(&scene.script.calls).clone();
    let [(first_worker, first), (second_worker, second)] = &calls[..] else {
        panic!("{} calls", calls.len())
    };
    assert_ne!(first_worker, second_worker, "it went elsewhere");
    assert_ne!(first.request_id, second.request_id);
    assert!(first.request_id.starts_with("twins.") && second.request_id.starts_with("twins."));
    let delivered: Vec<usize> =
        second.samples.iter().map(|sample| sample.delivered_token_ids.len()).collect();
    assert_eq!(
        delivered.iter().sum::<usize>(),
        5,
        "a delta with the prompt's numbers and five tokens came through"
    );
    let logprobs = |call: &skein_proto::worker::v1::GenerateRequest| {
        call.sampling.as_ref().is_some_and(|sampling| sampling.prompt_logprobs.is_some())
    };
    assert!(logprobs(first) && !logprobs(second), "the prompt's numbers were delivered");
}

#[tokio::test]
async fn a_killed_worker_is_replaced_without_a_trace() {
    let mut scene = Scene::new(3).await;
    let requests: Vec<TokenRequest> = (0..30)
        .map(|index| {
            sampled(request(&format!("r{index}"), index..index + 20, 60), 1 + index % 2, |sampling| {
                sampling.seed = u64::from(index);
            })
        })
        .collect();
    let mut expected = Vec::new();
    for request in &requests {
        expected.push(scene.run(request.clone()).await);
    }
    scene.script.pace_ms.store(2, Ordering::SeqCst);
    let streams: Vec<_> = requests
        .iter()
        .map(|request| {
            let (cluster, request) = (scene.cluster.clone(), request.clone());
            tokio::spawn(async move {
                let stream = cluster.submit(request.clone()).await.expect("it is taken");
                collect(&request, stream).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(30)).await;
    scene.workers[1].kill();
    tokio::time::sleep(Duration::from_millis(10)).await;
    // And returns, as a new process at the same address.
    let back = Mock::start(1, 201, scene.workers[1].address, &scene.script);
    scene.workers[1] = back;
    for (index, stream) in streams.into_iter().enumerate() {
        let got = stream.await.expect("no panic");
        assert_eq!((got.samples, got.error), (expected[index].samples.clone(), None), "stream {index}");
    }
    scene.wait_for_ready(3).await;
}

#[tokio::test]
async fn an_accepted_request_waits_for_its_only_worker_to_come_back() {
    let mut scene = Scene::new(1).await;
    let request = request("lonely", 0..9, 40);
    let expected = scene.run(request.clone()).await;
    scene.script.pace_ms.store(2, Ordering::SeqCst);
    let mut stream = scene.submit(request.clone()).await.expect("it is taken");
    let first = stream.next().await.expect("a delta").expect("no error");
    scene.workers[0].kill();
    let address = scene.workers[0].address;
    let rest = tokio::spawn({
        let request =
            TokenRequest { prompt: [&request.prompt[..], &first.tokens].concat().into(), ..request.clone() };
        async move { collect(&request, stream).await }
    });
    wait_for("the loss to be seen", || scene.ready() == 0).await;
    assert!(matches!(scene.cluster.ready(), Err(Refusal::NoReadyWorker { .. })));
    let of_a_gateway = TokenRequest { id: "new".into(), waits_for_worker: false, ..request };
    let refused = scene.submit(of_a_gateway).await;
    assert!(matches!(refused, Err(Refusal::NoReadyWorker { .. })), "it asks another router");
    // At a new address under the same name, as with a supervisor; the old address is invalid.
    scene.workers[0] = Mock::start(0, 200, ANY_PORT, &scene.script);
    assert_ne!(scene.workers[0].address, address);
    scene.join(0, scene.workers[0].address).await;
    let rest = rest.await.expect("no panic");
    assert_eq!(rest.error, None);
    assert_eq!([first.tokens, rest.samples[0].0.clone()].concat(), expected.samples[0].0);
}

#[tokio::test]
async fn a_request_that_comes_while_the_only_worker_restarts_waits_for_it() {
    let mut scene = Scene::new(1).await;
    let request = request("early", 0..9, 12);
    let expected = scene.run(request.clone()).await;
    scene.workers[0].kill();
    scene.changes.send(Change::Leave("w0".into())).await.expect("the cluster listens");
    wait_for("the loss to be seen", || scene.cluster.snapshot().workers.is_empty()).await;
    let (cluster, asked) = (scene.cluster.clone(), request.clone());
    let waiting = tokio::spawn(async move { cluster.submit(asked).await });
    wait_for("the request to wait", || scene.cluster.snapshot().running.requests == 1).await;
    scene.workers[0] = Mock::start(0, 200, ANY_PORT, &scene.script);
    scene.join(0, scene.workers[0].address).await;
    let stream = waiting.await.expect("no panic").expect("it is taken");
    assert_eq!(collect(&request, stream).await.samples, expected.samples);
}

#[tokio::test]
async fn what_waits_for_a_worker_is_bounded_in_number_and_in_time() {
    let admission = AdmissionConfig { max_num_queued_reqs: 3, ..AdmissionConfig::default() };
    let recovery = RecoveryConfig { queue_timeout: Duration::from_millis(300), ..RecoveryConfig::default() };
    let never_ready = Scene::recovering(0, admission.clone(), recovery.clone()).await;
    let refused = never_ready.submit(request("first", 0..9, 5)).await;
    assert!(matches!(refused, Err(Refusal::NoReadyWorker { .. })), "there is nothing to wait for yet");

    let mut scene = Scene::recovering(1, admission, recovery).await;
    scene.workers[0].kill();
    wait_for("the loss to be seen", || scene.ready() == 0).await;
    let start = clock::now();
    let asked = (0..8).map(|index| scene.submit(request(&format!("w{index}"), 0..9, 5)));
    let answers = futures::future::join_all(asked).await;
    let count = |which: fn(&Refusal) -> bool| {
        answers.iter().filter(|answer| answer.as_ref().is_err_and(which)).count()
    };
    assert_eq!(count(|refusal| matches!(refusal, Refusal::Overloaded { .. })), 5, "429, at once");
    assert_eq!(count(|refusal| matches!(refusal, Refusal::NoReadyWorker { .. })), 3, "503, in the end");
    assert!(clock::now().since(start) >= Duration::from_millis(300));
    assert_eq!(scene.cluster.snapshot().running.requests, 0, "every place is given back");
}

#[tokio::test]
async fn a_full_worker_is_passed_over_and_a_full_cluster_is_waited_for() {
    let scene = Scene::new(2).await;
    let request = request("r", 0..9, 5);
    let expected = scene.run(request.clone()).await;
    scene.script.faults([Fault::Full]);
    assert_eq!(scene.run(request.clone()).await.samples, expected.samples);
    scene.script.faults([Fault::Full, Fault::Full]);
    assert_eq!(scene.run(request.clone()).await.samples, expected.samples, "it gets the first free seat");
    scene.script.faults([Fault::Full, Fault::Full]);
    let of_a_gateway = TokenRequest { waits_for_worker: false, ..request.clone() };
    let refused = scene.submit(of_a_gateway).await;
    assert!(matches!(refused, Err(Refusal::Overloaded { .. })));
    assert_eq!(scene.ready(), 2, "backpressure is no fault");
    // An accepted request waits: its stream breaks after two tokens, then both workers are briefly full.
    scene.script.faults([Fault::Break(2), Fault::Full, Fault::Full]);
    assert_eq!(scene.run(request).await.samples, expected.samples);
    assert_eq!(scene.cluster.snapshot().running.requests, 0, "every place is given back");
}

#[tokio::test]
async fn the_router_bounds_what_it_lets_in() {
    let admission = AdmissionConfig { max_num_queued_reqs: 1, max_num_queued_tokens: 1000 };
    let scene = Scene::with(1, admission, None).await;
    scene.script.pace_ms.store(5, Ordering::SeqCst);
    let first = scene.submit(request("a", 0..9, 50)).await.expect("it is let in");
    let second = scene.submit(request("b", 0..9, 50)).await;
    assert!(matches!(second, Err(Refusal::Overloaded { .. })));
    drop(first);
    scene.submit(request("b", 0..9, 50)).await.expect("there is room again");
}

#[tokio::test]
async fn an_id_is_taken_while_its_request_runs() {
    let scene = Scene::new(1).await;
    scene.script.pace_ms.store(5, Ordering::SeqCst);
    let first = scene.submit(request("same", 0..9, 50)).await.expect("it is taken");
    assert!(matches!(scene.submit(request("same", 0..9, 5)).await, Err(Refusal::DuplicateId(_))));
    drop(first);
    assert_eq!(scene.run(request("same", 0..9, 5)).await.error, None);
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_at_the_worker() {
    let scene = Scene::new(1).await;
    scene.script.pace_ms.store(2, Ordering::SeqCst);
    let mut stream = scene.submit(request("gone", 0..9, 4000)).await.expect("it is taken");
    stream.next().await.expect("a delta").expect("no error");
    let gone = clock::now();
    drop(stream);
    wait_for("the cancel", || scene.script.cancelled.load(Ordering::SeqCst) == 1).await;
    assert!(clock::now().since(gone) < Duration::from_secs(1));
    assert_eq!(scene.cluster.snapshot().running.requests, 0);
    assert_eq!(scene.ready(), 1, "a cancel says nothing about the worker");
}

#[tokio::test]
async fn a_worker_is_tried_again_only_so_often() {
    let scene = Scene::new(2).await;
    scene.script.faults([Fault::Unavailable; 4]);
    let refused = scene.submit(request("r", 0..9, 5)).await;
    assert!(matches!(refused, Err(Refusal::WorkersLost { moves: 3, .. })));
    assert_eq!(lock(&scene.script.calls).len(), 4);
    scene.script.faults([Fault::Invalid]);
    wait_for("a sign of life", || scene.ready() > 0).await;
    let refused = scene.submit(request("r", 0..9, 5)).await;
    assert!(matches!(refused, Err(Refusal::Invalid { param: None, .. })));
    assert_eq!(lock(&scene.script.calls).len(), 5, "what one rejects is not tried elsewhere");
}

#[tokio::test]
async fn a_prefix_stays_with_its_holder() {
    let scene = Scene::new(3).await;
    let prompt = || (0..400).map(|token| token % VOCAB_SIZE);
    let first = scene.run(request("first", prompt(), 3)).await;
    assert_eq!(first.cached_tokens, Some(0));
    for round in 0..20 {
        let again = scene.run(request(&format!("again{round}"), prompt(), 3)).await;
        assert_eq!(again.cached_tokens, Some(400), "round {round}");
    }
    let counts: Vec<usize> = (0..3).map(|worker| scene.script.calls_to(worker)).collect();
    assert_eq!(counts.iter().max(), Some(&21), "{counts:?}");
    // Two at once, the first not yet cached: the second still goes to the same worker.
    scene.script.pace_ms.store(20, Ordering::SeqCst);
    lock(&scene.script.calls).clear();
    let other = || (0..4000).map(|token| (token * 7) % VOCAB_SIZE);
    let one = scene.submit(request("one", other(), 3)).await.expect("it is taken");
    wait_for("the admission to be known", || {
        scene.cluster.snapshot().workers.iter().any(|worker| worker.cached_blocks >= 1000)
    })
    .await;
    let two = scene.submit(request("two", other(), 3)).await.expect("it is taken");
    let workers: Vec<u32> = lock(&scene.script.calls).iter().map(|(worker, _)| *worker).collect();
    assert_eq!(workers[0], workers[1]);
    drop((one, two));
}

#[tokio::test]
async fn a_lost_event_is_noticed_and_healed_by_a_snapshot() {
    let scene = Scene::new(1).await;
    scene.run(request("a", 0..40, 3)).await;
    let blocks = |scene: &Scene| scene.cluster.snapshot().workers[0].cached_blocks;
    wait_for("the first prompt's blocks", || blocks(&scene) == 10).await;
    scene.workers[0].state.lose_next_event();
    scene.run(request("b", 100..140, 3)).await;
    wait_for("both prompts' blocks", || blocks(&scene) == 20).await;
    let watches = lock(&scene.script.watches).clone();
    assert_eq!(watches.len(), 2);
    assert!(watches.iter().all(|watch| (watch.epoch, watch.next_sequence) == (0, 0)), "from snapshots");
    assert_ne!(watches[0].router_id, 0);
}

#[tokio::test]
async fn an_aborted_sample_is_aborted_at_the_worker_and_the_other_goes_on() {
    let scene = Scene::new(1).await;
    let request = sampled(request("pair", 0..9, 12), 2, |_| {});
    let expected = scene.run(request.clone()).await;
    scene.script.pace_ms.store(5, Ordering::SeqCst);
    let mut stream = scene.submit(request.clone()).await.expect("it is taken");
    stream.abort_sample(0);
    stream.abort_sample(0);
    stream.abort_sample(77);
    let got = collect(&request, stream).await;
    assert_eq!(got.samples[1], expected.samples[1]);
    assert_eq!(got.samples[0].2, None);
    wait_for("the abort", || lock(&scene.script.aborts).len() == 1).await;
    let (id, sample) = lock(&scene.script.aborts)[0].clone();
    assert!(id.starts_with("pair#") && sample == 0, "{id} {sample}");
    // With all samples aborted the request ends, and the stream is dropped at the worker.
    let cancelled = scene.script.cancelled.load(Ordering::SeqCst);
    let mut stream = scene.submit(request.clone()).await.expect("it is taken");
    stream.abort_sample(0);
    stream.abort_sample(1);
    assert_eq!(collect(&request, stream).await.error, None);
    wait_for("the cancel", || scene.script.cancelled.load(Ordering::SeqCst) > cancelled).await;
}

#[tokio::test]
async fn a_deadline_ends_a_request_and_is_told_to_the_worker() {
    let scene = Scene::new(1).await;
    scene.script.pace_ms.store(5, Ordering::SeqCst);
    let deadline = Some(clock::now() + Duration::from_millis(150));
    let late = TokenRequest { deadline, ..request("late", 0..9, 4000) };
    let got = scene.run(late).await;
    assert!(got.error.is_some_and(|error| error.contains("deadline")));
    assert!((1..=150).contains(&lock(&scene.script.calls)[0].1.timeout_ms));
    wait_for("the cancel", || scene.script.cancelled.load(Ordering::SeqCst) == 1).await;
    let past = TokenRequest { deadline, ..request("past", 0..9, 5) };
    assert!(matches!(scene.submit(past).await, Err(Refusal::DeadlineExceeded { .. })));
}

#[tokio::test]
async fn readiness_follows_the_workers() {
    let mut scene = Scene::new(2).await;
    assert!(scene.cluster.ready().is_ok());
    assert_eq!(
        scene.cluster.model_limits().ok(),
        Some(ModelLimits { max_model_len: 4096, vocab_size: VOCAB_SIZE, max_num_seqs: 64, pools: false })
    );
    scene.workers[0].state.draining.store(true, Ordering::SeqCst);
    wait_for("the drain to be seen", || scene.ready() == 1).await;
    for round in 0..10 {
        assert_eq!(scene.run(request(&format!("r{round}"), 0..9, 3)).await.error, None);
    }
    assert_eq!(scene.script.calls_to(0), 0);
    for name in ["w0", "w1"] {
        scene.changes.send(Change::Leave(name.into())).await.expect("the cluster listens");
    }
    // Discovery may be wrong about a worker that still responds: it serves until its link is lost.
    assert_eq!(scene.run(request("on", 0..9, 3)).await.error, None);
    scene.workers.iter_mut().for_each(Mock::kill);
    wait_for("both to be gone", || scene.cluster.snapshot().workers.is_empty()).await;
    assert!(scene.cluster.ready().is_err());
    assert!(
        scene.cluster.model_limits().is_ok(),
        "a request that waits for the next worker is checked already"
    );
}
