//! A worker over loopback, with the fake backend.

mod adapters;
mod drain;
mod metrics;
mod pooling;
mod secret;
mod streams;

use std::net::SocketAddr;
use std::time::Duration;

use skein_proto::worker::v1::worker_client::WorkerClient;
use skein_proto::worker::v1::worker_event::Event;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::*;
use crate::backend::fake::{FakeBackend, FakeOptions, StepCost};
use crate::config::{BackendKind, SchedulerConfig, WorkerConfig};
use crate::error::WorkerError;
use crate::load::LoadedBackend;

const VOCAB: u32 = 500;
const TIMEOUT: Duration = Duration::from_secs(20);

struct Served {
    address: SocketAddr,
    client: WorkerClient<Channel>,
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), WorkerError>>,
}

fn config() -> WorkerConfig {
    WorkerConfig {
        backend: BackendKind::Fake,
        threads: 1,
        scheduler: SchedulerConfig { max_num_seqs: 4, max_num_queued_reqs: 2, ..SchedulerConfig::default() },
        drain_grace: Duration::from_millis(150),
        shutdown_timeout: Duration::from_millis(200),
        ..WorkerConfig::new("fake", "fake")
    }
}

async fn serve_fake(options: FakeOptions) -> Served {
    serve_with(config(), options).await
}

async fn serve_with(config: WorkerConfig, options: FakeOptions) -> Served {
    let options = FakeOptions { vocab_size: VOCAB, kv_blocks: 64, ..options };
    let adapters =
        config.adapters.is_enabled.then(|| Adapters::new(&config.adapters, None).expect("no weights"));
    let load = move || {
        let pooling = options.reads_whole.then(pooling::spec);
        let loaded = LoadedBackend::fake(FakeBackend::new(options), VOCAB, 512);
        Ok(LoadedBackend { eos_token_ids: vec![2], adapters, pooling, ..loaded })
    };
    let (shutdown, stopped) = oneshot::channel::<()>();
    let (ready, address) = oneshot::channel();
    let on_ready = move |address| {
        let _ = ready.send(address);
    };
    let task = tokio::spawn(serve_backend(config, load, on_ready, async {
        let _ = stopped.await;
    }));
    let address = tokio::time::timeout(TIMEOUT, address).await.expect("in time").expect("ready");
    let client = WorkerClient::connect(format!("http://{address}")).await.expect("it listens");
    Served { address, client, shutdown: Some(shutdown), task }
}

impl Served {
    async fn stop(mut self) -> Result<(), WorkerError> {
        drop(self.shutdown.take());
        tokio::time::timeout(TIMEOUT, self.task).await.expect("it ends in time").expect("no panic")
    }
}

fn slow() -> FakeOptions {
    FakeOptions {
        cost: StepCost { fixed: Duration::from_millis(5), ..StepCost::default() },
        ..FakeOptions::default()
    }
}

fn sampling(max_tokens: u32) -> wire::SamplingParams {
    wire::SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        repetition_penalty: 1.0,
        seed: 1,
        max_tokens,
        ignore_eos: true,
        ..wire::SamplingParams::default()
    }
}

fn request(id: &str, max_tokens: u32) -> wire::GenerateRequest {
    wire::GenerateRequest {
        request_id: id.into(),
        prompt_token_ids: (0..40).collect(),
        sampling: Some(sampling(max_tokens)),
        samples: vec![wire::Sample::default()],
        placement: Some(wire::Placement { router_id: 9, sequence: 1 }),
        ..wire::GenerateRequest::default()
    }
}

async fn next<T>(stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    tokio::time::timeout(TIMEOUT, stream.message()).await.expect("the stream goes on")
}

/// Tokens of sample 0 from `position` on, its end, and the request's cached tokens.
async fn read(
    mut stream: Streaming<wire::GenerateDelta>,
    mut position: u32,
) -> Result<(Vec<u32>, wire::Finish, u32), Status> {
    let (mut tokens, mut end, mut hit) = (Vec::new(), None, None);
    while let Some(delta) = next(&mut stream).await? {
        assert_eq!(delta.from_position, position, "no hole, nothing twice");
        assert_eq!(end, None, "nothing follows the end");
        position += delta.token_ids.len() as u32;
        tokens.extend(delta.token_ids);
        hit = hit.or(delta.cached_tokens);
        end = delta.finish;
    }
    Ok((tokens, end.expect("an end"), hit.expect("a first delta")))
}

#[tokio::test]
async fn a_request_streams_resumes_and_hits_the_cache() {
    let mut served = serve_fake(FakeOptions::default()).await;
    let info = served.client.info(wire::InfoRequest {}).await.expect("info").into_inner();
    assert_eq!((info.vocab_size, info.max_model_len, info.kv_blocks, info.block_size), (VOCAB, 512, 64, 16));
    assert!(info.epoch > 0 && info.resume_exact && info.backend == "fake");
    let stream = served.client.generate(request("a", 30)).await.expect("taken").into_inner();
    let (whole, end, hit) = read(stream, 40).await.expect("no fault");
    assert_eq!((whole.len(), end.reason(), hit), (30, wire::FinishReason::Length, 0));
    let mut resumed = request("a", 30);
    resumed.samples[0].delivered_token_ids = whole[..11].to_vec();
    let stream = served.client.generate(resumed).await.expect("taken").into_inner();
    let (rest, _, hit) = read(stream, 51).await.expect("no fault");
    assert_eq!((rest.as_slice(), hit), (&whole[11..], 40), "the hit counts prompt tokens only");
    let mut salted = request("b", 30);
    salted.cache_salt = "tenant".into();
    let stream = served.client.generate(salted).await.expect("taken").into_inner();
    let (same, _, hit) = read(stream, 40).await.expect("no fault");
    assert_eq!((same, hit), (whole.clone(), 0));
    let mut stopping = request("c", 30);
    stopping.sampling = Some(wire::SamplingParams { stop_token_ids: vec![whole[7]], ..sampling(30) });
    let stream = served.client.generate(stopping).await.expect("taken").into_inner();
    let (tokens, end, _) = read(stream, 40).await.expect("no fault");
    assert_eq!((end.reason(), end.stop_token_id), (wire::FinishReason::Stop, Some(whole[7])));
    assert!(whole.starts_with(&tokens) && tokens.len() <= 7);
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn watchers_get_a_snapshot_and_then_every_change() {
    let mut served = serve_fake(FakeOptions::default()).await;
    let ask = wire::WatchRequest { epoch: 0, next_sequence: 0, router_id: 9 };
    let mut events = served.client.watch(ask).await.expect("taken").into_inner();
    let first = next(&mut events).await.expect("no fault").expect("an event");
    assert_eq!((first.event, first.sequence), (Some(Event::Snapshot(wire::CacheSnapshot::default())), 1));
    let stream = served.client.generate(request("a", 30)).await.expect("taken").into_inner();
    read(stream, 40).await.expect("no fault");
    let (mut expected, mut hashes, mut admitted) = (1, Vec::new(), None);
    while hashes.len() < 4 {
        let event = next(&mut events).await.expect("no fault").expect("an event");
        assert_eq!((event.epoch, event.sequence), (first.epoch, expected), "no gap");
        match event.event.expect("a known event") {
            Event::Load(_) | Event::Adapters(_) => {}
            Event::Admitted(it) => (admitted, expected) = (Some(it), expected + 1),
            Event::Cache(change) => {
                hashes.extend(change.stored.into_iter().flat_map(|run| run.hashes));
                expected += 1;
            }
            Event::Snapshot(_) => panic!("one snapshot is enough"),
        }
    }
    let admitted = admitted.expect("echoed");
    assert_eq!((admitted.depth, &admitted.hashes[..]), (0, &hashes[..2]));
    assert_eq!(admitted.placement, Some(wire::Placement { router_id: 9, sequence: 1 }));
    let load = loop {
        let event = next(&mut events).await.expect("no fault").expect("an event");
        if let Some(Event::Load(load)) = event.event
            && load.running == 0
        {
            break load;
        }
    };
    assert_eq!((load.last_placement_sequence, load.waiting, load.free_blocks), (1, 0, 64));
    assert!(load.step >= 30 && load.decode_tokens_per_second > 0.0);
    // Another router continues where this one started; a third one arrives with a number from another epoch.
    for (epoch, sequence) in [(first.epoch, 1), (first.epoch + 1, 5), (first.epoch, 1000)] {
        let ask = wire::WatchRequest { epoch, next_sequence: sequence, router_id: 10 };
        let mut events = served.client.watch(ask).await.expect("taken").into_inner();
        let event = next(&mut events).await.expect("no fault").expect("an event");
        let snapshot = matches!(event.event, Some(Event::Snapshot(_)));
        assert_eq!(snapshot, sequence != 1, "{epoch} {sequence}");
        assert_eq!(event.sequence, if snapshot { expected } else { 1 });
    }
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_field_and_limit() {
    let mut served = serve_fake(FakeOptions::default()).await;
    type Change = fn(&mut wire::GenerateRequest);
    fn set(request: &mut wire::GenerateRequest) -> &mut wire::SamplingParams {
        request.sampling.as_mut().expect("it has some")
    }
    let wrong: [(Change, &str); 29] = [
        (|it| it.request_id = String::new(), "request_id is 0 bytes; allowed: 1..=128 bytes"),
        (|it| it.request_id = "x".repeat(129), "request_id is 129 bytes"),
        (|it| it.cache_salt = "x".repeat(2000), "cache_salt is 2000 bytes"),
        (|it| it.priority = i32::MIN, "priority is -2147483648; allowed: -100..=100"),
        (|it| it.prompt_token_ids.clear(), "prompt_token_ids is 0 tokens"),
        (|it| it.prompt_token_ids = vec![0; 512], "prompt_token_ids is 512 tokens; allowed: 1..=511"),
        (
            |it| it.prompt_token_ids[3] = VOCAB,
            "prompt_token_ids is 500 at index 3; allowed: token ids below 500",
        ),
        (|it| it.sampling = None, "sampling is missing"),
        (|it| it.samples.clear(), "samples is 0"),
        (|it| it.samples = vec![wire::Sample::default(); 1000], "samples is 1000"),
        (|it| it.samples = vec![wire::Sample::default(); 2], "samples.index is 0; allowed: distinct"),
        (|it| it.samples[0].delivered_token_ids = vec![0; 11], "samples.delivered_token_ids is 11 tokens"),
        (
            |it| it.samples[0].delivered_token_ids = vec![VOCAB],
            "samples.delivered_token_ids is 500 at index 0",
        ),
        (|it| set(it).temperature = f32::NAN, "temperature is NaN; allowed: 0..=2"),
        (|it| set(it).temperature = -0.5, "temperature is -0.5"),
        (|it| set(it).top_p = 0.0, "top_p is 0"),
        (|it| set(it).min_p = f32::INFINITY, "min_p is inf"),
        (|it| set(it).repetition_penalty = 0.0, "repetition_penalty is 0"),
        (|it| set(it).presence_penalty = 2.5, "presence_penalty is 2.5"),
        (|it| set(it).max_tokens = 0, "max_tokens is 0"),
        (|it| set(it).min_tokens = 11, "min_tokens is 11; allowed: at most max_tokens, 10"),
        (|it| set(it).logprobs = Some(21), "logprobs is 21; allowed: 0..=20"),
        (|it| set(it).stop_token_ids = vec![1; 5000], "stop_token_ids is 5000 entries"),
        (
            |it| set(it).logit_bias = vec![wire::LogitBias { token_id: 1, bias: f32::NAN }],
            "logit_bias.bias is NaN; allowed: -100..=100",
        ),
        (|it| set(it).allowed_token_ids = vec![VOCAB], "allowed_token_ids is 500 at index 0"),
        (|it| set(it).allowed_token_ids = vec![1; 20_000], "allowed_token_ids is 20000 entries"),
        (
            |it| set(it).bad_words = vec![wire::TokenSequence { token_ids: Vec::new() }],
            "bad_words.token_ids is 0 tokens; allowed: 1..=64 tokens",
        ),
        (
            |it| set(it).bad_words = vec![wire::TokenSequence { token_ids: vec![1, VOCAB] }],
            "bad_words.token_ids is 500 at index 1",
        ),
        (
            |it| it.samples = (0..5).map(|index| wire::Sample { index, ..Default::default() }).collect(),
            "lower n",
        ),
    ];
    for (change, expected) in wrong {
        let mut request = request("a", 10);
        change(&mut request);
        let status = served.client.generate(request).await.expect_err(expected);
        assert_eq!(status.code(), Code::InvalidArgument, "{expected}: {status}");
        assert!(status.message().contains(expected), "{expected}: {status}");
    }
    let stream = served.client.generate(request("a", 10)).await.expect("it lives").into_inner();
    read(stream, 40).await.expect("no fault");
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn too_much_is_shed_and_duplicates_refused() {
    let mut served = serve_fake(slow()).await;
    let mut streams = Vec::new();
    let mut shed = None;
    for id in 0..10 {
        match served.client.generate(request(&id.to_string(), 400)).await {
            Ok(stream) => streams.push(stream.into_inner()),
            Err(status) => shed = Some(status),
        }
        // The queue holds two, so wait until this one runs.
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let shed = shed.expect("ten do not fit");
    assert_eq!(shed.code(), Code::ResourceExhausted, "{shed}");
    assert_eq!(shed.metadata().get("retry-after-ms").expect("it says when"), "1000");
    assert_eq!(streams.len(), 6, "four run, two wait");
    let duplicate = served.client.generate(request("0", 1)).await.expect_err("it runs");
    assert_eq!(duplicate.code(), Code::AlreadyExists);
    let abort = wire::AbortRequest { request_id: "0".into(), sample_index: 0 };
    assert!(served.client.abort(abort.clone()).await.expect("answered").into_inner().found);
    let (_, end, _) = read(streams.remove(0), 40).await.expect("no fault");
    assert_eq!(end.reason(), wire::FinishReason::Abort);
    assert!(!served.client.abort(abort).await.expect("answered").into_inner().found);
    // Dropped streams make room.
    drop(streams);
    let taken = async {
        loop {
            if let Ok(stream) = served.client.generate(request("new", 3)).await {
                break stream.into_inner();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let stream = tokio::time::timeout(TIMEOUT, taken).await.expect("room in time");
    read(stream, 40).await.expect("no fault");
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_backend_that_fails_ends_the_worker_with_an_error() {
    let mut served = serve_fake(FakeOptions { fail_at_step: Some(4), ..FakeOptions::default() }).await;
    let stream = served.client.generate(request("a", 100)).await.expect("taken").into_inner();
    assert_eq!(read(stream, 40).await.expect_err("it fails").code(), Code::Unavailable);
    let error = served.stop().await.expect_err("not a clean end");
    assert!(matches!(error, WorkerError::Backend(_)), "{error}");
}

#[tokio::test]
async fn health_follows_the_state_of_the_worker() {
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let listen = listener.local_addr().expect("an address");
    drop(listener);
    let load = move || {
        let _ = wait.recv();
        Err(WorkerError::Load("no such model".into()))
    };
    let config = WorkerConfig { listen, ..config() };
    let task = tokio::spawn(serve_backend(config, load, |_| panic!("never ready"), std::future::pending()));
    let endpoint = format!("http://{listen}");
    let channel = loop {
        match Channel::from_shared(endpoint.clone()).expect("an address").connect().await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "skein.worker.v1.Worker"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let status = health.check(request).await.expect("answered").into_inner().status();
        assert_eq!(status, ServingStatus::NotServing);
    }
    let mut client = WorkerClient::new(channel);
    let early = client.info(wire::InfoRequest {}).await.expect_err("it loads");
    assert_eq!(early.code(), Code::Unavailable);
    go.send(()).expect("it waits");
    let error = task.await.expect("no panic").expect_err("it cannot load");
    assert_eq!(error.to_string(), "no such model");
}

#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let served = serve_fake(FakeOptions::default()).await;
    let channel = Channel::from_shared(format!("http://{}", served.address)).expect("an address");
    let mut client = ServerReflectionClient::new(channel.connect().await.expect("it listens"));
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let ask = tokio_stream::once(ServerReflectionRequest { host: String::new(), message_request });
    let mut answers = client.server_reflection_info(ask).await.expect("answered").into_inner();
    let answer: ServerReflectionResponse = next(&mut answers).await.expect("no fault").expect("an answer");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(
        names.contains(&"skein.worker.v1.Worker") && names.contains(&"grpc.health.v1.Health"),
        "{names:?}"
    );
    drop((client, answers));
    served.stop().await.expect("a clean end");
}
