//! What a user sees of a healthy cluster: answers, errors, cached tokens, and an idle machine while it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use skein_tests::client;
use skein_tests::process::{Cluster, send_signal};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use crate::{SKEIN, block_on};

async fn post(client: &reqwest::Client, url: String, body: Value) -> (u16, Value) {
    let response = client.post(url).json(&body).send().await.expect("the server answers");
    let status = response.status().as_u16();
    (status, response.json().await.expect("the answer is JSON"))
}

#[test]
fn a_fresh_cluster_answers_repeats_itself_and_shares_prefixes() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &[]).await;
        let client = reqwest::Client::new();
        let completions = format!("{}/v1/completions", cluster.url);
        let prompt = "import os\n\n".repeat(40) + "def main():";
        let body = json!({"model": "skein-7m", "prompt": prompt, "max_tokens": 24, "temperature": 0});
        let (status, first) = post(&client, completions.clone(), body.clone()).await;
        assert_eq!(status, 200, "{first}");
        let (_, second) = post(&client, completions.clone(), body.clone()).await;
        assert_eq!(first["choices"], second["choices"], "greedy decoding repeats itself");
        let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let prompt_tokens = second["usage"]["prompt_tokens"].as_u64().expect("usage counts the prompt");
        assert!(cached >= prompt_tokens - 17, "a repeated prompt is cached: {cached} of {prompt_tokens}");

        let chat = json!({"model": "skein-7m", "messages": [{"role": "user", "content": "What does os.getcwd do?"}],
                          "max_tokens": 16, "seed": 7});
        let (status, answer) = post(&client, format!("{}/v1/chat/completions", cluster.url), chat).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["choices"][0]["message"]["role"], "assistant");

        let mut streaming = body;
        streaming["stream"] = json!(true);
        let history = client::stream(&client, &completions, &streaming).await.expect("the stream ends");
        assert!(history.complete(), "{history:?}");
        assert_eq!(history.choices[&0].text, first["choices"][0]["text"].as_str().unwrap_or_default());
    });
}

#[test]
fn run_talks_to_a_running_server_and_resumes_when_the_connection_breaks() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &["--workers", "1", "--api-key", "sesame"]).await;
        let run = |url: String, more: &'static [&'static str]| async move {
            let mut command = tokio::process::Command::new(SKEIN);
            command.args(["run", "--url", &url, "--temperature", "0", "--max-tokens", "200"]).args(more);
            let output = command.stdin(std::process::Stdio::null()).output().await.expect("skein runs");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        let body = json!({"messages": [{"role": "user", "content": "Write a loop"}], "temperature": 0, "max_tokens": 200});
        let request = reqwest::Client::new().post(format!("{}/v1/chat/completions", cluster.url));
        let answer: Value =
            request.bearer_auth("sesame").json(&body).send().await.unwrap().json().await.unwrap();
        let whole = answer["choices"][0]["message"]["content"].as_str().expect("an answer").to_owned();

        let output = run(cluster.url.clone(), &["--api-key", "sesame", "Write a loop"]).await;
        assert_eq!(output, (Some(0), format!("{whole}\n"), String::new()));
        let (proxy, cuts) = breaking_proxy(cluster.url.trim_start_matches("http://").to_owned()).await;
        let output = run(proxy, &["--api-key", "sesame", "--model", "skein-7m", "Write a loop"]).await;
        assert_eq!(output, (Some(0), format!("{whole}\n"), String::new()));
        assert!(cuts.load(Ordering::SeqCst) > 1, "the connection broke");

        let (code, _, error) = run(cluster.url.clone(), &["Write a loop"]).await;
        assert!(code == Some(1) && error.contains("This server requires an API key"), "{code:?} {error}");
        let (code, _, error) = run("https://127.0.0.1:1".to_owned(), &["x"]).await;
        assert!(code == Some(1) && error.contains("Connection refused"), "{code:?} {error}");
        let (code, _, error) = run("ftp://127.0.0.1:1".to_owned(), &["x"]).await;
        assert!(code == Some(2) && error.contains("must be an http:// or https:// URL"), "{code:?} {error}");
    });
}

/// A proxy to `server` that closes each connection after some bytes of the answer, later each time. Returns
/// its URL and a counter of connections.
async fn breaking_proxy(server: String) -> (String, Arc<AtomicU64>) {
    const FIRST_CUT_BYTES: u64 = 1500;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let connections = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let nth = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let (server, (mut from, mut to)) = (TcpStream::connect(&server).await, client.into_split());
            let (back, mut forth) = server.expect("the server accepts").into_split();
            let upstream = tokio::spawn(async move { tokio::io::copy(&mut from, &mut forth).await });
            // Fails if the client has disconnected, which ends this connection, too.
            let _ = tokio::io::copy(&mut back.take(FIRST_CUT_BYTES * nth), &mut to).await;
            upstream.abort();
        }
    });
    (url, connections)
}

#[test]
fn bad_requests_get_clear_errors_and_disturb_nobody() {
    let cases = [
        (json!({"model": "nope", "prompt": "x"}), 404, Value::from("model"), "does not exist"),
        (json!({"prompt": "x", "temperature": 3}), 400, Value::from("temperature"), "[0, 2]"),
        (json!({"prompt": "x", "n": 1_000_000}), 400, Value::from("n"), "[1, 128]"),
        (json!({"prompt": "x ".repeat(20_000)}), 400, Value::from("prompt"), "maximum context length is"),
        (json!({"prompt": "x", "stop": "y".repeat(1_000_000)}), 400, Value::from("stop"), "256"),
        (json!({"prompt": [1, 2, 99_999_999]}), 400, Value::from("prompt"), "99999999"),
        (json!({"prompt": "x", "max_tokens": 0}), 400, Value::from("max_tokens"), "max_tokens"),
    ];
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &["--workers", "1"]).await;
        let client = reqwest::Client::new();
        let url = format!("{}/v1/completions", cluster.url);
        let steady = json!({"prompt": "class Steady:", "max_tokens": 200, "ignore_eos": true, "temperature": 0,
                            "stream": true});
        let bystander = tokio::spawn({
            let (client, url) = (client.clone(), url.clone());
            async move { client::stream(&client, &url, &steady).await }
        });
        for (body, status, param, sentence) in cases {
            let (got, answer) = post(&client, url.clone(), body).await;
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert_eq!(got, status, "{answer}");
            assert_eq!(answer["error"]["param"], param, "{answer}");
            assert!(message.contains(sentence), "{answer}");
        }
        let bytes = client.post(&url).body(vec![b'{', 0xff, 0xfe]).send().await.expect("an answer");
        assert_eq!(bytes.status().as_u16(), 400);
        let history = bystander.await.expect("no panic").expect("the bystander's stream ends");
        assert!(history.complete(), "{history:?}");
    });
}

type Stream = tokio::task::JoinHandle<Result<client::History, reqwest::Error>>;

/// A stream that has begun and has most of its tokens still to come. Its text is random, because drafts of
/// text that repeats itself are right and end a stream within the time of a few steps.
async fn stream_under_way(cluster: &Cluster) -> Stream {
    let url = format!("{}/v1/completions", cluster.url);
    let body = json!({"prompt": "def f():", "max_tokens": 900, "ignore_eos": true, "temperature": 1.5, "seed": 1,
                      "stream": true});
    let stream = tokio::spawn(async move { client::stream(&reqwest::Client::new(), &url, &body).await });
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!stream.is_finished(), "the stream was over before anything could happen to it");
    stream
}

async fn assert_whole(stream: Stream) {
    let history = stream.await.expect("no panic").expect("the stream ends");
    assert!(history.complete(), "{history:?}");
}

#[test]
fn ctrl_c_lets_running_streams_end() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &[]).await;
        let stream = stream_under_way(&cluster).await;
        let code = cluster.end("INT", Duration::from_secs(60)).await;
        assert_whole(stream).await;
        assert_eq!(code, Some(0));
    });
}

#[test]
fn a_sigterm_to_the_whole_group_drains_without_a_word_of_alarm() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &[]).await;
        let stream = stream_under_way(&cluster).await;
        // Signals every process, as systemd and `timeout` do. Workers get the signal first, which is harder
        // to handle.
        for pid in cluster.worker_pids().into_iter().chain([cluster.pid()]) {
            send_signal(pid, "TERM");
        }
        assert_whole(stream).await;
        for _ in 0..3000 {
            if cluster.worker_pids().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(cluster.worker_pids().is_empty(), "{}", cluster.log());
        let log = cluster.log();
        assert!(!log.contains("running requests are cut") && !log.contains("restarting it"), "{log}");
        assert_eq!(cluster.end("TERM", Duration::from_secs(60)).await, Some(0));
    });
}

#[test]
fn workers_end_when_their_supervisor_is_killed() {
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &[]).await;
        let workers = cluster.worker_pids();
        assert_eq!(workers.len(), 2);
        send_signal(cluster.pid(), "KILL");
        for _ in 0..3000 {
            if workers.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("workers {workers:?} outlived their supervisor");
    });
}
