//! A worker whose model makes vectors.

use skein_model::pooling::{PooledRows, PoolingSpec};
use skein_proto::pooling::PooledKind;

use super::*;
use crate::backend::fake::FAKE_WIDTH;

pub fn spec() -> PoolingSpec {
    let kind = PooledKind::Embedding { is_normalised: true };
    let (rows, width, labels) = (PooledRows::Mean, FAKE_WIDTH, Vec::new());
    PoolingSpec { rows, is_bidirectional: true, width, kind, labels }
}

fn pooled(id: &str, tokens: u32) -> wire::GenerateRequest {
    let pooling = Some(wire::Pooling { second_from: 3 });
    wire::GenerateRequest {
        prompt_token_ids: (0..tokens).map(|token| token % VOCAB).collect(),
        sampling: Some(wire::SamplingParams { pooling, ..sampling(1) }),
        ..request(id, 1)
    }
}

#[tokio::test]
async fn a_vector_comes_with_the_end_and_can_be_read_again() {
    let mut served = serve_fake(FakeOptions { reads_whole: true, ..FakeOptions::default() }).await;
    let info = served.client.info(wire::InfoRequest {}).await.expect("answered").into_inner();
    assert_eq!(info.pooled.expect("it pools").width, FAKE_WIDTH);
    let mut vectors = Vec::new();
    // As long as a sequence may be, and again under the same key.
    for id in ["a", "b"] {
        let keyed = wire::GenerateRequest { stream_key: vec![1; 16], linger_ms: 60_000, ..pooled(id, 512) };
        let mut stream = served.client.generate(keyed).await.expect("taken").into_inner();
        let delta = next(&mut stream).await.expect("no fault").expect("an answer");
        assert!(delta.finish.is_some() && delta.token_ids.is_empty() && delta.from_position == 512);
        assert_eq!(next(&mut stream).await.expect("no fault"), None);
        vectors.push(delta.pooled);
    }
    assert_eq!(vectors[0].len(), FAKE_WIDTH as usize);
    assert_eq!(vectors[0], vectors[1]);
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn what_a_vector_has_no_use_for_is_refused() {
    let mut served = serve_fake(FakeOptions { reads_whole: true, ..FakeOptions::default() }).await;
    let with = |change: fn(&mut wire::SamplingParams)| {
        let mut request = pooled("a", 9);
        change(request.sampling.as_mut().expect("it has parameters"));
        request
    };
    let delivered = vec![wire::Sample { index: 0, delivered_token_ids: vec![5] }];
    for (request, reason) in [
        (pooled("a", 513), "1..=512 tokens, this worker's max_model_len"),
        (request("a", 4), "a vector, which is what this model computes"),
        (with(|params| params.max_tokens = 2), "max_tokens"),
        (with(|params| params.logprobs = Some(0)), "neither with pooling"),
        (with(|params| params.pooling = Some(wire::Pooling { second_from: 10 })), "the prompt of 9 tokens"),
        (wire::GenerateRequest { samples: delivered, ..pooled("a", 9) }, "delivered"),
    ] {
        let status = served.client.generate(request).await.expect_err(reason);
        assert_eq!(status.code(), Code::InvalidArgument, "{reason}");
        assert!(status.message().contains(reason), "{reason}: {}", status.message());
    }
    served.stop().await.expect("a clean end");
    let mut served = serve_fake(FakeOptions::default()).await;
    let status = served.client.generate(pooled("a", 9)).await.expect_err("it generates");
    assert!(status.message().contains("tokens, which are what this model generates"), "{status}");
    served.stop().await.expect("a clean end");
}
