//! The expected answer of a request, computed once on a worker of its own, without faults, other requests or
//! a cache.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use skein_proto::TokenId;
use skein_proto::delta::WorkerDelta;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::placement::Placement;
use skein_proto::version::Version;
use skein_router::links::transport::{Connector, Transport};
use skein_router::links::worker_client::{Attempt, WorkerClient};
use skein_router::request::TokenRequest;
use skein_worker::config::WorkerConfig;
use skein_worker::draft::Speculate;
use skein_worker::engine::Engine;

use crate::device::Device;
use crate::network::Direct;
use crate::plan::Plan;
use crate::report::Log;
use crate::worker::{self, OTHER_VERSION};

/// Most engine turns for one request; more means that it hangs.
const MOST_TURNS: u32 = 100_000;

/// The whole answer to a request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Indexed by sample.
    pub samples: Vec<Sample>,
    /// For prompt positions 1 and up, if requested.
    pub prompt_logprobs: Vec<TokenLogprobs>,
}

/// The expected output of one sample.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// All output tokens.
    pub tokens: Vec<TokenId>,
    /// One for each token, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why the sample ends after these tokens.
    pub finish: Option<FinishReason>,
}

/// The answers of both versions of the model to one request.
#[derive(Debug, Clone)]
pub struct Answers {
    usual: Answer,
    other: Answer,
}

impl Answers {
    /// Computes both answers. Takes no simulated time.
    pub async fn to(plan: &Plan, request: &TokenRequest) -> Self {
        Self { usual: answer(plan, request).await, other: answer_by(plan, request, true).await }
    }

    /// The answer of a version.
    pub fn of(&self, version: Version) -> &Answer {
        if version == OTHER_VERSION { &self.other } else { &self.usual }
    }
}

/// Computes the answer of the usual weights to `request`. Takes no simulated time.
pub async fn answer(plan: &Plan, request: &TokenRequest) -> Answer {
    answer_by(plan, request, false).await
}

async fn answer_by(plan: &Plan, request: &TokenRequest, other_weights: bool) -> Answer {
    let mut config = plan.worker.clone();
    config.scheduler.enable_prefix_caching = false;
    config.scheduler.speculate = Speculate::Off;
    let (client, mut engine) = alone(plan, &config, request.n, other_weights).await;
    let attempt = Attempt {
        version: Version::UNKNOWN,
        id: request.id.to_string(),
        samples: (0..request.n).map(|index| (index, Vec::new())).collect(),
        prompt_logprobs: request.sampling.prompt_logprobs.is_some(),
        placement: Placement { router: 1, sequence: 1 },
        time_left: None,
        stream_key: request.stream_key(),
        linger: Duration::ZERO,
        trace: None,
    };
    let mut deltas =
        drive(&mut engine, client.generate(request, attempt)).await.expect("it takes the request");
    let mut answer = Answer { samples: vec![Sample::default(); request.n as usize], ..Answer::default() };
    while let Some(delta) = drive(&mut engine, deltas.next()).await {
        answer.add(delta.expect("there are no faults"));
    }
    answer
}

impl Answer {
    fn add(&mut self, WorkerDelta { delta, .. }: WorkerDelta) {
        let sample = &mut self.samples[delta.sample_index as usize];
        sample.tokens.extend(delta.tokens);
        sample.logprobs.extend(delta.logprobs);
        sample.finish = sample.finish.or(delta.finish);
        self.prompt_logprobs.extend(delta.prompt_logprobs);
    }
}

/// A worker with room for one request.
async fn alone(plan: &Plan, config: &WorkerConfig, n: u32, other_weights: bool) -> (WorkerClient, Engine) {
    let longest = config.scheduler.max_model_len.unwrap_or(128).div_ceil(config.scheduler.block_size);
    let (device, log) = (Arc::new(Device::default()), Arc::new(Log::default()));
    let kv_blocks = (longest + 1) * (n + 1);
    let make = worker::Make { host: "ref", plan, config, kv_blocks: kv_blocks.into(), other_weights };
    let (service, engine) = worker::build(&make, 1, &device, &log);
    let connector = Here(Arc::new(Direct(service)));
    let client = WorkerClient::connect(&connector, "here").await.expect("there is no way to fail");
    (client, engine)
}

/// Turns the engine until `work` is done.
async fn drive<T>(engine: &mut Engine, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    for _ in 0..MOST_TURNS {
        // The tasks that `work` waits for run on this thread, below.
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        engine.turn().expect("there are no faults");
        tokio::task::yield_now().await;
    }
    panic!("the reference does not end");
}

#[derive(Debug)]
struct Here(Arc<dyn Transport>);

impl Connector for Here {
    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Arc<dyn Transport>, String>> {
        let way = self.0.clone();
        async move { Ok(way) }.boxed()
    }
}
