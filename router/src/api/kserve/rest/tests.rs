//! The REST paths over the scripted generator.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use skein_proto::finish::FinishReason;
use tower::ServiceExt;

use crate::api;
use crate::api::tests::compared::Asked;
use crate::app::App;
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::repository::served::Served;
use crate::testing::{self, Say, Script, delta, finish};

const INFER: &str = "/v2/models/test/infer";
const GENERATE: &str = "/v2/models/test/generate";
const STREAM: &str = "/v2/models/test/generate_stream";

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    fn error(&self) -> String {
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        body["error"].as_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

async fn send(app: &App, request: Request<Body>) -> Answer {
    let (request, asked) = Asked::of(request).await;
    let served = Served::One(app.clone());
    let (guarded, open) = (api::grpc::guarded(&served).unwrap(), api::grpc::open(&served));
    let response = api::router(app.clone(), guarded, open).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    asked.check(app, parts.status.as_u16(), &parts.headers, &String::from_utf8_lossy(&body));
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

fn two_words() -> Script {
    Script::of([delta(0, "a"), delta(0, "bc"), finish(0, FinishReason::Length)])
}

async fn post(path: &str, body: Value) -> Answer {
    let request = Request::post(path).body(body.to_string().into()).unwrap();
    send(&testing::app(two_words()), request).await
}

async fn get(script: Script, path: &str) -> Answer {
    send(&testing::app(script), Request::get(path).body(Body::empty()).unwrap()).await
}

fn text(prompt: &str) -> Value {
    json!({"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [prompt]})
}

#[tokio::test]
async fn tensors_as_json_are_those_of_grpc() {
    let flag = |name: &str| json!({"name": name, "shape": [1, 1], "datatype": "BOOL", "data": [[true]]});
    let body = json!({
        "id": "7 b",
        "inputs": [text("xy"), flag("return_cumulative_logprob"), flag("return_num_input_tokens")],
        "parameters": {"max_tokens": 3, "foo": 1, "stop": ["END"]},
        "more": {},
    });
    let answer = post(INFER, body).await;
    let expected = json!({
        "id": "7 b", "model_name": "test", "model_version": "1",
        "outputs": [
            {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["xyabc"]},
            {"name": "cumulative_logprob", "datatype": "FP32", "shape": [1], "data": [-1.5]},
            {"name": "num_input_tokens", "datatype": "UINT32", "shape": [1], "data": [3]},
        ],
    });
    assert_eq!((answer.status, answer.json()), (200, expected));
    assert_eq!(answer.header("x-ignored-params"), "foo, more");
    assert!(!answer.header("x-request-id").is_empty());
    assert_eq!(answer.header("inference-header-content-length"), "");
}

#[tokio::test]
async fn binary_tensors_follow_the_json() {
    let app = testing::app(two_words());
    let prompt = b"\x02\0\0\0xy";
    let json = json!({
        "inputs": [
            {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": prompt.len()}},
            {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "parameters": {"binary_data_size": 4}},
        ],
        "outputs": [
            {"name": "text_output"}, {"name": "output_ids", "parameters": {"binary_data": false}},
            {"name": "num_output_tokens"},
        ],
        "parameters": {"binary_data_output": true},
    });
    let json = json.to_string();
    let body = [json.as_bytes(), prompt, &3_u32.to_le_bytes()].concat();
    let ask = Request::post(INFER).header("inference-header-content-length", json.len());
    let answer = send(&app, ask.body(body.into()).unwrap()).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/octet-stream"));
    let length: usize = answer.header("inference-header-content-length").parse().unwrap();
    let (head, binary) = answer.body.split_at(length);
    let head: Value = serde_json::from_slice(head).unwrap();
    assert_eq!(
        head["outputs"],
        json!([
            {"name": "text_output", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 9}},
            {"name": "output_ids", "datatype": "UINT32", "shape": [1, 3], "data": testing::tokens("abc")},
            {"name": "num_output_tokens", "datatype": "UINT32", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
        ])
    );
    assert_eq!(binary, b"\x05\0\0\0xyabc\x03\0\0\0");
}

#[tokio::test]
async fn generate_takes_and_gives_plain_members() {
    let body = json!({
        "text_input": "xy", "parameters": {"max_tokens": 3, "stop_words": ["END"], "bad_words": []}, "id": "g",
        "exclude_input_in_output": true, "return_finish_reason": true, "temperature": "0.5",
        "sampling_parameters": {"seed": 5},
    });
    let answer = post(GENERATE, body).await;
    let expected = json!({
        "id": "g", "model_name": "test", "model_version": "1", "text_output": "abc", "finish_reason": "length",
    });
    assert_eq!((answer.status, answer.json()), (200, expected));
    let both = post(GENERATE, json!({"text_input": "xy", "n": 1, "input_ids": [5]})).await;
    assert!(both.error().contains("both given"));
    let tokens = post("/v2/models/test/versions/1/generate", json!({"input_ids": [5, 6]})).await;
    assert_eq!(tokens.json()["text_output"], "abc");
}

#[tokio::test]
async fn generate_stream_sends_an_event_for_each_delta() {
    let events = async |body: Value| {
        let answer = post(STREAM, body).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"));
        let body = String::from_utf8(answer.body.to_vec()).unwrap();
        let events = body.trim_end().split("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
        events.map(|event| serde_json::from_str(event).unwrap()).collect::<Vec<Value>>()
    };
    let event = |text: &str| json!({"model_name": "test", "model_version": "1", "text_output": text});
    let streamed = events(json!({"text_input": "xy", "stream": true})).await;
    assert_eq!(streamed, [event("a"), event("bc"), event("")]);
    assert_eq!(events(json!({"text_input": "xy"})).await, [event("xyabc")]);
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_and_an_early_failure_is_a_status() {
    let ask =
        || Request::post(STREAM).body(json!({"text_input": "x", "stream": true}).to_string().into()).unwrap();
    let say = vec![Say::Delta(delta(0, "a")), Say::Fail(Refusal::Internal)];
    let answer = send(&testing::app(Script { say, ..Script::default() }), ask()).await;
    let body = String::from_utf8(answer.body.to_vec()).unwrap();
    assert_eq!(answer.status, 200);
    assert!(
        body.ends_with(&format!("data: {}\n\n", json!({"error": Refusal::Internal.to_string()}))),
        "{body}"
    );
    let say = vec![Say::Fail(Refusal::Draining)];
    let answer = send(&testing::app(Script { say, ..Script::default() }), ask()).await;
    assert_eq!((answer.status, answer.error()), (503, Refusal::Draining.to_string()));
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn server_and_models_describe_themselves() {
    let idle = Script::default;
    let server = get(idle(), "/v2").await.json();
    assert_eq!((&server["name"], &server["extensions"][3]), (&json!("skein"), &json!("binary_tensor_data")));
    assert_eq!(get(idle(), "/v2/models").await.json(), json!({"models": ["test"]}));
    assert_eq!(get(idle(), "/v2/health/live").await.json(), json!({"live": true}));
    assert_eq!(get(idle(), "/v2/health/ready").await.json(), json!({"ready": true}));
    let ready = json!({"name": "test", "ready": true});
    assert_eq!(get(idle(), "/v2/models/test/versions/1/ready").await.json(), ready);
    let metadata = get(idle(), "/v2/models/test").await.json();
    assert_eq!(metadata["inputs"][0], json!({"name": "text_input", "datatype": "BYTES", "shape": [1]}));
    let config = get(idle(), "/v2/models/test/config").await.json();
    assert_eq!(config["model_transaction_policy"], json!({"decoupled": true}));
    assert_eq!(config["output"][0], json!({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]}));
    let index = json!([{"name": "test", "version": "1", "state": "READY"}]);
    for body in ["", r#"{"ready": true}"#] {
        let ask = Request::post("/v2/repository/index").body(body.into()).unwrap();
        assert_eq!(send(&testing::app(idle()), ask).await.json(), index, "{body}");
    }
    let unready = || Script { not_ready: Some(Refusal::Draining), ..Script::default() };
    for path in ["/v2/health/ready", "/v2/models/test/ready"] {
        assert_eq!(get(unready(), path).await.status, 503, "{path}");
    }
    assert_eq!(get(unready(), "/v2/health/live").await.status, 200);
}

#[tokio::test]
async fn refusals_have_the_status_and_form_of_kserve() {
    let check = async |path: &str, body: Value, status: u16, expected: &str| {
        let answer = post(path, body).await;
        assert_eq!(answer.status, status, "{:?}", answer.body);
        assert!(answer.error().contains(expected), "{:?} has no {expected}", answer.body);
    };
    let one = |input: Value| json!({"inputs": [text("a"), input]});
    let hi = || json!({"text_input": "a"});
    check("/v2/models/org/other/infer", json!({"inputs": [text("a")]}), 404, "`org/other` does not exist")
        .await;
    check("/v2/models/test/versions/2/infer", json!({"inputs": [text("a")]}), 404, "has no version 2").await;
    check("/v2/models/test", hi(), 405, "send GET").await;
    check("/v2/models/test/load", hi(), 405, "POST").await;
    check("/v2/repository/models/test/load", hi(), 404, "no path").await;
    check(INFER, json!([]), 400, "not an inference request").await;
    check(INFER, json!({}), 400, "missing field `inputs`").await;
    check(INFER, json!({"inputs": []}), 400, "text_input is required").await;
    check(
        INFER,
        json!({"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES"}]}),
        400,
        "neither data",
    )
    .await;
    let sized =
        json!({"name": "n", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}});
    check(INFER, one(sized), 400, "the 0 bytes left").await;
    let both = json!({"name": "n", "shape": [1], "datatype": "INT32", "data": [1], "parameters": {"binary_data_size": 4}});
    check(INFER, one(both), 400, "send one of them").await;
    let shared =
        json!({"name": "n", "shape": [1], "datatype": "INT32", "parameters": {"shared_memory_region": "r"}});
    check(INFER, one(shared), 400, "shared memory is not supported").await;
    let wide = json!({"name": "n", "shape": [2], "datatype": "INT32", "data": [1]});
    check(INFER, one(wide), 400, "the shape has 2 elements").await;
    let float = json!({"name": "n", "shape": [1], "datatype": "INT32", "data": [0.5]});
    check(INFER, one(float), 400, "takes integers of").await;
    let deep = json!({"name": "n", "shape": [1], "datatype": "INT32", "data": [[[[[[[[[1]]]]]]]]]});
    check(INFER, one(deep), 400, "more than 8 nested lists").await;
    let half = json!({"name": "n", "shape": [1], "datatype": "FP16", "data": [1]});
    check(INFER, one(half), 400, "FP16").await;
    let flag = json!({"inputs": [text("a")], "parameters": {"binary_data_output": 1}});
    check(INFER, flag, 400, "binary_data_output must be true or false").await;
    let logits = json!({"inputs": [text("a")], "outputs": [{"name": "logits"}]});
    check(INFER, logits, 400, "`logits` is not one").await;
    check(INFER, json!({"inputs": [text("a")], "parameters": {"stream": true}}), 400, "generate_stream")
        .await;
    check(GENERATE, json!({"text_input": "a", "stream": true}), 400, "generate_stream").await;
    check(GENERATE, json!({"text_input": 3}), 400, "`text_input` takes text").await;
    check(GENERATE, json!({"text_input": ["a", "b"]}), 400, "takes one prompt, got 2").await;
    check(GENERATE, json!({"text_input": "a", "parameters": 3}), 400, "must be an object").await;
    check(GENERATE, json!({"text_input": "a", "id": 3}), 400, "id must be a string").await;
    check(GENERATE, json!({"text_input": "a", "temperature": [1, 2]}), 400, "takes one element, got 2").await;
    check(STREAM, json!({"text_input": "a", "temperature": 9}), 400, "temperature must be in [0, 2], got 9")
        .await;
    let twice = json!({"text_input": "a", "top_k": 2, "parameters": {"top_k": 2}});
    check(GENERATE, twice, 400, "`top_k` is given twice").await;
}

#[tokio::test]
async fn bodies_are_bounded_and_keys_are_needed() {
    let app = testing::app(two_words());
    let limit = app.config.limits.body_bytes;
    let ask = |path: &str, header: (&'static str, &str), body: Vec<u8>| {
        send(&app, Request::post(path).header(header.0, header.1).body(body.into()).unwrap())
    };
    let long = ask(INFER, ("x", "y"), vec![b' '; limit + 1]).await;
    assert_eq!((long.status, long.error().contains("send a smaller one")), (413, true));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &vec![b' '; limit + 1]).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < limit / 100);
    assert_eq!(ask(INFER, ("content-encoding", "gzip"), bomb).await.status, 413);
    let brotli = ask(INFER, ("content-encoding", "br"), Vec::new()).await;
    assert_eq!((brotli.status, brotli.error().contains("`br`")), (415, true));
    let cut = ask(GENERATE, ("inference-header-content-length", "1"), b"{}".to_vec()).await;
    assert_eq!((cut.status, cut.error().contains("send these to infer")), (400, true));
    let over = ask(INFER, ("inference-header-content-length", "3"), b"{}".to_vec()).await;
    assert_eq!((over.status, over.error().contains("which has 2 bytes")), (400, true));
    let rest = json!({"inputs": [text("a")]}).to_string();
    let length = rest.len().to_string();
    let left =
        ask(INFER, ("inference-header-content-length", &length), [rest.as_bytes(), b"xyz"].concat()).await;
    assert_eq!((left.status, left.error().contains("has 3 bytes behind its JSON")), (400, true));

    let config = RouterConfig { api_keys: vec!["key".to_owned()], ..testing::config() };
    let text = std::sync::Arc::new(testing::model_text());
    let app = App::new(text, std::sync::Arc::new(two_words()), config);
    for (path, status) in [("/v2/health/ready", 200), ("/v2/models/test/ready", 401), ("/v2/nothing", 401)] {
        let answer = send(&app, Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{path}");
    }
    let ask = Request::post(GENERATE).header("authorization", "Bearer key");
    let answer = send(&app, ask.body(json!({"text_input": "a"}).to_string().into()).unwrap()).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn answers_are_counted_by_their_route() {
    let app = testing::app(two_words());
    for path in [INFER, "/v2/models/org/m/generate", GENERATE] {
        send(&app, Request::post(path).body("{}".into()).unwrap()).await;
    }
    let metrics = send(&app, Request::get("/metrics").body(Body::empty()).unwrap()).await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    let count = |route: &str| {
        metrics
            .lines()
            .find(|line| line.contains(&format!("\"/v2/models/{{model}}/{route}\"")))
            .map(|line| line.rsplit(' ').next().unwrap().to_owned())
    };
    assert_eq!(
        (count("infer").as_deref(), count("generate").as_deref()),
        (Some("1"), Some("2")),
        "{metrics}"
    );
}

#[tokio::test]
async fn unknown_members_are_refused_if_the_operator_says_so() {
    let config = RouterConfig { refuse_unknown_fields: true, ..testing::config() };
    let app = App::new(std::sync::Arc::new(testing::model_text()), std::sync::Arc::new(two_words()), config);
    for (path, body) in [
        (INFER, json!({"inputs": [text("a")], "more": 1})),
        (INFER, json!({"inputs": [text("a")], "parameters": {"more": 1}})),
        (GENERATE, json!({"text_input": "a", "more": [1]})),
    ] {
        let answer = send(&app, Request::post(path).body(body.to_string().into()).unwrap()).await;
        assert_eq!((answer.status, answer.error().contains("`more` is not a field")), (400, true), "{body}");
    }
}
