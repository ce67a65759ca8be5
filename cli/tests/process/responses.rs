//! Stored responses outlive the server: whatever a client was told of is there after `kill -9`, once, and
//! what was owed to it is made.

#![allow(clippy::unwrap_used)] // a test may fail

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use skein_tests::process::{Cluster, shipped_model};

use crate::{SKEIN, block_on};

/// Kills of the server.
const KILLS: usize = 5;
/// Conversations at once.
const CONVERSATIONS: usize = 4;
/// Turns of a conversation that the model's context has room for.
const MOST_TURNS: usize = 40;

/// What a client was told.
#[derive(Default)]
struct Conversation {
    number: usize,
    /// Its turns: the input, and the response as it was answered.
    turns: Vec<(String, Value)>,
    /// Responses in the background.
    owed: Vec<String>,
}

async fn serve(store: &Path) -> Cluster {
    let (model, store) = (shipped_model(), store.to_str().unwrap());
    Cluster::serve(
        SKEIN,
        &[
            model.to_str().unwrap(),
            "--device",
            "cpu",
            "--threads",
            "1",
            "--workers",
            "1",
            "--response-store",
            store,
        ],
    )
    .await
}

async fn post(client: &reqwest::Client, url: &str, body: &Value) -> Result<Value, String> {
    let sent = client.post(format!("{url}/v1/responses")).json(body).send().await;
    let answer = sent.map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    assert!(status.is_success(), "{status}: {text}");
    // The response is in the last event of a stream, if the stream has its end.
    let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
    let text = match last.strip_prefix("event: response.") {
        Some(event) => match event.split_once("\ndata: ").unwrap() {
            ("completed" | "incomplete", data) => {
                return Ok(serde_json::from_str::<Value>(data).unwrap()["response"].clone());
            }
            (event, _) => return Err(format!("the stream ended with {event}")),
        },
        None => text,
    };
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

async fn get(client: &reqwest::Client, url: &str, path: &str) -> (u16, Value) {
    let answer = client.get(format!("{url}/v1/responses/{path}")).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

impl Conversation {
    /// Sends turns until the server is gone; `ended` counts them.
    async fn go_on(mut self, client: reqwest::Client, url: String, ended: Arc<AtomicUsize>) -> Self {
        loop {
            let turn = self.turns.len();
            if turn == MOST_TURNS {
                ended.fetch_add(KILLS * MOST_TURNS, Ordering::SeqCst);
                return self;
            }
            let input = format!("conversation {} turn {turn}", self.number);
            let previous = self.turns.last().map(|(_, response)| response["id"].clone());
            let mut body = json!({"input": input, "max_output_tokens": 8, "previous_response_id": previous});
            if turn % 4 == 3 {
                let mut background = body.clone();
                background["background"] = true.into();
                match post(&client, &url, &background).await {
                    Ok(queued) => self.owed.push(queued["id"].as_str().unwrap().to_owned()),
                    Err(_) => return self,
                }
            }
            body["stream"] = (turn % 2 == 1).into();
            match post(&client, &url, &body).await {
                Ok(response) => {
                    assert_eq!(response["store"], true);
                    self.turns.push((input, response));
                    ended.fetch_add(1, Ordering::SeqCst);
                }
                Err(_) => return self,
            }
        }
    }

    /// Checks that all that the client was told of is there, once and in order.
    async fn check(&mut self, client: &reqwest::Client, url: &str) {
        for (_, response) in &self.turns {
            let (status, stored) = get(client, url, response["id"].as_str().unwrap()).await;
            assert_eq!((status, &stored), (200, response));
        }
        for id in std::mem::take(&mut self.owed) {
            let made = loop {
                let (status, stored) = get(client, url, &id).await;
                assert_eq!(status, 200, "{id} was queued: {stored}");
                if !["queued", "in_progress"].contains(&stored["status"].as_str().unwrap()) {
                    break stored;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            assert!(["completed", "incomplete"].contains(&made["status"].as_str().unwrap()), "{made}");
        }
        let Some((_, last)) = self.turns.last() else { return };
        let (mut said, mut after) = (Vec::new(), String::new());
        loop {
            let id = last["id"].as_str().unwrap();
            let path = format!("{id}/input_items?order=asc&limit=100{after}");
            let (status, page) = get(client, url, &path).await;
            assert_eq!(status, 200, "{page}");
            let items = page["data"].as_array().unwrap();
            let texts = items.iter().filter(|item| item["role"] == "user");
            said.extend(texts.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()));
            if page["has_more"] != true {
                break;
            }
            after = format!("&after={}", page["last_id"].as_str().unwrap());
        }
        let sent: Vec<String> = self.turns.iter().map(|(input, _)| input.clone()).collect();
        assert_eq!(said, sent, "no turn is lost or doubled");
    }
}

#[test]
fn what_a_client_was_told_of_is_there_after_kills_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("responses");
    block_on(async {
        let client = reqwest::Client::new();
        let mut rng = StdRng::seed_from_u64(11);
        let mut all: Vec<Conversation> =
            (0..CONVERSATIONS).map(|number| Conversation { number, ..Conversation::default() }).collect();
        for _ in 0..KILLS {
            let cluster = serve(&store).await;
            for conversation in &mut all {
                conversation.check(&client, &cluster.url).await;
            }
            let ended = Arc::new(AtomicUsize::new(0));
            let go_on = |one: Conversation| one.go_on(client.clone(), cluster.url.clone(), ended.clone());
            let running: Vec<_> = all.drain(..).map(|one| tokio::spawn(go_on(one))).collect();
            let enough = rng.random_range(4..20);
            while ended.load(Ordering::SeqCst) < enough {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..40))).await;
            cluster.end("KILL", Duration::from_secs(60)).await;
            for one in running {
                all.push(one.await.unwrap());
            }
        }
        let cluster = serve(&store).await;
        for conversation in &mut all {
            conversation.check(&client, &cluster.url).await;
        }
        assert!(all.iter().map(|one| one.turns.len()).sum::<usize>() >= 4 * KILLS);
        // Another server may not have the store meanwhile.
        let output = Command::new(SKEIN)
            .args(["serve", shipped_model().to_str().unwrap(), "--device", "cpu", "--port", "0"])
            .args(["--response-store", store.to_str().unwrap()])
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(
            printed.contains("--response-store: ") && printed.contains("in use by another router"),
            "{printed}"
        );
        assert_eq!(cluster.end("TERM", Duration::from_secs(60)).await, Some(0));
    });
}
