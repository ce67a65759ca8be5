//! Tokens of answers, which the servers tell or do not: limits of keys, the usage log and metrics.

use std::time::Duration;

use serde_json::{Value, json};
use skein_router::tenants::usage_log::UsageLog;

use super::limits::keys_file;
use super::mock::Act;
use super::{Scene, completion, config};

const KEY: &str = "dddddddddddddddddddddddddddddddddddddddd";

struct Counted {
    scene: Scene,
    log: UsageLog,
    file: tempfile::NamedTempFile,
}

impl Counted {
    /// Two servers, and a key with 1,000 tokens a minute.
    async fn new(name: &str) -> Self {
        let hash = skein_router::tenants::hash_text(KEY);
        let entry =
            format!("[[keys]]\nid = \"k\"\ntenant = \"acme\"\nhash = \"{hash}\"\ntokens-per-minute = 1000\n");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let log = UsageLog::open(file.path()).expect("a file");
        let mut config = config();
        config.router.keys_file = Some(keys_file(name, &entry));
        config.router.usage_log = Some(log.clone());
        Self { scene: Scene::with(2, config, Duration::ZERO).await, log, file }
    }

    fn plan(&self, act: Act) {
        self.scene.workers.iter().for_each(|worker| worker.plan(&[act]));
    }

    /// Sends the request, and returns its line.
    async fn line(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Value {
        let bearer = format!("Bearer {KEY}");
        let headers = [&[("authorization", bearer.as_str()), ("x-request-id", "mine")], headers].concat();
        self.scene.ask("POST", path, &headers, body.to_string()).await;
        self.last().await
    }

    /// The last line, of a request that has been answered.
    async fn last(&self) -> Value {
        self.log.flush();
        let text = std::fs::read_to_string(self.file.path()).expect("the log");
        text.lines().last().map_or(Value::Null, |line| serde_json::from_str(line).expect("JSON"))
    }

    /// Tokens that the key has left, as a request shows them that costs nothing.
    async fn left(&self) -> u64 {
        let headers = [("authorization", format!("Bearer {KEY}"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let answer = self.scene.ask("POST", "/tokenize", &headers, "{}".to_owned()).await;
        let left = answer.headers["x-ratelimit-remaining-tokens"].to_str().expect("a number");
        left.parse().expect("a number")
    }
}

fn counts(line: &Value) -> [u64; 3] {
    ["prompt_tokens", "cached_tokens", "output_tokens"].map(|name| line[name].as_u64().expect("a count"))
}

#[tokio::test]
async fn what_a_server_tells_is_the_cost_whole_and_streamed() {
    for streams in [false, true] {
        let counted = Counted::new(&format!("told-{streams}")).await;
        counted.plan(Act::Tell(300, 200, 350));
        let mut body = completion(streams, 2);
        body["model"] = "m".into();
        let line = counted.line("/v1/completions", &[], body).await;
        assert_eq!(counts(&line), [300, 200, 350], "{line}");
        assert_eq!(line.get("estimated"), None);
        let told = ["tenant", "key", "model", "request", "outcome"].map(|name| line[name].clone());
        assert_eq!(json!(told), json!(["acme", "k", "m", "mine", "completed"]));
        // 450 were computed; the bucket fills meanwhile.
        let left = counted.left().await;
        assert!((550..700).contains(&left), "{left}");
        assert_eq!(counted.last().await, line, "to count tokens is free");
        let scrape = counted.scene.get("/metrics").await.text;
        for (name, count) in [("prompt", 300), ("cached", 200), ("output", 350)] {
            let line = format!("skein_tenant_{name}_tokens_total{{tenant=\"acme\"}} {count}");
            assert!(scrape.contains(&line), "{line}: {scrape}");
        }
    }
}

#[tokio::test]
async fn a_stream_without_counts_is_estimated_and_says_so() {
    let counted = Counted::new("estimated").await;
    let mut body = completion(true, 20);
    body["prompt"] = "x".repeat(400).into();
    let line = counted.line("/v1/completions", &[], body).await;
    // A quarter of the bytes, with the quotes.
    assert_eq!((counts(&line), &line["estimated"]), ([100, 0, 20], &true.into()), "{line}");
    let left = counted.left().await;
    assert!((880..1000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_stream_that_moved_counts_what_the_lost_server_said_as_output() {
    let counted = Counted::new("moved").await;
    // Round robin: one of them is first.
    counted.plan(Act::Cut(5));
    counted.scene.workers.iter().for_each(|worker| worker.plan(&[Act::Cut(5), Act::Tell(15, 0, 15)]));
    let line = counted.line("/v1/completions", &[("x-skein-resume", "text")], completion(true, 20)).await;
    assert_eq!(line["estimated"], true, "{line}");
    let [prompt, _, output] = counts(&line);
    assert!(prompt < 15 && output > 15, "{line}");
}

#[tokio::test]
async fn what_a_server_refuses_costs_no_tokens() {
    let counted = Counted::new("refused").await;
    counted.plan(Act::Status(400));
    let line = counted.line("/v1/completions", &[], completion(false, 200)).await;
    assert_eq!((counts(&line), line.get("estimated")), ([0; 3], None), "{line}");
    assert_eq!(counted.left().await, 1000);
}
