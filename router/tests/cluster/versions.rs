//! Workers with two versions of the model: each answer is from one of them, whatever fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use skein_choice::fleet::NewRequests;
use skein_proto::version::Version;
use skein_router::config::{AdmissionConfig, RecoveryConfig};
use skein_router::generator::TokenSource;
use skein_router::refusal::Refusal;
use skein_router::request::{Resume, ResumeSample, TokenRequest};

use crate::mock::{Fault, Mock};
use crate::{ANY_PORT, Scene, collect, request, wait_for};

impl Scene {
    /// Adds a worker with this version of the model.
    async fn add(&mut self, name: u32, version: u64) {
        let ready = self.ready();
        let worker = Mock::start_version(name, 200 + u64::from(name), ANY_PORT, &self.script, version);
        self.join(name, worker.address).await;
        self.workers.push(worker);
        self.wait_for_ready(ready + 1).await;
    }

    fn only(&self, version: u64) {
        self.cluster.set_new_requests(NewRequests::Only(Version(version)));
    }

    /// Tokens of a version, from the workers that serve it.
    async fn tokens_of(&self, version: u64, request: &TokenRequest) -> Vec<u32> {
        self.only(version);
        self.run(request.clone()).await.samples[0].0.clone()
    }
}

/// A router whose requests wait a short time for a worker.
async fn impatient(workers: u32) -> Scene {
    let recovery = RecoveryConfig { queue_timeout: Duration::from_millis(400), ..RecoveryConfig::default() };
    Scene::recovering(workers, AdmissionConfig::default(), recovery).await
}

#[tokio::test]
async fn a_stream_moves_only_to_workers_of_its_version() {
    let mut scene = Scene::new(2).await;
    scene.add(2, 2).await;
    scene.add(3, 2).await;
    let request = request("r", 0..9, 30);
    let (old, new) = (scene.tokens_of(1, &request).await, scene.tokens_of(2, &request).await);
    assert_ne!(old, new);
    let faults = [Fault::Break(5), Fault::End(3), Fault::Drop(2), Fault::Unavailable];
    for (version, expected) in [(1, &old), (2, &new)] {
        for fault in faults {
            scene.only(version);
            scene.script.faults([fault]);
            let outcome = scene.run(request.clone()).await;
            assert_eq!((&outcome.samples[0].0, outcome.error), (expected, None), "{version} {fault:?}");
        }
    }
    // New requests change their version in the middle of a stream.
    scene.only(1);
    scene.script.pace_ms.store(2, Ordering::SeqCst);
    let begun = TokenRequest { id: "begun".into(), ..request.clone() };
    let mut stream = scene.submit(begun.clone()).await.expect("it is taken");
    let first = stream.next().await.expect("a delta").expect("no error");
    assert_eq!(stream.journey().version, Version(1));
    scene.only(2);
    assert_eq!(scene.run(request.clone()).await.samples[0].0, new);
    assert_eq!(scene.cluster.running_on_others_than(Version(2)), 1);
    scene.workers[0].kill();
    let rest = TokenRequest { prompt: [&begun.prompt[..], &first.tokens].concat().into(), ..begun };
    let rest = collect(&rest, stream).await;
    assert_eq!([first.tokens, rest.samples[0].0.clone()].concat(), old);
    wait_for("nothing to run on the old version", || scene.cluster.running_on_others_than(Version(2)) == 0)
        .await;
}

#[tokio::test]
async fn new_requests_go_to_the_version_that_most_seats_serve_and_among_equals_to_the_newest() {
    let mut scene = Scene::new(2).await;
    assert_eq!(scene.cluster.current_version(), Version(1));
    scene.add(2, 2).await;
    assert_eq!(scene.cluster.current_version(), Version(1), "one of three");
    scene.add(3, 2).await;
    assert_eq!(scene.cluster.current_version(), Version(2), "two of four, and newer");
    scene.workers[2].kill();
    wait_for("the loss to be seen", || scene.ready() == 3).await;
    assert_eq!(scene.cluster.current_version(), Version(1), "one of three");
    let request = request("r", 0..9, 5);
    for _ in 0..10 {
        scene.run(request.clone()).await;
    }
    assert_eq!([2, 3].map(|name| scene.script.calls_to(name)), [0, 0], "no new worker was asked");
}

#[tokio::test]
async fn a_stream_whose_version_has_gone_ends_with_an_error_of_its_own() {
    let mut scene = impatient(1).await;
    scene.add(1, 2).await;
    let request = request("r", 0..9, 40);
    let old = scene.tokens_of(1, &request).await;
    scene.only(1);
    scene.script.pace_ms.store(2, Ordering::SeqCst);
    let mut stream =
        scene.submit(TokenRequest { id: "begun".into(), ..request.clone() }).await.expect("taken");
    let first = stream.next().await.expect("a delta").expect("no error");
    scene.only(2);
    scene.workers[0].kill();
    let mut tokens = first.tokens;
    let refusal = loop {
        match stream.next().await.expect("a delta or an error") {
            Ok(delta) => tokens.extend(delta.tokens),
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refusal, Refusal::VersionGone), "{refusal:?}");
    assert!(tokens.len() < old.len() && tokens == old[..tokens.len()], "no token of the other version");
    // A client that returns with its part, by count or with its tokens, gets the same error.
    let sample = ResumeSample { index: 0, delivered: tokens };
    let resume = Some(Arc::new(Resume { samples: vec![sample], prompt_logprobs_done: true }));
    for resume in [None, resume] {
        let again = TokenRequest { id: "begun".into(), resume, version: Version(1), ..request.clone() };
        let refused = scene.submit(again).await;
        assert!(matches!(refused, Err(Refusal::VersionGone)));
    }
    // A request of which nothing was sent begins on the version that is there.
    scene.only(1);
    let waits = tokio::spawn({
        let (cluster, request) =
            (scene.cluster.clone(), TokenRequest { id: "new".into(), ..request.clone() });
        async move { cluster.submit(request).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    scene.only(2);
    let stream = waits.await.expect("no panic").expect("it is taken");
    assert_eq!(collect(&request, stream).await.samples[0].0, scene.tokens_of(2, &request).await);
}

#[tokio::test]
async fn a_stream_that_another_version_keeps_under_the_same_key_is_not_read() {
    let mut scene = Scene::new(1).await;
    scene.add(1, 2).await;
    let request = request("same", 0..9, 30);
    let old = scene.tokens_of(1, &request).await;
    // The same request, by its id and so its key, runs on the new version, and stays readable there.
    scene.only(2);
    let stream = scene.submit(request.clone()).await.expect("it is taken");
    let new = collect(&request, stream).await.samples[0].0.clone();
    assert_ne!(old, new);
    scene.only(2);
    let again = TokenRequest { version: Version(1), ..request.clone() };
    let stream = scene.submit(again).await.expect("it is taken");
    assert_eq!(collect(&request, stream).await.samples[0].0, old);
}
