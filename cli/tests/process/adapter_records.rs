//! Adapters that were loaded and unloaded at run time, after routers and workers restart.

#![allow(clippy::unwrap_used)] // a test may fail

use std::path::Path;
use std::time::Duration;

use skein_node::clock;
use skein_tests::nodes::lasting_address;
use skein_tests::process::{free_port, send_signal, shipped_model};

use crate::adapters::{Client, adapters, module};
use crate::block_on;
use crate::moves::{Process, wait_for_workers};

const FLAGS: [&str; 2] = ["--enable-lora", "--allow-runtime-lora-updating"];
/// Tokens of a stream.
const TOKENS: u32 = 40;
/// Time limit for what routers and workers tell each other.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

struct Servers {
    workers: [String; 2],
    ports: [u16; 2],
}

impl Servers {
    fn new() -> Self {
        let workers = [lasting_address(), lasting_address()].map(|address| address.to_string());
        Self { workers, ports: [free_port(), free_port()] }
    }

    fn worker(&self, number: usize, modules: &[&str]) -> Process {
        let mut arguments = vec!["--listen", &self.workers[number]];
        arguments.extend(FLAGS);
        modules.iter().for_each(|module| arguments.extend(["--lora-modules", module]));
        let model = shipped_model();
        let fixed = ["worker", model.to_str().unwrap(), "--served-model-name", "skein-7m", "--device", "cpu"];
        Process::start(&[&fixed[..], &["--threads", "1"], &arguments].concat())
    }

    fn router(&self, number: usize) -> Process {
        let (model, port) = (shipped_model(), self.ports[number].to_string());
        let fixed = ["router", model.to_str().unwrap(), "--served-model-name", "skein-7m", "--port", &port];
        Process::start(&[&fixed[..], &["--workers", &self.workers.join(","), FLAGS[1]]].concat())
    }

    fn url(&self, router: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[router])
    }

    fn client(&self, router: usize) -> Client {
        Client::of(&self.url(router))
    }
}

async fn tokens(client: &Client, model: &str) -> Vec<u64> {
    let history = client.stream_of(model, TOKENS).await;
    assert!(history.complete(), "{history:?}");
    history.choices[&0].token_ids.clone()
}

async fn names(client: &Client) -> Vec<String> {
    client.models().await.into_iter().map(|(name, _)| name).collect()
}

/// Waits until the router lists these adapters, and checks that it goes on doing so.
async fn lists(client: &Client, expected: &[&str]) {
    let began = clock::now();
    loop {
        let listed = names(client).await;
        if listed[1..] == *expected {
            break;
        }
        assert!(clock::now().since(began) < TOLD_WITHIN, "{listed:?} instead of {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(names(client).await[1..], *expected, "it stays so");
    }
}

#[test]
fn restarted_and_other_routers_know_the_adapters_that_were_loaded() {
    block_on(async {
        let (directory, servers) = (adapters(3), Servers::new());
        let path = |name: &str| directory.path().join(name);
        let first = servers.worker(0, &[]);
        let _second = servers.worker(1, &[]);
        let (router, _other) = (servers.router(0), servers.router(1));
        let (client, other) = (servers.client(0), servers.client(1));
        wait_for_workers(&servers.url(0), 2).await;
        wait_for_workers(&servers.url(1), 2).await;
        for name in ["a0", "a1"] {
            let (status, told) = client.load(name, &path(name)).await;
            assert!(status == 200, "{status} {told}");
            assert_eq!(names(&client).await.last().unwrap(), name, "it is served when the call returns");
        }
        let expected = [tokens(&client, "a0").await, tokens(&client, "a1").await];
        assert!(expected[0] != expected[1] && expected[0] != tokens(&client, "skein-7m").await);
        lists(&other, &["a0", "a1"]).await;
        let (status, told) = other.load("a1", &path("a2")).await;
        assert!(status == 400 && told.contains("is loaded already"), "{status} {told}");
        // A directory that is not there changes nothing.
        let (status, told) = other.load("a2", Path::new("/nowhere")).await;
        assert!(status == 400 && told.contains("adapter_config.json"), "{status} {told}");
        assert_eq!(other.unload("a0").await.0, 200);
        lists(&client, &["a1"]).await;

        router.kill();
        let _router = servers.router(0);
        wait_for_workers(&servers.url(0), 2).await;
        lists(&client, &["a1"]).await;
        assert_eq!(tokens(&client, "a1").await, expected[1]);
        assert_eq!(client.stream_of("a0", 1).await.status, 404);

        // A worker that starts now gets them from the router that has restarted.
        first.kill();
        wait_for_workers(&servers.url(0), 1).await;
        let _first = servers.worker(0, &[]);
        wait_for_workers(&servers.url(0), 2).await;
        _second.kill();
        wait_for_workers(&servers.url(0), 1).await;
        lists(&client, &["a1"]).await;
        assert_eq!(tokens(&client, "a1").await, expected[1]);
        assert_eq!(client.stream_of("a0", 1).await.status, 404);
        let (status, told) = client.load("a0", &path("a0")).await;
        assert!(status == 200, "{status} {told}");
        assert_eq!(tokens(&client, "a0").await, expected[0]);
    });
}

#[test]
fn an_unloaded_name_does_not_come_back_from_a_worker_that_was_away() {
    block_on(async {
        let (directory, servers) = (adapters(2), Servers::new());
        let of_flags = module(directory.path(), "a0");
        let workers = [servers.worker(0, &[&of_flags]), servers.worker(1, &[&of_flags])];
        let router = servers.router(0);
        let client = servers.client(0);
        wait_for_workers(&servers.url(0), 2).await;
        assert_eq!(client.load("a1", &directory.path().join("a1")).await.0, 200);
        lists(&client, &["a0", "a1"]).await;
        // One worker answers nothing while both names are unloaded, and the router that knows it ends.
        let [_first, second] = workers;
        send_signal(second.id(), "STOP");
        for name in ["a0", "a1"] {
            let (status, told) = client.unload(name).await;
            assert!(status == 200, "{status} {told}");
            assert_eq!(client.stream_of(name, 1).await.status, 404);
        }
        router.kill();
        let router = servers.router(0);
        wait_for_workers(&servers.url(0), 1).await;
        lists(&client, &[]).await;
        send_signal(second.id(), "CONT");
        wait_for_workers(&servers.url(0), 2).await;
        lists(&client, &[]).await;
        assert_eq!(client.unload("a1").await.0, 404);

        // The same with a worker that restarts with the name in its flags.
        second.kill();
        router.kill();
        let _router = servers.router(0);
        wait_for_workers(&servers.url(0), 1).await;
        let _second = servers.worker(1, &[&of_flags]);
        wait_for_workers(&servers.url(0), 2).await;
        lists(&client, &[]).await;
        // That worker remembers it, too.
        _first.kill();
        wait_for_workers(&servers.url(0), 1).await;
        lists(&client, &[]).await;
        assert_eq!(client.load("a0", &directory.path().join("a0")).await.0, 200);
        lists(&client, &["a0"]).await;
    });
}
