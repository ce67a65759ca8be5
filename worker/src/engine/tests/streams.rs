//! Requests with many readers, or with none.

use super::scene::*;
use super::*;

fn plain(max_tokens: u32) -> NewRequest {
    request(SamplingParams { max_tokens, ..SamplingParams::default() }, 1)
}

#[tokio::test]
async fn a_stream_can_be_read_from_every_position_while_it_runs_and_after() {
    let whole = undisturbed(plain(30)).await.tokens(0);
    let mut scene = Scene::new(fake());
    let first = scene.submit(keyed("first", plain(30))).await.expect("taken");
    drop(first);
    let mut readers = Vec::new();
    for from in 0..=30 {
        // One step each: later readers start behind the computed tokens, earlier ones ahead of them.
        let stream = scene.attach(&format!("reader {from}"), &[(0, PROMPT_LEN + from)]).await.expect("kept");
        readers.push((from, stream, Got::default()));
        for (_, stream, got) in &mut readers {
            got.read(stream);
        }
    }
    scene.run();
    for (from, mut stream, mut got) in readers {
        assert_eq!(got.read(&mut stream), Some(Ok(())), "reader {from}");
        assert_eq!(got.tokens(0), whole[from as usize..], "reader {from}");
        assert_eq!(got.samples[&0].finish, Some(FinishReason::Length));
    }
    assert_eq!((scene.engine.counts().accepted, scene.engine.counts().completed), (1, 1));
    let beyond = scene.attach("beyond", &[(0, PROMPT_LEN + 31)]).await.map(drop);
    let ended = OutOfRange::PastEnd { index: 0, from: PROMPT_LEN + 31, end: PROMPT_LEN + 30 };
    assert_eq!(beyond, Err(AttachError::OutOfRange(ended)));
    scene.pass(LINGER);
    scene.turn();
    assert_eq!(scene.attach("late", &[(0, PROMPT_LEN)]).await.map(drop), Err(AttachError::NotFound));
    assert_eq!(scene.engine.audit_at_rest(), Ok(()));
}

#[tokio::test]
async fn an_orphan_continues_for_its_linger_and_no_longer() {
    let mut scene = Scene::new(fake());
    let first = scene.submit(keyed("first", plain(10_000))).await.expect("taken");
    drop(first);
    scene.turn();
    scene.pass(LINGER - Duration::from_millis(1));
    scene.turn();
    assert_eq!(scene.engine.counts().running, 1, "there is still time");
    let again = scene.attach("again", &[(0, PROMPT_LEN)]).await.expect("kept");
    scene.pass(LINGER * 100);
    scene.turn();
    assert_eq!(scene.engine.counts().running, 1, "it has a reader");
    drop(again);
    scene.turn();
    scene.pass(LINGER);
    scene.turn();
    assert_eq!((scene.engine.counts().running, scene.engine.counts().cancelled), (0, 1));
    scene.run();
    assert_eq!(scene.engine.audit_at_rest(), Ok(()));
}

#[tokio::test]
async fn a_linger_is_bounded_and_needs_a_key() {
    let mut scene = Scene::new(fake());
    let forever = Submission { linger: Duration::MAX, ..keyed("forever", plain(10_000)) };
    let keyless = Submission { stream_key: None, ..keyed("keyless", plain(10_000)) };
    drop(scene.submit(forever).await.expect("taken"));
    drop(scene.submit(keyless).await.expect("taken"));
    scene.turn();
    assert_eq!(scene.engine.counts().running, 1, "no reader can find a stream without a key");
    scene.pass(MAX_LINGER);
    scene.turn();
    assert_eq!(scene.engine.counts().running, 0);
}

#[tokio::test]
async fn the_last_readers_release_frees_all_blocks_in_the_same_turn() {
    let mut scene = Scene::new(fake());
    let blocks = scene.free_blocks();
    for round in 0..50 {
        // At every age of a request, starting before its first step.
        let [name, other] = ["first", "second"].map(|name| format!("{name} {round}"));
        let first = scene.submit(keyed(&name, plain(10_000))).await.expect("taken");
        for _ in 0..round {
            scene.turn();
        }
        let second = scene.attach(&other, &[(0, PROMPT_LEN)]).await.expect("kept");
        assert!(scene.free_blocks() < blocks);
        assert!(scene.release(&name).await);
        assert!(scene.free_blocks() < blocks, "the other one still reads");
        assert!(!scene.release(&name).await, "only once");
        // A release after the stream was dropped also counts.
        if round % 2 == 0 {
            drop(second);
            assert!(scene.release(&other).await);
        } else {
            assert!(scene.release(&other).await);
            let (mut got, mut second) = (Got::default(), second);
            assert_eq!(got.read(&mut second), Some(Ok(())), "a released reader's stream ends");
        }
        assert_eq!(scene.free_blocks(), blocks, "round {round}");
        drop(first);
    }
    scene.run();
    assert_eq!(scene.engine.counts().cancelled, 50);
    assert_eq!(scene.engine.audit_at_rest(), Ok(()));
}

#[tokio::test]
async fn a_released_stream_that_has_ended_is_forgotten() {
    let mut scene = Scene::new(fake());
    let mut first = scene.submit(keyed("first", plain(3))).await.expect("taken");
    scene.run();
    assert!(scene.release("first").await);
    assert_eq!(Got::default().read(&mut first), Some(Ok(())));
    drop(first);
    assert_eq!(scene.attach("second", &[(0, PROMPT_LEN)]).await.map(drop), Err(AttachError::NotFound));
    assert_eq!(scene.engine.audit_at_rest(), Ok(()));
}

#[tokio::test]
async fn a_slow_reader_is_ended_and_the_others_read_on() {
    let params = SamplingParams { max_tokens: 400, logprobs: Some(20), ..SamplingParams::default() };
    let asked = request(params, 64);
    let roomy = FakeOptions { kv_blocks: 2048, ..fake() };
    let whole = undisturbed_in(roomy.clone(), asked.clone()).await;
    let mut scene = Scene::new(roomy);
    let mut lazy = scene.submit(keyed("lazy", asked)).await.expect("taken");
    let from: Vec<(u32, u32)> = (0..64).map(|index| (index, PROMPT_LEN)).collect();
    let mut eager = scene.attach("eager", &from).await.expect("kept");
    let (mut got, mut most) = (Got::default(), 0);
    while scene.turn() == Turn::Worked {
        got.read(&mut eager);
        most = most.max(scene.engine.outbox.bytes());
    }
    assert_eq!(got.read(&mut eager), Some(Ok(())));
    assert_eq!(got.samples, whole.samples);
    let fault = Got::default().read(&mut lazy);
    let Some(Err(StreamFault::SlowReader { bytes })) = fault else { panic!("{fault:?}") };
    assert!((MAX_UNREAD_BYTES..2 * MAX_UNREAD_BYTES).contains(&bytes));
    assert!(most < 2 * RING_BYTES, "{most} bytes were held");
    // The ring has dropped its beginning and kept its end.
    let late = scene.attach("late", &from).await.map(drop);
    assert!(matches!(late, Err(AttachError::OutOfRange(OutOfRange::Tokens { .. }))), "{late:?}");
    let at = |&(index, _): &(u32, u32)| (index, PROMPT_LEN + 390);
    let near: Vec<(u32, u32)> = from.iter().map(at).collect();
    let mut near = scene.attach("near", &near).await.expect("kept");
    let mut rest = Got::default();
    assert_eq!(rest.read(&mut near), Some(Ok(())));
    assert_eq!(rest.tokens(7), whole.tokens(7)[390..]);
}

#[tokio::test]
async fn a_plain_stream_keeps_nothing_that_was_read() {
    let mut scene = Scene::new(fake());
    let mut stream = scene.submit(Submission::alone("plain", plain(3000))).await.expect("taken");
    let mut got = Got::default();
    while scene.turn() == Turn::Worked {
        got.read(&mut stream);
        assert_eq!(scene.engine.outbox.bytes(), 0);
    }
    got.read(&mut stream);
    assert_eq!(got.tokens(0).len(), 3000);
}

#[tokio::test]
async fn a_repeated_request_joins_from_where_its_client_is() {
    let whole = undisturbed(plain(60)).await.tokens(0);
    let mut scene = Scene::new(fake());
    let mut readers = vec![(0, scene.submit(keyed("first", plain(60))).await.expect("taken"))];
    for had in 1..=60 {
        let mut again = plain(60);
        again.samples[0].delivered = whole[..had].to_vec();
        readers.push((had, scene.submit(keyed(&format!("had {had}"), again)).await.expect("joined")));
    }
    scene.run();
    for (had, mut stream) in readers {
        let mut got = Got::default();
        assert_eq!(got.read(&mut stream), Some(Ok(())));
        assert_eq!(got.tokens(0), whole[had..], "had {had}");
    }
    assert_eq!(scene.engine.counts().accepted, 1, "one of them was computed");
}

#[tokio::test]
async fn a_different_request_with_the_same_key_is_computed_separately() {
    let mut scene = Scene::new(fake());
    let first = scene.submit(keyed("first", plain(60))).await.expect("taken");
    for _ in 0..10 {
        scene.turn();
    }
    type Change = fn(&mut NewRequest);
    let changes: [(&str, Change); 4] = [
        ("prompt", |it| it.prompt[7] += 1),
        ("delivered", |it| it.samples[0].delivered = vec![VOCAB - 1; 5]),
        ("seed", |it| it.params = Arc::new(SamplingParams { seed: 9, ..(*it.params).clone() })),
        ("scope", |it| it.scope = CacheScope::new("model", "another tenant")),
    ];
    for (count, (name, change)) in changes.into_iter().enumerate() {
        let mut other = plain(60);
        change(&mut other);
        let expected = undisturbed_on(&mut scene, other.clone()).await;
        let mut stream = scene.submit(keyed(name, other)).await.expect("taken");
        scene.run();
        let mut got = Got::default();
        assert_eq!(got.read(&mut stream), Some(Ok(())));
        assert_eq!(got.samples, expected.samples, "{name}");
        assert_eq!(scene.engine.counts().accepted as usize, 3 + 2 * count, "{name}");
    }
    drop(first);
}

/// Output of the request on this engine, without a key.
async fn undisturbed_on(scene: &mut Scene, request: NewRequest) -> Got {
    let mut stream = scene.submit(Submission::alone("by itself", request)).await.expect("taken");
    scene.run();
    let mut got = Got::default();
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    got
}

#[tokio::test]
async fn a_resumed_stream_is_kept_from_its_clients_first_token_on() {
    let whole = undisturbed(plain(60)).await.tokens(0);
    let mut scene = Scene::new(fake());
    let mut resumed = plain(60);
    resumed.samples[0].delivered = whole[..20].to_vec();
    drop(scene.submit(keyed("resumed", resumed)).await.expect("taken"));
    // The router also died, and the client has less than the router had.
    let mut stream = scene.attach("again", &[(0, PROMPT_LEN + 4)]).await.expect("kept");
    scene.run();
    let mut got = Got::default();
    assert_eq!(got.read(&mut stream), Some(Ok(())));
    assert_eq!(got.tokens(0), whole[4..]);
}

#[tokio::test]
async fn any_reader_can_abort_a_sample_and_its_end_has_its_own_delta() {
    let mut scene = Scene::new(fake());
    let asked =
        request(SamplingParams { max_tokens: 40, seed: 3, temperature: 1.0, ..Default::default() }, 2);
    let mut first = scene.submit(keyed("first", asked)).await.expect("taken");
    for _ in 0..10 {
        scene.turn();
    }
    let mut second = scene.attach("second", &[(0, PROMPT_LEN), (1, PROMPT_LEN)]).await.expect("kept");
    assert!(scene.abort("second", 1).await);
    assert!(!scene.abort("first", 1).await, "it has ended");
    scene.run();
    for stream in [&mut first, &mut second] {
        let mut got = Got::default();
        let deltas = stream.next().await.expect("something").expect("no fault");
        let end = deltas.iter().find(|delta| delta.finish == Some(FinishReason::Abort)).expect("an end");
        assert!(end.tokens.is_empty());
        deltas.into_iter().for_each(|delta| got.add(delta));
        assert_eq!(got.read(stream), Some(Ok(())));
        assert_eq!(got.samples[&0].finish, Some(FinishReason::Length));
    }
}

#[tokio::test]
async fn prompt_scores_are_kept_for_readers_that_lack_them() {
    let params = SamplingParams { max_tokens: 5, prompt_logprobs: Some(1), ..SamplingParams::default() };
    let asked = request(params.clone(), 1);
    let whole = undisturbed(asked.clone()).await;
    assert_eq!(whole.scores.len(), PROMPT_LEN as usize - 1, "all but the first");
    let mut scene = Scene::new(fake());
    drop(scene.submit(keyed("first", asked.clone())).await.expect("taken"));
    scene.run();
    for from_score in [0, 1, 17, PROMPT_LEN] {
        let attachment =
            Attachment { from_score, ..attachment(&format!("{from_score}"), &[(0, PROMPT_LEN)]) };
        let handle = scene.handle.clone();
        let (stream, _) = tokio::join!(biased; handle.attach(attachment), async { scene.turn() });
        let mut got = Got::default();
        assert_eq!(got.read(&mut stream.expect("kept")), Some(Ok(())));
        assert!(got.scores.iter().eq(whole.scores.range(from_score..)), "from {from_score}");
        assert_eq!(got.samples, whole.samples);
    }
    // A request that no longer needs scores joins as well. One that needs them does not join a stream without
    // them.
    let without = request(SamplingParams { prompt_logprobs: None, ..params }, 1);
    drop(scene.submit(keyed("again", without.clone())).await.expect("joined"));
    assert_eq!(scene.engine.counts().accepted, 1);
    scene.pass(LINGER * 2);
    scene.turn();
    drop(scene.submit(keyed("without", without)).await.expect("taken"));
    let mut with = scene.submit(keyed("with", asked)).await.expect("taken");
    scene.run();
    let mut got = Got::default();
    assert_eq!(got.read(&mut with), Some(Ok(())));
    assert_eq!(got.scores, whole.scores);
    assert_eq!(scene.engine.counts().accepted, 3);
}

#[tokio::test]
async fn snapshots_name_the_newest_streams() {
    let mut scene = Scene::new(fake());
    let key = |n: u32| StreamKey(u128::from(n));
    for n in 0..30 {
        let submission = Submission { stream_key: Some(key(n)), ..keyed(&n.to_string(), plain(1)) };
        drop(scene.submit(submission).await.expect("taken"));
        scene.run();
    }
    assert!(scene.engine.outbox.stream_keys(20).into_iter().eq((10..30).map(key)));
    assert!(scene.engine.outbox.stream_keys(MAX_STREAM_KEYS).into_iter().eq((0..30).map(key)));
}

#[tokio::test]
async fn names_of_former_readers_do_not_pile_up() {
    let mut scene = Scene::new(fake());
    let first = scene.submit(keyed("first", plain(10_000))).await.expect("taken");
    for round in 0..500 {
        drop(scene.attach(&format!("reader {round}"), &[(0, PROMPT_LEN)]).await.expect("kept"));
    }
    assert!(scene.engine.outbox.names() <= 64, "{} names", scene.engine.outbox.names());
    assert!(scene.release("first").await, "a reader that is still here is not forgotten");
    drop(first);
}

#[tokio::test]
async fn a_release_that_overtakes_its_request_counts() {
    let mut scene = Scene::new(fake());
    assert!(!scene.release("first").await, "not here yet");
    let refused = scene.submit(keyed("first", plain(60))).await.map(drop);
    assert_eq!(refused, Err(SubmitError::Released { id: "first".into() }));
    assert_eq!(scene.engine.audit_at_rest(), Ok(()));
    assert!(scene.submit(keyed("first", plain(60))).await.is_ok(), "once");
    assert!(!scene.release("much later").await);
    scene.pass(LINGER * 2);
    assert!(scene.submit(keyed("much later", plain(60))).await.is_ok());
}

#[tokio::test]
async fn kept_output_is_bounded_ended_streams_go_first_and_readers_lose_nothing() {
    const LIMIT: usize = 4 * 1000;
    let whole = undisturbed(plain(400)).await.tokens(0);
    let mut scene = Scene::new(fake());
    scene.engine.outbox.set_limit(LIMIT);
    let key = |n: u32| StreamKey(u128::from(n));
    let mut lazy = scene
        .submit(Submission { stream_key: Some(key(99)), ..keyed("lazy", plain(400)) })
        .await
        .expect("taken");
    for n in 0..4 {
        let submission = Submission { stream_key: Some(key(n)), ..keyed(&n.to_string(), plain(400)) };
        drop(scene.submit(submission).await.expect("taken"));
        scene.run();
        assert!(scene.engine.outbox.bytes() <= LIMIT, "{} bytes", scene.engine.outbox.bytes());
        // Each one expires slightly later.
        scene.pass(Duration::from_millis(1));
    }
    let mut kept = Vec::new();
    for n in [99, 0, 1, 2, 3] {
        let attachment = Attachment { key: key(n), ..attachment(&format!("reader {n}"), &[(0, PROMPT_LEN)]) };
        let handle = scene.handle.clone();
        let (attached, _) = tokio::join!(biased; handle.attach(attachment), async { scene.turn() });
        kept.push(attached.is_ok());
    }
    assert_eq!(kept, [false, false, false, false, true], "the last one beside what only its reader holds");
    let mut got = Got::default();
    assert_eq!(got.read(&mut lazy), Some(Ok(())));
    assert_eq!(got.tokens(0), whole, "unread output is not dropped");
}

#[tokio::test]
async fn a_running_streams_beginning_is_dropped_when_room_runs_out() {
    let mut scene = Scene::new(fake());
    scene.engine.outbox.set_limit(400);
    let mut stream = scene.submit(keyed("first", plain(400))).await.expect("taken");
    let mut got = Got::default();
    while scene.turn() == Turn::Worked {
        got.read(&mut stream);
        assert!(scene.engine.outbox.bytes() <= 408, "{} bytes", scene.engine.outbox.bytes());
        if scene.engine.counts().running == 1 && got.tokens(0).len() == 200 {
            let from_start = scene.attach("again", &[(0, PROMPT_LEN)]).await.map(drop);
            assert!(matches!(from_start, Err(AttachError::OutOfRange(_))), "{from_start:?}");
        }
    }
    got.read(&mut stream);
    assert_eq!(got.tokens(0).len(), 400);
}
