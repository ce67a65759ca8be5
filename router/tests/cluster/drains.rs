//! Drains that an operator orders, and what people see of the moves.

use skein_router::generator::FleetView;

use super::*;

#[tokio::test]
async fn an_ordered_drain_moves_streams_and_can_be_taken_back() {
    let scene = Scene::new(2).await;
    let request = request("moved", 0..9, 60);
    let expected = scene.run(request.clone()).await;
    lock(&scene.script.calls).clear();
    scene.script.pace_ms.store(3, Ordering::SeqCst);
    let mut stream = scene.submit(request.clone()).await.expect("it is taken");
    stream.next().await.expect("a delta").expect("no error");
    let (from, to) = match lock(&scene.script.calls)[0].0 {
        0 => ("w0", "w1"),
        _ => ("w1", "w0"),
    };
    let read = async {
        let mut rest = Vec::new();
        while let Some(delta) = stream.next().await {
            rest.extend(delta.expect("no error").tokens);
        }
        rest
    };
    // No delta comes between the order and the move.
    scene.script.pace_ms.store(u32::MAX, Ordering::SeqCst);
    let order = async {
        scene.cluster.drain(from, true).await.expect("it obeys");
        wait_for("the move", || lock(&scene.script.calls).len() > 1).await;
        scene.script.pace_ms.store(0, Ordering::SeqCst);
    };
    let ((), rest) = tokio::join!(order, read);
    assert!(expected.samples[0].0.ends_with(&rest), "the text is the undisturbed one");
    let moves = scene.cluster.moves().latest;
    assert_eq!(moves.len(), 1);
    assert_eq!(
        (moves[0].from.as_deref(), moves[0].to.as_deref(), &*moves[0].request),
        (Some(from), Some(to), "moved")
    );
    assert!(moves[0].tokens > 0 && moves[0].tokens < 60, "{moves:?}");
    // The other one is the last that is ready.
    wait_for("the drain to be seen", || scene.ready() == 1).await;
    let refused = scene.cluster.drain(to, true).await.expect_err("nobody would be left").to_string();
    assert!(refused.contains("no other worker is ready"), "{refused}");
    let unknown = scene.cluster.drain("w9", true).await.expect_err("there is none").to_string();
    assert!(unknown.contains("`w9`"), "{unknown}");
    scene.cluster.drain(from, false).await.expect("it obeys");
    scene.wait_for_ready(2).await;
}

#[tokio::test]
async fn two_drains_at_once_leave_a_worker() {
    let scene = Scene::new(2).await;
    let both = tokio::join!(scene.cluster.drain("w0", true), scene.cluster.drain("w1", true));
    let refused = match both {
        (Ok(()), Err(refused)) | (Err(refused), Ok(())) => refused.to_string(),
        other => panic!("one of them: {other:?}"),
    };
    assert!(refused.contains("no other worker is ready"), "{refused}");
    assert_eq!(scene.ready(), 1);
}
