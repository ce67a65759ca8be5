//! The router with real workers, all in this process.

mod every_position;
mod fake_workers;
mod guarded;
mod pooling;
mod slow_readers;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use skein_node::clock;
use skein_proto::TokenId;
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_router::cluster::Cluster;
use skein_router::config::RouterConfig;
use skein_router::refusal::Refusal;
use skein_router::request::{TokenDelta, TokenRequest};

const MODEL: &str = "m";
/// Limit for a single wait, on a busy machine too.
const TIMEOUT: Duration = Duration::from_secs(60);

fn router_config() -> RouterConfig {
    RouterConfig { shutdown_timeout: TIMEOUT, ..RouterConfig::new("", [MODEL]) }
}

async fn wait_for_ready(cluster: &Cluster, workers: usize) {
    let ready = || cluster.snapshot().workers.iter().filter(|worker| worker.is_ready()).count();
    let start = clock::now();
    while ready() != workers {
        assert!(clock::now().since(start) < TIMEOUT, "{:?}", cluster.snapshot());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A request id that is unique in this process.
fn fresh_id() -> String {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    format!("r{}", REQUESTS.fetch_add(1, Ordering::Relaxed))
}

/// The next delta of an answer; `None` after its end.
async fn next_of(
    stream: &mut (impl Stream<Item = Result<TokenDelta, Refusal>> + Unpin),
) -> Option<Result<TokenDelta, Refusal>> {
    tokio::time::timeout(TIMEOUT, stream.next()).await.expect("news in time")
}

/// Tokens, their log-probabilities and the finish reason.
type Sample = (Vec<TokenId>, Vec<TokenLogprobs>, Option<FinishReason>);

/// The part of an answer that must not depend on workers and timing.
#[derive(Debug, Clone, Default, PartialEq)]
struct Answer {
    samples: Vec<Sample>,
    prompt_logprobs: Vec<TokenLogprobs>,
    /// The vector of a pooled request.
    pooled: Vec<f32>,
}

impl Answer {
    /// The empty answer to `request`.
    fn to(request: &TokenRequest) -> Self {
        Self { samples: vec![Default::default(); request.n as usize], ..Self::default() }
    }

    /// Appends a delta, which must continue where the answer ends.
    fn add(&mut self, request: &TokenRequest, delta: TokenDelta) {
        let (tokens, logprobs, finish) = &mut self.samples[delta.sample_index as usize];
        assert_eq!(delta.from_position as usize, request.prompt.len() + tokens.len(), "positions follow");
        assert_eq!(*finish, None, "nothing follows an end");
        tokens.extend(delta.tokens);
        logprobs.extend(delta.logprobs);
        *finish = delta.finish;
        self.prompt_logprobs.extend(delta.prompt_logprobs);
        self.pooled.extend(delta.pooled);
    }
}
