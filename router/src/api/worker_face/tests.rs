//! The worker API of a router over the scripted generator: through a real connection, and from a gateway's
//! cluster.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use skein_node::discovery::{Change, Member};
use skein_proto::finish::FinishReason;
use skein_proto::stream_key::StreamKey;
use skein_proto::version::Version;
use skein_proto::worker::v1 as wire;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Request};

use crate::app::App;
use crate::cluster::{Cluster, Tuning};
use crate::generator::TokenSource;
use crate::links::transport::{Connector, Grpc, Transport};
use crate::links::worker_client::WorkerClient;
use crate::refusal::Refusal;
use crate::request::{Journey, TokenRequest};
use crate::testing::{self, Say, Script, delta, finish};

/// A router that answers from its script.
struct Router {
    app: App,
    script: Arc<Script>,
    address: String,
    stop: Option<oneshot::Sender<()>>,
}

impl Router {
    async fn start(script: Script, api_keys: &[&str]) -> Self {
        let script = Arc::new(script);
        let mut config = testing::config();
        config.api_keys = api_keys.iter().map(|key| (*key).to_owned()).collect();
        config.shutdown_timeout = Duration::from_millis(50);
        let app = App::new(Arc::new(testing::model_text()), script.clone(), config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(crate::serve::serve(listener, app.clone(), async {
            let _ = stopped.await;
        }));
        Self { app, script, address, stop: Some(stop) }
    }

    async fn connect(&self) -> Arc<dyn Transport> {
        Grpc::default().connect(&self.address).await.unwrap()
    }

    async fn open_is(&self, streams: usize) {
        while self.script.open.load(std::sync::atomic::Ordering::SeqCst) != streams {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn talks() -> Script {
    Script { say: vec![Say::Delta(delta(0, "ab")), Say::Hang], ..Script::default() }
}

fn request(name: &str, linger_ms: u64) -> wire::GenerateRequest {
    let sampling = wire::SamplingParams { max_tokens: 9, seed: 5, ..wire::SamplingParams::default() };
    wire::GenerateRequest {
        request_id: name.to_owned(),
        prompt_token_ids: vec![1, 2, 3],
        sampling: Some(sampling),
        samples: vec![wire::Sample::default()],
        placement: Some(wire::Placement { router_id: 7, sequence: 4 }),
        stream_key: vec![9; 16],
        linger_ms,
        ..wire::GenerateRequest::default()
    }
}

#[tokio::test]
async fn a_request_passes_through_with_its_key_and_delivered_tokens() {
    let script = Script::of([delta(1, "ab"), finish(1, FinishReason::Stop(Some(1)))]);
    let router = Router::start(script, &[]).await;
    let transport = router.connect().await;
    let samples = vec![wire::Sample { index: 1, delivered_token_ids: vec![8] }];
    let mut stream =
        transport.generate(Request::new(wire::GenerateRequest { samples, ..request("r", 0) })).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.sample_index, first.token_ids), (1, testing::tokens("ab")));
    let last = stream.next().await.unwrap().unwrap();
    assert_eq!(last.finish.unwrap().stop_token_id, Some(1));
    assert!(stream.next().await.is_none());
    let asked: TokenRequest = router.script.requests.lock().unwrap()[0].clone();
    assert_eq!((asked.n, asked.stream_key), (2, StreamKey::from_wire(&[9; 16])));
    assert_eq!(asked.resume.unwrap().samples[0].delivered, [8]);
    assert_eq!(first.epoch, transport.info().await.unwrap().epoch);
}

#[tokio::test]
async fn a_release_ends_the_stream_and_a_disconnect_holds_it() {
    let router = Router::start(talks(), &[]).await;
    let transport = router.connect().await;
    let mut stream = transport.generate(Request::new(request("left", 60_000))).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let again = transport.generate(Request::new(request("left", 0))).await.err().unwrap();
    assert_eq!(again.code(), Code::AlreadyExists);
    let release = |name: &str| wire::ReleaseRequest { request_id: name.to_owned() };
    assert!(transport.release(release("left")).await.unwrap().found);
    assert!(stream.next().await.is_none());
    router.open_is(0).await;
    assert!(!transport.release(release("left")).await.unwrap().found);

    // With no linger time, a broken stream ends.
    drop(transport.generate(Request::new(request("plain", 0))).await.unwrap());
    router.open_is(0).await;
    // With one, the stream waits until it is released or the time is over.
    drop(transport.generate(Request::new(request("released", 60_000))).await.unwrap());
    drop(transport.generate(Request::new(request("forgotten", 100))).await.unwrap());
    router.open_is(1).await;
    assert!(transport.release(release("released")).await.unwrap().found);
    router.open_is(0).await;
}

#[tokio::test]
async fn samples_are_aborted_and_streams_are_not_kept() {
    let router = Router::start(talks(), &[]).await;
    let transport = router.connect().await;
    let mut stream = transport.generate(Request::new(request("r", 0))).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let abort = |name: &str| wire::AbortRequest { request_id: name.to_owned(), sample_index: 0 };
    assert!(transport.abort(abort("r")).await.unwrap().found);
    assert!(!transport.abort(abort("q")).await.unwrap().found);
    while *router.script.aborted.lock().unwrap() != [0] {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let attach = transport.attach(Request::new(wire::AttachRequest::default())).await.err().unwrap();
    assert_eq!(attach.code(), Code::NotFound);
}

#[tokio::test]
async fn a_router_reports_its_load_and_hands_streams_back_at_shutdown() {
    let mut router = Router::start(talks(), &[]).await;
    let transport = router.connect().await;
    let mut stream = transport.generate(Request::new(request("r", 60_000))).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let mut events =
        transport.watch(wire::WatchRequest { router_id: 7, ..Default::default() }).await.unwrap();
    let snapshot = events.next().await.unwrap().unwrap();
    assert!(matches!(snapshot.event, Some(wire::worker_event::Event::Snapshot(_))));
    let mut steps = Vec::new();
    for _ in 0..2 {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(event.sequence, snapshot.sequence);
        let Some(wire::worker_event::Event::Load(load)) = event.event else { panic!("no load") };
        assert_eq!((load.running, load.last_placement_sequence, load.draining), (1, 4, false));
        steps.push(load.step);
    }
    assert!(steps[1] > steps[0], "a router that reports is not stuck");
    router.stop.take().unwrap().send(()).unwrap();
    let Some(wire::worker_event::Event::Load(load)) = events.next().await.unwrap().unwrap().event else {
        panic!()
    };
    assert!(load.draining);
    let last = stream.next().await.unwrap().unwrap();
    assert!(last.hand_back);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_router_without_workers_is_not_at_fault() {
    let refuse =
        Some(Refusal::NoReadyWorker { reason: "x".to_owned(), retry_after: Duration::from_millis(40) });
    let router = Router::start(Script { refuse, ..Script::default() }, &[]).await;
    let status = router.connect().await.generate(Request::new(request("r", 0))).await.err().unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("retry-after-ms").unwrap(), "40");
    assert!(!router.app.drain.is_draining());
}

/// A gateway's cluster over one router, and the channel that adds more.
async fn gateway(router: &Router, connector: Arc<dyn Connector>) -> (Cluster, mpsc::Sender<Change>) {
    let (sender, changes) = mpsc::channel(8);
    let cluster = Cluster::start_with(&testing::config(), changes, "test", Tuning::default(), connector);
    join(&cluster, &sender, router).await;
    (cluster, sender)
}

async fn join(cluster: &Cluster, members: &mpsc::Sender<Change>, router: &Router) {
    let member = Member { id: router.address.clone(), address: router.address.clone() };
    members.send(Change::Join(member)).await.unwrap();
    let is_ready = || cluster.snapshot().workers.iter().any(|one| one.id == router.address && one.is_ready());
    while !is_ready() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn whole(id: &str) -> TokenRequest {
    let wire = request(id, 0);
    super::convert::token_request(wire, Arc::from("test"), skein_node::clock::now()).unwrap()
}

#[tokio::test]
async fn a_gateway_resumes_through_another_router() {
    let mut one = Router::start(talks(), &[]).await;
    let (cluster, members) = gateway(&one, Arc::new(Grpc::default())).await;
    let asked = whole("g");
    let mut stream = cluster.submit(asked.clone()).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().tokens, testing::tokens("ab"));
    // The second router's output follows the first one's.
    let other = Script::of([delta(0, "cd"), finish(0, FinishReason::Length)]);
    let other = Router::start(other, &[]).await;
    join(&cluster, &members, &other).await;
    one.stop.take().unwrap().send(()).unwrap();
    let rest = stream.next().await.unwrap().unwrap();
    assert_eq!((rest.from_position, rest.tokens), (5, testing::tokens("cd")));
    assert_eq!(stream.next().await.unwrap().unwrap().finish, Some(FinishReason::Length));
    assert!(stream.next().await.is_none());
    let taken_up = other.script.requests.lock().unwrap()[0].clone();
    assert_eq!(taken_up.resume.as_ref().unwrap().samples[0].delivered, testing::tokens("ab"));
    assert_eq!(taken_up.stream_key(), asked.stream_key(), "so that the worker is found that runs it");
}

#[tokio::test]
async fn a_gateway_keeps_a_request_on_the_version_that_its_first_router_named() {
    let of = |version, script: Script| Script {
        journey: Journey { version: Version(version), ..Journey::default() },
        ..script
    };
    let mut one = Router::start(of(7, talks()), &[]).await;
    assert_eq!(one.connect().await.info().await.unwrap().model_fingerprint, 0, "it may serve several");
    let (cluster, members) = gateway(&one, Arc::new(Grpc::default())).await;
    let mut stream = cluster.submit(whole("g")).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().tokens, testing::tokens("ab"));
    assert_eq!(stream.journey().version, Version(7));
    let other = Script { refuse: Some(Refusal::VersionGone), ..Script::default() };
    let other = Router::start(other, &[]).await;
    join(&cluster, &members, &other).await;
    one.stop.take().unwrap().send(()).unwrap();
    assert!(matches!(stream.next().await.unwrap(), Err(Refusal::VersionGone)));
    assert_eq!(other.script.requests.lock().unwrap()[0].version, Version(7));
    // A client that comes to another gateway with its part names the version itself.
    let (cluster, _members) = gateway(&other, Arc::new(Grpc::default())).await;
    let refused = cluster.submit(TokenRequest { version: Version(8), ..whole("h") }).await;
    assert!(matches!(refused, Err(Refusal::VersionGone)));
    assert_eq!(other.script.requests.lock().unwrap()[1].version, Version(8));
}

#[tokio::test]
async fn a_client_that_leaves_a_gateway_frees_its_stream_at_the_router() {
    let router = Router::start(talks(), &[]).await;
    let (cluster, _members) = gateway(&router, Arc::new(Grpc::default())).await;
    let mut stream = cluster.submit(whole("g")).await.unwrap();
    stream.next().await.unwrap().unwrap();
    router.open_is(1).await;
    drop(stream);
    router.open_is(0).await;
}

#[tokio::test]
async fn a_gateway_sends_the_key_that_routers_require() {
    let script = Script::of([delta(0, "ab"), finish(0, FinishReason::Length)]);
    let router = Router::start(script, &["sesame"]).await;
    let refused = router.connect().await.info().await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);
    // The link reports this text as the cause of its failure.
    let client = WorkerClient::connect(&Grpc::default(), &router.address).await.unwrap();
    let refused = client.info().await.unwrap_err().to_string();
    assert!(refused.starts_with("Unauthenticated: "), "{refused}");
    let key = Grpc::default().with_key("sesame").unwrap();
    let (cluster, _members) = gateway(&router, Arc::new(key)).await;
    let mut stream = cluster.submit(whole("g")).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().tokens, testing::tokens("ab"));
    assert!(Grpc::default().with_key("a\nb").is_none());
}
