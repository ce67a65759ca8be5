//! Router and workers with mutual TLS and the cluster's secret: who is refused, and what a rotation of
//! certificates changes.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use skein_node::discovery::{self, Change, Member};
use skein_node::supervisor::Secret;
use skein_router::cluster::{Cluster, Tuning};
use skein_router::links::transport::{Connector, Grpc};
use skein_router::links::worker_client::WorkerClient;
use skein_tests::pki::{Dates, Pair, Pki};
use skein_tls::{ClientFiles, ClientTls, ClusterFiles, ClusterTls, IdentityFiles, PortTls};
use skein_worker::backend::fake::StepCost;
use skein_worker::config::WorkerConfig;
use tokio::sync::mpsc;

use super::fake_workers::{Worker, request, run};
use super::{MODEL, TIMEOUT, router_config, wait_for_ready};

fn secret() -> Secret {
    Secret::given("a-secret-of-tests").expect("it is long enough")
}

fn identity(pair: &Pair) -> IdentityFiles {
    IdentityFiles { cert: pair.cert.clone(), key: pair.key.clone() }
}

fn node(pki: &Pki, name: &str) -> ClusterTls {
    let files = ClusterFiles { ca: pki.ca(), identity: identity(&pki.node(name)) };
    ClusterTls::read(&files).expect("the certificate is good")
}

async fn worker(tls: Option<&ClusterTls>, secret: Option<Secret>, cost: StepCost) -> Worker {
    let tls = PortTls { nodes: tls.map(|tls| tls.server.clone()), ..PortTls::default() };
    Worker::start_as(WorkerConfig { tls, secret, open_health: true, ..Worker::config() }, cost).await
}

/// A router that reaches its one worker by `way`.
async fn router(way: Grpc, worker: &Worker) -> (Cluster, mpsc::Sender<Change>) {
    let (changes, receiver) = discovery::in_process();
    let cluster = Cluster::start_with(&router_config(), receiver, MODEL, Tuning::default(), Arc::new(way));
    let member = Member { id: "w".to_owned(), address: worker.address.to_string() };
    changes.send(Change::Join(member)).await.expect("the cluster listens");
    (cluster, changes)
}

fn slow() -> StepCost {
    StepCost { fixed: Duration::from_millis(2), ..StepCost::default() }
}

#[tokio::test]
async fn streams_are_the_same_behind_certificates_and_a_secret() {
    let pki = Pki::new();
    let (of_router, of_worker) = (node(&pki, "router"), node(&pki, "worker"));
    let open = worker(None, None, StepCost::default()).await;
    let (plain, _changes) = router(Grpc::default(), &open).await;
    wait_for_ready(&plain, 1).await;
    let guarded = worker(Some(&of_worker), Some(secret()), StepCost::default()).await;
    let way = Grpc::default().with_tls(of_router.client).with_key(secret().expose()).expect("ASCII");
    let (cluster, _changes) = router(way, &guarded).await;
    wait_for_ready(&cluster, 1).await;
    for index in 0..6 {
        let expected = run(plain.clone(), request(index, 40)).await.expect("it ends").answer;
        let got = run(cluster.clone(), request(index, 40)).await.expect("it ends").answer;
        assert_eq!(got, expected, "stream {index}");
    }
}

#[tokio::test]
async fn strangers_are_refused_with_a_reason() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (of_router, of_worker) = (node(&pki, "router"), node(&pki, "worker"));
    let guarded = worker(Some(&of_worker), Some(secret()), StepCost::default()).await;
    let with_secret = worker(None, Some(secret()), StepCost::default()).await;
    let open = worker(None, None, StepCost::default()).await;
    let trusting = |identity: Option<IdentityFiles>| {
        let files = ClientFiles { ca: Some(pki.ca()), identity };
        let tls = ClientTls::read(&files).expect("the files are good").offering(&[b"h2"]);
        Grpc::default().with_tls(tls.expecting("skein-cluster"))
    };
    let web = identity(&pki.issue("web", &["localhost", "127.0.0.1"], Dates::Always));
    let plain = Grpc::default;
    let key = |way: Grpc, key: &str| way.with_key(key).expect("ASCII");
    let as_router = || Grpc::default().with_tls(of_router.client.clone());
    let right = secret();
    let right = right.expose();
    let cases = [
        ("no TLS", &guarded, key(plain(), right), "without TLS on this port"),
        ("no certificate", &guarded, key(trusting(None), right), "certificate"),
        ("not a node's certificate", &guarded, key(trusting(Some(web)), right), "certificate"),
        ("another CA", &guarded, key(plain().with_tls(node(&other, "x").client), right), "no trusted CA"),
        ("no secret", &guarded, as_router(), "--cluster-secret-file"),
        ("a wrong secret", &guarded, key(as_router(), "0123456789abcdef"), "--cluster-secret-file"),
        ("no secret, no TLS", &with_secret, plain(), "--cluster-secret-file"),
        ("a wrong secret, no TLS", &with_secret, key(plain(), "0123456789abcdef"), "--cluster-secret-file"),
        ("TLS to a plain port", &open, as_router(), "does not speak TLS"),
    ];
    for (what, worker, way, expected) in cases {
        let address = worker.address.to_string();
        let reached = async {
            let client = WorkerClient::connect(&way, &address).await.map_err(|error| error.to_string())?;
            client.info().await.map_err(|error| error.to_string())
        };
        let reason = tokio::time::timeout(TIMEOUT, reached).await.expect("refused in time").map(drop);
        let reason = reason.expect_err(what);
        assert!(reason.contains(expected), "{what}: {reason}");
    }
    for (worker, way) in
        [(&guarded, key(as_router(), right)), (&with_secret, key(plain(), right)), (&open, plain())]
    {
        let transport = way.connect(&worker.address.to_string()).await.expect("it is one of the cluster");
        transport.info().await.expect("it is one of the cluster");
    }
}

#[tokio::test]
async fn new_certificates_under_a_hundred_streams_lose_none() {
    let (pki, next) = (Pki::new(), Pki::new());
    let (of_router, of_worker) = (node(&pki, "router"), node(&pki, "worker"));
    let stale = node(&pki, "stale");
    let guarded = worker(Some(&of_worker), None, slow()).await;
    let way = Grpc::default().with_tls(of_router.client.clone());
    let (cluster, _changes) = router(way, &guarded).await;
    wait_for_ready(&cluster, 1).await;
    let start = || -> Vec<_> {
        (0..100).map(|index| tokio::spawn(run(cluster.clone(), request(index, 60)))).collect()
    };
    let mut undisturbed = Vec::new();
    for stream in start() {
        undisturbed.push(stream.await.expect("no panic").expect("it ends").answer);
    }
    let streams = start();
    while cluster.snapshot().running.requests < 100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Another CA, another key, in the same files.
    for name in ["router", "worker"] {
        let new = next.node(name);
        for (from, to) in [(new.cert, format!("{name}.pem")), (new.key, format!("{name}.key"))] {
            fs::copy(from, pki.folder().join(to)).expect("copied");
        }
    }
    fs::copy(next.ca(), pki.ca()).expect("copied");
    assert!(of_worker.reload().expect("they are good") && of_router.reload().expect("they are good"));
    assert_eq!(cluster.snapshot().running.requests, 100, "all streams were running at the rotation");
    for (index, stream) in streams.into_iter().enumerate() {
        let outcome = stream.await.expect("no panic");
        let outcome = outcome.unwrap_or_else(|refusal| panic!("stream {index}: {refusal}"));
        assert_eq!(outcome.answer, undisturbed[index], "stream {index}");
    }
    // New connections use the new certificates, and only those.
    let address = guarded.address.to_string();
    let renewed = Grpc::default().with_tls(of_router.client).connect(&address).await.expect("it is trusted");
    renewed.info().await.expect("it is trusted");
    let refused = Grpc::default().with_tls(stale.client).connect(&address).await.expect_err("the old CA");
    assert!(refused.contains("no trusted CA"), "{refused}");
}
