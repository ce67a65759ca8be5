//! `/openapi.json` itself: how it is served, that it is whole, and that its routes and bounds are those of
//! the server.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::compared::Described;
use super::*;
use crate::swap::{ModelSwaps, Place, Swapped};

/// An app with every route.
fn full() -> App {
    let config =
        crate::config::RouterConfig { runtime_adapters: true, runtime_swaps: true, ..testing::config() };
    let mut app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    app.swap_models(Arc::new(NoSwap));
    app
}

/// Replaces nothing.
pub(super) struct NoSwap;

impl ModelSwaps for NoSwap {
    fn swap(&self, _: Option<String>, _: Place) -> BoxFuture<'_, Result<Swapped, Refusal>> {
        async { Err(Refusal::Internal) }.boxed()
    }
}

async fn served(app: &App, headers: &[(&str, &str)]) -> Answer {
    let request = headers
        .iter()
        .fold(Request::get("/openapi.json"), |request, (name, value)| request.header(*name, *value));
    let response = routes(app.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&bytes).into_owned();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

#[tokio::test]
async fn the_document_is_served_small_and_only_once() {
    let app = full();
    let answer = served(&app, &[]).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    assert!(answer.body.len() < 190_000, "{} bytes", answer.body.len());
    assert_eq!(answer.json()["openapi"], "3.1.0");
    let zipped = served(&app, &[("accept-encoding", "gzip")]).await;
    assert_eq!(zipped.header("content-encoding"), "gzip");
    assert_eq!(zipped.header("etag"), answer.header("etag"));
    let again = served(&app, &[("if-none-match", answer.header("etag"))]).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
}

#[tokio::test]
async fn the_document_needs_a_key_where_the_api_does() {
    let mut config = testing::config();
    config.api_keys = vec!["sesame".to_owned()];
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    assert_eq!(served(&app, &[]).await.status, 401);
    let document = served(&app, &[("authorization", "Bearer sesame")]).await.json();
    let chat = &document["paths"][CHAT]["post"];
    assert_eq!(chat["security"], json!([{"bearer": []}, {"apiKey": []}]));
    assert!(chat["responses"]["401"].is_object());
    assert_eq!(document["paths"]["/livez"]["get"]["security"], json!([]));
    let open = served(&testing::app(says("x")), &[]).await.json();
    assert!(
        open["components"]["securitySchemes"].is_null() && open["paths"][CHAT]["post"]["security"].is_null()
    );
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let described = Described::of(&full());
    let mut used = std::collections::HashSet::new();
    fn references(value: &Value, found: &mut std::collections::HashSet<String>) {
        match value {
            Value::Object(object) => {
                found.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    references(&described.document, &mut used);
    for reference in &used {
        let target = described.document.pointer(reference.trim_start_matches('#'));
        assert!(target.is_some(), "{reference} leads nowhere");
    }
    for kind in ["schemas", "responses", "parameters", "headers"] {
        for name in described.document["components"][kind].as_object().unwrap().keys() {
            assert!(used.contains(&format!("#/components/{kind}/{name}")), "{kind} {name} is not used");
        }
    }
}

#[test]
fn every_operation_has_a_name_of_its_own_and_every_field_a_sentence() {
    let described = Described::of(&full());
    let mut ids = std::collections::HashSet::new();
    for (path, methods) in described.document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{method} {path}: {id}");
            assert!(!operation["summary"].as_str().unwrap().is_empty());
            assert!(operation["responses"].as_object().is_some_and(|all| !all.is_empty()), "{path}");
            let Some(body) =
                operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str()
            else {
                continue;
            };
            let body = described.document.pointer(body.trim_start_matches('#')).unwrap();
            for (name, field) in body["properties"].as_object().into_iter().flatten() {
                let is_told =
                    [field, described.whole(field)].iter().any(|one| one["description"].is_string())
                        || path.starts_with("/v2/");
                assert!(is_told, "{path}: {name} has no sentence");
            }
        }
    }
}

#[tokio::test]
async fn every_described_method_is_served_and_no_other() {
    let app = full();
    let document = Described::of(&app).document.clone();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let concrete =
            path.split(['{', '}']).enumerate().map(|(at, part)| if at % 2 == 1 { "x" } else { part });
        let concrete: String = concrete.collect();
        // Its stream has no end.
        for method in
            ["GET", "POST", "DELETE", "PUT", "PATCH"].into_iter().filter(|_| path != "/v1/cluster/events")
        {
            let request = Request::builder().method(method).uri(&concrete).body(Body::from("{}")).unwrap();
            let status = routes(app.clone()).oneshot(request).await.unwrap().status().as_u16();
            let is_described = methods.get(method.to_ascii_lowercase()).is_some();
            assert_eq!(status != 405, is_described, "{method} {path}: {status}");
        }
    }
}

/// Examples are sent as they are. Those of a router that stores and loads nothing name what it does not have.
#[tokio::test]
async fn examples_are_answered() {
    let app = full();
    let document = Described::of(&app).document.clone();
    let mut sent = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(content) = methods["post"]["requestBody"]["content"]["application/json"].as_object() else {
            continue;
        };
        let example = content.get("example").unwrap_or_else(|| panic!("{path} has no example"));
        let concrete = path.replace("{model}", "test").replace("{version}", "1").replace("{worker}", "w");
        let request = Request::post(&concrete).header("content-type", "application/json");
        let of_vectors = ["/v1/embeddings", "/api/embed", "/api/embeddings"];
        let of_scores = ["/v1/rerank", "/v2/rerank", "/v1/score", "/rerank", "/score", "/classify"];
        let app = match &**path {
            path if of_vectors.contains(&path) => testing::app(embeddings::embedder()),
            path if of_scores.contains(&path) => testing::app(reranking::scorer()),
            _ => app.clone(),
        };
        let answer = send(&app, request.body(example.to_string().into()).unwrap()).await;
        let expected = match &**path {
            // A script has no workers, adapters, swaps or files.
            "/v1/batches" | "/v1/cluster/workers/{worker}/drain" => 404,
            "/v1/load_lora_adapter"
            | "/v1/unload_lora_adapter"
            | "/update_weights_from_disk"
            | "/update_weights" => 500,
            _ => 200,
        };
        assert_eq!(answer.status, expected, "{path} {example}: {}", answer.body);
        sent += 1;
    }
    assert!(sent >= 20, "{sent}");
}

/// Found by schemathesis.
#[tokio::test]
async fn a_method_that_a_path_does_not_take_is_told_which_it_takes() {
    for (path, method, allowed) in [
        ("/v2/models/test", "POST", "GET,HEAD"),
        ("/v2/models/test/ready", "TRACE", "GET,HEAD"),
        ("/v2/models/test/versions/1/generate", "GET", "POST"),
        ("/v1/models", "POST", "GET,HEAD"),
        (CHAT, "TRACE", "POST"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = send(&full(), request).await;
        assert_eq!((answer.status, answer.header("allow")), (405, allowed), "{method} {path}");
    }
}

/// Found by schemathesis: the refusal was not described.
#[tokio::test]
async fn the_only_worker_is_not_drained() {
    let request = Request::post("/v1/cluster/workers/only/drain").header("content-type", "application/json");
    let answer = send(&full(), request.body("{}".into()).unwrap()).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (409, Some("conflict")));
}

#[tokio::test]
async fn the_page_of_the_description_is_open_and_sends_nothing_elsewhere() {
    let mut config = testing::config();
    config.api_keys = vec!["sesame".to_owned()];
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    for path in ["/docs/", "/docs/docs.js", "/docs/style.css"] {
        let answer = send(&app, Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
    let moved = send(&app, Request::get("/docs").body(Body::empty()).unwrap()).await;
    assert_eq!((moved.status, moved.header("location")), (308, "docs/"));
}

/// Sends each value at the edge of each bound of a body's numbers, and the next one beyond.
#[tokio::test]
async fn bounds_are_those_that_are_enforced() {
    let mut compared = 0;
    for (path, body) in [(CHAT, chat(json!({}))), (COMPLETIONS, json!({"prompt": "a"}))] {
        let app = App::new(
            Arc::new(testing::model_text()),
            Arc::new(Script { every_sample: Some("x".to_owned()), ..Script::default() }),
            testing::config(),
        );
        let described = Described::of(&app);
        let schema = &described.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            ["schema"];
        let schema =
            described.document.pointer(schema["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap();
        for (name, field) in schema["properties"].as_object().unwrap() {
            let field = described.whole(field);
            let is_whole = field["type"][0] == "integer";
            let step = if is_whole { json!(1) } else { json!(0.001) }.as_f64().unwrap();
            for (keyword, outward) in [("minimum", -1.0), ("maximum", 1.0), ("exclusiveMinimum", -1.0)] {
                let Some(edge) = field[keyword].as_f64() else { continue };
                let inside = if keyword == "exclusiveMinimum" { edge + step } else { edge };
                let beyond = if keyword == "exclusiveMinimum" { edge } else { edge + outward * step };
                for (value, is_allowed) in [(inside, true), (beyond, false)] {
                    let mut body = body.clone();
                    body[name] = if is_whole { (value as i64).into() } else { value.into() };
                    match &**name {
                        "top_logprobs" => body["logprobs"] = true.into(),
                        "best_of" => body["n"] = body["best_of"].clone(),
                        "min_tokens" => body["max_tokens"] = json!(3),
                        "max_tokens" if value == 0.0 => body["echo"] = true.into(),
                        _ => {}
                    }
                    // The context holds the prompt, too.
                    let is_of_context =
                        ["max_tokens", "max_completion_tokens", "min_tokens"].contains(&&**name);
                    if is_of_context && keyword == "maximum" && is_allowed {
                        continue;
                    }
                    let answer = send(&app, post_bytes(path, body.to_string())).await;
                    assert_eq!(answer.status == 200, is_allowed, "{path} {body}: {}", answer.body);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 60, "{compared}");
}
