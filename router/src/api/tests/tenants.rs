//! Keys of a file over every API: who may use what, and how much.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::config::RouterConfig;
use crate::tenants::usage_log::UsageLog;
use crate::tenants::{KeysFile, hash_text};

/// A server with a keys file; the key of entry `id` is the id, repeated to 40 bytes.
struct Server {
    app: App,
    script: Arc<Script>,
    file: KeysFile,
    path: PathBuf,
    usage: PathBuf,
    log: UsageLog,
    _directory: tempfile::TempDir,
}

fn key(id: &str) -> String {
    id.repeat(40)[..40].to_owned()
}

fn entry(id: &str, tenant: &str, more: &str) -> String {
    let hash = hash_text(&key(id));
    format!("[[keys]]\nid = \"{id}\"\ntenant = \"{tenant}\"\nhash = \"{hash}\"\n{more}\n")
}

impl Server {
    fn start(script: Script, text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (path, usage) = (directory.path().join("keys.toml"), directory.path().join("usage.jsonl"));
        std::fs::write(&path, text).unwrap();
        let (file, log) = (KeysFile::open(&path).unwrap(), UsageLog::open(&usage).unwrap());
        let config =
            RouterConfig { keys_file: Some(file.clone()), usage_log: Some(log.clone()), ..testing::config() };
        let script = Arc::new(script);
        let app = App::new(Arc::new(testing::model_text()), script.clone(), config);
        Self { app, script, file, path, usage, log, _directory: directory }
    }

    async fn send(&self, id: &str, method: &str, path: &str, body: &Value) -> Answer {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key(id));
        let request = request.header("content-type", "application/json");
        send(&self.app, request.body(body.to_string().into()).unwrap()).await
    }

    async fn complete(&self, id: &str, more: Value) -> Answer {
        let mut body = json!({"prompt": "ab", "max_tokens": 10});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.send(id, "POST", COMPLETIONS, &body).await
    }

    fn usage(&self) -> Vec<Value> {
        self.log.flush();
        let text = std::fs::read_to_string(&self.usage).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test]
async fn keys_of_a_tenant_share_a_cache_and_ids_and_tenants_share_none() {
    let text = entry("a", "acme", "") + &entry("b", "acme", "") + &entry("c", "other", "");
    let server = Server::start(says("x"), &text);
    for id in ["a", "b", "c"] {
        assert_eq!(server.complete(id, json!({"request_id": "mine"})).await.status, 200);
    }
    let requests = server.script.requests.lock().unwrap().clone();
    let [a, b, c] = &requests[..] else { panic!("three requests") };
    assert_eq!((&a.cache_salt, a.stream_key()), (&b.cache_salt, b.stream_key()));
    assert_ne!(a.cache_salt, c.cache_salt);
    assert_ne!(a.stream_key(), c.stream_key());
    assert!(a.tenant == b.tenant && a.tenant != c.tenant);
    assert_eq!(server.complete("d", json!({})).await.status, 401);
}

#[tokio::test]
async fn a_model_that_a_key_may_not_use_is_absent_in_every_api() {
    let text = entry("a", "acme", "models = [\"elsewhere\"]") + &entry("b", "acme", "models = [\"test\"]");
    let server = Server::start(says("x"), &text);
    let chat = json!({"model": "test", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4});
    let infer = json!({"text_input": "hi"});
    let posts = [
        (COMPLETIONS, json!({"model": "test", "prompt": "a"})),
        (COMPLETIONS, json!({"prompt": "a"})),
        (CHAT, chat.clone()),
        ("/v1/responses", json!({"model": "test", "input": "a"})),
        ("/v1/messages", chat.clone()),
        ("/v1/messages/count_tokens", chat.clone()),
        ("/api/chat", chat),
        ("/api/generate", json!({"model": "test", "prompt": "a"})),
        ("/api/show", json!({"model": "test"})),
        ("/tokenize", json!({"model": "test", "prompt": "a"})),
        ("/detokenize", json!({"model": "test", "tokens": [5]})),
        ("/v2/models/test/generate", infer),
    ];
    for (path, body) in posts {
        let (refused, served) =
            (server.send("a", "POST", path, &body).await, server.send("b", "POST", path, &body).await);
        assert_eq!((refused.status, served.status), (404, 200), "{path}: {} {}", refused.body, served.body);
        let told = refused.body.replace("The model `test` does not exist", "");
        assert!(!told.contains("test"), "the list of names is the key's: {}", refused.body);
    }
    for path in ["/v1/models/test", "/v2/models/test", "/v2/models/test/ready", "/v2/models/test/config"] {
        let of = async |id| server.send(id, "GET", path, &json!({})).await;
        assert_eq!((of("a").await.status, of("b").await.status), (404, 200), "{path}");
    }
    for (method, path) in [
        ("GET", "/v1/models"),
        ("GET", "/api/tags"),
        ("GET", "/api/ps"),
        ("POST", "/v2/repository/index"),
        ("GET", "/v2/models"),
    ] {
        let names = async |id| server.send(id, method, path, &json!({})).await.body.contains("\"test\"");
        assert_eq!((names("a").await, names("b").await), (false, true), "{path}");
    }
}

#[tokio::test]
async fn priority_has_a_default_and_a_ceiling() {
    let text = entry("a", "acme", "priority = 20\nhighest-priority = 5") + &entry("b", "acme", "");
    let server = Server::start(says("x"), &text);
    assert_eq!(server.complete("a", json!({})).await.status, 200);
    assert_eq!(server.complete("a", json!({"priority": 5})).await.status, 200);
    assert_eq!(server.complete("b", json!({"priority": 100})).await.status, 200);
    let priorities: Vec<i32> =
        server.script.requests.lock().unwrap().iter().map(|request| request.priority).collect();
    assert_eq!(priorities, [20, 5, 100]);
    let message = "priority must be in [5, 100] with this key, got 4.";
    check_error(server.complete("a", json!({"priority": 4})).await, 400, &invalid("priority", message)).await;
    assert_eq!(server.complete("b", json!({"priority": -1})).await.status, 400);
}

#[tokio::test]
async fn requests_a_minute_are_limited_and_shown() {
    let text = entry("a", "acme", "requests-per-minute = 2");
    let server = Server::start(says("x"), &text);
    let first = server.complete("a", json!({})).await;
    assert_eq!((first.status, first.header("x-ratelimit-limit-requests")), (200, "2"));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), "1");
    assert!(first.header("x-ratelimit-reset-requests").ends_with('s'));
    assert_eq!(first.header("x-ratelimit-limit-tokens"), "", "no such limit");
    // A call with several prompts counts once.
    assert_eq!(server.complete("a", json!({"prompt": ["a", "b", "c"]})).await.status, 200);
    let over = server.complete("a", json!({})).await;
    assert_eq!((over.status, over.header("x-should-retry")), (429, "true"));
    assert_eq!(over.header("x-ratelimit-remaining-requests"), "0");
    let seconds: u64 = over.header("retry-after").parse().unwrap();
    assert!((28..=30).contains(&seconds), "{seconds}");
    let error = &over.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("requests"), &json!("rate_limit_exceeded")));
    assert!(error["message"].as_str().unwrap().contains("key `a`: 2 requests a minute"), "{error}");
    let messages = json!({"model": "test", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4});
    let over = server.send("a", "POST", "/v1/messages", &messages).await;
    assert_eq!((over.status, over.json()["error"]["type"].clone()), (429, json!("rate_limit_error")));
    assert_eq!(over.header("anthropic-ratelimit-requests-limit"), "2");
    assert_eq!(over.header("x-ratelimit-limit-requests"), "");
    assert_eq!(server.script.requests.lock().unwrap().len(), 4, "nothing of what was refused ran");
}

#[tokio::test]
async fn tokens_are_taken_by_what_is_expected_and_corrected_by_what_was_computed() {
    let text = "[tenants.acme]\ntokens-per-minute = 1000\n".to_owned()
        + &entry("a", "acme", "")
        + &entry("b", "acme", "");
    let server = Server::start(says("x"), &text);
    let answer = server.complete("a", json!({"max_tokens": 200})).await;
    assert_eq!((answer.status, answer.header("x-ratelimit-limit-tokens")), (200, "1000"));
    // 3 prompt tokens with BOS, of which the script says that 1 was cached; 1 output token.
    let left = |answer: &Answer| answer.header("x-ratelimit-remaining-tokens").parse::<u64>().unwrap();
    let again = server.complete("b", json!({"max_tokens": 1})).await;
    assert!((990..=1000).contains(&left(&again)), "{}", left(&again));
    for _ in 0..20 {
        assert_eq!(server.complete("a", json!({"max_tokens": 200})).await.status, 200);
    }
    // Requests that run hold what is expected of them.
    let hanging = Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() };
    let server = Server::start(hanging, &text);
    let mut running = Vec::new();
    let call = || json!({"prompt": "ab", "max_tokens": 200, "stream": true}).to_string();
    let request = |id: &str| {
        let request = Request::post(COMPLETIONS).header("x-api-key", key(id));
        request.header("content-type", "application/json").body(Body::from(call())).unwrap()
    };
    let mut statuses = Vec::new();
    for id in ["a", "b", "a", "b", "a", "b"] {
        let response = routes(server.app.clone()).oneshot(request(id)).await.unwrap();
        statuses.push(response.status().as_u16());
        running.push(response);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429], "4 × (3 + 200) of 1000, and the fifth does not fit");
    drop(running);
    let response = routes(server.app.clone()).oneshot(request("b")).await.unwrap();
    assert_eq!(response.status().as_u16(), 200, "cancelled requests gave back what they did not use");
    drop(response);
    let cancelled = server.usage();
    let outcomes: Vec<&str> = cancelled.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["cancelled"; 5]);
}

#[tokio::test]
async fn requests_at_once_are_limited_and_a_place_is_free_when_one_ends() {
    let hanging = Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() };
    let server = Server::start(hanging, &entry("a", "acme", "max-concurrent = 1"));
    let request = || {
        let body = json!({"prompt": "ab", "stream": true}).to_string();
        let request = Request::post(COMPLETIONS).header("x-api-key", key("a"));
        request.header("content-type", "application/json").body(Body::from(body)).unwrap()
    };
    let first = routes(server.app.clone()).oneshot(request()).await.unwrap();
    let second = send(&server.app, request()).await;
    assert_eq!((first.status().as_u16(), second.status), (200, 429));
    assert!(second.body.contains("1 requests at once"), "{}", second.body);
    drop(first);
    assert_eq!(routes(server.app.clone()).oneshot(request()).await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn a_new_file_counts_for_new_requests_and_a_bad_one_changes_nothing() {
    let server = Server::start(says("x"), &entry("a", "acme", ""));
    assert_eq!(server.complete("b", json!({})).await.status, 401);
    std::fs::write(&server.path, entry("b", "acme", "")).unwrap();
    server.file.reload().unwrap();
    assert_eq!(server.complete("a", json!({})).await.status, 401);
    assert_eq!(server.complete("b", json!({})).await.status, 200);
    std::fs::write(&server.path, "[[keys]]\nid = \"b\"\n").unwrap();
    assert!(server.file.reload().unwrap_err().to_string().contains("missing field"));
    assert_eq!(server.complete("b", json!({})).await.status, 200);
    let scrape = server.send("b", "GET", "/metrics", &json!({})).await.body;
    for line in [
        "skein_keys_file_valid{engine=\"0\",model_name=\"test\"} 0",
        "skein_keys_file_reloads_total{engine=\"0\",model_name=\"test\",outcome=\"loaded\"} 1",
        "skein_keys_file_reloads_total{engine=\"0\",model_name=\"test\",outcome=\"refused\"} 1",
    ] {
        assert!(scrape.contains(line), "{line}: {scrape}");
    }
}

#[tokio::test]
async fn a_changed_file_is_seen_without_a_signal() {
    let server = Server::start(says("x"), &entry("a", "acme", ""));
    let _watch = server.file.watch();
    std::fs::write(&server.path, entry("b", "acme", "") + "# longer\n").unwrap();
    let seen = async {
        while server.complete("b", json!({})).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it is seen");
    assert_eq!(server.complete("a", json!({})).await.status, 401);
}

#[tokio::test]
async fn usage_is_what_the_answers_say() {
    let text = entry("a", "acme", "requests-per-minute = 3") + &entry("c", "other", "");
    let server = Server::start(says("xyz"), &text);
    let mut expected = std::collections::BTreeMap::<&str, (u64, u64, u64)>::new();
    for (id, tenant) in [("a", "acme"), ("c", "other"), ("a", "acme"), ("a", "acme")] {
        let usage = server.complete(id, json!({})).await.json()["usage"].clone();
        let sums = expected.entry(tenant).or_default();
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        sums.0 += usage["prompt_tokens"].as_u64().unwrap();
        sums.1 += cached;
        sums.2 += usage["completion_tokens"].as_u64().unwrap();
    }
    assert_eq!(server.complete("a", json!({})).await.status, 429);
    let lines = server.usage();
    assert_eq!(lines.len(), 4, "what was refused has used nothing");
    let scrape = server.send("a", "GET", "/metrics", &json!({})).await.body;
    for (tenant, (prompt, cached, output)) in expected {
        let of = |field: &str| -> u64 {
            let own = lines.iter().filter(|line| line["tenant"] == tenant);
            own.map(|line| line[field].as_u64().unwrap()).sum()
        };
        assert_eq!((of("prompt_tokens"), of("output_tokens")), (prompt, output), "{tenant}");
        for (name, value) in [("prompt", prompt), ("output", output), ("cached", of("cached_tokens"))] {
            let line = format!(
                "skein_tenant_{name}_tokens_total{{engine=\"0\",model_name=\"test\",tenant=\"{tenant}\"}} {value}\n"
            );
            assert!(scrape.contains(&line), "{line}: {scrape}");
        }
        assert!(cached == 0 || cached == of("cached_tokens"));
    }
    let limited =
        "skein_tenant_requests_total{engine=\"0\",model_name=\"test\",outcome=\"limited\",tenant=\"acme\"} 1";
    assert!(scrape.contains(limited), "{scrape}");
    let line = &lines[0];
    assert_eq!(
        (&line["key"], &line["model"], &line["outcome"]),
        (&json!("a"), &json!("test"), &json!("completed"))
    );
}

#[tokio::test]
async fn only_a_gateways_key_speaks_for_other_tenants() {
    let text = entry("a", "acme", "") + &entry("g", "edge", "gateway = true");
    let server = Server::start(says("x"), &text);
    let code = async |id: &str| {
        let request = Request::post("/skein.worker.v1.Worker/Info")
            .header("content-type", "application/grpc")
            .header("authorization", format!("Bearer {}", key(id)));
        // An empty message.
        let request = request.body(Body::from(vec![0; 5])).unwrap();
        let response = routes(server.app.clone()).oneshot(request).await.unwrap();
        response.headers().get("grpc-status").map_or(String::new(), |code| code.to_str().unwrap().to_owned())
    };
    assert_eq!(code("a").await, "7", "PERMISSION_DENIED");
    assert_ne!(code("g").await, "7");
}

#[tokio::test]
async fn the_manual_lists_the_metrics_of_tenants() {
    let server = Server::start(says("x"), &entry("a", "acme", ""));
    assert_eq!(server.complete("a", json!({})).await.status, 200);
    let scrape = server.send("a", "GET", "/metrics", &json!({})).await.body;
    let plain = get(says("x"), "/metrics").await.body;
    let names = |text: &str| -> std::collections::BTreeSet<String> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let of_tenants: Vec<String> = names(&scrape).difference(&names(&plain)).cloned().collect();
    let of_tenants =
        of_tenants.iter().filter(|name| !name.starts_with("http_") && !name.starts_with("vllm:"));
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/metrics.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let listed = manual.lines().filter(|line| line.contains("| T |"));
    let listed: std::collections::BTreeSet<&str> =
        listed.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(of_tenants.map(String::as_str).collect::<std::collections::BTreeSet<_>>(), listed);
}

#[tokio::test]
async fn a_batch_runs_with_what_its_key_may_use_and_without_its_limits() {
    use crate::batch::jobs::{Status, Store, work};
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(directory.path(), crate::config::BatchLimits::default()).unwrap());
    let text = entry("a", "acme", "requests-per-minute = 2\nmodels = [\"test\"]\npriority = 50")
        + &entry("b", "acme", "models = [\"elsewhere\"]")
        + &entry("c", "other", "");
    let mut server = Server::start(says("x"), &text);
    server.app.store_batches(store.clone());
    let owner = store.owner(&crate::request::tenant::Tenant::name_in_file("acme"));
    let line = |at: usize| json!({"custom_id": at.to_string(), "url": COMPLETIONS, "body": {"prompt": "x", "max_tokens": 2}});
    let lines: String = (0..5).map(|at| format!("{}\n", line(at))).collect();
    let mut file = store.upload(&owner).unwrap();
    file.write(lines.as_bytes()).unwrap();
    let input = file.finish("in.jsonl").unwrap().id;
    tokio::spawn(work(server.app.clone(), store.clone()));
    let create = json!({"input_file_id": input, "endpoint": COMPLETIONS, "completion_window": "24h"});
    assert_eq!(server.send("c", "POST", "/v1/batches", &create).await.status, 404);
    assert_eq!(server.send("c", "GET", &format!("/v1/files/{input}"), &json!({})).await.status, 404);
    for (id, completed, failed) in [("a", 5, 0), ("b", 0, 5)] {
        let created = server.send(id, "POST", "/v1/batches", &create).await;
        assert_eq!(created.status, 200, "{}", created.body);
        let job = created.json()["id"].as_str().unwrap().to_owned();
        let ended = async {
            loop {
                let job = store.job(&owner, &job).unwrap();
                if job.status.is_final() {
                    return job;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let job = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ends");
        assert_eq!(
            (job.status, job.counts.completed, job.counts.failed),
            (Status::Completed, completed, failed)
        );
    }
    let lines = server.usage();
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| (&line["tenant"], &line["key"]) == (&json!("acme"), &json!("a"))));
}
