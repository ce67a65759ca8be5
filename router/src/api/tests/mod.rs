//! The HTTP API over a scripted generator: bodies, chunks and headers, byte for byte where clients rely on
//! them. This file holds helpers; the tests are in submodules.

mod answers;
mod cluster;
mod coding_clients;
pub(super) mod compared;
mod conversations;
mod description;
mod directly;
mod embeddings;
mod errors;
mod fuzz;
mod known_fields;
mod metrics;
mod ollama;
// The certificates of the harness, which stands on this crate.
#[allow(dead_code)]
#[path = "../../../../tests/src/pki.rs"]
mod pki;
mod requests;
mod reranking;
mod resume;
mod scores;
mod service;
mod stored;
mod tenants;
mod tls;
mod tools;
mod training;
mod usage;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use skein_proto::finish::FinishReason;
use tower::ServiceExt;

use super::direct::{self, Direct};
use crate::app::App;
use crate::refusal::Refusal;
use crate::repository::served::Served;
use crate::request::{Journey, TokenRequest};
use crate::testing::{self, Say, Script, delta, finish};

fn routes(app: App) -> Router {
    let served = Served::One(app.clone());
    super::router(app, super::grpc::guarded(&served).unwrap(), super::grpc::open(&served))
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The `data:` lines of an SSE body, times set to 0.
    fn events(&self) -> Vec<String> {
        self.events_with_ids().into_iter().map(|(_, data)| data).collect()
    }

    /// Events of an SSE body as (id, data), with times set to 0; the id is empty if an event has none.
    fn events_with_ids(&self) -> Vec<(String, String)> {
        assert!(self.body.ends_with("\n\n"), "{}", self.body);
        let event = |event: &str| {
            let (id, data) = match event.strip_prefix("id: ") {
                Some(rest) => rest.split_once('\n').unwrap(),
                None => ("", event),
            };
            (id.to_owned(), timeless(data.strip_prefix("data: ").unwrap()))
        };
        self.body.trim_end().split("\n\n").map(event).collect()
    }
}

fn timeless(text: &str) -> String {
    let Some((before, after)) = text.split_once("\"created\":") else { return text.to_owned() };
    format!("{before}\"created\":0{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// Sends a request. Answers, and requests that are answered, are what the API's description says.
async fn send(app: &App, request: Request<Body>) -> Answer {
    let (request, asked) = compared::Asked::of(request).await;
    answered(app, request, asked).await
}

/// Sends a request that no client would send. Only its answer is what the API's description says.
async fn send_odd(app: &App, request: Request<Body>) -> Answer {
    let (request, asked) = compared::Asked::of(request).await;
    answered(app, request, asked.odd()).await
}

async fn answered(app: &App, request: Request<Body>, asked: compared::Asked) -> Answer {
    let response = direct::answer(Direct::new(app).as_ref(), &routes(app.clone()), request).await;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let answer = Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    asked.check(app, answer.status, &answer.headers, &answer.body);
    answer
}

fn post_bytes(path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json").header("x-request-id", "t");
    request.body(body.into()).unwrap()
}

/// Sends `body` under the id `t`, so that answers are reproducible.
async fn post(script: Script, path: &str, mut body: Value) -> Answer {
    body["request_id"] = json!("t");
    send(&testing::app(script), post_bytes(path, body.to_string())).await
}

async fn get(script: Script, path: &str) -> Answer {
    send(&testing::app(script), Request::get(path).body(Body::empty()).unwrap()).await
}

const STOP: FinishReason = FinishReason::Stop(Some(1));

fn says(text: &str) -> Script {
    Script::of([delta(0, text), finish(0, STOP)])
}

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "test", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The content of each choice of a chat stream.
fn contents(answer: &Answer, choices: usize) -> Vec<String> {
    let mut texts = vec![String::new(); choices];
    for event in answer.events().iter().filter(|event| *event != "[DONE]") {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or(""));
    }
    texts
}

async fn check_error(answer: Answer, status: u16, body: &str) {
    assert_eq!((answer.status, answer.body.as_str()), (status, body));
    assert!(!answer.header("x-request-id").is_empty());
    assert_eq!(answer.header("content-type"), "application/json");
}

fn invalid(param: &str, message: &str) -> String {
    format!(
        r#"{{"error":{{"message":{},"type":"invalid_request_error","param":{},"code":null}}}}"#,
        Value::from(message),
        Value::from(param)
    )
}

/// Posts `body`; returns the requests that reached the generator and the answer.
async fn asked(path: &str, body: &Value, x_request_id: &str) -> (Vec<TokenRequest>, Answer) {
    let script = Arc::new(says("x"));
    let app = App::new(Arc::new(testing::model_text()), script.clone(), testing::config());
    let request = Request::post(path).header("x-request-id", x_request_id);
    let answer = send(&app, request.body(body.to_string().into()).unwrap()).await;
    let requests = script.requests.lock().unwrap().clone();
    (requests, answer)
}
