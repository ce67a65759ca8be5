//! A router before OpenAI servers, over real sockets: what clients get when servers fail in every way.

mod addresses;
#[path = "../../../tests/src/decrypt.rs"]
#[allow(dead_code, unreachable_pub)] // shared
mod decrypt;
mod framing;
mod kserve;
mod limits;
mod mock;
#[path = "../../../tests/src/pki.rs"]
#[allow(dead_code, unreachable_pub)] // shared
mod pki;
mod resume;
mod retries;
mod usage;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use skein_front::{UpstreamConfig, Upstreams, WorkerUrl, serve};
use skein_router::config::RouterConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use mock::{Health, Mock};

/// Limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Scene {
    workers: Vec<Mock>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<std::io::Result<()>>,
}

/// An answer that was read to its end, or to where it broke.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: http::HeaderMap,
    text: String,
    broke: bool,
}

impl Answer {
    /// Tokens of a stream, or of a whole answer.
    fn tokens(&self) -> String {
        let events = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        let chunks = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        let text = |chunk: Value| {
            let choice = chunk["choices"][0].clone();
            let text = [&choice["text"], &choice["delta"]["content"]]
                .map(|text| text.as_str().unwrap_or("").to_owned());
            text.concat()
        };
        chunks.map(text).collect()
    }

    fn is_done(&self) -> bool {
        self.text.ends_with("data: [DONE]\n\n") && !self.broke
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// The tokens of an undisturbed answer.
fn expected(tokens: usize) -> String {
    (0..tokens).map(|token| format!("t{token} ")).collect()
}

/// Settings with short time-outs.
fn config() -> UpstreamConfig {
    let mut router = RouterConfig::new("", Vec::<String>::new());
    router.recovery.worker_timeout = Duration::from_secs(1);
    router.recovery.queue_timeout = Duration::from_secs(5);
    router.policy = skein_choice::policy::Policy::RoundRobin;
    UpstreamConfig::new(router, Vec::new())
}

impl Scene {
    async fn new(workers: usize) -> Self {
        Self::with(workers, config(), Duration::ZERO).await
    }

    async fn with(workers: usize, config: UpstreamConfig, pause: Duration) -> Self {
        let mut mocks = Vec::new();
        for _ in 0..workers {
            mocks.push(Mock::paced(pause).await);
        }
        let scene = Self::over(mocks, config).await;
        scene.wait_for_up(workers).await;
        scene
    }

    async fn over(workers: Vec<Mock>, mut config: UpstreamConfig) -> Self {
        config.workers = workers
            .iter()
            .map(|worker| WorkerUrl::parse(&worker.url()).expect("the harness works"))
            .collect();
        Self::serve(workers, Upstreams::start(config)).await
    }

    async fn serve(workers: Vec<Mock>, upstreams: Upstreams) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the harness works");
        let address = listener.local_addr().expect("the harness works");
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(serve(listener, upstreams, async { drop(stopped.await) }));
        Self { workers, address, stop: Some(stop), served }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.expect("the harness works");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("the harness works");
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "x");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).expect("the harness works");
        tokio::time::timeout(TIMEOUT, sender.send_request(request))
            .await
            .expect("an answer")
            .expect("the harness works")
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Answer {
        let (head, body) = self.send(method, path, headers, body).await.into_parts();
        let (text, broke) = tokio::time::timeout(TIMEOUT, read(body)).await.expect("an end");
        Answer { status: head.status.as_u16(), headers: head.headers, text, broke }
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], String::new()).await
    }

    async fn wait_for_up(&self, workers: usize) {
        let metric = format!("\nskein_workers_ready {workers}\n");
        let up = async {
            while !self.get("/metrics").await.text.contains(&metric) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, up).await.expect("workers get up");
    }

    /// All places at the workers are free again.
    async fn wait_for_idle(&self) {
        let idle = async {
            loop {
                let text = self.get("/metrics").await.text;
                let busy = |line: &&str| {
                    let counts =
                        ["skein_worker_running{", "skein_worker_queued_tokens{", "skein_requests_in_flight "];
                    counts.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0")
                };
                if text.lines().find(busy).is_none() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, idle).await.expect("the router gets idle");
    }

    fn calls(&self) -> usize {
        self.workers.iter().map(|worker| worker.calls().len()).sum()
    }

    fn left(&self) -> usize {
        self.workers.iter().map(|worker| worker.state.left.load(Ordering::SeqCst)).sum()
    }
}

async fn read(mut body: Incoming) -> (String, bool) {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => return (String::from_utf8_lossy(&text).into_owned(), true),
        }
    }
    (String::from_utf8_lossy(&text).into_owned(), false)
}

fn chat(stream: bool, tokens: u64) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream, "max_tokens": tokens})
}

fn completion(stream: bool, tokens: u64) -> Value {
    json!({"model": "m", "prompt": "hi|", "stream": stream, "max_tokens": tokens})
}

#[tokio::test]
async fn answers_and_streams_pass_through_as_they_are() {
    let scene = Scene::new(2).await;
    let body = chat(false, 5);
    let answer = scene.post("/v1/chat/completions?x=1", &body).await;
    assert_eq!((answer.status, answer.broke), (200, false));
    assert_eq!(answer.json()["choices"][0]["text"], expected(5));
    assert_eq!(answer.headers["x-private"], "1");
    assert!(answer.headers.contains_key("x-request-id") && !answer.headers.contains_key("keep-alive"));
    let stream = scene.post("/v1/completions", &completion(true, 5)).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert!(stream.is_done() && stream.tokens() == expected(5), "{}", stream.text);
    let calls: Vec<_> = scene.workers.iter().flat_map(Mock::calls).collect();
    let (head, sent) = calls.iter().find(|(head, _)| head.contains("/chat/")).unwrap();
    assert!(head.starts_with("post /v1/chat/completions?x=1 http/1.1\r\n"), "{head}");
    assert_eq!(sent, &body, "the body is the client's");
    scene.wait_for_idle().await;
}

#[tokio::test]
async fn connections_are_kept() {
    let scene = Scene::new(1).await;
    for _ in 0..50 {
        assert_eq!(scene.post("/v1/completions", &completion(true, 2)).await.tokens(), expected(2));
    }
    let made = scene.workers[0].state.connections.load(Ordering::SeqCst);
    assert!(made <= 4, "{made} connections for 50 requests");
}

#[tokio::test]
async fn models_of_all_workers_are_listed_once() {
    let workers = vec![Mock::start().await, Mock::start().await];
    *mock::lock(&workers[1].state.models) = vec!["m", "other"];
    workers[1].set_health(Health::Absent);
    let scene = Scene::over(workers, config()).await;
    scene.wait_for_up(2).await;
    let list = scene.get("/v1/models").await.json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["m", "other"]);
    assert_eq!(scene.get("/v1/models/other").await.json()["id"], "other");
    assert_eq!(scene.get("/v1/models/none").await.status, 404);
    for _ in 0..4 {
        scene.post("/v1/completions", &json!({"model": "other", "prompt": "x"})).await;
    }
    assert_eq!(scene.workers[1].calls().len(), 4, "requests for a model go where it is");
}

#[tokio::test]
async fn readiness_follows_the_workers() {
    let mut scene = Scene::new(1).await;
    assert_eq!(scene.get("/health").await.status, 200);
    scene.workers[0].set_health(Health::Bad);
    let not_ready = async {
        while scene.get("/readyz").await.status != 503 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, not_ready).await.expect("the router notices");
    assert_eq!(scene.get("/livez").await.status, 200);
    scene.workers[0].set_health(Health::Good);
    scene.wait_for_up(1).await;
    scene.workers[0].kill().await;
    scene.workers[0].restart().await;
    assert_eq!(scene.post("/v1/completions", &completion(false, 1)).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request_at_the_worker() {
    let scene = Scene::with(1, config(), Duration::from_millis(20)).await;
    for (body, act) in [(chat(true, 10_000), mock::Act::Answer), (chat(false, 1), mock::Act::Stall(0))] {
        scene.workers[0].plan(&[act]);
        let before = scene.left();
        let asking = scene.post("/v1/chat/completions", &body);
        assert!(
            tokio::time::timeout(Duration::from_millis(300), asking).await.is_err(),
            "it is still running"
        );
        let left = async {
            while scene.left() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, left).await.expect("the worker hears of it");
    }
    scene.wait_for_idle().await;
    let metrics = scene.get("/metrics").await.text;
    assert!(metrics.contains("skein_request_outcomes_total{outcome=\"cancelled\"} 2"), "{metrics}");
}

#[tokio::test]
async fn a_shutdown_waits_for_streams_and_refuses_new_requests() {
    let mut scene = Scene::with(1, config(), Duration::from_millis(20)).await;
    let response = scene.send("POST", "/v1/completions", &[], completion(true, 20).to_string()).await;
    scene.stop.take().unwrap().send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(scene.post("/v1/completions", &completion(false, 1)).await.status, 503);
    assert_eq!(scene.get("/health").await.status, 503);
    let (text, broke) = read(response.into_body()).await;
    assert!(text.ends_with("data: [DONE]\n\n") && !broke, "{text}");
    tokio::time::timeout(TIMEOUT, scene.served).await.expect("it ends").unwrap().unwrap();
}

#[tokio::test]
async fn a_stream_that_outlasts_the_shutdown_ends_with_an_error() {
    let mut config = config();
    config.router.shutdown_timeout = Duration::from_millis(300);
    let mut scene = Scene::with(1, config, Duration::from_millis(20)).await;
    let response = scene.send("POST", "/v1/completions", &[], completion(true, 10_000).to_string()).await;
    scene.stop.take().unwrap().send(()).unwrap();
    let (text, _) = tokio::time::timeout(TIMEOUT, read(response.into_body())).await.expect("it ends");
    assert!(text.contains("\"code\":\"draining\""), "{text}");
}
