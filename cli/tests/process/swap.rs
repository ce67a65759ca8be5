//! A running server takes other weights: streams that have begun end on the version that they began on, new
//! requests get the new one, and a version that cannot be loaded changes nothing.

#![allow(clippy::unwrap_used)] // a test may fail

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use skein_node::clock;
use skein_tests::client::{self, History};
use skein_tests::process::{Cluster, send_signal, shipped_model};

use crate::chaos::difference;
use crate::{SKEIN, block_on};

const STREAMS: usize = 20;
/// Time limit of a swap, on a loaded machine.
const SWAPPED_WITHIN: Duration = Duration::from_secs(120);

/// Two versions of the shipped model, and a link to one of them.
struct Versions {
    directory: tempfile::TempDir,
}

impl Versions {
    fn write() -> Self {
        let versions = Self { directory: tempfile::tempdir().unwrap() };
        versions.copy("one");
        let two = versions.copy("two").join("model.safetensors");
        let mut bytes = std::fs::read(&two).unwrap();
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        // The sign of every 7th value: each is two bytes, the sign in the second.
        bytes[start + 1..].iter_mut().step_by(14).for_each(|byte| *byte ^= 0x80);
        std::fs::write(two, bytes).unwrap();
        versions.link_to("one");
        versions
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn copy(&self, name: &str) -> PathBuf {
        let to = self.path(name);
        std::fs::create_dir(&to).unwrap();
        for file in std::fs::read_dir(shipped_model()).unwrap().flatten() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        to
    }

    /// Points `current` at a version, in one step.
    fn link_to(&self, name: &str) {
        let next = self.path("next");
        std::os::unix::fs::symlink(self.path(name), &next).unwrap();
        std::fs::rename(next, self.path("current")).unwrap();
    }
}

async fn serve(model: &str, more: &[&str]) -> Cluster {
    let fixed =
        [model, "--served-model-name", "m", "--device", "cpu", "--threads", "1", "--stream-linger", "1s"];
    Cluster::serve(SKEIN, &[&fixed[..], &["--queue-timeout", "3s"], more].concat()).await
}

fn request(index: usize, max_tokens: u32) -> Value {
    let mut body = json!({
        "model": "m", "prompt": format!("def function_{index}(self, value):\n"), "max_tokens": max_tokens,
        "stream": true, "return_token_ids": true, "ignore_eos": true, "temperature": 0.8, "seed": index,
    });
    if index.is_multiple_of(4) {
        body["temperature"] = json!(0);
    }
    if index.is_multiple_of(5) {
        body["n"] = json!(2);
    }
    body
}

fn start_all(url: &str, max_tokens: u32) -> Vec<tokio::task::JoinHandle<History>> {
    let url = format!("{url}/v1/completions");
    let one = |index| {
        let url = url.clone();
        tokio::spawn(async move {
            client::stream_once(&reqwest::Client::new(), &url, &request(index, max_tokens)).await
        })
    };
    (0..STREAMS).map(one).collect()
}

async fn all(started: Vec<tokio::task::JoinHandle<History>>) -> Vec<History> {
    let mut histories = Vec::new();
    for one in started {
        histories.push(one.await.unwrap());
    }
    histories
}

fn check(seen: &[History], expected: &[History], what: &str, cluster: &Cluster) {
    let differences: Vec<String> =
        (0..STREAMS).filter_map(|index| difference(index, &seen[index], &expected[index])).collect();
    assert!(differences.is_empty(), "{what}:\n{}\n{}", differences.join("\n"), cluster.log());
}

/// A short request.
async fn short(cluster: &Cluster) -> Vec<u64> {
    let (body, url) = (request(1, 8), format!("{}/v1/completions", cluster.url));
    let seen = client::stream_once(&reqwest::Client::new(), &url, &body).await;
    assert!(seen.complete(), "{seen:?}\n{}", cluster.log());
    seen.choices[&0].token_ids.clone()
}

async fn version(url: &str) -> String {
    let answer = reqwest::get(format!("{url}/v1/models")).await.unwrap();
    let models: Value = answer.json().await.unwrap();
    models["data"][0]["version"].as_str().unwrap().to_owned()
}

/// Orders a swap over HTTP; returns the status and the body.
async fn order(url: &str, body: Value) -> (u16, Value) {
    post(&format!("{url}/update_weights_from_disk"), body).await
}

/// Orders the version in `path` in the place of the running one.
async fn update_in_place(url: &str, path: &str) -> (u16, Value) {
    post(&format!("{url}/update_weights"), json!({"update_info": {"model_path": path}})).await
}

async fn post(url: &str, body: Value) -> (u16, Value) {
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// The streams of [`start_all`], all of which are accepted, and one at least has tokens.
async fn start_accepted(url: &str, max_tokens: u32) -> Vec<tokio::task::JoinHandle<History>> {
    let totals = async || {
        let cluster = reqwest::get(format!("{url}/v1/cluster")).await.unwrap();
        let cluster: Value = cluster.json().await.unwrap();
        ["requests", "output_tokens"].map(|total| cluster["totals"][total].as_f64().unwrap())
    };
    let (before, start) = (totals().await, clock::now());
    let started = start_all(url, max_tokens);
    let have_begun = |now: [f64; 2]| now[0] >= before[0] + STREAMS as f64 && now[1] > before[1];
    while !have_begun(totals().await) {
        assert!(clock::now().since(start) < SWAPPED_WITHIN, "the streams do not begin");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started
}

async fn pause(url: &str, mode: &str) {
    let paused = post(&format!("{url}/pause?mode={mode}"), json!({})).await;
    assert_eq!(paused, (200, json!({"status": "paused"})));
}

async fn resume(url: &str) {
    assert_eq!(post(&format!("{url}/resume"), json!({})).await, (200, json!({"status": "resumed"})));
}

async fn wait_for(cluster: &Cluster, what: &str, condition: impl Fn(&str) -> bool) {
    let start = clock::now();
    while !condition(&cluster.log()) {
        assert!(clock::now().since(start) < SWAPPED_WITHIN, "waited in vain for {what}:\n{}", cluster.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An event's id from a stream that is cut after its first tokens.
async fn id_of_a_cut_stream(url: &str, body: &Value) -> String {
    let client = reqwest::Client::new();
    let mut answer = client.post(format!("{url}/v1/completions")).json(body).send().await.unwrap();
    let mut text = String::new();
    while text.matches("id: ").count() < 3 {
        text += std::str::from_utf8(&answer.chunk().await.unwrap().unwrap()).unwrap();
    }
    text.split("id: ").nth(2).unwrap().lines().next().unwrap().to_owned()
}

#[test]
fn streams_end_on_the_version_that_they_began_on_and_new_requests_get_the_new_one() {
    block_on(async {
        let versions = Versions::write();
        let (long, longer) = (200, 500);
        let of_two = serve(&versions.text("two"), &["--workers", "1"]).await;
        let (expected_new, short_new) = (all(start_all(&of_two.url, long)).await, short(&of_two).await);
        let new_version = version(&of_two.url).await;
        drop(of_two);

        let cluster = serve(&versions.text("current"), &["--workers", "2"]).await;
        let url = cluster.url.clone();
        let expected_old = all(start_all(&url, longer)).await;
        let short_old = short(&cluster).await;
        let old_version = version(&url).await;
        assert!(short_old != short_new && old_version != new_version, "the versions differ");
        let old_workers = cluster.worker_pids();

        let running = start_all(&url, longer);
        let cut = json!({"model": "m", "prompt": "def", "max_tokens": longer, "stream": true, "ignore_eos": true,
                         "request_id": "cut"});
        let cut_id = id_of_a_cut_stream(&url, &cut).await;
        assert!(cut_id.ends_with(&format!("@{old_version}")), "{cut_id}");
        versions.link_to("two");
        send_signal(cluster.pid(), "HUP");
        // Service has no gap: every short request is answered, first by the old version and then by the new
        // one.
        let mut answers = Vec::new();
        while !cluster.log().contains("swapped: new requests go to the new version") {
            answers.push(short(&cluster).await);
            let refused = cluster.log().contains("not swapped");
            assert!(!refused, "{}", cluster.log());
        }
        assert_eq!(version(&url).await, new_version);
        assert_eq!(short(&cluster).await, short_new);
        let first_new = answers.iter().position(|answer| *answer == short_new).unwrap_or(answers.len());
        assert!(answers[..first_new].iter().all(|answer| *answer == short_old), "{answers:?}");
        assert!(answers[first_new..].iter().all(|answer| *answer == short_new), "{answers:?}");
        let on_old = cluster.log().lines().find(|line| line.contains("swapped:")).unwrap().to_owned();
        assert!(!on_old.contains("running_on_old=0"), "streams ran during the swap: {on_old}");

        // An old worker dies while it ends its streams: they go on at the others of the same version.
        send_signal(old_workers[0], "KILL");
        check(&all(running).await, &expected_old, "streams of the old version", &cluster);
        wait_for(&cluster, "the old workers to end", |log| log.contains("the version before has ended"))
            .await;
        let now = cluster.worker_pids();
        assert_eq!((now.len(), now.iter().any(|pid| old_workers.contains(pid))), (2, false));
        check(&all(start_all(&url, long)).await, &expected_new, "requests after the swap", &cluster);

        // What began on the old version is not continued by the new one.
        let client = reqwest::Client::new();
        let resume = client.post(format!("{url}/v1/completions")).header("last-event-id", cut_id).json(&cut);
        let answer = resume.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        assert!(status == 409 && text.contains("model_version_gone"), "{status} {text}");
        let metrics = reqwest::get(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
        for expected in [
            format!(
                "skein_model_version_current{{engine=\"0\",model_name=\"m\",version=\"{new_version}\"}} 1"
            ),
            format!(
                "skein_model_version_workers{{engine=\"0\",model_name=\"m\",version=\"{new_version}\"}} 2"
            ),
            "skein_model_swaps_total{engine=\"0\",model_name=\"m\",outcome=\"swapped\"} 1".to_owned(),
        ] {
            assert!(metrics.contains(&expected), "{expected} in\n{metrics}");
        }
    });
}

/// Writes a version that cannot be served, by a change to a copy of a good one.
fn broken(versions: &Versions, name: &str, change: impl FnOnce(&Path)) -> Value {
    change(&versions.copy(name));
    json!({"model_path": versions.text(name)})
}

#[test]
fn a_version_that_cannot_be_served_is_refused_and_service_goes_on() {
    block_on(async {
        let versions = Versions::write();
        let flags = ["--workers", "2", "--allow-runtime-model-updating", "--kv-cache-memory-bytes", "16MiB"];
        let cluster = serve(&versions.text("one"), &flags).await;
        let url = cluster.url.clone();
        let (expected, old_version) = (short(&cluster).await, version(&url).await);
        let old_workers = cluster.worker_pids();
        let cut = |path: &Path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        };
        let cases = [
            (json!({"model_path": versions.text("nowhere")}), "does not exist"),
            (
                broken(&versions, "no-weights", |path| {
                    std::fs::remove_file(path.join("model.safetensors")).unwrap()
                }),
                "model.safetensors",
            ),
            (
                broken(&versions, "truncated", |path| cut(&path.join("model.safetensors"))),
                "model.safetensors",
            ),
            (
                broken(&versions, "no-tokenizer", |path| {
                    std::fs::remove_file(path.join("tokenizer.json")).unwrap()
                }),
                "tokenizer.json",
            ),
            (
                broken(&versions, "other-tokenizer", |path| {
                    let path = path.join("tokenizer.json");
                    let text = std::fs::read_to_string(&path).unwrap().replacen("ation", "atiox", 1);
                    std::fs::write(path, text).unwrap();
                }),
                "another tokenizer",
            ),
        ];
        for (body, reason) in cases {
            let (status, answer) = order(&url, body.clone()).await;
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(status == 400 && message.contains(reason), "{body}: {status} {answer}");
            assert!(message.contains(&format!("Version {old_version} serves on")), "{message}");
            assert_eq!((short(&cluster).await, version(&url).await), (expected.clone(), old_version.clone()));
        }
        let (status, answer) = order(&url, json!({})).await;
        assert!(status == 200 && answer["changed"] == false, "{status} {answer}");

        // A new worker is killed while it loads.
        let body = json!({"model_path": versions.text("two")});
        let ordered = tokio::spawn({
            let (url, body) = (url.clone(), body.clone());
            async move { order(&url, body).await }
        });
        let new = new_worker(&cluster, &old_workers, &ordered).await;
        let (status, meanwhile) = order(&url, body.clone()).await;
        assert!(status == 409 && meanwhile["error"]["code"] == "conflict", "{status} {meanwhile}");
        send_signal(new, "KILL");
        let (status, answer) = ordered.await.unwrap();
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains("signal: 9"), "{status} {answer}");
        assert_eq!(short(&cluster).await, expected);
        assert_eq!(cluster.worker_pids(), old_workers, "the other new worker has ended, too");

        let (status, answer) = order(&url, body).await;
        assert!(status == 200 && answer["success"] == true && answer["changed"] == true, "{status} {answer}");
        assert_eq!(version(&url).await, answer["model_version"].as_str().unwrap());
        assert_ne!(short(&cluster).await, expected);
        // And back, with a directory that has gone meanwhile: nothing reads it any more.
        wait_for(&cluster, "the old workers to end", |log| log.contains("the version before has ended"))
            .await;
        let (status, answer) = order(&url, json!({"model_path": versions.text("current")})).await;
        assert!(status == 200 && answer["model_version"] == *old_version, "{status} {answer}");
        assert_eq!(short(&cluster).await, expected);
    });
}

/// Process id of the first worker that `ordered` starts.
async fn new_worker<T>(cluster: &Cluster, old: &[u32], ordered: &tokio::task::JoinHandle<T>) -> u32 {
    let start = clock::now();
    loop {
        let in_time = clock::now().since(start) < SWAPPED_WITHIN && !ordered.is_finished();
        assert!(in_time, "{}", cluster.log());
        if let Some(new) = cluster.worker_pids().into_iter().find(|pid| !old.contains(pid)) {
            return new;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whether what came of a stream that was cut is the beginning of the whole one.
fn is_beginning_of(seen: &History, whole: &History) -> bool {
    let is_cut = |(index, choice): (&u64, &client::Choice)| {
        let end = choice.finish.as_deref();
        whole.choices[index].token_ids.starts_with(&choice.token_ids)
            && matches!(end, Some("abort" | "length"))
    };
    seen.complete() && seen.choices.iter().all(is_cut)
}

#[test]
fn generation_stands_still_and_gets_other_weights_in_place() {
    block_on(async {
        let versions = Versions::write();
        let flags = ["--workers", "2", "--allow-runtime-model-updating", "--kv-cache-memory-bytes", "16MiB"];
        let cluster = serve(&versions.text("one"), &flags).await;
        let url = cluster.url.clone();
        let longer = 500;
        let expected = all(start_all(&url, longer)).await;
        let (short_old, old_version) = (short(&cluster).await, version(&url).await);
        let (status, answer) = update_in_place(&url, &versions.text("two")).await;
        assert!(status == 409 && answer.to_string().contains("POST /pause first"), "{status} {answer}");

        // Kept streams stand still, beside the swap of the version that they began on, and end as they would.
        let running = start_accepted(&url, longer).await;
        pause(&url, "keep").await;
        let (status, answer) = order(&url, json!({"model_path": versions.text("two")})).await;
        assert!(status == 200 && answer["changed"] == true, "{status} {answer}");
        assert!(running.iter().any(|stream| !stream.is_finished()), "some stream was not at its end");
        assert!(answer["num_paused_requests"].as_u64().unwrap() > 0, "{answer}");
        // The old workers wait for them, not only for clients that may come back (--stream-linger 1s).
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!cluster.log().contains("the version before has ended"), "{}", cluster.log());
        resume(&url).await;
        let seen = all(running).await;
        let short_new = short(&cluster).await;
        assert_ne!(short_new, short_old);
        wait_for(&cluster, "the old workers to end", |log| log.contains("the version before has ended"))
            .await;
        // Those that had begun are of the old version; those that had nothing yet, of the new one.
        let (old, expected) = (expected, all(start_all(&url, longer)).await);
        let is_of = |at: usize, whole: &[History]| difference(at, &seen[at], &whole[at]).is_none();
        let of_old = (0..STREAMS).filter(|at| is_of(*at, &old)).count();
        let of_new = (0..STREAMS).filter(|at| is_of(*at, &expected)).count();
        assert!(of_old > 0 && of_old + of_new == STREAMS, "{of_old} {of_new}\n{}", cluster.log());
        let old_workers = cluster.worker_pids();

        // Aborted streams are the beginnings of whole ones. New requests wait, and get the new weights.
        let running = start_accepted(&url, longer).await;
        pause(&url, "abort").await;
        for (seen, whole) in all(running).await.iter().zip(&expected) {
            assert!(is_beginning_of(seen, whole), "{seen:?}");
        }
        let (status, answer) = update_in_place(&url, &versions.text("one")).await;
        assert!(status == 200 && answer["model_version"] == *old_version, "{status} {answer}");
        let new_workers = cluster.worker_pids();
        assert_eq!((new_workers.len(), new_workers.iter().any(|pid| old_workers.contains(pid))), (2, false));
        let mut waiting = tokio::spawn({
            let (url, body) = (format!("{url}/v1/completions"), request(1, 8));
            async move { client::stream_once(&reqwest::Client::new(), &url, &body).await }
        });
        assert!(tokio::time::timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "it waits");
        resume(&url).await;
        assert_eq!(waiting.await.unwrap().choices[&0].token_ids, short_old);

        // What cannot be served changes nothing, even if the running version's workers have ended.
        pause(&url, "wait").await;
        let (status, answer) = update_in_place(&url, &versions.text("nowhere")).await;
        assert!(status == 400 && answer.to_string().contains("does not exist"), "{status} {answer}");
        assert_eq!(cluster.worker_pids(), new_workers, "they have not ended");
        let ordered = tokio::spawn({
            let (url, two) = (url.clone(), versions.text("two"));
            async move { update_in_place(&url, &two).await }
        });
        let new = new_worker(&cluster, &new_workers, &ordered).await;
        assert_eq!(post(&format!("{url}/resume"), json!({})).await.0, 409, "weights are being replaced");
        send_signal(new, "KILL");
        let (status, answer) = ordered.await.unwrap();
        assert!(status == 400 && answer.to_string().contains("serves on"), "{status} {answer}");
        resume(&url).await;
        assert_eq!((short(&cluster).await, version(&url).await), (short_old, old_version));
    });
}
