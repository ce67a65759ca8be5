//! Clients that stop reading, over real sockets: all streams of a worker share one HTTP/2 connection.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use skein_node::clock;
use skein_proto::sampling::SamplingParams;
use skein_router::request::TokenRequest;
use skein_worker::backend::fake::StepCost;

use super::fake_workers::{Scene, request, run, wait_for_sequences};
use super::fresh_id;

/// Streams that nobody reads.
const UNREAD: usize = 16;
/// Requests that follow them.
const NEW: u32 = 24;
/// A new request takes milliseconds; the margin is for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Sixteen samples with twenty log-probabilities per token: more than half a megabyte on the wire.
fn wide() -> TokenRequest {
    let sampling = SamplingParams {
        temperature: 1.0,
        max_tokens: 300,
        ignore_eos: true,
        logprobs: Some(20),
        ..SamplingParams::default()
    };
    TokenRequest { id: fresh_id().into(), n: 16, sampling: Arc::new(sampling), ..request(0, 0) }
}

#[tokio::test]
async fn streams_that_nobody_reads_keep_no_other_request_waiting() {
    let scene = Scene::new(1, StepCost::default()).await;
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        let mut stream = scene.cluster.submit(wide()).await.expect("it is taken");
        stream.next().await.expect("a delta").expect("no error");
        unread.push(stream);
    }
    // Everything is computed; unread output waits in the worker and in the connection.
    wait_for_sequences(&scene, |sequences| sequences == 0).await;
    let start = clock::now();
    let new = (0..NEW).map(|index| run(scene.cluster.clone(), request(index, 16)));
    let answered = tokio::time::timeout(ANSWERED_WITHIN, join_all(new)).await;
    let answered = answered.expect("new requests are answered while other streams are not read");
    let right = answered.iter().filter(|answer| answer.is_ok()).count();
    let took = clock::now().since(start);
    println!("{UNREAD} unread streams: {right} of {NEW} new requests answered in {took:?}");
    assert_eq!(right, NEW as usize);
    // The unread streams are still complete.
    for mut stream in unread {
        let mut ended = 0;
        while let Some(delta) = stream.next().await {
            ended += u32::from(delta.expect("no error").finish.is_some());
        }
        assert_eq!(ended, 16);
    }
}
