//! Counts, on the request's own task, how often a request locks the fleet.

use std::cell::Cell;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use skein_node::discovery::{Change, Member};
use skein_proto::sampling::SamplingOptions;
use skein_proto::worker::v1 as wire;
use skein_proto::worker::v1::worker_event::Event;
use tokio::sync::mpsc;
use tonic::{Request, Status};

use super::transport::{Call, Connector, Messages, Transport};
use crate::app::App;
use crate::cluster::Cluster;
use crate::request::{Draft, Prompt};
use crate::testing;

tokio::task_local! {
    static LOCKS: Cell<u32>;
}

/// Counts a lock of the fleet. Tasks without a counter (links, ticks) are not counted.
pub(super) fn count_lock() {
    let _ = LOCKS.try_with(|locks| locks.set(locks.get() + 1));
}

/// A worker that sends one token to each request and nothing more.
#[derive(Debug)]
struct OneToken;

impl Connector for OneToken {
    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Arc<dyn Transport>, String>> {
        async { Ok(Arc::new(OneToken) as Arc<dyn Transport>) }.boxed()
    }
}

/// One message, then silence.
fn only<T: Send + 'static>(message: T) -> Call<'static, Messages<T>> {
    let messages = stream::once(async { Ok(message) }).chain(stream::pending()).boxed();
    async { Ok(messages) }.boxed()
}

impl Transport for OneToken {
    fn info(&self) -> Call<'_, wire::InfoResponse> {
        let info = wire::InfoResponse {
            epoch: 1,
            model: "test".to_owned(),
            max_model_len: 256,
            vocab_size: 300,
            block_size: 16,
            kv_blocks: 100,
            max_num_seqs: 8,
            max_num_batched_tokens: 512,
            ..wire::InfoResponse::default()
        };
        async { Ok(info) }.boxed()
    }

    fn generate(&self, request: Request<wire::GenerateRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        only(wire::GenerateDelta {
            epoch: 1,
            from_position: request.get_ref().prompt_token_ids.len() as u32,
            token_ids: testing::tokens("a"),
            ..wire::GenerateDelta::default()
        })
    }

    fn attach(&self, _: Request<wire::AttachRequest>) -> Call<'_, Messages<wire::GenerateDelta>> {
        async { Err(Status::not_found("it keeps nothing")) }.boxed()
    }

    fn abort(&self, _: wire::AbortRequest) -> Call<'_, wire::AbortResponse> {
        async { Ok(wire::AbortResponse::default()) }.boxed()
    }

    fn release(&self, _: wire::ReleaseRequest) -> Call<'_, wire::ReleaseResponse> {
        async { Ok(wire::ReleaseResponse::default()) }.boxed()
    }

    fn watch(&self, _: wire::WatchRequest) -> Call<'_, Messages<wire::WorkerEvent>> {
        let event = Some(Event::Snapshot(wire::CacheSnapshot::default()));
        only(wire::WorkerEvent { epoch: 1, sequence: 1, event })
    }
}

#[tokio::test]
async fn a_fresh_request_takes_the_fleets_lock_three_times_before_its_first_token() {
    let (discovery, changes) = mpsc::channel(1);
    let config = testing::config();
    let cluster =
        Cluster::start_with(&config, changes, "test", crate::cluster::Tuning::default(), Arc::new(OneToken));
    let member = Member { id: "w".to_owned(), address: "host:1".to_owned() };
    discovery.send(Change::Join(member)).await.unwrap();
    cluster.wait_ready(std::time::Duration::from_secs(60)).await.unwrap();
    let app = App::new(Arc::new(testing::model_text()), Arc::new(cluster), config);
    let sampling = SamplingOptions { max_tokens: Some(9), ..SamplingOptions::default() };
    let draft = Draft { prompt: Prompt::Text("a prompt".to_owned()), sampling, ..Draft::default() };
    let count = async {
        let mut started = app.start(draft).await.unwrap();
        let opened = LOCKS.with(Cell::get);
        started.stream.next().await.unwrap().unwrap();
        (opened, LOCKS.with(Cell::get))
    };
    // The model's limits; admission and placement; the stream's directory entry. Then its first token.
    assert_eq!(LOCKS.scope(Cell::new(0), count).await, (3, 4));
}
