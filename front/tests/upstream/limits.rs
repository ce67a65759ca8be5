//! Bounds on what clients and workers send.

use std::time::Duration;

use super::mock::{Act, lock};
use super::{Scene, completion, config};

#[tokio::test]
async fn keys_guard_all_but_health_and_are_not_for_the_workers() {
    let mut config = config();
    config.router.api_keys = vec!["sesame".to_owned()];
    config.use_worker_key("inner").unwrap();
    let scene = Scene::with(1, config, Duration::ZERO).await;
    let body = completion(false, 1);
    assert_eq!(scene.post("/v1/completions", &body).await.status, 401);
    assert_eq!(scene.get("/v1/models").await.status, 401);
    assert_eq!(scene.get("/health").await.status, 200);
    let with_key = [("authorization", "Bearer sesame")];
    assert_eq!(scene.ask("POST", "/v1/completions", &with_key, body.to_string()).await.status, 200);
    let head = &scene.workers[0].calls()[0].0;
    assert!(head.contains("authorization: bearer inner\r\n") && !head.contains("sesame"), "{head}");
}

#[tokio::test]
async fn only_paths_of_generation_reach_a_worker() {
    let scene = Scene::new(1).await;
    for (method, path, status) in [
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/sleep", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models/m", 404),
    ] {
        assert_eq!(scene.ask(method, path, &[], String::new()).await.status, status, "{method} {path}");
    }
    assert_eq!(scene.calls(), 0);
}

#[tokio::test]
async fn bodies_and_requests_at_once_are_bounded() {
    let mut config = config();
    config.router.limits.body_bytes = 1000;
    config.router.admission.max_num_queued_reqs = 2;
    let scene = Scene::with(1, config, Duration::from_millis(50)).await;
    let long = scene.ask("POST", "/v1/completions", &[], "x".repeat(2000)).await;
    assert_eq!((long.status, long.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
    let streams = [completion(true, 20), completion(true, 20)].map(|body| {
        let scene = &scene;
        async move { scene.post("/v1/completions", &body).await }
    });
    let third = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        scene.post("/v1/completions", &completion(true, 1)).await
    };
    let [one, other] = streams;
    let (one, other, third) = tokio::join!(one, other, third);
    assert!(one.is_done() && other.is_done());
    assert_eq!((third.status, third.json()["error"]["code"].as_str()), (429, Some("queue_full")));
}

#[tokio::test]
async fn hostile_headers_do_not_pass() {
    let scene = Scene::new(1).await;
    let headers = [
        ("connection", "x-secret"),
        ("x-secret", "1"),
        ("te", "trailers"),
        ("proxy-authorization", "x"),
        ("accept-encoding", "gzip"),
        ("x-own", "kept"),
    ];
    let answer = scene.ask("POST", "/v1/completions", &headers, completion(false, 1).to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let head = &scene.workers[0].calls()[0].0;
    for gone in ["x-secret", "te:", "proxy-", "accept-encoding"] {
        assert!(!head.contains(gone), "{gone} in {head}");
    }
    assert!(head.contains("x-own: kept\r\n"));
}

#[tokio::test]
async fn a_huge_answer_passes_through() {
    let scene = Scene::new(1).await;
    scene.workers[0].plan(&[Act::Huge(50 << 20)]);
    let answer = scene.post("/v1/embeddings", &completion(false, 1)).await;
    assert_eq!((answer.text.len(), answer.broke), (50 << 20, false));
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_not_kept_in_memory() {
    let scene = Scene::new(1).await;
    scene.workers[0].plan(&[Act::Huge(1 << 30)]);
    let response = scene.send("POST", "/v1/embeddings", &[], completion(false, 1).to_string()).await;
    let sent = || scene.workers[0].state.sent.load(std::sync::atomic::Ordering::SeqCst);
    let mut before = usize::MAX;
    while std::mem::replace(&mut before, sent()) != sent() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // The system's buffers of two connections, and little of ours.
    assert!(sent() < 48 << 20, "{} bytes were taken", sent());
    drop(response);
}

#[tokio::test]
async fn bodies_that_are_not_json_are_the_workers_to_judge() {
    let scene = Scene::new(2).await;
    for body in ["", "nonsense", "[]", "{\"n\":{}}", "\u{0}"] {
        assert_eq!(scene.ask("POST", "/v1/completions", &[], body.to_owned()).await.status, 200, "{body:?}");
    }
}

#[tokio::test]
async fn follow_ups_go_to_the_worker_that_has_the_conversation() {
    let mut config = config();
    config.router.policy = skein_choice::policy::Policy::FirstToken;
    let scene = Scene::with(4, config, Duration::ZERO).await;
    for conversation in 0..8 {
        let mut text = format!("{conversation} {}", "words of a system prompt ".repeat(100));
        let mut workers = Vec::new();
        for turn in 0..4 {
            scene.workers.iter().for_each(|worker| lock(&worker.state.calls).clear());
            let body = serde_json::json!({"model": "m", "prompt": text, "max_tokens": 1});
            assert_eq!(scene.post("/v1/completions", &body).await.status, 200);
            workers.push(scene.workers.iter().position(|worker| !worker.calls().is_empty()));
            text.push_str(&format!(" turn {turn}"));
        }
        assert!(workers.windows(2).all(|pair| pair[0] == pair[1]), "{workers:?}");
    }
}

#[tokio::test]
async fn a_receipt_says_why_a_worker_was_chosen() {
    let scene = Scene::new(3).await;
    let body = completion(true, 2).to_string();
    assert!(
        !scene
            .ask("POST", "/v1/completions", &[], body.clone())
            .await
            .headers
            .contains_key("x-skein-receipt")
    );
    let answer = scene.ask("POST", "/v1/completions", &[("x-skein-receipt", "true")], body).await;
    let header = answer.headers["x-skein-receipt"].as_bytes();
    let receipts: serde_json::Value = serde_json::from_slice(header).expect("the header is JSON");
    assert_eq!((&receipts[0]["policy"], &receipts[0]["candidates"]), (&"round_robin".into(), &3.into()));
    let best = receipts[0]["best"].as_array().expect("there are candidates");
    let chosen: Vec<_> = best.iter().filter(|worker| worker["chosen"] == true).collect();
    let at = scene.workers.iter().position(|worker| chosen[0]["worker"] == worker.url());
    let at = at.expect("the chosen one is a worker");
    assert!(chosen.len() == 1 && !scene.workers[at].calls().is_empty());
    assert!(
        scene.workers.iter().flat_map(super::Mock::calls).all(|(head, _)| !head.contains("x-skein-receipt"))
    );
}

/// A file with these entries, for the duration of the test.
pub fn keys_file(name: &str, text: &str) -> skein_router::tenants::KeysFile {
    let path = std::env::temp_dir().join(format!("skein-front-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, text).expect("a keys file");
    let file = skein_router::tenants::KeysFile::open(&path).expect("a keys file");
    std::fs::remove_file(&path).expect("a keys file");
    file
}

#[tokio::test]
async fn keys_of_a_file_bound_models_priorities_and_requests() {
    let keys = ["a", "b", "c"].map(|letter| letter.repeat(40));
    let entry = |at: usize, more: &str| {
        let hash = skein_router::tenants::hash_text(&keys[at]);
        format!("[[keys]]\nid = \"k{at}\"\ntenant = \"acme\"\nhash = \"{hash}\"\n{more}\n")
    };
    let text = entry(0, "requests-per-minute = 2") + &entry(1, "models = [\"other\"]");
    let mut config = config();
    config.router.keys_file = Some(keys_file("bounds", &text));
    let scene = Scene::with(1, config, Duration::ZERO).await;
    let ask = async |at: usize, body: serde_json::Value| {
        let bearer = format!("Bearer {}", keys[at]);
        scene.ask("POST", "/v1/completions", &[("authorization", &bearer)], body.to_string()).await
    };
    let body = || completion(false, 1);
    assert_eq!(ask(2, body()).await.status, 401);
    let mut urgent = body();
    urgent["priority"] = (-1).into();
    let refused = ask(0, urgent).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("priority")));
    assert_eq!(ask(1, body()).await.status, 404);
    let answer = ask(0, body()).await;
    assert_eq!(
        (answer.status, &answer.headers["x-ratelimit-remaining-requests"]),
        (200, &"1".parse().unwrap())
    );
    let head = &scene.workers[0].calls()[0].0;
    assert!(!head.contains(&keys[0]), "the key is for this router: {head}");
    assert_eq!(ask(0, body()).await.status, 200);
    let over = ask(0, body()).await;
    assert_eq!((over.status, over.json()["error"]["code"].as_str()), (429, Some("rate_limit_exceeded")));
    assert!(over.headers.contains_key("retry-after"));
    assert_eq!(scene.calls(), 2, "what was refused did not reach a worker");
    let bearer = |at: usize| [("authorization", format!("Bearer {}", keys[at]))];
    for (at, expected) in [(0, true), (1, false)] {
        let [(name, value)] = &bearer(at);
        let list = scene.ask("GET", "/v1/models", &[(*name, value.as_str())], String::new()).await;
        assert_eq!(list.json()["data"].as_array().is_some_and(|data| !data.is_empty()), expected);
    }
    let scrape = scene.get("/metrics").await.text;
    for (outcome, count) in [("completed", 2), ("limited", 1)] {
        let line = format!("skein_tenant_requests_total{{outcome=\"{outcome}\",tenant=\"acme\"}} {count}");
        assert!(scrape.contains(&line), "{line}: {scrape}");
    }
}
