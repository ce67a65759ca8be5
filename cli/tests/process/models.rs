//! Several models in one server: each is loaded when it is asked for, within the memory that is allowed, and
//! no request is lost or answered by another model, whatever is killed meanwhile.

#![allow(clippy::unwrap_used)] // a test may fail

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use skein_tests::process::{Cluster, send_signal, shipped_model};

use crate::{SKEIN, block_on};

const NAMES: [&str; 6] = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"];
const REQUESTS: usize = 240;
const AT_ONCE: usize = 6;
const KILLS: usize = 12;

/// A directory of models: the shipped one with other weights under each name.
fn variants(names: &[&str]) -> tempfile::TempDir {
    let all = tempfile::tempdir().unwrap();
    for (number, name) in names.iter().enumerate() {
        let to = all.path().join(name);
        std::fs::create_dir(&to).unwrap();
        for file in std::fs::read_dir(shipped_model()).unwrap().flatten() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        let weights = to.join("model.safetensors");
        let mut bytes = std::fs::read(&weights).unwrap();
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        // The sign of some values: each is two bytes, the sign in the second. The first model is as shipped.
        if number > 0 {
            bytes[start + 1..].iter_mut().step_by(10 + 4 * number).for_each(|byte| *byte ^= 0x80);
        }
        std::fs::write(weights, bytes).unwrap();
    }
    all
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A cache whose size does not depend on the memory of all models.
const CACHE: [&str; 2] = ["--kv-cache-memory-bytes", "16MiB"];

/// Bytes that the plan of one model of `directory` takes.
fn planned_bytes(directory: &Path) -> u64 {
    let output = Command::new(SKEIN)
        .args(["serve", &text(directory), "--device", "cpu", "--plan"])
        .args(CACHE)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let line = printed.lines().find(|line| line.starts_with("alpha: "));
    let bytes = line.and_then(|line| line.strip_prefix("alpha: ")?.strip_suffix(" bytes")?.parse().ok());
    bytes.unwrap_or_else(|| panic!("{printed}{}", String::from_utf8_lossy(&output.stderr)))
}

fn request(model: &str, number: usize) -> Value {
    json!({
        "model": model, "prompt": format!("def function_{number}(self):\n"), "max_tokens": 24, "ignore_eos": true,
        "temperature": 0.8, "seed": number, "return_token_ids": true, "request_id": format!("{model}-{number}"),
    })
}

async fn tokens(client: &reqwest::Client, url: &str, body: &Value) -> Result<Value, String> {
    let answered = client.post(format!("{url}/v1/completions")).json(body).send().await;
    let answer = answered.map_err(|error| error.to_string())?;
    let status = answer.status();
    let answer: Value = answer.json().await.map_err(|error| error.to_string())?;
    let ids = &answer["choices"][0]["token_ids"];
    if status.is_success() && ids.is_array() { Ok(ids.clone()) } else { Err(format!("{status}: {answer}")) }
}

async fn states(url: &str) -> BTreeMap<String, String> {
    let list: Value = reqwest::get(format!("{url}/v1/models")).await.unwrap().json().await.unwrap();
    let state = |model: &Value| {
        (model["id"].as_str().unwrap().to_owned(), model["status"]["value"].as_str().unwrap().to_owned())
    };
    list["data"].as_array().unwrap().iter().map(state).collect()
}

/// The first of all models is asked for most, each further one half as often.
fn skewed(rng: &mut StdRng) -> &'static str {
    let drawn: f64 = rng.random();
    NAMES[((1.0 - drawn).log2().abs() as usize).min(NAMES.len() - 1)]
}

#[test]
fn six_models_in_the_memory_of_two_answer_as_alone_while_workers_are_killed() {
    let models = variants(&NAMES);
    let budget = (2 * planned_bytes(models.path()) + (1 << 20)).to_string();
    block_on(async move {
        let client = reqwest::Client::new();
        let mut alone = BTreeMap::new();
        for name in ["alpha", "zeta"] {
            let only = Cluster::serve(
                SKEIN,
                &[&text(&models.path().join(name)), "--device", "cpu", "--threads", "1"],
            )
            .await;
            alone.insert(name, tokens(&client, &only.url, &request(name, 0)).await.unwrap());
        }
        assert_ne!(alone["alpha"], alone["zeta"], "the models differ");
        let flags =
            ["--device", "cpu", "--threads", "1", "--models-memory", &budget, "--model-load-timeout", "10m"];
        let cluster = Cluster::serve(SKEIN, &[&[&*text(models.path())], &flags[..], &CACHE].concat()).await;
        for (name, expected) in &alone {
            assert_eq!(
                tokens(&client, &cluster.url, &request(name, 0)).await.as_ref(),
                Ok(expected),
                "{name}"
            );
        }
        let mut rng = StdRng::seed_from_u64(7);
        let asked: Vec<(usize, &str)> = (0..REQUESTS).map(|number| (number % 40, skewed(&mut rng))).collect();
        let undisturbed = all(&client, &cluster.url, &asked).await;
        let in_memory = states(&cluster.url).await.values().filter(|state| *state == "loaded").count();
        assert!((1..=2).contains(&in_memory), "{in_memory} are in memory");

        let over = Arc::new(AtomicBool::new(false));
        let killer = tokio::spawn(kill_workers(cluster.pid(), over.clone()));
        let disturbed = all(&client, &cluster.url, &asked).await;
        over.store(true, Ordering::SeqCst);
        let kills = killer.await.unwrap();
        for (number, (before, after)) in undisturbed.iter().zip(&disturbed).enumerate() {
            let (expected, seen) = (before.as_ref(), after.as_ref());
            assert!(
                before.is_ok() && expected == seen,
                "{:?}: {expected:?} {seen:?}\n{}",
                asked[number],
                cluster.log()
            );
        }
        assert!(kills > 0, "nothing was killed");
        assert_eq!(cluster.end("TERM", Duration::from_secs(60)).await, Some(0));
    });
}

/// Sends all requests, some at once; their answers, in order.
async fn all(client: &reqwest::Client, url: &str, asked: &[(usize, &str)]) -> Vec<Result<Value, String>> {
    use futures::StreamExt;
    let one = |&(number, name): &(usize, &str)| {
        let body = request(name, number);
        async move { tokens(client, url, &body).await }
    };
    futures::stream::iter(asked.iter().map(one)).buffered(AT_ONCE).collect().await
}

/// Kills a worker now and then until it is `over`; returns how many.
async fn kill_workers(supervisor: u32, over: Arc<AtomicBool>) -> usize {
    let (mut rng, mut kills) = (StdRng::seed_from_u64(3), 0);
    while !over.load(Ordering::SeqCst) && kills < KILLS {
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..400))).await;
        let workers = skein_tests::process::workers_of(supervisor);
        if !workers.is_empty() {
            send_signal(workers[rng.random_range(0..workers.len())], "KILL");
            kills += 1;
        }
    }
    kills
}

#[test]
fn a_file_names_models_their_settings_and_those_that_stay() {
    let models = variants(&["alpha", "beta"]);
    let file = models.path().join("models.toml");
    let [alpha, beta] = ["alpha", "beta"].map(|name| text(&models.path().join(name)));
    let listed = format!(
        "[[models]]\nmodel = {alpha:?}\nnames = [\"chat\", \"gpt-4o\"]\npinned = true\nmax-model-len = 128\n\
         [[models]]\nmodel = {beta:?}\nname = \"org/second\"\nkeep-alive = \"1s\"\n"
    );
    std::fs::write(&file, listed).unwrap();
    block_on(async {
        let cluster =
            Cluster::serve(SKEIN, &["--models-file", &text(&file), "--device", "cpu", "--threads", "1"])
                .await;
        let client = reqwest::Client::new();
        let until = async |name: &str, state: &str| {
            while states(&cluster.url).await[name] != state {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), until("chat", "loaded")).await.expect("it is pinned");
        for name in ["chat", "gpt-4o", "org/second"] {
            tokens(&client, &cluster.url, &request(name, 1)).await.unwrap();
        }
        let list: Value =
            reqwest::get(format!("{}/v1/models/chat", cluster.url)).await.unwrap().json().await.unwrap();
        assert_eq!(list["max_model_len"], 128, "{list}");
        tokio::time::timeout(Duration::from_secs(120), until("org/second", "unloaded"))
            .await
            .expect("it leaves");
        assert_eq!(states(&cluster.url).await["chat"], "loaded");
        let mut workers = cluster.worker_pids();
        assert_eq!(workers.len(), 1, "a model on disk has no process");
        send_signal(workers.remove(0), "KILL");
        tokens(&client, &cluster.url, &request("chat", 2)).await.unwrap();
    });
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(SKEIN)
        .args(["serve", "--device", "cpu", "--port", "0"])
        .args(arguments)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_list_that_cannot_be_served_is_refused_with_what_to_do() {
    let models = variants(&["alpha", "beta"]);
    let [alpha, beta] = ["alpha", "beta"].map(|name| text(&models.path().join(name)));
    let write = |name: &str, content: &str| -> PathBuf {
        let path = models.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let wrong = write(
        "wrong.toml",
        "[[models]]\nmodel = \"x\"\nmax-model-length = 1\n[[models]]\npinned = 3\n[more]\n",
    );
    let twice = write(
        "twice.toml",
        &format!("[[models]]\nmodel = {alpha:?}\nname = \"a\"\n[[models]]\nmodel = {beta:?}\nname = \"a\"\n"),
    );
    let value = write("value.toml", &format!("[[models]]\nmodel = {alpha:?}\nmax-num-seqs = 0\n"));
    let [wrong, twice, value] = [&wrong, &twice, &value].map(|path| text(path));
    for (arguments, code, said) in [
        (
            vec!["--models-file", &*wrong],
            2,
            vec!["is max-model-len meant?", "model 2: pinned: it must be true or false", "`more` is unknown"],
        ),
        (vec!["--models-file", &*twice], 2, vec!["are both called `a`"]),
        (vec!["--models-file", &*value], 2, vec!["max-num-seqs"]),
        (vec!["--models-file", "/nowhere.toml"], 2, vec!["/nowhere.toml"]),
        (vec![&*alpha, &*beta, "--models-memory", "1MiB"], 3, vec!["needs", "raise --models-memory"]),
        (vec![&*alpha, &*beta, "--pinned-models", "gamma"], 2, vec!["no model is called `gamma`"]),
        (vec![&*alpha, &*beta, "--served-model-name", "x"], 2, vec!["give it in --models-file"]),
        (vec![&*alpha, "/nowhere/model"], 3, vec!["/nowhere/model"]),
    ] {
        let (got, printed) = refused(&arguments);
        let all = said.iter().all(|said| printed.contains(said));
        assert!(got == Some(code) && all, "{arguments:?}: {got:?}\n{printed}");
    }
}
