//! Requests on two shards, each with connections of its own to the workers.

use std::sync::Mutex;

use skein_router::shards::Shards;
use tokio::task::JoinSet;

use super::*;

const REQUESTS: u32 = 1000;
/// Requests that differ; the others repeat them.
const KINDS: u32 = 20;

#[tokio::test]
async fn a_thousand_requests_on_two_shards_end_as_they_would_have_without_a_kill() {
    let shards = Shards::start(2).expect("threads");
    let mut scene = Scene::new(3).await;
    let requests: Vec<TokenRequest> =
        (0..KINDS).map(|kind| request(&format!("k{kind}"), kind..kind + 12, 24)).collect();
    let mut expected = Vec::new();
    for request in &requests {
        expected.push(scene.run(request.clone()).await.samples);
    }
    scene.script.pace_ms.store(1, Ordering::SeqCst);
    let (mut running, got) = (JoinSet::new(), Arc::new(Mutex::new(Vec::new())));
    for number in 0..REQUESTS {
        let kind = (number % KINDS) as usize;
        let (cluster, got) = (scene.cluster.clone(), got.clone());
        let request = TokenRequest { id: format!("n{number}").into(), ..requests[kind].clone() };
        shards.spawn(&mut running, async move {
            let stream = cluster.submit(request.clone()).await.expect("it is taken");
            let outcome = collect(&request, stream).await;
            lock(&got).push((kind, outcome));
        });
    }
    wait_for("requests to end on both", || lock(&got).len() > 100).await;
    scene.workers[1].kill();
    let address = scene.workers[1].address;
    wait_for("its port to be free", || std::net::TcpListener::bind(address).is_ok()).await;
    let back = Mock::start(1, 201, address, &scene.script);
    scene.workers[1] = back;
    while let Some(ended) = running.join_next().await {
        ended.expect("no panic");
    }
    let got = std::mem::take(&mut *lock(&got));
    assert_eq!(got.len(), REQUESTS as usize, "none is lost");
    for (kind, outcome) in got.iter() {
        assert_eq!((&outcome.samples, &outcome.error), (&expected[*kind], &None), "request {kind}");
    }
    assert_eq!(scene.cluster.snapshot().running.requests, 0);
    shards.end().await;
}
