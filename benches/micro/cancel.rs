//! How long blocks stay allocated after their reader has left: from `Release` until the worker's load report
//! shows them free, with the shipped model while other streams decode.
//!
//! `cargo bench -p skein-bench --bench cancel [-- RELEASES]`. A release takes effect between two steps, so
//! the duration of a step, measured in the same run, is the lower bound.

use std::time::Duration;

use skein_node::clock;
use skein_proto::sampling::SamplingParams;
use skein_proto::stream_key::StreamKey;
use skein_worker::config::{BackendKind, WorkerConfig};
use skein_worker::engine::{EngineHandle, Submission};
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::NewRequest;
use skein_worker::service::LocalWorker;
use skein_worker::streams::TokenStream;

/// Streams that decode throughout.
const STREAMS: usize = 16;
const RELEASES: usize = 1000;
const PROMPT_TOKENS: u32 = 32;
const OUTPUT_TOKENS: u32 = 900;
const LINGER: Duration = Duration::from_secs(10);

fn main() {
    let releases = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(RELEASES);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let worker = LocalWorker::start(&config(), |_, _| {}).expect("the shipped model loads");
    runtime.block_on(measure(&worker.engine, releases));
}

async fn measure(engine: &EngineHandle, releases: usize) {
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        streams.push(start(engine, number).await);
    }
    let (begun, steps) = (clock::now(), engine.log().step());
    let mut times = Vec::with_capacity(releases);
    for number in STREAMS..STREAMS + releases {
        // Release the oldest stream: if it reached its end, it would free its blocks without a release.
        let (name, stream) = streams.remove(0);
        let cancelled = engine.counts().cancelled;
        let sent = clock::now();
        engine.release(name).await;
        while engine.counts().cancelled == cancelled {
            tokio::task::yield_now().await;
        }
        times.push(clock::now().since(sent));
        drop(stream);
        streams.push(start(engine, number).await);
    }
    let step = clock::now().since(begun).div_f64((engine.log().step() - steps).max(1) as f64);
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("{releases} releases beside {STREAMS} streams, a step takes {:.2} ms", step.as_secs_f64() * 1e3);
    println!("release to free: p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", at(0.5), at(0.99), at(1.0));
    println!("p99 in steps: {:.1}", at(0.99) / (step.as_secs_f64() * 1e3));
}

/// Starts a stream and waits for its first token.
async fn start(engine: &EngineHandle, number: usize) -> (String, TokenStream) {
    let params = SamplingParams { max_tokens: OUTPUT_TOKENS, ..SamplingParams::default() };
    let prompt = (0..PROMPT_TOKENS).map(|at| 300 + (at * 7 + number as u32) % 1000).collect();
    let request = NewRequest::of_one_sample(prompt, params, CacheScope::new("bench", &number.to_string()));
    let name = format!("stream-{number}");
    let alone = Submission::alone(name.clone(), request);
    let submission = Submission { stream_key: Some(StreamKey(number as u128 + 1)), linger: LINGER, ..alone };
    let mut stream = engine.submit(submission).await.expect("there is room");
    stream.next().await.expect("it goes on").expect("the engine runs");
    (name, stream)
}

fn config() -> WorkerConfig {
    let model = skein_golden::shipped();
    WorkerConfig { backend: BackendKind::Cpu, ..WorkerConfig::new(model, "bench") }
}
