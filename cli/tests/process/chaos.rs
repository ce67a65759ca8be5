//! `kill -9` on workers in the middle of many streams: no token is lost, duplicated or altered.
//!
//! Each round compares every stream with its undisturbed run, byte for byte. Two rounds run by default. The
//! long form also checks the gap:
//! `TEST_BINARY=$PWD/target/release/skein TEST_CHAOS_ROUNDS=200 \
//!   cargo test -p skein --test process chaos -- --nocapture`

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skein_node::clock;
use skein_tests::client::{self, History};
use skein_tests::process::{Cluster, send_signal};

use crate::{SKEIN, block_on};

pub const STREAMS: usize = 50;
/// Limit for the 99th percentile of the gaps of streams whose worker was killed.
const GAP_P99: Duration = Duration::from_secs(2);

/// Requests of every kind that must survive a kill: greedy, seeded, penalties, n > 1, stop strings,
/// log-probabilities.
fn request(index: usize) -> Value {
    let mut body = json!({
        "model": "skein-7m",
        "prompt": format!("def function_{index}(self, value):\n    \"\"\"Return the"),
        "max_tokens": 96,
        "stream": true,
        "stream_options": {"include_usage": true},
        "return_token_ids": true,
        "ignore_eos": true,
        "temperature": 0,
    });
    let extra = match index % 6 {
        0 => json!({}),
        1 => json!({"temperature": 0.9, "seed": 1000 + index, "top_p": 0.9}),
        2 => json!({"temperature": 0.7, "seed": index, "presence_penalty": 0.5, "frequency_penalty": 0.3,
                    "repetition_penalty": 1.1}),
        3 => json!({"temperature": 1.0, "seed": index, "n": 3, "top_k": 40}),
        4 => json!({"temperature": 0.8, "seed": index, "logprobs": 2, "min_tokens": 20}),
        _ => {
            json!({"temperature": 0.8, "seed": index, "stop": ["return x", "\n\n\n\n", "zzzz"], "min_tokens": 30})
        }
    };
    body.as_object_mut().expect("an object").extend(extra.as_object().cloned().expect("an object"));
    body
}

pub async fn run_all(client: &reqwest::Client, url: &str) -> Vec<History> {
    let url: Arc<str> = format!("{url}/v1/completions").into();
    let tasks: Vec<_> = (0..STREAMS)
        .map(|index| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move { client::stream(&client, &url, &request(index)).await })
        })
        .collect();
    let mut histories = Vec::new();
    for (index, task) in tasks.into_iter().enumerate() {
        let outcome = task.await.expect("the client does not panic");
        histories.push(outcome.unwrap_or_else(|error| panic!("stream {index} lost its connection: {error}")));
    }
    histories
}

/// Describes the first difference between a stream and its undisturbed run.
pub fn difference(index: usize, seen: &History, expected: &History) -> Option<String> {
    if !seen.complete() {
        return Some(format!("stream {index} did not complete: {:?} {:?}", seen.status, seen.error));
    }
    if seen.choices != expected.choices {
        return Some(format!(
            "stream {index} changed:\n  expected {:?}\n  seen     {:?}",
            expected.choices, seen.choices
        ));
    }
    let tokens = |history: &History| history.usage.as_ref().map(|usage| usage["completion_tokens"].clone());
    (tokens(seen) != tokens(expected))
        .then(|| format!("stream {index} reports different usage: {:?}", seen.usage))
}

#[test]
fn killing_a_worker_changes_no_stream() {
    let long_form: Option<usize> =
        std::env::var("TEST_CHAOS_ROUNDS").ok().and_then(|value| value.parse().ok());
    let rounds = long_form.unwrap_or(2);
    block_on(async {
        let cluster = Cluster::serve(SKEIN, &["--workers", "3"]).await;
        let client = reqwest::Client::new();
        let start = clock::now();
        let expected = run_all(&client, &cluster.url).await;
        let undisturbed = clock::now().since(start);
        for (index, history) in expected.iter().enumerate() {
            assert!(history.complete(), "undisturbed stream {index}: {history:?}");
        }
        let mut gaps = Vec::new();
        for round in 0..rounds {
            let workers = wait_for_workers(&cluster, 3).await;
            let victim = workers[round % workers.len()];
            let (seen, ()) = tokio::join!(run_all(&client, &cluster.url), async {
                // Spread over the duration of an undisturbed run: during prefill, early and late decode.
                tokio::time::sleep(undisturbed * (5 + (round as u32 * 37) % 80) / 100).await;
                send_signal(victim, "KILL");
            });
            let differences: Vec<String> =
                (0..STREAMS).filter_map(|index| difference(index, &seen[index], &expected[index])).collect();
            assert!(differences.is_empty(), "round {round}:\n{}\n{}", differences.join("\n"), cluster.log());
            gaps.extend(seen.iter().map(|history| history.longest_gap));
        }
        gaps.sort_unstable();
        let p99 = gaps[gaps.len() * 99 / 100];
        let moved = cluster.log().matches("request continues on another worker").count();
        assert!(moved > 0, "no kill hit a stream, so this run proves nothing");
        println!(
            "{rounds} rounds, {} streams, {moved} moved to another worker: 0 lost, 0 duplicated, 0 altered; \
             longest gap p50 {:?} p99 {p99:?} max {:?}",
            gaps.len(),
            gaps[gaps.len() / 2],
            gaps[gaps.len() - 1],
        );
        assert!(long_form.is_none() || p99 <= GAP_P99, "gap p99 {p99:?} is over {GAP_P99:?}");
    });
}

/// Waits until the supervisor has restarted the killed worker.
async fn wait_for_workers(cluster: &Cluster, count: usize) -> Vec<u32> {
    for _ in 0..3000 {
        let workers = cluster.worker_pids();
        if workers.len() == count {
            return workers;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the supervisor did not bring {count} workers back:\n{}", cluster.log());
}
