//! Workers of `skein serve`: dead and frozen ones are replaced while requests wait, and only the process that
//! started a worker can call it.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use skein_node::clock;
use skein_proto::worker::v1::{self as wire, worker_client::WorkerClient};
use skein_tests::client;
use skein_tests::process::{Cluster, send_signal};
use skein_tests::scenario::{self, Plan};
use tonic::{Code, Status};

use crate::{SKEIN, block_on};

/// Long, for a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

#[test]
fn repeated_kills_of_the_only_worker_refuse_no_request() {
    let pause = (Duration::from_millis(300), Duration::from_millis(900));
    let plan = Plan { rounds: 5, workers: 1, max_tokens: 64, pause, ..Plan::short(SKEIN) };
    let report = block_on(scenario::serve::kills(&plan));
    assert!(report.passed(), "{report}");
}

#[test]
fn streams_wait_for_replacements_when_all_workers_freeze() {
    let front_flags = vec!["--worker-timeout=2s".to_owned()];
    let plan = Plan { rounds: 1, workers: 2, front_flags, ..Plan::short(SKEIN) };
    let report = block_on(scenario::serve::freezes(&plan));
    assert!(report.passed(), "{report}");
}

#[test]
fn a_request_that_comes_while_the_only_worker_restarts_is_answered() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &["--workers", "1"]).await;
        let url = format!("{}/v1/completions", cluster.url);
        let body = json!({"prompt": "def f():", "max_tokens": 8, "temperature": 0, "stream": true});
        let client = reqwest::Client::new();
        let expected = client::stream_once(&client, &url, &body).await;
        for round in 0..5 {
            cluster.worker_pids().into_iter().for_each(|worker| send_signal(worker, "KILL"));
            let answer = client::stream_once(&client, &url, &body).await;
            assert!(answer.complete(), "round {round}: {answer:?}\n{}", cluster.log());
            assert_eq!(answer.choices, expected.choices);
        }
    });
}

#[test]
fn another_process_is_refused_by_every_method_of_a_worker_of_serve() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &["--workers", "2", "--log-format", "json"]).await;
        let addresses = worker_addresses(&cluster, 2).await;
        for address in addresses {
            for (method, status) in answers(address).await {
                assert_eq!(status.code(), Code::Unauthenticated, "{method}: {status}");
            }
        }
        for worker in cluster.worker_pids() {
            for file in ["environ", "cmdline"] {
                let content = std::fs::read(format!("/proc/{worker}/{file}")).expect("our own child");
                let longest = content.split(|byte| !byte.is_ascii_hexdigit()).map(<[u8]>::len).max();
                assert!(longest < Some(64), "{file} of a worker holds what looks like a secret");
            }
        }
    });
}

/// The workers' addresses, once the router has connected to `count` of them.
async fn worker_addresses(cluster: &Cluster, count: usize) -> Vec<SocketAddr> {
    let start = clock::now();
    while clock::now().since(start) < WITHIN {
        let connected = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "worker connected").then(|| line["address"].as_str()?.parse().ok())?
        };
        let found: Vec<SocketAddr> = cluster.log().lines().filter_map(connected).collect();
        if found.len() >= count {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the router has not found {count} workers:\n{}", cluster.log());
}

/// Status that each method returns to a caller without the secret.
async fn answers(address: SocketAddr) -> Vec<(&'static str, Status)> {
    fn refused<T>(answer: Result<T, Status>) -> Status {
        answer.err().unwrap_or_else(|| Status::ok("it was answered"))
    }
    let mut worker = WorkerClient::connect(format!("http://{address}")).await.expect("it listens");
    vec![
        ("Info", refused(worker.info(wire::InfoRequest {}).await)),
        ("Generate", refused(worker.generate(wire::GenerateRequest::default()).await)),
        ("Attach", refused(worker.attach(wire::AttachRequest::default()).await)),
        ("Release", refused(worker.release(wire::ReleaseRequest::default()).await)),
        ("Abort", refused(worker.abort(wire::AbortRequest::default()).await)),
        ("Watch", refused(worker.watch(wire::WatchRequest::default()).await)),
    ]
}

#[test]
fn a_second_sigterm_ends_serve_and_its_workers_at_once() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &[]).await;
        let url = format!("{}/v1/completions", cluster.url);
        let body =
            json!({"prompt": "def f():", "max_tokens": 900, "n": 16, "ignore_eos": true, "stream": true});
        let stream =
            tokio::spawn(async move { client::stream_once(&reqwest::Client::new(), &url, &body).await });
        tokio::time::sleep(Duration::from_millis(150)).await;
        let workers = cluster.worker_pids();
        send_signal(cluster.pid(), "TERM");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!stream.is_finished(), "it drains");
        // Opened now, because the file is deleted with the cluster.
        let mut log = std::fs::File::open(cluster.log_file()).expect("the log");
        assert_eq!(cluster.end("TERM", WITHIN).await, Some(143));
        let mut content = String::new();
        log.read_to_string(&mut content).expect("the log");
        let last = content.lines().last().unwrap_or_default();
        assert!(last.contains("running requests are lost"), "nothing is told after that:\n{content}");
        assert!(!stream.await.expect("no panic").complete(), "the stream was cut");
        for worker in workers {
            let gone = !std::path::Path::new(&format!("/proc/{worker}")).exists();
            assert!(gone, "worker {worker} outlived the second signal");
        }
    });
}

#[test]
fn a_service_called_skein_does_not_disturb_the_start() {
    let show = |name: &str, value: &str| {
        let shown = std::process::Command::new(SKEIN).args(["config", "show"]).env(name, value).output();
        let shown = shown.expect("skein runs");
        (shown.status.code(), String::from_utf8_lossy(&shown.stderr).into_owned())
    };
    assert_eq!(show("SKEIN_PORT", "tcp://10.96.1.7:8000").0, Some(0));
    assert_eq!(show("SKEIN_PORT_8000_TCP_ADDR", "10.96.1.7").0, Some(0));
    let (code, error) = show("SKEIN_PROT", "tcp://10.96.1.7:8000");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("SKEIN_PROT: no such setting"), "{error}");
}
