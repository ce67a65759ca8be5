//! Workers with TLS, and workers that are the addresses of a name.

use std::net::SocketAddr;
use std::time::Duration;

use skein_front::{UpstreamConfig, Upstreams, WorkerUrl};
use skein_node::discovery::{Change, Member};
use skein_tls::{ClientCertificates, ClientFiles, ClientTls, IdentityFiles, ServerFiles, ServerTls};
use tokio::sync::mpsc;

use super::decrypt::decrypt;
use super::mock::{Act, Mock};
use super::pki::{Dates, Pair, Pki};
use super::{Scene, TIMEOUT, chat, completion, config, expected, read};

/// An authority, and a server with its certificate for `name` that decrypts and passes everything on to
/// `inner`.
async fn encrypted(name: &str, inner: SocketAddr) -> (Pki, SocketAddr) {
    let pki = Pki::new();
    let Pair { cert, key } = pki.issue("worker", &[name], Dates::Always);
    let files = ServerFiles {
        identity: IdentityFiles { cert, key },
        client_ca: None,
        client_certificates: ClientCertificates::default(),
    };
    let (address, _) = decrypt(ServerTls::read(&files).expect("valid files"), inner).await;
    (pki, address)
}

/// Trusts that authority, and no other.
fn trusting(pki: &Pki) -> ClientTls {
    ClientTls::read(&ClientFiles { ca: Some(pki.ca()), identity: None }).expect("a certificate")
}

fn with_url(url: &str) -> UpstreamConfig {
    let mut config = config();
    config.workers = vec![WorkerUrl::parse(url).expect("a URL")];
    config
}

#[tokio::test]
async fn workers_with_tls_answer_stream_and_fail_as_others_do() {
    let mock = Mock::start().await;
    let (pki, address) = encrypted("localhost", mock.address).await;
    let mut config = with_url(&format!("https://localhost:{}/v1", address.port()));
    config.use_worker_tls(trusting(&pki));
    let scene = Scene::serve(vec![mock], Upstreams::start(config)).await;
    scene.wait_for_up(1).await;
    assert_eq!(
        scene.post("/v1/completions", &completion(false, 3)).await.json()["choices"][0]["text"],
        expected(3)
    );
    for _ in 0..10 {
        let stream = scene.post("/v1/chat/completions", &chat(true, 64)).await;
        assert!(stream.is_done() && stream.tokens() == expected(64), "{}", stream.text);
    }
    let host = format!("host: localhost:{}\r\n", address.port());
    assert!(scene.workers[0].calls().iter().all(|(head, _)| head.contains(&host)));
    let made = scene.workers[0].state.connections.load(std::sync::atomic::Ordering::SeqCst);
    assert!(made <= 4, "connections are kept: {made}");
    scene.workers[0].plan(&[Act::CutWithin(2)]);
    let cut = scene.post("/v1/completions", &completion(true, 5)).await;
    assert!(cut.text.contains("\"error\"") && !cut.is_done(), "{}", cut.text);
    scene.wait_for_idle().await;
}

#[tokio::test]
async fn a_worker_whose_certificate_is_not_trusted_gets_no_request() {
    let mock = Mock::start().await;
    let (pki, address) = encrypted("localhost", mock.address).await;
    let (other, _) = encrypted("localhost", mock.address).await;
    let port = address.port();
    let ask = async |url: String, pki: &Pki| {
        let mut config = with_url(&url);
        config.router.recovery.queue_timeout = Duration::from_millis(100);
        config.use_worker_tls(trusting(pki));
        let scene = Scene::serve(Vec::new(), Upstreams::start(config)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        scene.post("/v1/completions", &completion(false, 1)).await
    };
    // Another authority, and a certificate of another name.
    for (url, pki) in
        [(format!("https://localhost:{port}"), &other), (format!("https://127.0.0.1:{port}"), &pki)]
    {
        let answer = ask(url, pki).await;
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert!(answer.text.contains("the only one is lost"), "{}", answer.text);
    }
    assert!(mock.calls().is_empty());
    assert_eq!(ask(format!("https://localhost:{port}"), &pki).await.status, 200);
}

/// A router before the addresses of a name, which the sender changes.
async fn by_name(workers: Vec<Mock>) -> (Scene, mpsc::Sender<Change>) {
    let (sender, receiver) = mpsc::channel(16);
    let receiver = std::sync::Mutex::new(Some(receiver));
    let upstreams = Upstreams::start_with(with_url("dns+http://workers.test:1"), |name| {
        assert_eq!((name.host.as_str(), name.port), ("workers.test", 1));
        receiver.lock().expect("the harness works").take().expect("one name")
    });
    (Scene::serve(workers, upstreams).await, sender)
}

fn joins(mock: &Mock) -> Change {
    let address = mock.address.to_string();
    Change::Join(Member { id: address.clone(), address })
}

fn leaves(mock: &Mock) -> Change {
    Change::Leave(mock.address.to_string())
}

#[tokio::test]
async fn each_address_of_a_name_is_a_worker_until_it_leaves() {
    let pause = Duration::from_millis(20);
    let mocks = vec![Mock::paced(pause).await, Mock::paced(pause).await, Mock::paced(pause).await];
    let (scene, changes) = by_name(mocks).await;
    let answer = scene.post("/v1/completions", &completion(false, 1)).await;
    assert!(answer.status == 503 && answer.text.contains("their name has no address yet"), "{}", answer.text);

    changes.send(joins(&scene.workers[0])).await.unwrap();
    changes.send(joins(&scene.workers[1])).await.unwrap();
    scene.wait_for_up(2).await;
    let counts = || scene.workers.iter().map(|worker| worker.calls().len()).collect::<Vec<_>>();
    for _ in 0..4 {
        assert_eq!(scene.post("/v1/completions", &completion(false, 1)).await.status, 200);
    }
    assert_eq!(counts(), [2, 2, 0]);

    // A stream at an address that leaves goes on; later requests go elsewhere.
    let streams = [0, 1].map(|_| async {
        let body = completion(true, 100).to_string();
        let response = scene.send("POST", "/v1/completions", &[], body).await;
        tokio::time::timeout(TIMEOUT, read(response.into_body())).await.expect("an end").0
    });
    let change = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        changes.send(leaves(&scene.workers[0])).await.unwrap();
        changes.send(joins(&scene.workers[2])).await.unwrap();
        let up = format!("skein_worker_ready{{worker=\"http://{}\"}} 1", scene.workers[2].address);
        let metrics = async {
            loop {
                let metrics = scene.get("/metrics").await.text;
                if metrics.contains(&up) {
                    return metrics;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let metrics = tokio::time::timeout(TIMEOUT, metrics).await.expect("the new address is used");
        let named = |mock: &Mock| metrics.contains(&format!("{{worker=\"http://{}\"}}", mock.address));
        assert_eq!([0, 1, 2].map(|at| named(&scene.workers[at])), [false, true, true], "{metrics}");
        for _ in 0..4 {
            assert_eq!(scene.post("/v1/completions", &completion(false, 1)).await.status, 200);
        }
    };
    let [one, other] = streams;
    let (one, other, ()) = tokio::join!(one, other, change);
    assert!([&one, &other].iter().all(|text| text.ends_with("data: [DONE]\n\n")), "{one} {other}");
    assert_eq!(counts(), [3, 5, 2]);

    // It returns, and all three get requests.
    changes.send(joins(&scene.workers[0])).await.unwrap();
    scene.wait_for_up(3).await;
    for _ in 0..3 {
        assert_eq!(scene.post("/v1/completions", &completion(false, 1)).await.status, 200);
    }
    assert_eq!(counts(), [4, 6, 3]);
    scene.wait_for_idle().await;
}

#[tokio::test]
async fn more_addresses_than_places_are_left_out_until_one_is_free() {
    let (scene, changes) = by_name(vec![Mock::start().await]).await;
    // Nothing listens at these.
    let dead: Vec<String> = (1..=64).map(|nth| format!("127.1.0.{nth}:9")).collect();
    for address in &dead {
        let (id, address) = (address.clone(), address.clone());
        changes.send(Change::Join(Member { id, address })).await.unwrap();
    }
    changes.send(joins(&scene.workers[0])).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let metrics = scene.get("/metrics").await.text;
    assert!(
        metrics.contains("\nskein_workers 64\n") && metrics.contains("\nskein_workers_ready 0\n"),
        "{metrics}"
    );
    changes.send(Change::Leave(dead[0].clone())).await.unwrap();
    scene.wait_for_up(1).await;
    assert_eq!(scene.post("/v1/completions", &completion(false, 1)).await.status, 200);
    assert!(scene.workers[0].calls()[0].0.contains("host: workers.test:1\r\n"));
}

#[tokio::test]
async fn the_systems_resolver_is_asked() {
    let mock = Mock::start().await;
    let config = with_url(&format!("dns+http://localhost:{}", mock.address.port()));
    let scene = Scene::serve(vec![mock], Upstreams::start(config)).await;
    scene.wait_for_up(1).await;
    let stream = scene.post("/v1/completions", &completion(true, 5)).await;
    assert_eq!(stream.tokens(), expected(5));
}
