//! A server of several models whose workers are scripts.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use skein_proto::v1;
use skein_proto::v1::inference_server::Inference;
use skein_text::model_text::ModelText;
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::residency::KeepAlive;
use super::served::Served;
use super::{Entry, LoadedModel, Loader, MemoryLimits, Repository};
use crate::api;
use crate::api::of_model::ModelRoutes;
use crate::api::skein::inference::InferenceService;
use crate::app::App;
use crate::config::RouterConfig;
use crate::request::tenant::Tenant;
use crate::tenants::{KeysFile, hash_text};
use crate::testing::{self, Say, Script, delta};

const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Loads scripts that say the name of their model.
struct Scripts {
    names: Vec<&'static str>,
    /// Permits of loads that may end; `None` = each at once.
    gate: Option<Semaphore>,
    loads: Mutex<Vec<&'static str>>,
    ended: Arc<Mutex<Vec<&'static str>>>,
    texts: AtomicUsize,
    config: RouterConfig,
    /// Whether answers do not end.
    hangs: bool,
}

fn text_of(name: &str) -> ModelText {
    ModelText { served_names: vec![Arc::from(name)], ..testing::model_text() }
}

struct Shared(Arc<Scripts>);

impl Loader for Shared {
    fn text(&self, model: usize) -> BoxFuture<'static, Result<ModelText, String>> {
        self.0.texts.fetch_add(1, Ordering::SeqCst);
        let name = self.0.names[model];
        async move { Ok(text_of(name)) }.boxed()
    }

    fn load(&self, model: usize) -> BoxFuture<'static, Result<LoadedModel, String>> {
        let scripts = self.0.clone();
        async move {
            let name = scripts.names[model];
            scripts.loads.lock().unwrap().push(name);
            if let Some(gate) = &scripts.gate {
                gate.acquire().await.map_err(|error| error.to_string())?.forget();
            }
            if name == "broken" {
                return Err("its file is cut off".to_owned());
            }
            let script = match scripts.hangs {
                true => Script { say: vec![Say::Delta(delta(0, name)), Say::Hang], ..Script::default() },
                false => Script { every_sample: Some(name.to_owned()), ..Script::default() },
            };
            let config = RouterConfig { is_one_of_several: true, ..scripts.config.clone() };
            let app = App::new(Arc::new(text_of(name)), Arc::new(script), config);
            let ended = scripts.ended.clone();
            let end = async move { ended.lock().unwrap().push(name) };
            let routes = Arc::new(ModelRoutes::of(&app));
            Ok(LoadedModel { app, routes, end: end.boxed(), lost: std::future::pending().boxed() })
        }
        .boxed()
    }
}

struct Scene {
    models: Repository,
    scripts: Arc<Scripts>,
    routes: Router,
}

/// How a scene differs from models of one byte each that answer at once.
struct Plan {
    budget: u64,
    gated: bool,
    hangs: bool,
    keep: Vec<KeepAlive>,
    config: RouterConfig,
}

impl Default for Plan {
    fn default() -> Self {
        Self { budget: 10, gated: false, hangs: false, keep: Vec::new(), config: testing::config() }
    }
}

fn scene(names: &[&'static str], plan: Plan) -> Scene {
    let Plan { budget, gated, hangs, keep, config } = plan;
    let scripts = Arc::new(Scripts {
        names: names.to_vec(),
        gate: gated.then(|| Semaphore::new(0)),
        loads: Mutex::default(),
        ended: Arc::default(),
        texts: AtomicUsize::new(0),
        config: config.clone(),
        hangs,
    });
    let entry = |(number, name): (usize, &&'static str)| Entry {
        names: vec![Arc::from(*name)],
        bytes: 1,
        max_model_len: testing::MAX_MODEL_LEN,
        pooled: None,
        keep_alive: keep.get(number).copied().unwrap_or_default(),
        at_start: false,
        facts: testing::model_text().facts,
    };
    let entries = names.iter().enumerate().map(entry).collect();
    let limits = MemoryLimits { budget, load_timeout: LOAD_TIMEOUT };
    let loader = Arc::new(Shared(scripts.clone()));
    let models = Repository::start(entries, limits, loader, config).unwrap();
    let served = Served::Several(models.clone());
    let (guarded, open) = (api::grpc::guarded(&served).unwrap(), api::grpc::open(&served));
    let routes = api::repository::router(models.clone(), guarded, open);
    Scene { models, scripts, routes }
}

impl Scene {
    async fn ask(&self, request: Request<Body>) -> Response<Body> {
        self.routes.clone().oneshot(request).await.unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(path).header("content-type", "application/json");
        json_of(self.ask(request.body(Body::from(body.to_string())).unwrap()).await).await
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        json_of(self.ask(Request::get(path).body(Body::empty()).unwrap()).await).await
    }

    fn loads(&self) -> Vec<&'static str> {
        self.scripts.loads.lock().unwrap().clone()
    }

    fn ended(&self) -> Vec<&'static str> {
        self.scripts.ended.lock().unwrap().clone()
    }

    /// Lets so many loads end.
    fn allow(&self, loads: usize) {
        self.scripts.gate.as_ref().unwrap().add_permits(loads);
    }

    async fn states(&self) -> Vec<String> {
        let (_, list) = self.get("/v1/models").await;
        let state = |model: &Value| model["status"]["value"].as_str().unwrap().to_owned();
        list["data"].as_array().unwrap().iter().map(state).collect()
    }
}

async fn json_of(response: Response<Body>) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into()))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn completion(model: &str) -> Value {
    json!({"model": model, "prompt": "x", "max_tokens": 8})
}

#[tokio::test]
async fn each_api_is_answered_by_the_model_that_a_request_names() {
    let scene = scene(&["one", "two"], Plan::default());
    let chat = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        ("/v1/completions", json!({"prompt": "x"}), "/choices/0/text"),
        ("/v1/chat/completions", json!({"messages": chat}), "/choices/0/message/content"),
        ("/v1/responses", json!({"input": "hi"}), "/output/0/content/0/text"),
        ("/v1/messages", json!({"max_tokens": 9, "messages": chat}), "/content/0/text"),
        ("/api/chat", json!({"messages": chat, "stream": false}), "/message/content"),
        ("/api/generate", json!({"prompt": "x", "stream": false}), "/response"),
    ];
    for (path, mut body, at) in cases {
        for name in ["one", "two"] {
            body["model"] = name.into();
            let (status, answer) = scene.post(path, &body).await;
            let text = answer.pointer(at).and_then(Value::as_str);
            assert_eq!((status, text), (200, Some(name)), "{path}: {answer}");
        }
        body["model"] = "three".into();
        let (status, answer) = scene.post(path, &body).await;
        let said = answer.to_string();
        assert!(status == 404 && said.contains("`one`, `two`"), "{path}: {status} {said}");
        body.as_object_mut().unwrap().remove("model");
        let (status, answer) = scene.post(path, &body).await;
        let said = answer.to_string();
        assert!(
            status == 400 && said.contains("model is required") && said.contains("`two`"),
            "{path}: {said}"
        );
    }
    let (status, answer) = scene.post("/v2/models/two/generate", &json!({"text_input": "x"})).await;
    assert_eq!((status, &answer["text_output"]), (200, &json!("xtwo")), "{answer}");
    let (status, answer) = scene.post("/tokenize?model=two", &json!({"prompt": "x"})).await;
    assert_eq!((status, &answer["count"]), (200, &json!(2)), "{answer}");
    let (status, answer) = scene.post("/v1/completions", &json!({"model": 7, "prompt": "x"})).await;
    assert!(status == 400 && answer.to_string().contains("model must be a string"), "{answer}");
    let torn = Request::post("/v1/completions").body(Body::from("{\"model\": ")).unwrap();
    let (status, answer) = json_of(scene.ask(torn).await).await;
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("JSON"), "{answer}");
    assert_eq!(scene.get("/v1/nothing").await.0, 404);
    assert_eq!(scene.loads(), ["one", "two"], "each once");
}

#[tokio::test]
async fn over_grpc_a_request_names_its_model_too() {
    let scene = scene(&["one", "two"], Plan::default());
    let service = InferenceService::new(Served::Several(scene.models.clone()));
    let generate = async |model: &str| {
        let prompt = Some(v1::generate_request::Prompt::Text("x".to_owned()));
        let request =
            v1::GenerateRequest { model: model.to_owned(), prompt, ..v1::GenerateRequest::default() };
        let answered = service.generate(tonic::Request::new(request)).await?;
        let mut stream = answered.into_inner();
        let mut text = String::new();
        while let Some(response) = futures::StreamExt::next(&mut stream).await {
            text += &response?.text;
        }
        Ok::<_, tonic::Status>(text)
    };
    assert_eq!(generate("two").await.unwrap(), "two");
    let refused = generate("three").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound, "{refused}");
    assert_eq!(generate("").await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let listed = service.list_models(tonic::Request::new(v1::ListModelsRequest {})).await.unwrap();
    let ids: Vec<String> = listed.into_inner().models.into_iter().map(|model| model.id).collect();
    assert_eq!((ids, scene.loads()), (vec!["one".to_owned(), "two".to_owned()], vec!["two"]));
}

#[tokio::test]
async fn requests_for_a_cold_model_wait_for_one_load_and_disturb_no_other() {
    let scene = scene(&["one", "two"], Plan { gated: true, ..Plan::default() });
    scene.allow(1);
    assert_eq!(scene.post("/v1/completions", &completion("one")).await.0, 200);
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let routes = scene.routes.clone();
            let request = Request::post("/v1/completions").header("content-type", "application/json");
            let request = request.body(Body::from(completion("two").to_string())).unwrap();
            tokio::spawn(async move { json_of(routes.oneshot(request).await.unwrap()).await })
        })
        .collect();
    until("all wait", || scene.models.status()[1].requests == 5).await;
    assert_eq!(scene.states().await, ["loaded", "loading"]);
    assert_eq!(scene.post("/v1/completions", &completion("one")).await.0, 200);
    let late = Request::post("/v1/completions").header("x-request-timeout-ms", "5");
    let late = late.body(Body::from(completion("two").to_string())).unwrap();
    let (status, answer) = json_of(scene.ask(late).await).await;
    assert!(status == 503 && answer.to_string().contains("was not in memory within"), "{answer}");
    scene.allow(1);
    for answer in waiting {
        let (status, answer) = answer.await.unwrap();
        assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("two")), "{answer}");
    }
    assert_eq!(scene.loads(), ["one", "two"]);
    until("no request is left", || scene.models.status().iter().all(|status| status.requests == 0)).await;
}

#[tokio::test]
async fn requests_that_wait_for_models_are_bounded() {
    let mut config = testing::config();
    config.admission.max_num_queued_reqs = 2;
    let scene = scene(&["one", "two"], Plan { gated: true, config, ..Plan::default() });
    let ask = |name: &'static str| {
        let models = scene.models.clone();
        tokio::spawn(async move { models.named(Some(name), &Tenant::default(), None).await.map(drop) })
    };
    let waiting = [ask("one"), ask("two")];
    until("both wait", || scene.models.status().iter().all(|status| status.requests == 1)).await;
    let refused = scene.models.named(Some("one"), &Tenant::default(), None).await.unwrap_err().to_string();
    assert!(refused.contains("2 requests wait for models"), "{refused}");
    scene.allow(2);
    for one in waiting {
        one.await.unwrap().unwrap();
    }
    scene.models.named(Some("one"), &Tenant::default(), None).await.unwrap();
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_is_refused_with_the_reason_and_is_not_tried_at_once_again() {
    let scene = scene(&["broken", "one"], Plan::default());
    for _ in 0..3 {
        let (status, answer) = scene.post("/v1/completions", &completion("broken")).await;
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(
            status == 503 && said.contains("`broken` could not be loaded: its file is cut off"),
            "{said}"
        );
    }
    assert_eq!(scene.loads(), ["broken"]);
    let (_, list) = scene.get("/v1/models").await;
    assert_eq!(list["data"][0]["status"]["reason"], "its file is cut off");
    assert_eq!(scene.post("/v1/completions", &completion("one")).await.0, 200);
}

#[tokio::test]
async fn a_model_stays_until_the_whole_answer_is_sent() {
    let scene = scene(&["one", "two"], Plan { budget: 1, hangs: true, ..Plan::default() });
    let mut body = completion("one");
    body["stream"] = true.into();
    let request = Request::post("/v1/completions").body(Body::from(body.to_string())).unwrap();
    let streaming = scene.ask(request).await;
    assert_eq!(streaming.status(), 200);
    let (models, routes) = (scene.models.clone(), scene.routes.clone());
    let two = tokio::spawn(async move {
        let mut body = completion("two");
        body["stream"] = true.into();
        routes.oneshot(Request::post("/v1/completions").body(Body::from(body.to_string())).unwrap()).await
    });
    until("the other waits", || models.status()[1].requests == 1).await;
    until("it takes no new requests", || models.status()[0].stage == super::residency::Stage::Leaving).await;
    assert_eq!((scene.ended(), scene.loads()), (Vec::new(), vec!["one"]));
    drop(streaming);
    assert_eq!(two.await.unwrap().unwrap().status(), 200);
    assert_eq!((scene.ended(), scene.loads()), (vec!["one"], vec!["one", "two"]));
}

#[tokio::test]
async fn ollama_says_how_long_a_model_stays() {
    let scene = scene(&["one", "two"], Plan::default());
    let generate = |more: Value| {
        let mut body = json!({"model": "one:latest", "prompt": "x", "stream": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (status, answer) = scene.post("/api/generate", &generate(json!({"keep_alive": "1h"}))).await;
    assert_eq!(status, 200, "{answer}");
    let (_, ps) = scene.get("/api/ps").await;
    assert_eq!(
        (ps["models"].as_array().unwrap().len(), &ps["models"][0]["name"]),
        (1, &json!("one")),
        "{ps}"
    );
    assert!(!ps["models"][0]["expires_at"].as_str().unwrap().starts_with("9999"), "{ps}");
    assert_eq!(scene.post("/api/generate", &generate(json!({"keep_alive": -1}))).await.0, 200);
    assert!(scene.get("/api/ps").await.1["models"][0]["expires_at"].as_str().unwrap().starts_with("9999"));
    assert_eq!(scene.post("/api/generate", &generate(json!({"keep_alive": 0}))).await.0, 200);
    until("it leaves after its answer", || scene.ended() == ["one"]).await;
    let unload = json!({"model": "two", "keep_alive": 0});
    let (status, answer) = scene.post("/api/generate", &unload).await;
    assert_eq!((status, &answer["done_reason"]), (200, &json!("unload")), "{answer}");
    assert_eq!(scene.loads(), ["one"], "a model is not loaded to leave");
    let (status, answer) = scene.post("/api/generate", &json!({"model": "two"})).await;
    assert_eq!((status, &answer["done_reason"]), (200, &json!("load")), "{answer}");
    let (status, answer) = scene.post("/api/generate", &generate(json!({"keep_alive": "soon"}))).await;
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("keep_alive must be"), "{answer}");
    let (status, tags) = scene.get("/api/tags").await;
    assert_eq!((status, tags["models"].as_array().unwrap().len()), (200, 2));
    for _ in 0..2 {
        let (status, show) = scene.post("/api/show", &json!({"model": "one"})).await;
        assert_eq!((status, &show["capabilities"][0]), (200, &json!("completion")), "{show}");
    }
    assert_eq!(scene.scripts.texts.load(Ordering::SeqCst), 1, "its files are read once");
    assert_eq!(scene.loads(), ["one", "two"], "nothing is loaded to be shown");
}

#[tokio::test]
async fn models_are_loaded_and_unloaded_on_order() {
    let scene = scene(&["org/one", "two"], Plan::default());
    let (status, answer) = scene.post("/models/load", &json!({"model": "org/one"})).await;
    assert_eq!((status, &answer["success"]), (200, &json!(true)), "{answer}");
    assert_eq!(scene.states().await, ["loaded", "unloaded"]);
    let (status, index) = scene.post("/v2/repository/index", &json!({})).await;
    let state = |number: usize| index[number]["state"].as_str().unwrap().to_owned();
    assert_eq!((status, state(0), state(1)), (200, "READY".to_owned(), "UNAVAILABLE".to_owned()), "{index}");
    assert_eq!(
        scene.post("/v2/repository/index", &json!({"ready": true})).await.1.as_array().unwrap().len(),
        1
    );
    assert_eq!(scene.get("/v2/models/org/one/ready").await.0, 200);
    assert_eq!(scene.get("/v2/models/two/ready").await.0, 503);
    assert_eq!(scene.post("/v2/repository/models/org/one/unload", &json!({})).await, (200, json!({})));
    assert_eq!((scene.ended(), scene.states().await), (vec!["org/one"], vec!["unloaded".to_owned(); 2]));
    assert_eq!(scene.post("/v2/repository/models/two/load", &json!({})).await, (200, json!({})));
    assert_eq!(scene.post("/models/unload", &json!({"model": "two"})).await.0, 200);
    assert_eq!(scene.ended(), ["org/one", "two"]);
    for (path, body, expected) in [
        ("/models/load", json!({"model": "three"}), 404),
        ("/models/load", json!({}), 400),
        ("/models/unload", json!({"model": "two"}), 200),
        ("/v2/repository/models/three/load", json!({}), 404),
        ("/v2/repository/models/two", json!({}), 404),
    ] {
        assert_eq!(scene.post(path, &body).await.0, expected, "{path} {body}");
    }
    let (status, one) = scene.get("/v1/models/org/one").await;
    assert_eq!((status, &one["max_model_len"]), (200, &json!(testing::MAX_MODEL_LEN)), "{one}");
    assert_eq!(scene.get("/v1/models/three").await.0, 404);
}

#[tokio::test]
async fn keys_are_checked_before_anything_is_loaded() {
    let config = RouterConfig { api_keys: vec!["sesame".to_owned()], ..testing::config() };
    let scene = scene(&["one"], Plan { config, ..Plan::default() });
    let ask = async |path: &str, key: Option<&str>, body: Value| {
        let request = Request::post(path).header("content-type", "application/json");
        let request =
            key.into_iter().fold(request, |all, key| all.header("authorization", format!("Bearer {key}")));
        json_of(scene.ask(request.body(Body::from(body.to_string())).unwrap()).await).await
    };
    for path in ["/v1/completions", "/v1/messages", "/api/generate", "/v2/models/one/infer", "/models/load"] {
        assert_eq!(ask(path, None, completion("one")).await.0, 401, "{path}");
    }
    assert_eq!(ask("/models/load", Some("sesame"), json!({"model": "one"})).await.0, 403, "it is no admin's");
    assert_eq!(ask("/v2/repository/models/one/load", Some("sesame"), json!({})).await.0, 403);
    let unload = json!({"model": "one", "keep_alive": 0});
    assert_eq!(scene.loads(), Vec::<&str>::new());
    assert_eq!(ask("/v1/completions", Some("sesame"), completion("one")).await.0, 200);
    assert_eq!(ask("/api/generate", Some("sesame"), unload).await.0, 200);
    assert_eq!(scene.ended(), Vec::<&str>::new(), "a client's keep_alive does not take everybody's model");
    let (status, body) = json_of(scene.ask(Request::get("/health").body(Body::empty()).unwrap()).await).await;
    assert_eq!((status, body), (200, json!({"status": "ok"})));
}

#[tokio::test]
async fn a_key_over_its_limits_loads_no_model() {
    let key = "k".repeat(40);
    let hash = hash_text(&key);
    let text = format!("[[keys]]\nid = \"k\"\ntenant = \"t\"\nhash = \"{hash}\"\nrequests-per-minute = 1\n");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.toml");
    std::fs::write(&path, text).unwrap();
    let config = RouterConfig { keys_file: Some(KeysFile::open(&path).unwrap()), ..testing::config() };
    let scene = scene(&["one", "two"], Plan { config, ..Plan::default() });
    let ask = async |model: &str| {
        let request = Request::post("/v1/completions").header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {key}"));
        let body = Body::from(completion(model).to_string());
        json_of(scene.ask(request.body(body).unwrap()).await).await
    };
    assert_eq!(ask("one").await.0, 200);
    let (status, body) = ask("two").await;
    assert_eq!((status, &body["error"]["code"]), (429, &json!("rate_limit_exceeded")), "{body}");
    assert_eq!(scene.loads(), ["one"]);
}

#[tokio::test]
async fn metrics_and_the_cluster_are_of_all_models_in_memory() {
    let scene = scene(&["one", "two", "three"], Plan::default());
    for name in ["one", "two"] {
        assert_eq!(scene.post("/v1/completions", &completion(name)).await.0, 200);
    }
    let response = scene.ask(Request::get("/metrics").body(Body::empty()).unwrap()).await;
    let text = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    for line in [
        "skein_requests_total{engine=\"0\",model_name=\"one\"} 1",
        "skein_requests_total{engine=\"0\",model_name=\"two\"} 1",
        "skein_model_loads_total{model_name=\"two\",outcome=\"loaded\"} 1",
        "skein_model_loads_total{model_name=\"three\",outcome=\"loaded\"} 0",
        "skein_models_memory_bytes 2",
        "skein_models_memory_limit_bytes 10",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let helps: Vec<&str> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
    let names: std::collections::BTreeSet<&str> =
        helps.iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(helps.len(), names.len(), "each family is written once");
    assert_eq!(text.matches("\nprocess_open_fds ").count(), 1, "the process counts once");
    let (status, cluster) = scene.get("/v1/cluster").await;
    assert_eq!((status, &cluster["totals"]["requests"]), (200, &json!(2)), "{cluster}");
    let states: Vec<&Value> =
        cluster["models"].as_array().unwrap().iter().map(|model| &model["status"]["value"]).collect();
    assert_eq!(states, ["loaded", "loaded", "unloaded"]);
    assert_eq!(scene.get("/v1/cluster?model=one").await.1["totals"]["requests"], json!(1));
    assert_eq!(scene.get("/v1/cluster?model=four").await.0, 404);
}

#[tokio::test]
async fn the_document_is_of_a_model_and_of_the_repository() {
    let scene = scene(&["one"], Plan::default());
    let (status, answer) = scene.get("/openapi.json").await;
    assert!(status == 404 && answer.to_string().contains("?model=NAME"), "{answer}");
    let (status, document) = scene.get("/openapi.json?model=one").await;
    assert_eq!(status, 200, "{document}");
    for path in ["/v1/chat/completions", "/models/load", "/v2/repository/models/{model}/unload", "/metrics"] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    for path in ["/v1/completions", "/v1/messages", "/api/chat", "/tokenize", "/v1/embeddings"] {
        let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let name = body["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        let required = &document["components"]["schemas"][name]["required"];
        assert!(
            required.as_array().is_some_and(|names| names.contains(&json!("model"))),
            "{path}: {required}"
        );
    }
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

/// A route that a model has and a server of several does not would be missed by its clients.
#[tokio::test]
async fn every_route_of_a_model_is_served() {
    let scene = scene(&["one"], Plan::default());
    assert_eq!(scene.post("/models/load", &json!({"model": "one"})).await.0, 200);
    let app = scene.models.apps().remove(0);
    for operation in api::described(&app) {
        if api::repository::NOT_SERVED.iter().any(|path| operation.path.starts_with(path)) {
            continue;
        }
        let path =
            operation.path.replace("{model}", "one").replace("{id}", "one").replace("{path}", "app.js");
        let method = operation.method.to_uppercase();
        let request = Request::builder().method(&*method).uri(&path).body(Body::from("{}")).unwrap();
        let response = scene.ask(request).await;
        let streams = path.ends_with("/events");
        let status = response.status().as_u16();
        let said = if streams { String::new() } else { json_of(response).await.1.to_string() };
        assert!(status != 405 && !said.contains("There is no path"), "{method} {path}: {status} {said}");
    }
}

#[tokio::test]
async fn a_shutdown_refuses_requests_that_wait_and_ends_all_workers() {
    let scene = scene(&["one", "two"], Plan { gated: true, ..Plan::default() });
    scene.allow(1);
    assert_eq!(scene.post("/v1/completions", &completion("one")).await.0, 200);
    let models = scene.models.clone();
    let waiting =
        tokio::spawn(async move { models.named(Some("two"), &Tenant::default(), None).await.map(drop) });
    until("it waits", || scene.models.status()[1].requests == 1).await;
    scene.models.drain_all(Duration::from_secs(1)).await;
    scene.models.end_workers().await;
    assert!(waiting.await.unwrap().unwrap_err().to_string().contains("shutting down"));
    assert_eq!(
        (scene.post("/v1/completions", &completion("one")).await.0, scene.ended()),
        (503, vec!["one"])
    );
    assert_eq!(scene.get("/health").await.0, 503);
}
