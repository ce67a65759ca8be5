//! Requests with adapters, and what routers are told about them.

use super::*;
use crate::config::{AdapterConfig, AdaptersConfig};

fn with_adapters(count: usize) -> WorkerConfig {
    let module = |nth: usize| AdapterConfig { name: format!("a{nth}"), directory: format!("/a{nth}").into() };
    let modules = (0..count).map(module).collect();
    let adapters =
        AdaptersConfig { is_enabled: true, modules, may_change: true, ..AdaptersConfig::default() };
    WorkerConfig { adapters, ..config() }
}

async fn tokens(served: &mut Served, id: &str, adapter: u64) -> Result<(Vec<u32>, u32), Status> {
    let mut stream =
        served.client.generate(wire::GenerateRequest { adapter, ..request(id, 20) }).await?.into_inner();
    let (mut tokens, mut cached) = (Vec::new(), 0);
    while let Some(delta) = next(&mut stream).await? {
        tokens.extend(delta.token_ids);
        cached = delta.cached_tokens.unwrap_or(cached);
    }
    Ok((tokens, cached))
}

#[tokio::test]
async fn requests_get_their_adapter_and_share_prefixes_with_it_alone() {
    let mut served = serve_with(with_adapters(2), FakeOptions::default()).await;
    let watch = wire::WatchRequest { router_id: 9, ..wire::WatchRequest::default() };
    let mut events = served.client.watch(watch).await.expect("ready").into_inner();
    let first = next(&mut events).await.expect("no fault").expect("an event").event;
    let Some(Event::Adapters(list)) = first else { panic!("adapters come first, not {first:?}") };
    let ids: Vec<u64> = list.adapters.iter().map(|adapter| adapter.id).collect();
    assert_eq!(list.adapters.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["a0", "a1"]);

    let mut seen = Vec::new();
    for (nth, adapter) in [0, ids[0], ids[1]].into_iter().enumerate() {
        let (first, cached) = tokens(&mut served, &format!("first-{nth}"), adapter).await.expect("taken");
        assert_eq!((first.len(), cached), (20, 0), "no other request shares its prefix");
        let (again, cached) = tokens(&mut served, &format!("again-{nth}"), adapter).await.expect("taken");
        assert_eq!((&again, cached), (&first, 32));
        assert!(!seen.contains(&first), "each has its own answer");
        seen.push(first);
    }
    let refused = tokens(&mut served, "unknown", 7).await.expect_err("it has no such adapter");
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("no adapter"));
    served.stop().await.expect("it drains");
}

#[tokio::test]
async fn a_stream_ends_on_an_adapter_that_was_unloaded_and_may_continue_elsewhere() {
    let mut served = serve_with(with_adapters(1), slow()).await;
    let mut other = serve_with(with_adapters(0), FakeOptions::default()).await;
    let load = |name: &str| wire::LoadAdapterRequest {
        name: name.into(),
        path: "/a0".into(),
        ..wire::LoadAdapterRequest::default()
    };
    let id = served.client.load_adapter(load("a0")).await.expect("the same").into_inner().id;
    let (expected, _) = tokens(&mut served, "before", id).await.expect("taken");
    let call = wire::GenerateRequest { adapter: id, ..request("during", 20) };
    let mut stream = served.client.generate(call).await.expect("taken").into_inner();
    let unload = wire::UnloadAdapterRequest { name: "a0".into(), ..wire::UnloadAdapterRequest::default() };
    assert!(served.client.unload_adapter(unload.clone()).await.expect("allowed").into_inner().found);
    assert!(!served.client.unload_adapter(unload).await.expect("allowed").into_inner().found);
    let mut got = Vec::new();
    while let Some(delta) = next(&mut stream).await.expect("no fault") {
        got.extend(delta.token_ids);
    }
    assert_eq!(got, expected);
    // A worker that has started since gets it without a name.
    other.client.load_adapter(load("")).await.expect("allowed");
    let sample = wire::Sample { index: 0, delivered_token_ids: expected[..7].to_vec() };
    let call = wire::GenerateRequest { adapter: id, samples: vec![sample], ..request("moved", 20) };
    let mut stream = other.client.generate(call).await.expect("taken").into_inner();
    let mut rest = Vec::new();
    while let Some(delta) = next(&mut stream).await.expect("no fault") {
        rest.extend(delta.token_ids);
    }
    assert_eq!(rest, expected[7..]);
    served.stop().await.expect("it drains");
    other.stop().await.expect("it drains");
}
