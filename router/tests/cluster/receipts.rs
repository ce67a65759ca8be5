//! Decision receipts: what a request that asks is told about the choice of its worker.

use serde_json::Value;
use skein_choice::receipt::Receipts;

use super::*;

async fn explained(scene: &Scene, prompt: impl IntoIterator<Item = TokenId>) -> (Outcome, Value) {
    let receipts = Receipts::default();
    let asked = TokenRequest { receipts: Some(receipts.clone()), ..request("asked", prompt, 4) };
    let outcome = scene.run(asked).await;
    let header = receipts.json().expect("a choice was explained");
    (outcome, serde_json::from_slice(header.as_bytes()).expect("the header is JSON"))
}

#[tokio::test]
async fn a_receipt_has_every_candidate_its_overlap_and_each_term() {
    let scene = Scene::new(3).await;
    let before = scene.run(request("before", 0..24, 4)).await;
    assert_eq!(before.error, None);
    let holder = format!("w{}", lock(&scene.script.calls).last().expect("there was a call").0);
    let known =
        || scene.cluster.snapshot().workers.iter().map(|worker| worker.cached_blocks).sum::<usize>() >= 6;
    wait_for("the index", known).await;
    let (outcome, receipt) = explained(&scene, 0..24).await;
    assert_eq!(outcome.error, None);
    let receipt = &receipt[0];
    assert_eq!(
        (&receipt["policy"], &receipt["candidates"], &receipt["prompt_tokens"]),
        (&Value::from("first_token"), &Value::from(3), &Value::from(24))
    );
    let best = receipt["best"].as_array().expect("there are candidates");
    assert_eq!(best.len(), 3);
    let chosen: Vec<&Value> = best.iter().filter(|worker| worker["chosen"] == true).collect();
    assert!(matches!(chosen[..], [worker] if worker["worker"] == holder.as_str()), "{receipt}");
    assert!(chosen[0]["overlap_tokens"].as_u64() >= Some(16), "{receipt}");
    for worker in best {
        let terms = ["queue", "prefill", "blocks", "seats", "step", "slowdown", "adapter"];
        let sum: f64 = terms.iter().map(|term| worker[term].as_f64().expect("each term is there")).sum();
        let seconds = worker["seconds"].as_f64().expect("there is a sum");
        assert!((sum - seconds).abs() < 1e-5, "{worker}");
    }
}

#[tokio::test]
async fn a_request_that_moves_is_explained_at_most_twice() {
    let scene = Scene::new(3).await;
    scene.script.faults([Fault::Break(1), Fault::Break(1), Fault::Break(1)]);
    let (outcome, receipts) = explained(&scene, 100..124).await;
    assert_eq!(outcome.error, None);
    assert_eq!(receipts.as_array().map(Vec::len), Some(2), "{receipts}");
}
