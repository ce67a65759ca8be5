//! Workers that make vectors of prompts.

use std::sync::Arc;
use std::time::Duration;

use skein_model::pooling::{PooledRows, PoolingSpec};
use skein_proto::finish::FinishReason;
use skein_proto::pooling::{PooledKind, Pooling};
use skein_proto::sampling::SamplingParams;
use skein_router::generator::FleetView;
use skein_router::request::TokenRequest;
use skein_worker::backend::fake::{FAKE_WIDTH, StepCost};

use super::MODEL;
use super::fake_workers::{Scene, run};

fn spec(is_bidirectional: bool) -> PoolingSpec {
    let kind = PooledKind::Embedding { is_normalised: true };
    PoolingSpec { rows: PooledRows::Last, is_bidirectional, width: FAKE_WIDTH, kind, labels: Vec::new() }
}

fn request(index: u32) -> TokenRequest {
    let prompt: Arc<[_]> = (0..1 + index * 5).map(|position| (position * 7 + index) % 1000).collect();
    let pooling = Some(Pooling { second_from: (index % 3 == 2).then_some(index) });
    let sampling = SamplingParams { max_tokens: 1, pooling, ..SamplingParams::default() };
    TokenRequest::new("", MODEL, prompt, sampling)
}

#[tokio::test]
async fn killed_workers_lose_no_vector() {
    let cost = StepCost { fixed: Duration::from_millis(2), ..StepCost::default() };
    for is_bidirectional in [false, true] {
        let mut scene = Scene::pooling(3, cost, Some(spec(is_bidirectional))).await;
        let said = scene.cluster.pooled().expect("workers are ready").expect("they pool");
        assert_eq!(*said, spec(is_bidirectional).described());
        let requests: Vec<TokenRequest> = (0..60).map(request).collect();
        let mut expected = Vec::new();
        for request in &requests {
            let answer = run(scene.cluster.clone(), request.clone()).await.expect("undisturbed").answer;
            assert_eq!(answer.pooled.len(), FAKE_WIDTH as usize);
            assert_eq!(answer.samples, [(Vec::new(), Vec::new(), Some(FinishReason::Stop(None)))]);
            expected.push(answer);
        }
        for round in 0..6 {
            let running: Vec<_> = requests.iter().map(|request| scene.spawn(request)).collect();
            tokio::time::sleep(Duration::from_millis(3 + 5 * round)).await;
            let victim = round as usize % 3;
            scene.workers[victim].kill();
            scene.restart(victim).await;
            for (index, running) in running.into_iter().enumerate() {
                let got = running.await.expect("no panic");
                let got = got.unwrap_or_else(|refusal| panic!("round {round}, request {index}: {refusal}"));
                assert_eq!(got.answer, expected[index], "round {round}, request {index}");
            }
            scene.wait_for_ready(3).await;
        }
    }
}

#[tokio::test]
async fn a_model_either_pools_or_generates() {
    let generated = TokenRequest { sampling: Arc::default(), ..request(4) };
    let pools = Scene::pooling(1, StepCost::default(), Some(spec(true))).await;
    let refusal = run(pools.cluster.clone(), generated.clone()).await.expect_err("it generates nothing");
    assert!(refusal.to_string().contains("a vector, which is what this model computes"), "{refusal}");
    let generates = Scene::new(1, StepCost::default()).await;
    assert_eq!(generates.cluster.pooled().expect("a worker is ready"), None);
    let refusal = run(generates.cluster.clone(), request(4)).await.expect_err("it pools nothing");
    assert!(refusal.to_string().contains("tokens, which are what this model generates"), "{refusal}");
}
