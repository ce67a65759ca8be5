//! Streams with several readers, over the wire: Attach, joining Generate, Release, linger.

use super::*;

const KEY: [u8; 16] = *b"the stream's key";

fn keyed(id: &str, max_tokens: u32, linger: Duration) -> wire::GenerateRequest {
    let linger_ms = linger.as_millis() as u64;
    wire::GenerateRequest { stream_key: KEY.to_vec(), linger_ms, ..request(id, max_tokens) }
}

fn attach(id: &str, from_position: u32) -> wire::AttachRequest {
    wire::AttachRequest {
        request_id: id.into(),
        stream_key: KEY.to_vec(),
        samples: vec![wire::SamplePosition { index: 0, from_position }],
        from_prompt_position: 0,
        linger_ms: 60_000,
    }
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

async fn undisturbed(max_tokens: u32) -> Vec<u32> {
    let mut served = serve_fake(FakeOptions::default()).await;
    let stream = served.client.generate(request("x", max_tokens)).await.expect("taken").into_inner();
    let (whole, ..) = read(stream, 40).await.expect("no fault");
    served.stop().await.expect("a clean end");
    whole
}

/// Waits for a load report that `wanted` accepts.
async fn load_where(served: &mut Served, wanted: impl Fn(&wire::Load) -> bool) -> wire::Load {
    let ask = wire::WatchRequest { epoch: 0, next_sequence: 0, router_id: 9 };
    let mut events = served.client.watch(ask).await.expect("taken").into_inner();
    loop {
        let event = next(&mut events).await.expect("no fault").expect("an event");
        if let Some(Event::Load(load)) = event.event
            && wanted(&load)
        {
            return load;
        }
    }
}

#[tokio::test]
async fn a_dropped_reader_leaves_a_stream_that_another_one_reads_from_anywhere() {
    let whole = undisturbed(120).await;
    let mut served = serve_fake(slow()).await;
    let request = keyed("first", 120, LONG);
    let mut stream = served.client.generate(request).await.expect("taken").into_inner();
    next(&mut stream).await.expect("no fault").expect("a delta");
    drop(stream);
    for (reader, from) in [("again", 40), ("middle", 71), ("ahead", 130)] {
        let stream = served.client.attach(attach(reader, from)).await.expect("it is kept").into_inner();
        let (tokens, end, _) = read(stream, from).await.expect("no fault");
        assert_eq!(tokens, whole[from as usize - 40..], "{reader}");
        assert_eq!(end.reason(), wire::FinishReason::Length);
    }
    let late = served.client.attach(attach("late", 160)).await.expect("it is kept").into_inner();
    assert!(read(late, 160).await.expect("no fault").0.is_empty(), "only its end");
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_repeated_request_joins_its_own_stream_and_computes_nothing() {
    let whole = undisturbed(100).await;
    let mut served = serve_fake(FakeOptions::default()).await;
    let first = served.client.generate(keyed("first", 100, LONG)).await.expect("taken").into_inner();
    read(first, 40).await.expect("no fault");
    let steps = load_where(&mut served, |load| load.running == 0).await.step;
    for delivered in [0, 1, 50, 100] {
        let mut again = keyed(&format!("after {delivered}"), 100, LONG);
        again.samples[0].delivered_token_ids = whole[..delivered].to_vec();
        let stream = served.client.generate(again).await.expect("joined").into_inner();
        let (tokens, ..) = read(stream, 40 + delivered as u32).await.expect("no fault");
        assert_eq!(tokens, whole[delivered..]);
    }
    assert_eq!(load_where(&mut served, |_| true).await.step, steps, "nothing was computed");
    // The same key with other tokens is computed separately.
    let mut other = keyed("other", 100, LONG);
    other.prompt_token_ids[0] += 1;
    let stream = served.client.generate(other).await.expect("taken").into_inner();
    assert_ne!(read(stream, 40).await.expect("no fault").0, whole);
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_release_ends_a_stream_without_other_readers_at_once() {
    let mut served = serve_fake(slow()).await;
    let blocks = load_where(&mut served, |_| true).await.free_blocks;
    let release = |id: &str| wire::ReleaseRequest { request_id: id.into() };
    let mut first = served.client.generate(keyed("first", 400, LONG)).await.expect("taken").into_inner();
    let mut second = served.client.attach(attach("second", 40)).await.expect("it is kept").into_inner();
    assert!(!served.client.release(release("nobody")).await.expect("answered").into_inner().found);
    assert!(served.client.release(release("first")).await.expect("answered").into_inner().found);
    while next(&mut first).await.expect("a quiet end").is_some() {}
    assert!(next(&mut second).await.expect("no fault").is_some(), "the other one reads on");
    // The stream is dropped first and released later: a router's release may come late.
    drop(second);
    assert!(served.client.release(release("second")).await.expect("answered").into_inner().found);
    let load = load_where(&mut served, |load| load.running + load.waiting == 0).await;
    assert_eq!(load.free_blocks, blocks);
    let gone = served.client.attach(attach("third", 40)).await.expect_err("nothing is kept");
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn attaching_to_a_dropped_stream_says_why() {
    let mut served = serve_fake(slow()).await;
    let missing = served.client.attach(attach("a", 40)).await.expect_err("no such key");
    assert_eq!(missing.code(), Code::NotFound, "{missing}");
    let mut resumed = keyed("first", 400, LONG);
    resumed.samples = vec![wire::Sample { index: 1, delivered_token_ids: vec![7; 5] }];
    resumed.sampling.as_mut().expect("it has some").logprobs = Some(0);
    let stream = served.client.generate(resumed).await.expect("taken").into_inner();
    let mut asks = attach("second", 40);
    let other_sample = served.client.attach(asks.clone()).await.expect_err("sample 1 only");
    assert_eq!(other_sample.code(), Code::OutOfRange, "{other_sample}");
    asks.samples[0].index = 1;
    let before = served.client.attach(asks.clone()).await.expect_err("kept from 45 on");
    assert_eq!(before.code(), Code::OutOfRange);
    assert!(before.message().contains("sample 1 is kept from position 45 on, not from 40"), "{before}");
    asks.request_id = "first".into();
    let twice = served.client.attach(asks.clone()).await.expect_err("the name reads");
    assert_eq!(twice.code(), Code::AlreadyExists, "{twice}");
    for (change, expected) in [
        ((|it| it.stream_key = vec![1; 15]) as fn(&mut wire::AttachRequest), "stream_key is 15 bytes"),
        (|it| it.stream_key.clear(), "stream_key is missing; allowed: 16 bytes"),
        (|it| it.samples.clear(), "samples is 0"),
        (|it| it.request_id.clear(), "request_id is 0 bytes"),
    ] {
        let mut wrong = asks.clone();
        change(&mut wrong);
        let status = served.client.attach(wrong).await.expect_err(expected);
        assert_eq!(status.code(), Code::InvalidArgument, "{expected}: {status}");
        assert!(status.message().contains(expected), "{expected}: {status}");
    }
    drop(stream);
    served.stop().await.expect("a clean end");
}

#[tokio::test]
async fn watchers_are_told_the_keys_of_streams() {
    let mut served = serve_fake(slow()).await;
    let ask = wire::WatchRequest { epoch: 0, next_sequence: 0, router_id: 9 };
    let mut events = served.client.watch(ask).await.expect("taken").into_inner();
    let stream = served.client.generate(keyed("first", 400, LONG)).await.expect("taken").into_inner();
    let admitted = loop {
        let event = next(&mut events).await.expect("no fault").expect("an event");
        if let Some(Event::Admitted(admitted)) = event.event {
            break admitted;
        }
    };
    assert_eq!(admitted.stream_key, KEY);
    let mut late = served.client.watch(ask).await.expect("taken").into_inner();
    let first = next(&mut late).await.expect("no fault").expect("an event").event;
    let Some(Event::Snapshot(snapshot)) = first else { panic!("{first:?}") };
    assert_eq!(snapshot.stream_keys, [KEY.to_vec()]);
    drop(stream);
    served.stop().await.expect("a clean end");
}
