//! Keys, model list, health and tokenisation.

use super::*;

#[tokio::test]
async fn everything_but_health_needs_the_key() {
    let mut config = testing::config();
    config.api_keys = vec!["sesame".to_owned()];
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let status = async |method: &str, path: &str, key: Option<&str>| {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        send(&app, request.body(Body::empty()).unwrap()).await
    };
    let closed = [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/test"),
        ("POST", COMPLETIONS),
        ("POST", CHAT),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/version"),
        ("GET", "/nope"),
        ("GET", "//health"),
        ("POST", "/skein.v1.Inference/Generate"),
        ("POST", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
    ];
    for (method, path) in closed {
        for key in [None, Some("wrong")] {
            let answer = status(method, path, key).await;
            assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"), "{path}");
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "invalid_api_key");
            let message = error["message"].as_str().unwrap();
            assert_eq!(message.starts_with("This server requires an API key"), key.is_none(), "{message}");
        }
        assert_ne!(status(method, path, Some("sesame")).await.status, 401, "{path}");
    }
    for path in ["/", "/health", "/livez", "/readyz"] {
        assert_eq!(status("GET", path, None).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn what_changes_the_server_needs_the_admin_key() {
    let check = async |keys: &[&str], admin: Option<&str>, sent: Option<&str>, expected: u16| {
        let mut config = testing::config();
        config.api_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        config.admin_api_key = admin.map(str::to_owned);
        config.runtime_adapters = true;
        let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
        for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
            let mut request = post_bytes(path, "{}");
            if let Some(key) = sent {
                request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
            }
            let answer = send(&app, request).await;
            assert_eq!(answer.status, expected, "{path} {keys:?} {sent:?}: {}", answer.body);
            let is_refused = answer.json()["error"]["code"] == "admin_key_required";
            assert_eq!(is_refused, expected == 403, "{}", answer.body);
        }
        let mut call = post_bytes("/skein.worker.v1.Worker/UnloadAdapter", vec![0; 5]);
        call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        if let Some(key) = sent {
            call.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        }
        let status = send(&app, call).await.header("grpc-status").to_owned();
        let refused = match expected {
            401 => status == "16",
            403 => status == "7",
            _ => status != "16" && status != "7",
        };
        assert!(refused, "gRPC {keys:?} {sent:?}: {status}");
    };
    // 400: it reached the handler, which misses its fields.
    check(&[], None, None, 400).await;
    check(&["one"], None, Some("one"), 403).await;
    check(&["one"], Some("root"), None, 401).await;
    check(&["one"], Some("root"), Some("wrong"), 401).await;
    check(&["one"], Some("root"), Some("one"), 403).await;
    check(&["one"], Some("root"), Some("root"), 400).await;
    check(&[], Some("root"), None, 401).await;
    check(&[], Some("root"), Some("root"), 400).await;
}

#[tokio::test]
async fn lists_of_files_and_batches_take_a_page_and_refuse_wrong_ones_in_the_form_of_openai() {
    use crate::batch::jobs::{NewJob, Store};
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(directory.path(), crate::config::BatchLimits::default()).unwrap());
    let ids: Vec<String> = (0..3).map(|_| store.upload("").unwrap().finish("f").unwrap().id).collect();
    for input in &ids {
        let endpoint = crate::batch::Endpoint::Chat;
        let new =
            NewJob { endpoint, input_file_id: input.clone(), metadata: serde_json::Map::new(), rights: None };
        store.create("", new).unwrap();
    }
    let mut app = testing::app(says("x"));
    app.store_batches(store);
    let get = async |path: String| send(&app, Request::get(path).body(Body::empty()).unwrap()).await;
    for list in ["/v1/files", "/v1/batches"] {
        for query in ["limit=-1", "limit=0", "limit=x", "limit=10001", "order=up", "after=nothing"] {
            let answer = get(format!("{list}?{query}")).await;
            let error = &answer.json()["error"];
            assert_eq!(answer.status, 400, "{list}?{query}: {}", answer.body);
            assert_eq!(error["type"], "invalid_request_error", "{list}?{query}");
            assert_eq!(error["param"], query.split('=').next().unwrap(), "{list}?{query}");
        }
        assert_eq!(get(format!("{list}?limit=2")).await.json()["data"].as_array().unwrap().len(), 2);
    }
    let listed = async |query: &str| {
        let page = get(format!("/v1/files?{query}")).await.json();
        let all = page["data"].as_array().unwrap().iter();
        all.map(|file| ids.iter().position(|id| file["id"] == **id).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(listed("").await, [2, 1, 0]);
    assert_eq!(listed("order=asc&limit=2").await, [0, 1]);
    assert_eq!(listed(&format!("after={}", ids[1])).await, [0]);
    assert_eq!(listed("purpose=batch&limit=1").await, [2]);
    assert_eq!(listed("purpose=fine-tune").await, [0; 0]);
}

#[tokio::test]
async fn the_servers_address_answers_with_a_page_of_links_that_lead_somewhere() {
    let page = get(says("x"), "/").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let links: Vec<&str> =
        page.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let own: Vec<&&str> = links.iter().filter(|link| !link.starts_with("https:")).collect();
    assert!(own.len() > 2, "{links:?}");
    for link in own {
        assert_eq!(get(says("x"), &format!("/{link}")).await.status, 200, "{link}");
    }
}

/// CORS headers of the answer to a page of `origin`, and of the preflight before it.
async fn browsed(allowed: &[&str], origin: &str) -> (Answer, Answer) {
    let mut config = testing::config();
    config.api_keys = vec!["sesame".to_owned()];
    config.allowed_origins = allowed.iter().map(|origin| (*origin).to_owned()).collect();
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let preflight = Request::options(CHAT)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,x-stainless-os")
        .body(Body::empty());
    let request = Request::post(CHAT).header("origin", origin).header("authorization", "Bearer sesame");
    let request = request.body(chat(json!({})).to_string().into());
    (send(&app, preflight.unwrap()).await, send(&app, request.unwrap()).await)
}

#[tokio::test]
async fn pages_of_allowed_origins_may_call_and_no_others() {
    let page = "https://chat.example.org";
    for (allowed, header) in [(&[page][..], page), (&["*"][..], "*")] {
        let (preflight, answer) = browsed(allowed, page).await;
        assert_eq!(preflight.status, 200, "before any key is sent");
        assert_eq!(preflight.header("access-control-allow-origin"), header);
        assert_eq!(
            preflight.header("access-control-allow-headers"),
            "authorization,content-type,x-stainless-os"
        );
        assert!(preflight.header("access-control-allow-methods").contains("POST"));
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, header));
        assert!(answer.header("access-control-expose-headers").contains("x-request-id"));
        assert_eq!(answer.header("access-control-allow-credentials"), "");
    }
    for allowed in [&[][..], &["https://other.example.org"][..]] {
        let (preflight, answer) = browsed(allowed, page).await;
        for answer in [preflight, answer] {
            assert_eq!(answer.header("access-control-allow-origin"), "", "{allowed:?}");
        }
    }
}

#[tokio::test]
async fn models_and_version_are_told() {
    let models = get(says("x"), "/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("test")));
    assert_eq!(models["data"][0]["max_model_len"], testing::MAX_MODEL_LEN);
    assert_eq!(get(says("x"), "/v1/models/").await.json(), models, "a slash at the end changes nothing");
    assert_eq!(get(says("x"), "/v1/models/test").await.json()["object"], "model");
    assert_eq!(get(says("x"), "/v1/models/org/other").await.json()["error"]["code"], "model_not_found");
    assert_eq!(get(says("x"), "/version").await.json(), json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[tokio::test]
async fn readiness_is_not_liveness() {
    let not_ready = || Refusal::NoReadyWorker { reason: "x".to_owned(), retry_after: Duration::from_secs(1) };
    let script = || Script { not_ready: Some(not_ready()), ..Script::default() };
    assert_eq!(get(script(), "/livez").await.status, 200);
    for path in ["/readyz", "/health"] {
        let answer = get(script(), path).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
        assert_eq!(get(says("x"), path).await.status, 200);
    }
    assert_eq!(get(script(), "/v1/models").await.json()["data"][0]["max_model_len"], Value::Null);
}

#[tokio::test]
async fn text_goes_to_tokens_and_back() {
    let answer = post(says(""), "/tokenize", json!({"prompt": "hé", "return_token_strs": true})).await.json();
    let tokens: Vec<u32> = std::iter::once(0).chain(testing::tokens("hé")).collect();
    assert_eq!((&answer["tokens"], &answer["count"]), (&json!(tokens), &json!(4)));
    assert_eq!(answer["max_model_len"], testing::MAX_MODEL_LEN);
    assert_eq!(answer["token_strs"][0], "<|bos|>");
    let plain =
        post(says(""), "/tokenize", json!({"prompt": "hé", "add_special_tokens": false})).await.json();
    assert_eq!(plain["count"], 3);
    let chat = post(says(""), "/tokenize", chat(json!({}))).await.json();
    assert_eq!(chat["count"], 6);
    let text = post(says(""), "/detokenize", json!({"tokens": tokens})).await.json();
    assert_eq!(text, json!({"prompt": "<|bos|>hé"}));
    let bad = post(says(""), "/detokenize", json!({"tokens": [99999]})).await.json();
    assert_eq!(bad["error"]["param"], "tokens");
}

#[tokio::test]
async fn a_text_too_long_to_tokenize_names_the_models_own_limit() {
    let text = "word ".repeat(800_000);
    let told = "This model's maximum context length is 256 tokens, and at most 131072 are tokenized.";
    for (path, body) in [
        ("/tokenize", json!({"prompt": text})),
        ("/v1/completions", json!({"prompt": text, "truncate_prompt_tokens": 9})),
    ] {
        let answer = post(says(""), path, body).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")));
        assert!(error["message"].as_str().unwrap().starts_with(told), "{path}: {error}");
    }
}

#[tokio::test]
async fn a_model_without_template_points_to_completions() {
    let text = testing::model_text_with(&Value::Null, None);
    let app = App::new(Arc::new(text), Arc::new(says("x")), testing::config());
    let answer = send(&app, post_bytes(CHAT, chat(json!({})).to_string())).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("/v1/completions"), "{}", answer.body);
}

#[tokio::test]
async fn a_root_path_serves_the_api_below_it_too_and_behind_the_same_key() {
    let mut config = testing::config();
    config.root_path = "/llm".to_owned();
    config.api_keys = vec!["sesame".to_owned()];
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let status = async |path: &str, key: &str| {
        let request = Request::builder().uri(path).header("authorization", format!("Bearer {key}"));
        send(&app, request.body(Body::empty()).unwrap()).await.status
    };
    for path in ["/v1/models", "/llm/v1/models", "/llm/health", "/health"] {
        assert_eq!(status(path, "sesame").await, 200, "{path}");
    }
    assert_eq!(status("/llm/v1/models", "wrong").await, 401);
    assert_eq!(status("/other/v1/models", "sesame").await, 404);
    assert_eq!(status("/llm/nope", "sesame").await, 404);
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_stream_waits_once_for_its_first_output() {
    let silent = || testing::app(Script { say: vec![Say::Hang], ..Script::default() });
    for (path, mut body) in
        [(COMPLETIONS, json!({"prompt": "a"})), (CHAT, chat(json!({}))), ("/api/chat", chat(json!({})))]
    {
        body["stream"] = json!(true);
        let asked = tokio::time::Instant::now();
        let response = routes(silent()).oneshot(post_bytes(path, body.to_string())).await.unwrap();
        let waited = asked.elapsed();
        assert!(
            response.status().is_success() && (1900..2100).contains(&waited.as_millis()),
            "{path}: {waited:?}"
        );
    }
}
