//! Standalone routers and workers that discover each other through a real etcd, which starts late, stops for
//! a while, and must be the first to learn that a worker shuts down. Without an etcd the tests print that
//! they are skipped.

use std::time::Duration;

use serde_json::json;
use skein_node::clock;
use skein_node::discovery::etcd::{EtcdApi, EtcdClient, prefix};
use skein_tests::child::{Process, Spec};
use skein_tests::client::{self, History};
use skein_tests::etcd::{self, Etcd};
use skein_tests::process::{free_port, shipped_model};

use crate::{SKEIN, block_on};

/// Limit for waits that usually take far less, also for debug builds on busy machines.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long etcd is stopped; leases expire after 2 s.
const OUTAGE: Duration = Duration::from_secs(6);
const STREAMS: usize = 8;

fn start(command: &str, arguments: &[&str]) -> Process {
    let model = shipped_model().display().to_string();
    let arguments = [&[command, &model], arguments].concat().into_iter().map(str::to_owned).collect();
    let (name, binary) = (command.to_owned(), SKEIN.to_owned());
    Process::start(Spec { name, binary, arguments, ..Spec::default() })
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = clock::now();
    while !holds().await {
        assert!(clock::now().since(start) < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Cluster {
    etcd: Etcd,
    source: String,
    url: String,
    router: Process,
    workers: Vec<Process>,
}

impl Cluster {
    /// Starts a router and two workers, before etcd runs.
    fn start(program: &std::path::Path) -> Self {
        let etcd = Etcd::prepare(program, "http", &[]);
        let source = format!("etcd://{}/blue", etcd.endpoint);
        let port = free_port().to_string();
        let router = start("router", &["--discovery", &source, "--port", &port]);
        let mut cluster =
            Self { etcd, source, url: format!("http://127.0.0.1:{port}"), router, workers: Vec::new() };
        cluster.start_worker("w-0");
        cluster.start_worker("w-1");
        cluster
    }

    fn start_worker(&mut self, id: &str) {
        let arguments = [
            "--listen",
            "127.0.0.1:0",
            "--discovery",
            &self.source,
            "--etcd-lease-ttl",
            "2s",
            "--worker-id",
            id,
        ];
        self.workers.push(start("worker", &[&arguments[..], &["--threads", "1"]].concat()));
    }

    async fn registered(&self) -> Vec<String> {
        let client = EtcdClient::new(self.etcd.settings(), 0).await.expect("good settings");
        let prefix = prefix("blue");
        let found = client.list(&prefix).await.map(|snapshot| snapshot.entries).unwrap_or_default();
        found.iter().map(|entry| entry.key[prefix.len()..].to_owned()).collect()
    }

    async fn is_ready(&self) -> bool {
        let answer = reqwest::get(format!("{}/readyz", self.url)).await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    async fn stream(url: String, tokens: u32) -> History {
        let body = json!({"prompt": "def f():", "max_tokens": tokens, "ignore_eos": true, "temperature": 0,
                          "stream": true, "return_token_ids": true});
        client::stream(&reqwest::Client::new(), &format!("{url}/v1/completions"), &body)
            .await
            .expect("the stream ends")
    }

    fn logs(&self) -> String {
        let workers: Vec<String> = self.workers.iter().map(Process::log).collect();
        format!("router:\n{}\nworkers:\n{}", self.router.log(), workers.join("\n"))
    }
}

#[test]
fn a_cluster_finds_itself_in_etcd_and_outlives_it() {
    let Some(program) = etcd::binary() else { return };
    block_on(async {
        let mut cluster = Cluster::start(&program);
        for index in 0..2 {
            eventually("ready without etcd", async || {
                cluster.workers[index].log().contains("worker is ready")
            })
            .await;
        }
        assert!(!cluster.is_ready().await, "nobody has told the router of a worker");
        cluster.etcd.launch();
        eventually("the router finds its workers", async || cluster.is_ready().await).await;
        eventually("both are registered", async || cluster.registered().await == ["w-0", "w-1"]).await;

        cluster.etcd.signal("STOP");
        cluster.start_worker("w-2");
        let (start, mut served) = (clock::now(), 0);
        while clock::now().since(start) < OUTAGE {
            let history = Cluster::stream(cluster.url.clone(), 16).await;
            assert!(history.complete(), "while etcd stands still: {history:?}\n{}", cluster.logs());
            served += 1;
        }
        cluster.etcd.signal("CONT");
        eventually("the outage is over", async || cluster.registered().await == ["w-0", "w-1", "w-2"]).await;
        println!("{served} requests while etcd stood still for {OUTAGE:?}, 0 failed");
        for process in cluster.workers.iter_mut().chain([&mut cluster.router]) {
            assert!(process.is_running(), "{} ended because of etcd", process.name());
        }
    });
}

#[test]
fn a_worker_that_is_told_to_end_leaves_etcd_before_it_drains() {
    let Some(program) = etcd::binary() else { return };
    block_on(async {
        let mut cluster = Cluster::start(&program);
        cluster.etcd.launch();
        eventually("both are registered", async || cluster.registered().await == ["w-0", "w-1"]).await;
        eventually("the router is ready", async || cluster.is_ready().await).await;
        let expected = Cluster::stream(cluster.url.clone(), 900).await;
        assert!(expected.complete(), "{expected:?}");
        let streams: Vec<_> =
            (0..STREAMS).map(|_| tokio::spawn(Cluster::stream(cluster.url.clone(), 900))).collect();
        tokio::time::sleep(Duration::from_millis(150)).await;
        cluster.workers[0].signal("TERM");
        eventually("it is out of etcd", async || cluster.registered().await == ["w-1"]).await;
        for stream in streams {
            let history = stream.await.expect("no panic");
            assert!(history.complete(), "{history:?}\n{}", cluster.logs());
            assert_eq!(history.choices, expected.choices, "{}", cluster.logs());
        }
        let code = cluster.workers[0].wait_end(TIMEOUT).await;
        assert_eq!(code, Some(0), "{}", cluster.workers[0].log());
        assert!(cluster.workers[0].log().contains("left etcd"), "{}", cluster.workers[0].log());
        assert!(Cluster::stream(cluster.url.clone(), 16).await.complete(), "the other one serves");
    });
}
