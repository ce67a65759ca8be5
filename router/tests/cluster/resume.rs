//! Streams that outlive a connection, a drain, a router or a client.

use skein_proto::version::Version;
use skein_router::generator::FleetView;
use skein_router::links::transport::Grpc;
use skein_router::request::{Journey, Resume, ResumeSample};
use tonic::Code;

use super::*;

impl Scene {
    /// Another router over the same workers.
    async fn another_router(&self) -> Scene {
        let (changes, receiver) = discovery::in_process();
        let tuning = Tuning { seed: Some(2) };
        let config = config(AdmissionConfig::default(), RecoveryConfig::default());
        let cluster = Cluster::start_with(&config, receiver, MODEL, tuning, Arc::new(Grpc::default()));
        let scene = Scene { script: self.script.clone(), workers: Vec::new(), changes, cluster };
        for (name, worker) in self.workers.iter().enumerate() {
            scene.join(name as u32, worker.address).await;
        }
        scene.wait_for_ready(self.workers.len()).await;
        scene
    }

    fn generates(&self) -> usize {
        lock(&self.script.calls).len()
    }

    /// Number of Attach calls, and how many of them found their stream.
    fn attaches(&self) -> (usize, usize) {
        let attaches = lock(&self.script.attaches);
        (attaches.len(), attaches.iter().filter(|(_, _, found)| *found).count())
    }

    fn releases(&self) -> usize {
        lock(&self.script.releases).len()
    }
}

#[tokio::test]
async fn a_broken_connection_costs_no_computation() {
    let scene = Scene::new(2).await;
    for request in kinds() {
        let expected = scene.run(request.clone()).await;
        let deltas: usize = expected.samples.iter().map(|(tokens, _, _)| tokens.len() + 1).sum();
        for cut in 0..deltas {
            let (generates, attaches, releases) = (scene.generates(), scene.attaches().1, scene.releases());
            scene.script.faults([Fault::Drop(cut)]);
            let request = TokenRequest { id: format!("{}-{cut}", request.id).into(), ..request.clone() };
            let got = scene.run(request).await;
            assert_eq!(got.error, None);
            assert_eq!(got.samples, expected.samples, "cut after {cut}");
            assert_eq!(got.prompt_logprobs, expected.prompt_logprobs, "cut after {cut}");
            assert_eq!(scene.generates(), generates + 1, "computed once");
            assert_eq!(scene.attaches().1, attaches + 1);
            wait_for("the old reader's release", || scene.releases() == releases + 1).await;
        }
    }
}

/// An exchange's own status says nothing about its requests, whatever its code means for a request.
#[tokio::test]
async fn requests_outlive_the_exchange_however_it_ends() {
    let request = request("ends", 0..9, 12);
    let expected = Scene::new(1).await.run(request.clone()).await;
    for code in (1..=16).map(Code::from_i32).filter(|code| *code != Code::Unimplemented) {
        let scene = Scene::new(2).await;
        scene.script.pace_ms.store(1, Ordering::SeqCst);
        *lock(&scene.script.exchange_ends) = Some(code);
        let got = scene.run(request.clone()).await;
        assert_eq!((got.error, got.samples), (None, expected.samples.clone()), "{code:?}");
        assert_eq!(scene.script.exchanges.load(Ordering::SeqCst), 2, "{code:?}: another one was opened");
    }
}

/// During a rolling update, workers of the release before are asked for each request, with the same outcome.
#[tokio::test]
async fn workers_that_know_no_exchange_are_called_for_each_request() {
    let scene = Scene::new(2).await;
    let exchanges = |scene: &Scene| scene.script.exchanges.load(Ordering::SeqCst);
    let request = request("mixed", 0..9, 12);
    let expected = scene.run(request.clone()).await;
    assert_eq!((expected.error.clone(), exchanges(&scene)), (None, 1));
    let other = Scene::new(0).await;
    other.script.without_exchanges.store(true, Ordering::SeqCst);
    let worker = Mock::start(0, 100, ANY_PORT, &other.script);
    other.join(0, worker.address).await;
    other.wait_for_ready(1).await;
    for cut in 0..5 {
        other.script.faults([Fault::Drop(cut)]);
        let got = other.run(TokenRequest { id: format!("cut-{cut}").into(), ..request.clone() }).await;
        assert_eq!((got.error, got.samples), (None, expected.samples.clone()), "cut after {cut}");
    }
    assert_eq!(exchanges(&other), 1, "asked once");
}

#[tokio::test]
async fn a_stream_that_cannot_be_attached_to_is_computed_anew() {
    let scene = Scene::new(2).await;
    let request = request("anew", 0..9, 12);
    let expected = scene.run(request.clone()).await;
    // Attached, but the stream sends nothing: Attach is tried only once.
    let generates = scene.generates();
    scene.script.faults([Fault::Drop(3), Fault::Drop(0)]);
    let again = TokenRequest { id: "again".into(), ..request.clone() };
    assert_eq!(scene.run(again).await.samples, expected.samples);
    assert_eq!((scene.generates(), scene.attaches()), (generates + 2, (1, 1)));
    // The worker no longer has the stream.
    wait_for("a sign of life", || scene.ready() == 2).await;
    scene.script.faults([Fault::Break(3)]);
    let lost = TokenRequest { id: "lost".into(), ..request };
    assert_eq!(scene.run(lost).await.samples, expected.samples);
    assert_eq!((scene.generates(), scene.attaches()), (generates + 4, (2, 1)));
}

#[tokio::test]
async fn a_draining_worker_hands_back_and_nobody_is_to_blame() {
    for (request, cut) in
        [(0, 0), (0, 5), (2, 7), (3, 1), (3, 9)].map(|(kind, cut)| (kinds().remove(kind), cut))
    {
        let scene = Scene::new(2).await;
        let expected = scene.run(request.clone()).await;
        let again = TokenRequest { id: "again".into(), ..request };
        scene.script.faults([Fault::HandBack(cut)]);
        let mut stream = scene.submit(again.clone()).await.expect("it is taken");
        let mut got = Outcome { samples: vec![Default::default(); again.n as usize], ..Outcome::default() };
        while let Some(delta) = stream.next().await {
            let delta = delta.expect("no error");
            let (tokens, logprobs, finish) = &mut got.samples[delta.sample_index as usize];
            tokens.extend(delta.tokens);
            logprobs.extend(delta.logprobs);
            *finish = delta.finish;
            got.prompt_logprobs.extend(delta.prompt_logprobs);
        }
        assert_eq!(stream.journey(), Journey { moves: 1, version: Version(1), ..Journey::default() });
        assert_eq!((got.samples, got.prompt_logprobs), (expected.samples, expected.prompt_logprobs));
        let mut states: Vec<String> =
            scene.cluster.snapshot().workers.into_iter().map(|worker| worker.state()).collect();
        states.sort();
        assert_eq!(states, ["draining", "ready"]);
        assert_eq!(scene.attaches().0, 0, "what was handed back is not there any more");
    }
}

#[tokio::test]
async fn the_same_request_again_joins_its_own_stream() {
    let scene = Scene::new(2).await;
    let request = sampled(request("twice", 0..9, 40), 2, |sampling| sampling.logprobs = Some(1));
    scene.script.pace_ms.store(3, Ordering::SeqCst);
    let mut first = scene.submit(request.clone()).await.expect("it is taken");
    first.next().await.expect("a delta").expect("no error");
    let second = scene.submit(request.clone()).await.expect("it joins");
    assert_eq!((scene.generates(), scene.attaches()), (1, (1, 1)));
    assert_eq!(scene.cluster.snapshot().running.requests, 2);
    // The first reader leaves; the second receives everything.
    drop(first);
    let got = collect(&request, second).await;
    assert_eq!(got.error, None);
    scene.script.pace_ms.store(0, Ordering::SeqCst);
    let elsewhere = TokenRequest { id: "once".into(), ..request };
    assert_eq!(got.samples, scene.run(elsewhere).await.samples);
    assert_eq!(scene.cluster.snapshot().running.requests, 0);
}

#[tokio::test]
async fn a_client_comes_back_through_another_router() {
    let scene = Scene::new(3).await;
    let other = scene.another_router().await;
    let request = sampled(request("traveller", 0..9, 40), 2, |sampling| sampling.prompt_logprobs = Some(0));
    let expected = scene.run(TokenRequest { id: "undisturbed".into(), ..request.clone() }).await;
    lock(&scene.script.calls).clear();
    scene.script.pace_ms.store(2, Ordering::SeqCst);
    let mut stream = scene.submit(request.clone()).await.expect("it is taken");
    let mut delivered = vec![Vec::new(); 2];
    while delivered.iter().map(Vec::len).sum::<usize>() < 15 {
        let delta = stream.next().await.expect("a delta").expect("no error");
        delivered[delta.sample_index as usize].extend(delta.tokens);
    }
    // The stream waits until the other router knows of it.
    scene.script.pace_ms.store(u32::MAX, Ordering::SeqCst);
    let knows = || other.cluster.workers().iter().any(|worker| worker.reported.running > 0);
    wait_for("a report to the other router", knows).await;
    scene.script.pace_ms.store(2, Ordering::SeqCst);
    // The first router leaves without notifying the worker.
    scene.cluster.leave();
    drop(stream);
    let sample = |(index, delivered)| ResumeSample { index: index as u32, delivered };
    let samples = delivered.clone().into_iter().enumerate().map(sample).collect();
    let resume = Some(Arc::new(Resume { samples, prompt_logprobs_done: true }));
    let mut rest = other.submit(TokenRequest { resume, ..request.clone() }).await.expect("it is taken");
    let mut finishes = vec![None; 2];
    while let Some(delta) = rest.next().await {
        let delta = delta.expect("no error");
        let tokens = &mut delivered[delta.sample_index as usize];
        assert_eq!(delta.from_position as usize, request.prompt.len() + tokens.len(), "exactly the rest");
        assert!(delta.prompt_logprobs.is_empty(), "those are delivered");
        tokens.extend(delta.tokens);
        finishes[delta.sample_index as usize] = delta.finish;
    }
    let got: Vec<_> = delivered.into_iter().zip(finishes).collect();
    let expected: Vec<_> = expected.samples.into_iter().map(|(tokens, _, finish)| (tokens, finish)).collect();
    assert_eq!(got, expected);
    assert_eq!((scene.generates(), scene.attaches(), scene.releases()), (1, (1, 1), 0));
}

#[tokio::test]
async fn a_resume_that_finds_nothing_is_computed_from_what_is_delivered() {
    let scene = Scene::new(2).await;
    let request = sampled(request("late", 0..9, 30), 2, |_| {});
    let expected = scene.run(TokenRequest { id: "undisturbed".into(), ..request.clone() }).await;
    for have in 0..expected.samples[1].0.len() {
        // Sample 0 is no longer wanted.
        let delivered = expected.samples[1].0[..have].to_vec();
        let resume =
            Resume { samples: vec![ResumeSample { index: 1, delivered }], prompt_logprobs_done: false };
        let id = format!("late-{have}");
        let resumed = TokenRequest { id: id.into(), resume: Some(Arc::new(resume)), ..request.clone() };
        let mut rest = scene.submit(resumed).await.expect("it is taken");
        let mut tokens = expected.samples[1].0[..have].to_vec();
        while let Some(delta) = rest.next().await {
            let delta = delta.expect("no error");
            assert_eq!(delta.sample_index, 1);
            tokens.extend(delta.tokens);
        }
        assert_eq!(tokens, expected.samples[1].0, "from {have}");
    }
    let nothing = TokenRequest { resume: Some(Arc::default()), ..request };
    let mut stream = scene.submit(nothing).await.expect("there is nothing to do");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn readers_that_leave_for_good_say_so() {
    let scene = Scene::new(1).await;
    scene.run(request("whole", 0..9, 5)).await;
    scene.script.pace_ms.store(20, Ordering::SeqCst);
    let mut gone = scene.submit(request("gone", 0..9, 4000)).await.expect("it is taken");
    gone.next().await.expect("a delta").expect("no error");
    drop(gone);
    let left = |scene: &Scene| -> Vec<String> {
        lock(&scene.script.releases)
            .iter()
            .map(|(_, id)| id.split(['#', '.']).next().unwrap_or("").into())
            .collect()
    };
    wait_for("the release", || !left(&scene).is_empty()).await;
    let deadline = Some(clock::now() + Duration::from_millis(100));
    scene.run(TokenRequest { deadline, ..request("late", 0..9, 4000) }).await;
    let mut aborted = scene.submit(request("aborted", 0..9, 4000)).await.expect("it is taken");
    aborted.abort_sample(0);
    assert!(aborted.next().await.is_none_or(|delta| delta.is_ok()));
    drop(aborted);
    wait_for("the others", || left(&scene).len() == 3).await;
    let mut left = left(&scene);
    left.sort();
    assert_eq!(left, ["aborted", "gone", "late"], "and one that got its end needs not");
}

#[tokio::test]
async fn an_inexact_resume_is_told() {
    let scene = Scene::new(0).await;
    scene.script.inexact.store(true, Ordering::SeqCst);
    let workers = [0, 1].map(|name| Mock::start(name, 100 + u64::from(name), ANY_PORT, &scene.script));
    for (name, worker) in workers.iter().enumerate() {
        scene.join(name as u32, worker.address).await;
    }
    scene.wait_for_ready(2).await;
    for (id, fault, exact) in [
        ("whole", None, true),
        ("nothing yet", Some(Fault::Break(0)), true),
        ("cut", Some(Fault::Break(4)), false),
    ] {
        wait_for("signs of life", || scene.ready() == 2).await;
        scene.script.faults(fault);
        let mut stream = scene.submit(request(id, 0..9, 12)).await.expect("it is taken");
        while let Some(delta) = stream.next().await {
            delta.expect("no error");
        }
        assert_eq!(
            stream.journey(),
            Journey { moves: u32::from(fault.is_some()), resume_exact: exact, version: Version(1) },
            "{id}"
        );
    }
}
