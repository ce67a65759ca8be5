//! Draining: what a worker refuses, finishes and hands back.

use super::*;

/// Reads a stream that was cut short: its tokens, each position once, and whether it was handed back.
async fn read_cut(mut stream: Streaming<wire::GenerateDelta>) -> (Vec<u32>, bool) {
    let (mut tokens, mut given_back) = (Vec::new(), false);
    while let Some(delta) = next(&mut stream).await.expect("no fault") {
        assert!(!given_back, "nothing follows the hand-back");
        assert_eq!(delta.from_position, 40 + tokens.len() as u32, "no hole, nothing twice");
        given_back = delta.hand_back;
        assert!(!given_back || (delta.token_ids.is_empty() && delta.finish.is_none()), "it comes alone");
        tokens.extend(delta.token_ids);
    }
    (tokens, given_back)
}

async fn draining(events: &mut Streaming<wire::WorkerEvent>) {
    loop {
        let event = next(events).await.expect("no fault").expect("an event");
        if matches!(event.event, Some(Event::Load(load)) if load.draining) {
            break;
        }
    }
}

async fn watch(served: &mut Served) -> Streaming<wire::WorkerEvent> {
    let ask = wire::WatchRequest { epoch: 0, next_sequence: 0, router_id: 1 };
    served.client.watch(ask).await.expect("taken").into_inner()
}

#[tokio::test]
async fn a_drain_refuses_new_requests_finishes_short_ones_and_hands_back_the_rest() {
    let config = WorkerConfig {
        drain_grace: Duration::from_millis(500),
        shutdown_timeout: Duration::from_secs(1),
        ..config()
    };
    let mut served = serve_with(config, slow()).await;
    let mut events = watch(&mut served).await;
    let long = served.client.generate(request("long", 470)).await.expect("taken").into_inner();
    let short = served.client.generate(request("short", 10)).await.expect("taken").into_inner();
    drop(served.shutdown.take());
    draining(&mut events).await;
    let refused = served.client.generate(request("new", 1)).await.expect_err("it drains");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let (short, (tokens, given_back)) = tokio::join!(read(short, 40), read_cut(long));
    assert_eq!(short.expect("it had time").0.len(), 10);
    assert!(given_back && tokens.len() < 470);
    while let Ok(Some(_)) = next(&mut events).await {}
    served.stop().await.expect("a clean end");
    // Resumed on another worker, the request continues with the same tokens.
    let mut other = serve_fake(FakeOptions::default()).await;
    let whole = other.client.generate(request("whole", 470)).await.expect("taken").into_inner();
    let (whole, ..) = read(whole, 40).await.expect("no fault");
    assert_eq!(tokens, whole[..tokens.len()], "all that was streamed is right");
    let mut resumed = request("long", 470);
    resumed.samples[0].delivered_token_ids = tokens.clone();
    let rest = other.client.generate(resumed).await.expect("taken").into_inner();
    let (rest, ..) = read(rest, 40 + tokens.len() as u32).await.expect("no fault");
    assert_eq!([tokens, rest].concat(), whole);
    other.stop().await.expect("a clean end");
}

#[tokio::test]
async fn without_grace_everything_is_handed_back_at_once_even_waiting_and_unread_requests() {
    let mut config = WorkerConfig {
        drain_grace: Duration::ZERO,
        shutdown_timeout: Duration::from_millis(500),
        ..config()
    };
    // All may arrive before the engine has started one.
    config.scheduler.max_num_queued_reqs = 5;
    let mut served = serve_with(config, slow()).await;
    let mut events = watch(&mut served).await;
    let mut streams = Vec::new();
    for id in ["a", "b", "c", "d", "waits"] {
        let request = wire::GenerateRequest {
            stream_key: format!("{id:>16}").into_bytes(),
            linger_ms: 60_000,
            ..request(id, 400)
        };
        streams.push(served.client.generate(request).await.expect("taken").into_inner());
    }
    drop(streams.remove(0));
    drop(served.shutdown.take());
    draining(&mut events).await;
    for stream in streams {
        assert!(read_cut(stream).await.1, "given back");
    }
    drop(events);
    served.stop().await.expect("it waits neither for the grace nor for the orphan");
}

#[tokio::test]
async fn after_the_grace_a_worker_asks_routers_to_move_its_streams_and_keeps_those_that_stay() {
    let config =
        WorkerConfig { drain_grace: Duration::ZERO, shutdown_timeout: Duration::from_secs(60), ..config() };
    let mut served = serve_with(config, slow()).await;
    let mut events = watch(&mut served).await;
    let leaves = served.client.generate(request("leaves", 470)).await.expect("taken").into_inner();
    let stays = served.client.generate(request("stays", 60)).await.expect("taken").into_inner();
    drop(served.shutdown.take());
    loop {
        let event = next(&mut events).await.expect("no fault").expect("an event");
        if matches!(event.event, Some(Event::Load(load)) if load.draining && load.giving_back) {
            break;
        }
    }
    drop(leaves);
    assert_eq!(read(stays, 40).await.expect("nobody cuts it").0.len(), 60);
    drop(events);
    served.stop().await.expect("it ends with its last stream, long before its time is over");
}
