//! Adapters served beside the model: by name, while workers die, and while they are loaded and unloaded.

#![allow(clippy::unwrap_used)] // a test may fail

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use skein_bench::models::{Targets, make_adapters};
use skein_node::clock;
use skein_tests::check::compare;
use skein_tests::client::{self, History};
use skein_tests::process::{Cluster, send_signal, shipped_model};
use skein_tests::scenario::{self, Plan};

use crate::{SKEIN, block_on};

const RESTARTED_WITHIN: Duration = Duration::from_secs(30);

/// Writes `count` adapters for the shipped model, `a0` and so on.
pub fn adapters(count: usize) -> tempfile::TempDir {
    adapters_for(&shipped_model(), count)
}

/// Writes `count` adapters for the model in a directory, `a0` and so on.
pub fn adapters_for(model: &Path, count: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    make_adapters(model, directory.path(), count, 8, Targets::All).unwrap();
    directory
}

/// Argument of `--lora-modules` for one of [`adapters`].
pub fn module(directory: &Path, name: &str) -> String {
    format!("{name}={}", directory.join(name).display())
}

#[test]
fn killed_workers_lose_no_stream_of_any_adapter() {
    let directory = adapters(3);
    let names = ["a0", "a1", "a2"];
    let mut flags = vec!["--enable-lora".to_owned(), "--max-loras=2".to_owned()];
    flags.extend(names.map(|name| format!("--lora-modules={}", module(directory.path(), name))));
    let plan = Plan {
        rounds: 6,
        workers: 3,
        cases: 36,
        worker_flags: flags,
        adapters: names.map(str::to_owned).to_vec(),
        ..Plan::short(SKEIN)
    };
    let report = block_on(scenario::worker_kill::run(&plan));
    println!("{report}");
    assert!(report.passed(), "{report}");
}

/// A client of one server.
pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    pub fn of(url: &str) -> Self {
        Self { http: reqwest::Client::new(), url: url.to_owned() }
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, String) {
        let sent = self.http.post(format!("{}{path}", self.url)).json(&body).send().await.unwrap();
        (sent.status().as_u16(), sent.text().await.unwrap())
    }

    pub async fn load(&self, name: &str, directory: &Path) -> (u16, String) {
        self.post("/v1/load_lora_adapter", json!({"lora_name": name, "lora_path": directory})).await
    }

    pub async fn unload(&self, name: &str) -> (u16, String) {
        self.post("/v1/unload_lora_adapter", json!({"lora_name": name})).await
    }

    async fn stream(&self, model: &str) -> History {
        self.stream_of(model, 900).await
    }

    /// A stream of `count` tokens of `model`.
    pub async fn stream_of(&self, model: &str, count: u32) -> History {
        let body = json!({
            "model": model, "prompt": "def parse(self, value):", "max_tokens": count, "temperature": 0, "stream": true,
            "ignore_eos": true, "return_token_ids": true, "stream_options": {"include_usage": true},
        });
        client::stream_once(&self.http, &format!("{}/v1/completions", self.url), &body).await
    }

    /// Names of the model and of adapters, with their parents.
    pub async fn models(&self) -> Vec<(String, Value)> {
        let sent = self.http.get(format!("{}/v1/models", self.url)).send().await.unwrap();
        let list: Value = sent.json().await.unwrap();
        let models = list["data"].as_array().unwrap().iter();
        models.map(|model| (model["id"].as_str().unwrap().to_owned(), model["parent"].clone())).collect()
    }
}

#[test]
fn adapters_are_loaded_and_unloaded_under_load_and_no_stream_is_lost() {
    let directory = adapters(2);
    let first = module(directory.path(), "a0");
    block_on(async {
        let flags =
            ["--enable-lora", "--allow-runtime-lora-updating", "--lora-modules", &first, "--threads", "1"];
        let cluster = Cluster::serve(SKEIN, &flags).await;
        let client = Client::of(&cluster.url);
        let parent = json!("skein-7m");
        assert_eq!(
            client.models().await,
            [("skein-7m".to_owned(), Value::Null), ("a0".to_owned(), parent.clone())]
        );
        let (status, told) = client.post("/v1/completions", json!({"model": "a1", "prompt": "x"})).await;
        assert!(status == 404 && told.contains("model_not_found"), "{status} {told}");

        let path = directory.path().join("a1");
        let load = json!({"lora_name": "a1", "lora_path": path});
        let (status, told) = client.post("/v1/load_lora_adapter", load.clone()).await;
        assert!(status == 200 && told.contains("added successfully"), "{status} {told}");
        assert_eq!(client.post("/v1/load_lora_adapter", load).await.0, 200, "the same again is no error");
        let taken = json!({"lora_name": "a1", "lora_path": directory.path().join("a0")});
        let (status, told) = client.post("/v1/load_lora_adapter", taken).await;
        assert!(status == 400 && told.contains("is loaded already"), "{status} {told}");
        let nowhere = json!({"lora_name": "b", "lora_path": "/nowhere"});
        let (status, told) = client.post("/v1/load_lora_adapter", nowhere).await;
        assert!(status == 400 && told.contains("adapter_config.json"), "{status} {told}");
        assert_eq!(client.models().await.last().unwrap(), &("a1".to_owned(), parent));

        let plain = client.stream("skein-7m").await;
        let (of_a0, of_a1) = (client.stream("a0").await, client.stream("a1").await);
        for (one, other) in [(&plain, &of_a0), (&plain, &of_a1), (&of_a0, &of_a1)] {
            assert!(one.complete() && other.complete(), "{one:?} {other:?}");
            assert_ne!(one.choices[&0].token_ids, other.choices[&0].token_ids, "each has its own answer");
        }

        // Both are unloaded while they are in use, then one worker after another is killed and comes back,
        // the second early enough to have streams still.
        let answers = [("a0", &of_a0), ("a1", &of_a1), ("skein-7m", &plain)].repeat(4);
        let streams = join_all(answers.iter().map(|(model, _)| client.stream(model)));
        let connected = || cluster.log().matches("worker connected").count();
        let strikes = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            for name in ["a0", "a1"] {
                let (status, told) = client.post("/v1/unload_lora_adapter", json!({"lora_name": name})).await;
                assert!(status == 200 && told.contains("removed successfully"), "{status} {told}");
            }
            for worker in cluster.worker_pids() {
                let before = connected();
                send_signal(worker, "KILL");
                let start = clock::now();
                while connected() == before {
                    assert!(clock::now().since(start) < RESTARTED_WITHIN, "{}", cluster.log());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        let (seen, ()) = tokio::join!(streams, strikes);
        for (seen, (_, expected)) in seen.iter().zip(&answers) {
            let verdict = compare(seen, expected);
            assert!(verdict.is_clean(), "{verdict:?}\n{}", cluster.log());
        }
        assert!(cluster.log().contains("continues on another worker"), "{}", cluster.log());
        assert_eq!(client.models().await.len(), 1);
        assert_eq!(client.stream("a1").await.status, 404);
        assert_eq!(client.post("/v1/unload_lora_adapter", json!({"lora_name": "a1"})).await.0, 404);
    });
}

#[test]
fn ranks_serve_adapters_with_the_tokens_of_one_process() {
    let directory = adapters(3);
    let modules = ["a0", "a1", "a2"].map(|name| module(directory.path(), name));
    block_on(async {
        let mut seen = Vec::new();
        for ranks in ["1", "2"] {
            let mut flags = vec!["--workers", "1", "--threads", "2", "--tensor-parallel-size", ranks];
            flags.extend(["--enable-lora", "--max-loras", "2"]);
            modules.iter().for_each(|module| flags.extend(["--lora-modules", module]));
            let cluster = Cluster::serve(SKEIN, &flags).await;
            let client = Client::of(&cluster.url);
            // One more than is in memory, so that the first is forgotten and read again.
            let (first, second) = tokio::join!(client.stream("a0"), client.stream("a1"));
            let (third, plain) = tokio::join!(client.stream("a2"), client.stream("skein-7m"));
            let again = client.stream("a0").await;
            let histories = [first, second, third, plain, again];
            assert!(histories.iter().all(History::complete), "{ranks} ranks: {}", cluster.log());
            seen.push(histories.map(|history| history.choices[&0].token_ids.clone()));
        }
        let [first, second, third, plain, again] = &seen[0];
        assert!(first == again && [second, third, plain].iter().all(|other| *other != first));
        assert_eq!(seen[0], seen[1]);
    });
}
