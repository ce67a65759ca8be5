//! Workers that fail silently: frozen, or cut off in one direction or both.

use super::mock::{Flow, Wire};
use super::*;

#[tokio::test]
async fn a_worker_that_stands_still_is_left() {
    let scene = Scene::with(2, AdmissionConfig::default(), Some(Duration::from_millis(300))).await;
    let request = request("hung", 0..9, 12);
    let expected = scene.run(request.clone()).await;
    scene.script.faults([Fault::Hang(4)]);
    let got = scene.run(request).await;
    assert_eq!((got.samples, got.error), (expected.samples, None));
    wait_for("the other worker alone to take requests", || scene.ready() <= 1).await;
}

/// Cuts a wire during a stream and returns how long the stream paused. Two workers; the first is behind the
/// wire.
async fn gap_after(flow: Flow, worker_timeout: Duration) -> Duration {
    let recovery = RecoveryConfig { worker_timeout, ..RecoveryConfig::default() };
    let mut scene = Scene::recovering(2, AdmissionConfig::default(), recovery).await;
    let request = request("cut off", 0..9, 40);
    let expected = scene.run(request.clone()).await;
    let wire = Wire::to(scene.workers[0].address).await;
    scene.join(0, wire.address).await;
    wait_for("the new address", || scene.ready() == 2).await;
    scene.workers[1].kill();
    wait_for("the new address alone", || scene.ready() == 1).await;
    // Slow enough that the cut hits the middle of the stream.
    scene.script.pace_ms.store(5, Ordering::SeqCst);
    let mut stream = scene.submit(request.clone()).await.expect("it is taken");
    let first = stream.next().await.expect("a delta").expect("no error");
    scene.workers[1] = Mock::start(1, 201, ANY_PORT, &scene.script);
    scene.join(1, scene.workers[1].address).await;
    let start = clock::now();
    wire.set(flow);
    let rest = TokenRequest { prompt: [&request.prompt[..], &first.tokens].concat().into(), ..request };
    let rest = collect(&rest, stream).await;
    assert_eq!(rest.error, None);
    assert_eq!([first.tokens, rest.samples[0].0.clone()].concat(), expected.samples[0].0);
    clock::now().since(start)
}

#[tokio::test]
async fn a_worker_behind_a_dead_wire_is_left_within_seconds() {
    for (flow, worker_timeout) in [(Flow::None, 5), (Flow::ToWorker, 5), (Flow::None, 2), (Flow::ToWorker, 2)]
    {
        let worker_timeout = Duration::from_secs(worker_timeout);
        let gap = gap_after(flow, worker_timeout).await;
        println!("{flow:?}, worker timeout {worker_timeout:?}: {gap:?}");
        assert!(gap < worker_timeout + Duration::from_secs(3), "{flow:?}: {gap:?}");
    }
    // Requests are lost but answers arrive: the running stream ends normally.
    let gap = gap_after(Flow::FromWorker, Duration::from_secs(5)).await;
    assert!(gap < Duration::from_secs(8), "{gap:?}");
}
