//! Exactness of resume: every kind of request, cut at every position in every way, gives the same bits as the
//! undisturbed run. Router and workers are real, on the CPU backend with the shipped model; only the
//! transport between them is a test double.

mod constrained;
mod cutter;
mod tool_calls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cutter::{Cut, CuttingConnector};
use futures::StreamExt;
use serde_json::{Value, json};
use skein_grammar::token_bytes::TokenBytes;
use skein_grammar::{Refused, Source};
use skein_node::discovery::{self, Change, Member};
use skein_proto::finish::FinishReason;
use skein_proto::sampling::{Grammar, SamplingParams};
use skein_router::cluster::{Cluster, Tuning};
use skein_router::generator::TokenSource;
use skein_router::request::{Journey, TokenRequest};
use skein_worker::config::{BackendKind, SchedulerConfig, WorkerConfig};
use skein_worker::draft::Speculate;
use skein_worker::{load, service};
use tokio::sync::oneshot;

use super::{Answer, MODEL, TIMEOUT, fresh_id, next_of, router_config, wait_for_ready};

/// Concurrent runs with a cut.
const AT_ONCE: usize = 4;

/// Starts a worker on this runtime; returns the address that it listens at.
async fn start_worker() -> SocketAddr {
    start_worker_that(Speculate::Auto).await
}

/// Two workers, of which only one speculates, so that a stream moves to the other kind.
async fn start_workers() -> [SocketAddr; 2] {
    [start_worker_that(Speculate::Auto).await, start_worker_that(Speculate::Off).await]
}

async fn start_worker_that(speculate: Speculate) -> SocketAddr {
    start_worker_of(&model(), speculate).await
}

async fn start_worker_of(model: &Path, speculate: Speculate) -> SocketAddr {
    let config = WorkerConfig {
        scheduler: SchedulerConfig { speculate, ..SchedulerConfig::default() },
        backend: BackendKind::Cpu,
        threads: 1,
        kv_cache_memory_bytes: Some(64 << 20),
        drain_grace: TIMEOUT,
        shutdown_timeout: TIMEOUT,
        ..WorkerConfig::new(model.to_owned(), MODEL)
    };
    let (ready, address) = oneshot::channel();
    let on_ready = |address| ready.send(address).expect("the test waits for it");
    // The worker has no shutdown signal; it ends when the runtime is dropped.
    tokio::spawn(service::serve(config, |_, _| {}, on_ready, std::future::pending()));
    tokio::time::timeout(TIMEOUT, address).await.expect("it loads in time").expect("it gets ready")
}

/// A new router over the workers, so that one run cannot affect what the next one knows about them.
async fn start_router(workers: &[SocketAddr], connector: CuttingConnector) -> Cluster {
    let config = router_config();
    let (changes, receiver) = discovery::in_process();
    let cluster =
        Cluster::start_with(&config, receiver, MODEL, Tuning { seed: Some(1) }, Arc::new(connector));
    for (index, address) in workers.iter().enumerate() {
        let member = Member { id: format!("w{index}"), address: address.to_string() };
        changes.send(Change::Join(member)).await.expect("the cluster listens");
    }
    wait_for_ready(&cluster, workers.len()).await;
    cluster
}

async fn run(workers: &[SocketAddr], request: &TokenRequest, cut: Option<(Cut, usize)>) -> (Answer, Journey) {
    let cluster = start_router(workers, CuttingConnector::new(cut)).await;
    let request = TokenRequest { id: fresh_id().into(), ..request.clone() };
    let mut answer = Answer::to(&request);
    let mut stream = cluster.submit(request.clone()).await.expect("it is taken");
    while let Some(delta) = next_of(&mut stream).await {
        answer.add(&request, delta.unwrap_or_else(|refusal| panic!("{cut:?}: {refusal}")));
    }
    (answer, stream.journey())
}

/// Every kind of request that promises exact resume, with its name.
fn cases() -> Vec<(&'static str, TokenRequest)> {
    let case = |name: &'static str, n, change: fn(&mut SamplingParams)| {
        let mut sampling = SamplingParams {
            temperature: 1.0,
            seed: 11,
            max_tokens: 14,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        change(&mut sampling);
        // Longer than a cache block.
        let prompt: Arc<[_]> = (0..19).map(|position| 300 + position * 7).collect();
        (name, TokenRequest { n, ..TokenRequest::new(name, MODEL, prompt, sampling) })
    };
    vec![
        case("greedy", 1, |sampling| sampling.temperature = 0.0),
        case("seeded", 1, |_| {}),
        case("greedy, of text that repeats", 1, |sampling| {
            // So few tokens soon repeat, and then there are drafts.
            sampling.temperature = 0.0;
            sampling.allowed_token_ids = (300..303).collect();
            sampling.max_tokens = 24;
        }),
        case("cut distributions", 1, |sampling| {
            (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) = (1.3, 0.9, 40, 0.01);
        }),
        case("greedy with penalties", 1, |sampling| {
            sampling.temperature = 0.0;
            (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) =
                (1.3, 0.7, 0.9);
        }),
        case("seeded with penalties", 1, |sampling| {
            (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) =
                (0.8, -0.5, 1.1);
        }),
        case("logit_bias", 1, |sampling| {
            sampling.logit_bias = (0..60).map(|token| (token * 17, (token % 7) as f32 - 2.0)).collect();
        }),
        case("allowed tokens", 1, |sampling| {
            sampling.allowed_token_ids = (0..40).map(|token| token * 11 + 3).collect();
        }),
        case("bad words of one token and of two", 1, |sampling| {
            sampling.allowed_token_ids = (300..310).collect();
            let pairs = (300..310).flat_map(|a| (300..310).map(move |b| vec![a, b]));
            sampling.bad_words =
                pairs.filter(|word| (word[0] + word[1]) % 3 != 0).chain([vec![305]]).collect();
        }),
        case("n = 3 with log-probabilities", 3, |sampling| {
            (sampling.logprobs, sampling.max_tokens) = (Some(3), 7);
        }),
        case("log-probabilities of the prompt", 2, |sampling| {
            (sampling.prompt_logprobs, sampling.logprobs, sampling.max_tokens) = (Some(2), Some(0), 6);
        }),
        case("min_tokens before many stop tokens", 2, |sampling| {
            (sampling.min_tokens, sampling.ignore_eos) = (6, false);
            sampling.stop_token_ids = (0..128).map(|token| token * 4).collect();
        }),
        case("all at once", 2, |sampling| {
            (sampling.temperature, sampling.top_k) = (0.8, 50);
            (sampling.repetition_penalty, sampling.presence_penalty) = (1.1, 0.3);
            (sampling.min_tokens, sampling.max_tokens) = (3, 8);
            (sampling.logprobs, sampling.prompt_logprobs) = (Some(1), Some(0));
            sampling.logit_bias = vec![(301, 3.0), (400, 2.0)];
            sampling.stop_token_ids = (0..128).map(|token| token * 8).collect();
        }),
        case("held to a schema", 1, |sampling| {
            hold(sampling, Source::json_schema(&schema()));
        }),
        case("held to a schema with penalties and log-probabilities, n = 3", 3, |sampling| {
            hold(sampling, Source::json_schema(&schema()));
            (sampling.repetition_penalty, sampling.presence_penalty) = (1.3, 0.7);
            (sampling.logprobs, sampling.seed) = (Some(2), 5);
        }),
        case("held to an expression, greedy", 1, |sampling| {
            hold(sampling, Source::regex("[a-z ]{3,30}(!|\\?)"));
            sampling.temperature = 0.0;
        }),
        case("held to a grammar with min_tokens", 2, |sampling| {
            hold(
                sampling,
                Source::grammar("start: \"[\" (item (\",\" item)*)? \"]\"\nitem: /[0-9]{1,3}/ | start"),
            );
            (sampling.min_tokens, sampling.ignore_eos) = (5, false);
        }),
    ]
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"mood": {"enum": ["glad", "sad", "so so"]}, "of": {"type": "integer"}},
        "required": ["mood", "of"], "additionalProperties": false})
}

fn model() -> PathBuf {
    skein_golden::shipped()
}

/// Constrains answers to `source`, as a router of the shipped model does.
fn hold(sampling: &mut SamplingParams, source: Result<Source, Refused>) {
    let grammars = load::grammars(&model(), 4096).expect("it can be read").expect("it has a tokenizer");
    let (text, fingerprint) = (source.expect("it can be enforced").text().to_owned(), grammars.fingerprint());
    sampling.grammar = Some(Arc::new(Grammar { text, fingerprint }));
    sampling.max_tokens = 40;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_held_to_a_schema_is_valid_whatever_the_model_would_write() {
    let workers = [start_worker().await];
    let tree = serde_json::from_slice(&std::fs::read(model().join("tokenizer.json")).unwrap()).unwrap();
    let bytes = TokenBytes::from_tokenizer_json(&tree).unwrap();
    let mut ended = 0;
    for seed in 0..12 {
        let mut sampling = SamplingParams { temperature: 1.5, seed, ..SamplingParams::default() };
        hold(&mut sampling, Source::json_schema(&schema()));
        sampling.max_tokens = 120;
        let prompt: Arc<[_]> = (0..19).map(|position| 300 + position * 7).collect();
        let (answer, _) = run(&workers, &TokenRequest::new("held", MODEL, prompt, sampling), None).await;
        let (tokens, _, finish) = &answer.samples[0];
        let text: Vec<u8> = tokens.iter().flat_map(|token| bytes.get(*token).to_vec()).collect();
        let text = String::from_utf8_lossy(&text).into_owned();
        if matches!(finish, Some(FinishReason::Stop(_))) {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(["glad", "sad", "so so"].contains(&value["mood"].as_str().unwrap()), "{text}");
            assert!(value["of"].is_i64() || value["of"].is_u64() || value["of"].is_number(), "{text}");
            ended += 1;
        }
    }
    assert!(ended >= 6, "only {ended} of 12 answers ended by themselves");
}

/// Number of distinct positions for a cut: output tokens, prompt log-probabilities and ends of samples.
fn places(answer: &Answer) -> usize {
    let outputs: usize = answer.samples.iter().map(|(tokens, _, _)| tokens.len()).sum();
    answer.prompt_logprobs.len() + outputs + answer.samples.len()
}

async fn cut_everywhere(how: Cut) {
    let workers = start_workers().await;
    let mut cuts = 0;
    for (name, request) in cases() {
        let (undisturbed, journey) = run(&workers, &request, None).await;
        assert_eq!(journey, Journey { moves: 0, resume_exact: true, version: journey.version });
        let runs = (0..places(&undisturbed)).map(|place| {
            let (request, workers, undisturbed) = (request.clone(), &workers, &undisturbed);
            async move {
                let (answer, journey) = run(workers, &request, Some((how, place))).await;
                assert_eq!(&answer, undisturbed, "{name}, {how:?} after {place}");
                assert_eq!(
                    journey,
                    Journey { moves: 1, resume_exact: true, version: journey.version },
                    "{name}, {how:?} after {place}"
                );
            }
        });
        cuts += futures::stream::iter(runs).buffer_unordered(AT_ONCE).count().await;
    }
    println!("{how:?}: {cuts} cuts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_at_any_position_changes_nothing() {
    cut_everywhere(Cut::Kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_broken_at_any_position_changes_nothing() {
    cut_everywhere(Cut::Break).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_handed_back_at_any_position_changes_nothing() {
    cut_everywhere(Cut::HandBack).await;
}
