//! `/openapi.json` against what is served: every answer of these tests, every request that is answered, every
//! route and every bound.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::Body as _;
use jsonschema::Validator;

use super::*;
use crate::api::openapi;
use crate::api::openapi::document::document;
use crate::api::openapi::schema::Now;
use crate::request::tenant::Tenant;
use crate::swap::{ModelSwaps, Swapped};

/// A description, and the validators of the parts that have been compared.
struct Described {
    document: Value,
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

/// Descriptions by the settings and the model that they depend on.
static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Described>>>> = LazyLock::new(Mutex::default);

impl Described {
    fn of(app: &App) -> Arc<Self> {
        let model = app.fleet.model_limits().ok();
        let names: Vec<String> =
            app.names(&Tenant::default()).into_iter().map(|(name, _)| name.to_string()).collect();
        let key = format!("{:?} {model:?} {names:?} {}", app.config, app.swaps.is_some());
        let mut known = KNOWN.lock().unwrap();
        let described = known.entry(key).or_insert_with(|| {
            let (rooms, open_rooms) = (crate::api::rooms(app), crate::api::open_rooms(app));
            let about = openapi::room();
            let rooms = rooms.iter().chain(&open_rooms).map(|(room, _)| room).chain([&about]);
            let document = document(&crate::api::operations(rooms), &Now { app, model, names });
            Arc::new(Self { document, validators: Mutex::default() })
        });
        described.clone()
    }

    /// Compares `value` with the schema at `pointer`.
    fn check(&self, pointer: &str, value: &Value, what: &str) {
        let validator = self.validators.lock().unwrap().get(pointer).cloned();
        let validator = validator.unwrap_or_else(|| {
            let components = self.document["components"].clone();
            let schema = self.document.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}")).clone();
            let schema = json!({"components": components, "allOf": [schema]});
            let made = Arc::new(
                jsonschema::draft202012::new(&schema).unwrap_or_else(|error| panic!("{pointer}: {error}")),
            );
            self.validators.lock().unwrap().insert(pointer.to_owned(), made.clone());
            made
        });
        let faults: Vec<String> = validator
            .iter_errors(value)
            .map(|fault| format!("{} at {}", fault, fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{what}: {pointer}: {faults:#?}\n{value}");
    }

    /// What a reference leads to, else the schema itself.
    fn whole<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = schema["$ref"].as_str().and_then(|to| self.document.pointer(to.trim_start_matches('#')));
        target.unwrap_or(schema)
    }

    /// The described path that `path` is, the most literal first.
    fn path(&self, path: &str) -> Option<String> {
        let paths = self.document["paths"].as_object().unwrap().keys();
        let literal = |path: &&String| path.split(['{', '}']).step_by(2).map(str::len).sum::<usize>();
        paths.filter(|template| fits(template, path)).max_by_key(literal).cloned()
    }
}

/// Whether `path` is one of `template`, whose names in braces may have slashes.
fn fits(template: &str, path: &str) -> bool {
    let Some((before, rest)) = template.split_once('{') else { return template == path };
    let (_, after) = rest.split_once('}').unwrap();
    let Some(path) = path.strip_prefix(before) else { return false };
    (1..=path.len()).filter(|at| path.is_char_boundary(*at)).any(|at| fits(after, &path[at..]))
}

fn pointer(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
}

/// What of a request is compared.
pub struct Asked {
    method: String,
    path: String,
    body: Option<Value>,
}

impl Asked {
    /// Reads a request whose body is whole.
    pub async fn of(request: Request<Body>) -> (Request<Body>, Self) {
        let (method, path) =
            (request.method().as_str().to_ascii_lowercase(), request.uri().path().to_owned());
        if request.body().size_hint().exact().is_none() {
            return (request, Self { method, path, body: None });
        }
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).ok();
        (Request::from_parts(parts, Body::from(bytes)), Self { method, path, body })
    }

    /// Does not compare the request: readers let through more within messages and tools than the shapes say.
    pub fn odd(self) -> Self {
        Self { body: None, ..self }
    }

    /// Compares request and answer with the description.
    pub fn check(&self, app: &App, status: u16, headers: &HeaderMap, body: &str) {
        let media = headers.get("content-type").map_or("", |value| value.to_str().unwrap());
        let media = media.split(';').next().unwrap_or_default();
        if ["head", "options"].contains(&&*self.method) || media.contains("grpc") {
            return;
        }
        let described = Described::of(app);
        let path = self.path.strip_prefix(&*app.config.root_path).unwrap_or(&self.path);
        let what = format!("{} {path} {status}", self.method);
        let found =
            described.path(path).filter(|path| described.document["paths"][path].get(&self.method).is_some());
        let Some(found) = found else {
            // `/v1/models/` is the same as `/v1/models`, and gRPC's paths are not of this document.
            let is_known = path == "/v1/models/" || path.starts_with("/grpc.") || path.starts_with("/skein.");
            assert!(is_known || [401, 404, 405].contains(&status), "{what} is not described");
            return;
        };
        let operation = pointer(&["paths", &found, &self.method]);
        let of_body = format!("{operation}/requestBody/content/application~1json/schema");
        let is_json = described.document.pointer(&of_body).is_some();
        if let Some(asked) = self.body.as_ref().filter(|_| is_json && status == 200) {
            described.check(&of_body, asked, &what);
        }
        described.check_answer(&format!("{operation}/responses/{status}"), media, body, &what);
    }
}

impl Described {
    /// Compares an answer with the response at `pointer`.
    fn check_answer(&self, at: &str, media: &str, body: &str, what: &str) {
        let response = self.document.pointer(at).unwrap_or_else(|| panic!("{what} is not described: {body}"));
        let at = response["$ref"].as_str().map_or(at, |reference| reference.trim_start_matches('#'));
        let content = &self.document.pointer(at).unwrap()["content"];
        if content.is_null() {
            assert_eq!(body, "", "{what} has no body");
            return;
        }
        assert!(content.get(media).is_some(), "{what} is of `{media}`: {body}");
        let schema = at.to_owned() + &pointer(&["content", media, "schema"]);
        let check = |text: &str| {
            let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"));
            self.check(&schema, &value, what);
        };
        match media {
            "application/json" => check(body),
            "application/x-ndjson" => body.lines().for_each(check),
            "text/event-stream" => {
                let schema = schema.clone() + "/properties/data/contentSchema";
                let check = |text: &str| {
                    let value =
                        serde_json::from_str(text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"));
                    self.check(&schema, &value, what);
                };
                let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
                data.filter(|data| *data != "[DONE]").for_each(check);
            }
            _ => {}
        }
    }
}

/// An app with every route.
fn full() -> App {
    let config =
        crate::config::RouterConfig { runtime_adapters: true, runtime_swaps: true, ..testing::config() };
    let mut app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    app.swap_models(Arc::new(NoSwap));
    app
}

/// Replaces nothing.
struct NoSwap;

impl ModelSwaps for NoSwap {
    fn swap(&self, _: Option<String>) -> BoxFuture<'_, Result<Swapped, Refusal>> {
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
    assert!(answer.body.len() < 150_000, "{} bytes", answer.body.len());
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
        let answer = send(&app, request.body(example.to_string().into()).unwrap()).await;
        let expected = match &**path {
            // A script has no workers, adapters, swaps or files.
            "/v1/batches" | "/v1/cluster/workers/{worker}/drain" => 404,
            "/v1/load_lora_adapter" | "/v1/unload_lora_adapter" | "/update_weights_from_disk" => 500,
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
