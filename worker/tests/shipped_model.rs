//! A whole worker on loopback with the shipped model: concurrent streams equal those run alone, and a resume
//! at any position continues exactly, for all sampling parameters.

use std::net::SocketAddr;
use std::time::Duration;

use skein_proto::worker::v1 as wire;
use skein_proto::worker::v1::worker_client::WorkerClient;
use skein_worker::config::{BackendKind, SchedulerConfig, WorkerConfig};
use tokio::sync::oneshot;
use tonic::Streaming;
use tonic::transport::Channel;

const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TOKENS: u32 = 24;

struct Served {
    client: WorkerClient<Channel>,
    shutdown: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), skein_worker::WorkerError>>,
}

async fn serve_shipped_model(scheduler: SchedulerConfig) -> Served {
    let model = skein_golden::shipped();
    let config = WorkerConfig {
        backend: BackendKind::Cpu,
        threads: 2,
        scheduler,
        kv_cache_memory_bytes: Some(32 << 20),
        drain_grace: Duration::from_secs(1),
        shutdown_timeout: Duration::from_secs(1),
        ..WorkerConfig::new(model, "skein-7m")
    };
    let (shutdown, stopped) = oneshot::channel::<()>();
    let (ready, address) = oneshot::channel();
    let on_ready = move |address| {
        let _ = ready.send(address);
    };
    let task = tokio::spawn(skein_worker::serve(config, |_, _| {}, on_ready, async {
        let _ = stopped.await;
    }));
    let address: SocketAddr = tokio::time::timeout(TIMEOUT, address).await.expect("in time").expect("ready");
    let client = WorkerClient::connect(format!("http://{address}")).await.expect("it listens");
    Served { client, shutdown, task }
}

impl Served {
    async fn start(&mut self, request: wire::GenerateRequest) -> Streaming<wire::GenerateDelta> {
        self.client.generate(request).await.expect("taken").into_inner()
    }

    async fn stop(self) {
        drop(self.shutdown);
        self.task.await.expect("no panic").expect("a clean end");
    }
}

/// Output of each sample of a stream.
type Samples = std::collections::BTreeMap<u32, (Vec<u32>, Vec<wire::TokenLogprobs>, Option<wire::Finish>)>;

async fn read(mut stream: Streaming<wire::GenerateDelta>) -> (Samples, u32) {
    let (mut samples, mut cached) = (Samples::new(), 0);
    while let Some(delta) =
        tokio::time::timeout(TIMEOUT, stream.message()).await.expect("in time").expect("no fault")
    {
        let sample = samples.entry(delta.sample_index).or_default();
        sample.0.extend(delta.token_ids);
        sample.1.extend(delta.logprobs);
        sample.2 = delta.finish.or(sample.2);
        cached += delta.cached_tokens.unwrap_or(0);
    }
    (samples, cached)
}

/// A request with a prompt and parameters that depend on `at` only.
fn request(at: u32) -> wire::GenerateRequest {
    let neutral = wire::SamplingParams {
        top_p: 1.0,
        repetition_penalty: 1.0,
        seed: u64::from(at),
        max_tokens: MAX_TOKENS,
        ..wire::SamplingParams::default()
    };
    let sampling = match at % 5 {
        0 => neutral, // greedy
        1 => wire::SamplingParams { temperature: 1.0, logprobs: Some(3), ..neutral },
        2 => wire::SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.9, ignore_eos: true, ..neutral },
        3 => wire::SamplingParams {
            repetition_penalty: 1.3,
            frequency_penalty: 0.4,
            min_tokens: 10,
            ..neutral
        },
        _ => wire::SamplingParams { temperature: 1.2, min_p: 0.02, presence_penalty: 0.5, ..neutral },
    };
    wire::GenerateRequest {
        request_id: format!("request {at}"),
        prompt_token_ids: (0..1 + (at * 13) % 90).map(|i| 10 + (i * (7 + at % 3)) % 1000).collect(),
        sampling: Some(sampling),
        samples: (0..1 + at % 3).map(|index| wire::Sample { index, ..wire::Sample::default() }).collect(),
        ..wire::GenerateRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn together_and_resumed_streams_equal_streams_alone() {
    let cold = SchedulerConfig { enable_prefix_caching: false, ..SchedulerConfig::default() };
    let mut alone = serve_shipped_model(cold).await;
    let mut expected = Vec::new();
    for at in 0..15 {
        let stream = alone.start(request(at)).await;
        expected.push(read(stream).await.0);
    }
    alone.stop().await;
    // Steps so small that prompts are split into many chunks beside decoding sequences.
    let tight =
        SchedulerConfig { max_num_batched_tokens: 24, max_num_seqs: 12, ..SchedulerConfig::default() };
    let mut together = serve_shipped_model(tight).await;
    let mut streams = Vec::new();
    for at in 0..15 {
        streams.push(together.start(request(at)).await);
    }
    for (at, stream) in streams.into_iter().enumerate() {
        assert_eq!(read(stream).await.0, expected[at], "request {at} among others");
    }
    for (at, whole) in expected.iter().enumerate() {
        for had in [1, 2, 7, 15, 16, 23] {
            resume(&mut together, at as u32, whole, had).await;
        }
    }
    together.stop().await;
}

/// Resumes each sample that has more than `had` tokens.
async fn resume(served: &mut Served, at: u32, whole: &Samples, had: usize) {
    let mut request = request(at);
    request.samples = (whole.iter().filter(|(_, (tokens, ..))| tokens.len() > had))
        .map(|(&index, (tokens, ..))| wire::Sample { index, delivered_token_ids: tokens[..had].to_vec() })
        .collect();
    if request.samples.is_empty() {
        return;
    }
    let indices: Vec<u32> = request.samples.iter().map(|sample| sample.index).collect();
    let stream = served.start(request).await;
    let (rest, _) = read(stream).await;
    assert_eq!(rest.keys().copied().collect::<Vec<_>>(), indices, "request {at} after {had}");
    for (index, (tokens, logprobs, finish)) in rest {
        let (all, all_logprobs, end) = &whole[&index];
        assert_eq!((&tokens[..], &finish), (&all[had..], end), "request {at}, sample {index} after {had}");
        assert_eq!(logprobs, all_logprobs.iter().skip(had).cloned().collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_prompt_is_found_in_the_cache() {
    let mut served = serve_shipped_model(SchedulerConfig::default()).await;
    let prompt = wire::GenerateRequest { prompt_token_ids: (10..110).collect(), ..request(0) };
    let mut hits = Vec::new();
    for _ in 0..2 {
        let stream = served.start(prompt.clone()).await;
        hits.push(read(stream).await);
    }
    assert_eq!((hits[0].1, hits[1].1), (0, 96), "six blocks of 16; the last token is always computed");
    assert_eq!(hits[0].0, hits[1].0, "and nothing else changes");
    served.stop().await;
}
