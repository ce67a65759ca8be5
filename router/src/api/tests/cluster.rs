//! The page at `/ui`, what it shows of the cluster and of a stream that moves, and who sees what.

use super::*;
use crate::config::RouterConfig;

async fn get_with(app: &App, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request =
        headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    send(app, request.body(Body::empty()).unwrap()).await
}

fn guarded(script: Script) -> App {
    let config = RouterConfig {
        api_keys: vec!["a".repeat(32), "b".repeat(32)],
        admin_api_key: Some("o".repeat(32)),
        ..testing::config()
    };
    App::new(Arc::new(testing::model_text()), Arc::new(script), config)
}

/// A request with the key that repeats `letter`.
fn with_key(letter: &str, method: &str, path: &str, body: &Value) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("x-api-key", letter.repeat(32));
    request.header("content-type", "application/json").body(body.to_string().into()).unwrap()
}

#[tokio::test]
async fn the_page_has_a_strict_policy_and_a_tag() {
    let app = guarded(says("x"));
    let page = get_with(&app, "/ui/", &[]).await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.body.starts_with("<!doctype html>"), "{}", page.body);
    let policy = page.header("content-security-policy");
    for part in ["default-src 'none'", "script-src 'self';", "connect-src 'self';", "frame-ancestors 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let known = [("if-none-match", page.header("etag"))];
    let same = get_with(&app, "/ui/", &known).await;
    assert_eq!((same.status, same.body.as_str()), (304, ""));
    let (to, script) = (get_with(&app, "/ui", &[]).await, get_with(&app, "/ui/main.js", &[]).await);
    assert_eq!((to.status, to.header("location")), (308, "ui/"));
    assert_eq!((script.status, script.header("content-type")), (200, "text/javascript; charset=utf-8"));
    assert_eq!(get_with(&app, "/ui/../Cargo.toml", &[]).await.status, 404);
    assert_eq!(get_with(&app, "/ui/none.js", &[]).await.status, 404);
    let posted = send(&app, post_bytes("/ui/", "{}")).await;
    assert_eq!((posted.status, posted.header("allow")), (405, "GET,HEAD"));
}

#[tokio::test]
async fn a_client_sees_its_own_requests_and_an_administrator_all() {
    let app = guarded(says("x"));
    for letter in ["a", "b"] {
        let body = json!({"prompt": "ab", "request_id": format!("of-{letter}")});
        assert_eq!(send(&app, with_key(letter, "POST", COMPLETIONS, &body)).await.status, 200);
    }
    let seen = async |letter: &str| {
        let answer = send(&app, with_key(letter, "GET", "/v1/cluster", &json!({}))).await;
        let ids = answer.json()["requests"].as_array().map(|requests| {
            requests.iter().map(|request| request["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        });
        (answer.json()["admin"].as_bool(), ids.unwrap_or_default())
    };
    assert_eq!(seen("a").await, (Some(false), vec!["of-a".to_owned()]));
    assert_eq!(seen("b").await, (Some(false), vec!["of-b".to_owned()]));
    assert_eq!(seen("o").await, (Some(true), vec!["of-b".to_owned(), "of-a".to_owned()]), "the latest first");
    assert_eq!(send(&app, with_key("c", "GET", "/v1/cluster", &json!({}))).await.status, 401);
    let one = send(&app, with_key("a", "GET", "/v1/cluster", &json!({}))).await.json()["requests"][0].take();
    assert_eq!(
        (&one["model"], &one["status"], &one["outcome"], &one["prompt_tokens"], &one["output_tokens"]),
        (&json!("test"), &json!(200), &json!("completed"), &json!(3), &json!(1)),
        "{one}"
    );
    let phases: Vec<&str> =
        one["phases"].as_array().unwrap().iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert!(phases.starts_with(&["place", "prefill"]), "{phases:?}");
}

#[tokio::test]
async fn drains_need_the_admin_key_json_and_a_worker() {
    let app = guarded(says("x"));
    let path = "/v1/cluster/workers/w9/drain";
    let drain = async |letter: &str| send(&app, with_key(letter, "POST", path, &json!({"on": true}))).await;
    assert_eq!(drain("a").await.status, 403);
    let unknown = drain("o").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("There is no worker `w9`"), "{}", unknown.body);
    let wrong = send(&app, with_key("o", "POST", path, &json!({"on": 1}))).await;
    assert!(wrong.status == 400 && wrong.body.contains("on must be true or false"), "{}", wrong.body);
    let form = Request::post(path).header("x-api-key", "o".repeat(32)).header("content-type", "text/plain");
    assert_eq!(send(&app, form.body(r#"{"on": true}"#.into()).unwrap()).await.status, 415);
    // Everyone may send requests to a server without keys on all addresses, but nobody may give orders.
    let listen = "0.0.0.0:8000".parse().unwrap();
    let open = RouterConfig { listen, ..testing::config() };
    let open = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), open);
    assert_eq!(send(&open, post_bytes(path, r#"{"on": true}"#)).await.status, 404);
    let shown = get_with(&open, "/v1/cluster", &[]).await;
    assert_eq!((shown.status, shown.json()["admin"].as_bool()), (200, Some(false)));
    // On loopback a page of another name, or of another origin, gives none either.
    let local = testing::app(says("x"));
    for (host, origin, status) in [
        ("127.0.0.1:8000", None, 404),
        ("127.0.0.1:8000", Some("http://127.0.0.1:8000"), 404),
        ("127.0.0.1:8000", Some("https://elsewhere.example"), 403),
        ("elsewhere.example", None, 403),
    ] {
        let request = Request::post(path).header("content-type", "application/json").header("host", host);
        let request = origin.iter().fold(request, |request, origin| request.header("origin", *origin));
        let answer = send(&local, request.body(r#"{"on": true}"#.into()).unwrap()).await;
        assert_eq!(answer.status, status, "{host} {origin:?}: {}", answer.body);
    }
}

#[tokio::test]
async fn snapshots_come_as_events_and_end_with_the_server() {
    let app = testing::app(says("x"));
    let request = Request::get("/v1/cluster/events").body(Body::empty()).unwrap();
    let response = routes(app.clone()).oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(app.metrics.recent.is_watched());
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let first = std::str::from_utf8(&first).unwrap();
    let data = first.strip_prefix("event: snapshot\ndata: ").and_then(|rest| rest.strip_suffix("\n\n"));
    let snapshot: Value = serde_json::from_str(data.unwrap()).unwrap();
    assert_eq!((&snapshot["object"], &snapshot["model"]), (&json!("cluster"), &json!("test")));
    drop(body);
    assert!(!app.metrics.recent.is_watched(), "receipts are made for watchers only");
}

/// The text of each event, and what it says of moves.
fn heard(answer: &Answer) -> Vec<(String, Value)> {
    let events = answer.events();
    let chunks = events.iter().filter(|event| *event != "[DONE]");
    let chunks = chunks.map(|event| serde_json::from_str::<Value>(event).unwrap());
    let text = |choice: &Value| {
        choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default().to_owned()
    };
    chunks.map(|chunk| (text(&chunk["choices"][0]), chunk["skein"].clone())).collect()
}

#[tokio::test]
async fn a_stream_says_where_it_moved_to_those_who_ask() {
    let say = [
        Say::Delta(delta(0, "one")),
        Say::Move("w1"),
        Say::Delta(delta(0, "two")),
        Say::Delta(finish(0, STOP)),
    ];
    for (path, body) in
        [(CHAT, chat(json!({"stream": true}))), (COMPLETIONS, json!({"prompt": "a", "stream": true}))]
    {
        let ask = async |wants: &str| {
            let app = testing::app(Script { say: say.to_vec(), ..Script::default() });
            let request = Request::post(path).header("content-type", "application/json");
            let request = request.header("x-skein-moves", wants).body(body.to_string().into()).unwrap();
            send(&app, request).await
        };
        let moved = json!({"moves": 1, "worker": "w1"});
        let told = heard(&ask("true").await);
        let at =
            told.iter().position(|(_, skein)| *skein == moved).unwrap_or_else(|| panic!("{path}: {told:?}"));
        let before: String = told[..at].iter().map(|(text, _)| text.as_str()).collect();
        let after: String = told[at..].iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!((before.as_str(), after.as_str()), ("one", "two"), "{path}");
        // A move before the first text is told before it.
        let early = [Say::Move("w2"), Say::Delta(delta(0, "one")), Say::Delta(finish(0, STOP))];
        let app = testing::app(Script { say: early.to_vec(), ..Script::default() });
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.header("x-skein-moves", "true").body(body.to_string().into()).unwrap();
        let told_early = heard(&send(&app, request).await);
        let at = told_early.iter().position(|(_, skein)| *skein == json!({"moves": 1, "worker": "w2"}));
        assert!(told_early[..at.unwrap()].iter().all(|(text, _)| text.is_empty()), "{path}: {told_early:?}");
        let untold = heard(&ask("false").await);
        assert!(untold.iter().all(|(_, skein)| *skein != moved), "{path}: {untold:?}");
    }
}
