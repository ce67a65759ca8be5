//! The HTTP edge over a scripted generator: bodies, chunks and headers, byte for byte where clients look.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::app::App;
use crate::refusal::Refusal;
use crate::request::{TokenFinish, TokenRequest};
use crate::testing::{self, Say, Script, delta, finish};

fn routes(app: App) -> Router {
    super::router(app.clone(), crate::grpc::guarded(&app).unwrap(), crate::grpc::open(&app))
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
        assert!(self.body.ends_with("\n\n"), "{}", self.body);
        self.body
            .trim_end()
            .split("\n\n")
            .map(|event| timeless(event.strip_prefix("data: ").unwrap()))
            .collect()
    }
}

fn timeless(text: &str) -> String {
    let Some((before, after)) = text.split_once("\"created\":") else { return text.to_owned() };
    format!("{before}\"created\":0{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
}

async fn send(app: &App, request: Request<Body>) -> Answer {
    let response = routes(app.clone()).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

fn post_bytes(path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json").header("x-request-id", "t");
    request.body(body.into()).unwrap()
}

/// Sends `body` under the id `t`, so that answers are the same every time.
async fn post(script: Script, path: &str, mut body: Value) -> Answer {
    body["request_id"] = json!("t");
    send(&testing::app(script), post_bytes(path, body.to_string())).await
}

async fn get(script: Script, path: &str) -> Answer {
    send(&testing::app(script), Request::get(path).body(Body::empty()).unwrap()).await
}

const STOP: TokenFinish = TokenFinish::Stop { token: Some(1) };

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

#[tokio::test]
async fn a_completion_has_openais_shape() {
    let answer = post(says("Hé"), COMPLETIONS, json!({"prompt": "ab"})).await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, "t"));
    let expected = concat!(
        r#"{"id":"cmpl-t","object":"text_completion","created":0,"model":"test","system_fingerprint":"skein-"#,
        env!("CARGO_PKG_VERSION"),
        r#"","choices":[{"index":0,"text":"Hé","logprobs":null,"finish_reason":"stop","stop_reason":1}],"#,
        r#""usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":1}}}"#,
    );
    assert_eq!(timeless(&answer.body), expected);
}

#[tokio::test]
async fn a_chat_has_openais_shape() {
    let answer = post(says("Hé"), CHAT, chat(json!({"return_token_ids": true}))).await;
    let body = answer.json();
    assert_eq!(body["id"], "chatcmpl-t");
    assert_eq!(body["object"], "chat.completion");
    let expected = json!([{"index": 0, "message": {"role": "assistant", "content": "Hé", "refusal": null},
        "logprobs": null, "finish_reason": "stop", "stop_reason": 1, "token_ids": testing::tokens("Hé")}]);
    assert_eq!(body["choices"], expected);
    let prompt =
        testing::model_text().tokenizer.encode("<|bos|><|user|>hi<|end|><|assistant|>", false).unwrap();
    assert_eq!(body["prompt_token_ids"], json!(prompt));
}

#[tokio::test]
async fn a_chat_stream_is_role_content_finish_usage_done() {
    let script = Script::of([delta(0, "A"), delta(0, "B"), finish(0, TokenFinish::Length)]);
    let answer =
        post(script, CHAT, chat(json!({"stream": true, "stream_options": {"include_usage": true}}))).await;
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    let head = format!(
        r#"{{"id":"chatcmpl-t","object":"chat.completion.chunk","created":0,"model":"test","system_fingerprint":"{}","choices":["#,
        super::shapes::SYSTEM_FINGERPRINT
    );
    let expected = [
        r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#"{"index":0,"delta":{"content":"A"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#"{"index":0,"delta":{"content":"B"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":null}"#,
        r#"],"usage":{"prompt_tokens":6,"completion_tokens":2,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":1}}}"#,
    ];
    let mut expected: Vec<String> = expected.iter().map(|chunk| format!("{head}{chunk}")).collect();
    expected.push("[DONE]".to_owned());
    assert_eq!(answer.events(), expected);
}

#[tokio::test]
async fn a_completion_stream_carries_text_and_tokens() {
    let body = json!({"prompt": "a", "stream": true, "return_token_ids": true,
        "stream_options": {"continuous_usage_stats": true}});
    let answer = post(says("x"), COMPLETIONS, body).await;
    let events = answer.events();
    let choice = |at: usize| serde_json::from_str::<Value>(&events[at]).unwrap();
    assert_eq!(choice(0)["choices"][0]["token_ids"], json!([124]));
    assert_eq!(choice(0)["choices"][0]["prompt_token_ids"], json!([0, 101]));
    assert_eq!(choice(0)["usage"]["completion_tokens"], 1);
    assert_eq!(choice(1)["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[2..], ["[DONE]"]);
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

#[tokio::test]
async fn samples_may_interleave() {
    let script = Script::of([
        delta(1, "b"),
        delta(0, "a"),
        delta(2, "c"),
        delta(1, "B"),
        finish(1, STOP),
        delta(0, "A"),
        finish(2, TokenFinish::Length),
        finish(0, STOP),
    ]);
    let answer = post(script, CHAT, chat(json!({"n": 3, "stream": true}))).await;
    assert_eq!(contents(&answer, 3), ["aA", "bB", "c"]);
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn an_emoji_split_over_tokens_comes_whole() {
    let bytes = testing::tokens("😀!");
    let deltas =
        bytes.iter().map(|token| crate::request::TokenDelta { tokens: vec![*token], ..delta(0, "") });
    let script = Script::of(deltas.chain([finish(0, STOP)]));
    let answer = post(script, CHAT, chat(json!({"stream": true}))).await;
    let with_content: Vec<String> =
        answer.events().into_iter().filter(|event| event.contains("\"content\":")).collect();
    assert_eq!(with_content.len(), 3, "role, the emoji, and !");
    assert_eq!(contents(&answer, 1), ["😀!"]);
}

#[tokio::test]
async fn a_stop_string_over_chunks_is_never_shown() {
    let script = Script::of([delta(0, "one EN"), delta(0, "D two"), finish(0, TokenFinish::Aborted)]);
    let aborted = script.aborted.clone();
    let answer = post(script, CHAT, chat(json!({"stream": true, "stop": "END"}))).await;
    assert_eq!(contents(&answer, 1), ["one "]);
    assert!(answer.body.contains(r#""finish_reason":"stop","stop_reason":"END""#), "{}", answer.body);
    assert_eq!(*aborted.lock().unwrap(), [0]);
}

#[tokio::test]
async fn lists_of_prompts_are_numbered_choices() {
    let script = Script::of([delta(0, "x"), delta(1, "y"), finish(0, STOP), finish(1, STOP)]);
    let app = testing::app(script);
    let body = json!({"prompt": ["a", "b", "cc"], "n": 2, "echo": true});
    let answer = send(&app, post_bytes(COMPLETIONS, body.to_string())).await.json();
    let texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["ax", "ay", "bx", "by", "ccx", "ccy"]);
    assert_eq!(answer["choices"][5]["index"], 5);
    assert_eq!(answer["usage"]["prompt_tokens"], 2 + 2 + 3);
    assert_eq!(answer["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn prompts_may_be_token_ids() {
    let script = Arc::new(says("x"));
    let app = App::new(Arc::new(testing::model_text()), script.clone(), testing::config());
    for (prompt, expected) in
        [(json!([5, 6]), vec![vec![5, 6]]), (json!([[5], [6, 7]]), vec![vec![5], vec![6, 7]])]
    {
        script.requests.lock().unwrap().clear();
        let answer =
            send(&app, post_bytes(COMPLETIONS, json!({"prompt": prompt, "request_id": "t"}).to_string()))
                .await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let asked: Vec<Vec<u32>> =
            script.requests.lock().unwrap().iter().map(|request| request.prompt.to_vec()).collect();
        assert_eq!(asked, expected);
    }
    let ids: Vec<String> = script.requests.lock().unwrap().iter().map(|request| request.id.clone()).collect();
    assert_eq!(ids, ["t-0", "t-1"]);
}

#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt() {
    let body = json!({"prompt": "aé", "max_tokens": 1, "echo": true, "logprobs": 1});
    let answer = post(says("x"), COMPLETIONS, body).await.json();
    assert_eq!(answer["choices"][0]["text"], "aéx");
    let expected = json!({
        "tokens": ["<|bos|>", "a", "\u{FFFD}", "\u{FFFD}", "x"],
        "token_logprobs": [null, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [null, {"a": -0.5}, {"\u{FFFD}": -0.5}, {"\u{FFFD}": -0.5}, {"x": -0.5}],
        "text_offset": [0, 0, 1, 1, 2],
    });
    assert_eq!(answer["choices"][0]["logprobs"], expected);
}

#[tokio::test]
async fn text_offsets_of_an_echo_stay_within_its_text() {
    let offsets = async |prompt: Value, skip: bool| {
        let body = json!({"prompt": prompt, "echo": true, "logprobs": 0, "skip_special_tokens": skip});
        let choice = post(says("x"), COMPLETIONS, body).await.json()["choices"][0].take();
        (choice["text"].as_str().unwrap().to_owned(), choice["logprobs"]["text_offset"].clone())
    };
    // The text is the client's, without the BOS that was added; control tokens spelt in it are there.
    for skip in [true, false] {
        assert_eq!(offsets(json!("ab"), skip).await, ("abx".to_owned(), json!([0, 0, 1, 2])));
        let spelt = ("a<|end|>x".to_owned(), json!([0, 0, 1, 8]));
        assert_eq!(offsets(json!("a<|end|>"), skip).await, spelt);
    }
    assert_eq!(offsets(json!([101, 1, 102]), true).await, ("abx".to_owned(), json!([0, 1, 1, 2])));
    let shown = ("a<|end|>bx".to_owned(), json!([0, 1, 8, 9]));
    assert_eq!(offsets(json!([101, 1, 102]), false).await, shown);
    let broken = ("\u{FFFD}x".to_owned(), json!([0, 0, 1]));
    assert_eq!(offsets(json!([0, 4 + 0xF0]), true).await, broken);
}

#[tokio::test]
async fn echo_streams_the_prompt_first() {
    let body = json!({"prompt": "ab", "echo": true, "logprobs": 0, "stream": true});
    let answer = post(says("x"), COMPLETIONS, body).await;
    let first: Value = serde_json::from_str(&answer.events()[0]).unwrap();
    assert_eq!(first["choices"][0]["text"], "abx");
    assert_eq!(first["choices"][0]["logprobs"]["tokens"], json!(["<|bos|>", "a", "b", "x"]));
}

#[tokio::test]
async fn max_tokens_zero_with_echo_only_scores() {
    let body = json!({"prompt": "ab", "max_tokens": 0, "echo": true, "logprobs": 1});
    let script = Script::of([delta(0, "x"), finish(0, TokenFinish::Length)]);
    let answer = post(script, COMPLETIONS, body).await.json();
    assert_eq!(answer["choices"][0]["text"], "ab");
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!(["<|bos|>", "a", "b"]));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn chat_logprobs_carry_bytes() {
    let answer = post(says("é"), CHAT, chat(json!({"logprobs": true, "top_logprobs": 1}))).await.json();
    let top = json!([{"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xC3]}]);
    let expected = json!({"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": top});
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0], expected);
}

#[tokio::test]
async fn prompt_logprobs_have_vllms_shape() {
    let answer = post(says("x"), CHAT, chat(json!({"prompt_logprobs": 0}))).await.json();
    assert_eq!(answer["prompt_logprobs"][0], Value::Null);
    let expected = json!({"2": {"logprob": -0.5, "rank": 1, "decoded_token": "<|user|>"}});
    assert_eq!(answer["prompt_logprobs"][1], expected);
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

#[tokio::test]
async fn bad_fields_are_named() {
    let check = async |path: &str, body: Value, param: &str, message: &str| {
        check_error(post(Script::default(), path, body).await, 400, &invalid(param, message)).await;
    };
    check(
        COMPLETIONS,
        json!({"prompt": "a", "temperature": "x"}),
        "temperature",
        "temperature must be a number, got a string.",
    )
    .await;
    check(
        COMPLETIONS,
        json!({"prompt": "a", "temperature": 3}),
        "temperature",
        "temperature must be in [0, 2], got 3.",
    )
    .await;
    check(COMPLETIONS, json!({"prompt": "a", "n": 1_000_000}), "n", "n must be in [1, 16], got 1000000.")
        .await;
    check(
        COMPLETIONS,
        json!({"prompt": "a", "suffix": "b"}),
        "suffix",
        "suffix is not supported yet; leave it out.",
    )
    .await;
    check(
        COMPLETIONS,
        json!({"prompt": "a", "stop": "x".repeat(1 << 20)}),
        "stop",
        "stop takes at most 256 bytes each, got 1048576.",
    )
    .await;
    check(COMPLETIONS, json!({"prompt": {}}), "prompt", "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids, got an object.").await;
    check(COMPLETIONS, json!({}), "prompt", "prompt is required: a string, a list of strings, a list of token ids or a list of lists of token ids.").await;
    check(COMPLETIONS, json!({"prompt": []}), "prompt", "prompt must not be an empty list.").await;
    check(
        COMPLETIONS,
        json!({"prompt": vec!["a"; 129]}),
        "prompt",
        "prompt takes at most 128 prompts, got 129.",
    )
    .await;
    check(
        COMPLETIONS,
        json!({"prompt": [1, "a"]}),
        "prompt",
        "prompt must be a list of integers, got a string.",
    )
    .await;
    check(
        COMPLETIONS,
        json!({"prompt": "a", "max_tokens": 0}),
        "max_tokens",
        "max_tokens must be in [1, 4294967295], got 0.",
    )
    .await;
    check(
        COMPLETIONS,
        json!({"prompt": "a", "logit_bias": {"x": 1}}),
        "logit_bias",
        "logit_bias keys must be token ids, got `x`.",
    )
    .await;
    check(
        COMPLETIONS,
        json!({"prompt": "a", "stream_options": {}}),
        "stream_options",
        "stream_options is allowed only with stream: true.",
    )
    .await;
    check(CHAT, json!({"model": "test"}), "messages", "messages is required: a list of messages.").await;
    check(
        CHAT,
        chat(json!({"tools": [{"type": "function"}]})),
        "tools",
        "tools is not supported yet; leave it out.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"response_format": {"type": "json_object"}})),
        "response_format",
        "response_format is not supported yet except {\"type\": \"text\"}; leave it out.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"top_logprobs": 3})),
        "top_logprobs",
        "top_logprobs is allowed only with logprobs: true.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"logprobs": true, "top_logprobs": 21})),
        "top_logprobs",
        "top_logprobs must be in [0, 20], got 21.",
    )
    .await;
    check(CHAT, chat(json!({"logprobs": 1})), "logprobs", "logprobs must be true or false, got a number.")
        .await;
    check(
        CHAT,
        chat(json!({"chat_template": "{{ 1 }}"})),
        "chat_template",
        "chat_template is not supported yet; leave it out.",
    )
    .await;
}

#[tokio::test]
async fn errors_have_their_golden_bodies() {
    let body = |message: &str, kind: &str, param: &str, code: &str| {
        format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":{param},"code":"{code}"}}}}"#)
    };
    let invalid = "invalid_request_error";
    let prompt = json!({"prompt": "a"});
    let missing = post(Script::default(), COMPLETIONS, json!({"model": "x", "prompt": "a"})).await;
    check_error(
        missing,
        404,
        &body("The model `x` does not exist.", invalid, "\"model\"", "model_not_found"),
    )
    .await;
    let long =
        post(Script::default(), COMPLETIONS, json!({"prompt": "x".repeat(255), "max_tokens": 1})).await;
    let sentence = "This model's maximum context length is 256 tokens. However, you requested 257 tokens (256 in the prompt, 1 for the output). Please reduce the length of the prompt or of the output.";
    check_error(long, 400, &body(sentence, invalid, "\"prompt\"", "context_length_exceeded")).await;
    let path = get(Script::default(), "/v1/nope").await;
    check_error(path, 404, &body("There is no path `/v1/nope` here.", invalid, "null", "not_found")).await;
    let method = get(Script::default(), COMPLETIONS).await;
    assert_eq!(method.header("allow"), "POST");
    check_error(
        method,
        405,
        &body("GET is not allowed on `/v1/completions`.", invalid, "null", "method_not_allowed"),
    )
    .await;
    let refuse = |refusal| Script { refuse: Some(refusal), ..Script::default() };
    let after = Duration::from_millis(1500);
    let shed = Refusal::Overloaded { reason: "queue of 8 requests".to_owned(), retry_after: after };
    let shed = post(refuse(shed), COMPLETIONS, prompt.clone()).await;
    let headers =
        ["retry-after", "retry-after-ms", "x-should-retry"].map(|name| shed.header(name).to_owned());
    assert_eq!(headers, ["2", "1500", "true"]);
    check_error(
        shed,
        429,
        &body(
            "The cluster is at its limit (queue of 8 requests); retry after 1500 ms.",
            "overloaded_error",
            "null",
            "queue_full",
        ),
    )
    .await;
    let none = Refusal::NoReadyWorker { reason: "2 of 2 are loading".to_owned(), retry_after: after };
    let none = post(Script { not_ready: Some(none), ..Script::default() }, COMPLETIONS, prompt.clone()).await;
    check_error(
        none,
        503,
        &body("No worker is ready: 2 of 2 are loading.", "service_unavailable", "null", "no_ready_worker"),
    )
    .await;
    let late = Refusal::DeadlineExceeded { timeout: Duration::from_millis(7) };
    let late = post(refuse(late), COMPLETIONS, prompt.clone()).await;
    assert_eq!(late.header("x-should-retry"), "false");
    check_error(
        late,
        504,
        &body(
            "The deadline of 7 ms passed before the request ended.",
            "timeout_error",
            "null",
            "deadline_exceeded",
        ),
    )
    .await;
    let broken = post(refuse(Refusal::Internal), COMPLETIONS, prompt.clone()).await;
    check_error(
        broken,
        500,
        &body(
            "Internal error; quote the request id when you report it.",
            "server_error",
            "null",
            "internal_error",
        ),
    )
    .await;
    let twice = post(refuse(Refusal::DuplicateId("t".to_owned())), COMPLETIONS, prompt).await;
    check_error(
        twice,
        409,
        &body(
            "A request with id `t` is already running; use another id.",
            invalid,
            "null",
            "duplicate_request_id",
        ),
    )
    .await;
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused() {
    let app = testing::app(Script::default());
    let code = async |body: Body, kind: &str| {
        let request = Request::post(CHAT).header("content-type", kind).body(body).unwrap();
        let answer = send(&app, request).await;
        (answer.status, answer.json()["error"]["code"].as_str().unwrap().to_owned())
    };
    let invalid = (400, "invalid_json".to_owned());
    assert_eq!(code("{\"a\":".into(), "application/json").await, invalid);
    assert_eq!(code(vec![b'{', b'"', 0xFF].into(), "application/json; charset=utf-8").await, invalid);
    assert_eq!(code("[".repeat(100_000).into(), "application/json").await, invalid);
    assert_eq!(code("{}".into(), "text/plain").await, (415, "unsupported_media_type".to_owned()));
    let large = vec![b' '; 8 * 1024 * 1024 + 1];
    assert_eq!(code(large.into(), "application/json").await, (413, "request_too_large".to_owned()));
}

#[tokio::test]
async fn an_error_in_mid_stream_is_the_last_chunk() {
    let say = vec![
        Say::Delta(delta(0, "a")),
        Say::Fail(Refusal::WorkersLost { moves: 3, reason: "connection refused".to_owned() }),
    ];
    let answer = post(Script { say, ..Script::default() }, CHAT, chat(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let last = r#"{"error":{"message":"The request could not be finished after 3 moves to another worker: the workers failed.","type":"server_error","param":null,"code":"engine_error"}}"#;
    assert_eq!(answer.events().last().unwrap(), last);
}

#[tokio::test]
async fn what_a_worker_said_as_it_failed_is_not_told_to_clients() {
    let reason = "Unavailable: the engine failed: row 392 has no finite logit".to_owned();
    let lost = Refusal::WorkersLost { moves: 3, reason };
    let answer = post(Script { refuse: Some(lost), ..Script::default() }, CHAT, chat(json!({}))).await;
    let sentence = "The request could not be finished after 3 moves to another worker: the workers failed.";
    assert_eq!((answer.status, &answer.json()["error"]["message"]), (500, &json!(sentence)));
}

/// The requests that `body` becomes, and the answer to it.
async fn asked(path: &str, body: &Value, x_request_id: &str) -> (Vec<TokenRequest>, Answer) {
    let script = Arc::new(says("x"));
    let app = App::new(Arc::new(testing::model_text()), script.clone(), testing::config());
    let request = Request::post(path).header("x-request-id", x_request_id);
    let answer = send(&app, request.body(body.to_string().into()).unwrap()).await;
    let requests = script.requests.lock().unwrap().clone();
    (requests, answer)
}

#[tokio::test]
async fn calls_that_share_an_x_request_id_have_ids_of_their_own() {
    let (first, answer) = asked(COMPLETIONS, &json!({"prompt": "a"}), "trace").await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, "trace"));
    assert_eq!(answer.json()["id"], format!("cmpl-{}", first[0].id));
    let (second, answer) = asked(CHAT, &chat(json!({})), "trace").await;
    assert_eq!(answer.header("x-request-id"), "trace");
    assert!(first[0].id != second[0].id && first[0].id != "trace" && second[0].id != "trace");
    let named = json!({"prompt": "a", "request_id": "mine"});
    let (third, answer) = asked(COMPLETIONS, &named, "trace").await;
    assert_eq!((third[0].id.as_str(), answer.header("x-request-id")), ("mine", "trace"));
    let (third, answer) = asked(COMPLETIONS, &named, "not a name").await;
    assert_eq!((third[0].id.as_str(), answer.header("x-request-id")), ("mine", "mine"));
}

#[tokio::test]
async fn a_long_request_id_has_room_for_the_numbers_of_its_prompts() {
    let call = |id: &str| json!({"prompt": ["a", "b"], "request_id": id});
    for length in [127, 128] {
        let id = "i".repeat(length);
        let (requests, answer) = asked(COMPLETIONS, &call(&id), "trace").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let ids: Vec<&str> = requests.iter().map(|request| request.id.as_str()).collect();
        assert_eq!(ids, [format!("{id}-0"), format!("{id}-1")]);
    }
    let (_, answer) = asked(COMPLETIONS, &call(&"i".repeat(129)), "trace").await;
    let message = "request_id must be 1 to 128 printable ASCII bytes without spaces, got 129 bytes.";
    check_error(answer, 400, &invalid("request_id", message)).await;
}

#[tokio::test]
async fn add_special_tokens_is_not_swallowed() {
    let prompt = async |extra: Value| {
        let mut body = json!({"prompt": "a"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        asked(COMPLETIONS, &body, "trace").await.0[0].prompt.to_vec()
    };
    assert_eq!(prompt(json!({"add_special_tokens": false})).await, [101]);
    assert_eq!(prompt(json!({"add_special_tokens": true})).await, [0, 101]);
    assert_eq!(prompt(json!({})).await, [0, 101]);
    let (requests, _) = asked(CHAT, &chat(json!({"add_special_tokens": false})), "trace").await;
    assert_eq!(requests.len(), 1);
    let message = "add_special_tokens must be false for messages: the chat template writes them itself.";
    for path in [CHAT, "/tokenize"] {
        let answer = post(says("x"), path, chat(json!({"add_special_tokens": true}))).await;
        check_error(answer, 400, &invalid("add_special_tokens", message)).await;
    }
}

#[tokio::test]
async fn logit_bias_keys_that_only_look_alike_are_refused_here_and_not_by_a_worker() {
    let check = async |bias: Value, message: &str| {
        let answer = post(says("x"), COMPLETIONS, json!({"prompt": "a", "logit_bias": bias})).await;
        check_error(answer, 400, &invalid("logit_bias", message)).await;
    };
    check(json!({"+5": 1, "5": 2}), "logit_bias keys must be token ids, got `+5`.").await;
    check(json!({"": 1}), "logit_bias keys must be token ids, got ``.").await;
    check(json!({"5": 2, "05": 3}), "logit_bias names token 5 more than once.").await;
}

#[tokio::test]
async fn more_prompts_than_are_ever_let_in_at_once_are_not_told_to_retry() {
    let mut config = testing::config();
    config.admission.max_num_queued_reqs = 2;
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let call = |prompts: &[&str]| post_bytes(COMPLETIONS, json!({"prompt": prompts}).to_string());
    assert_eq!(send(&app, call(&["a", "b"])).await.status, 200);
    let answer = send(&app, call(&["a", "b", "c"])).await;
    assert_eq!(answer.header("x-should-retry"), "false");
    check_error(answer, 400, &invalid("prompt", "prompt takes at most 2 prompts, got 3.")).await;
}

#[tokio::test]
async fn a_model_name_that_is_not_utf8_is_refused_in_json() {
    let answer = get(says("x"), "/v1/models/%ff").await;
    check_error(answer, 400, &invalid("model", "The model's name in the path is not UTF-8.")).await;
}

#[tokio::test]
async fn an_error_before_the_first_token_is_a_status() {
    let say = vec![Say::Fail(Refusal::Draining)];
    for body in [json!({"prompt": "a", "stream": true}), json!({"prompt": "a"})] {
        let answer = post(Script { say: say.clone(), ..Script::default() }, COMPLETIONS, body).await;
        assert_eq!((answer.status, answer.header("x-should-retry")), (503, "true"));
    }
}

#[tokio::test]
async fn unknown_fields_are_accepted_and_listed() {
    let answer =
        post(says("x"), CHAT, chat(json!({"user": "u", "zig": 1, "tool_choice": "none", "zag": {}}))).await;
    assert_eq!((answer.status, answer.header("x-ignored-params")), (200, "zig, zag"));
}

#[tokio::test]
async fn parameters_reach_the_generator() {
    let script = Arc::new(says("x"));
    let app = App::new(Arc::new(testing::model_text()), script.clone(), testing::config());
    let body = json!({"prompt": "a", "max_tokens": 3, "seed": 7, "temperature": 0.5, "priority": -3,
        "cache_salt": "s", "logit_bias": {"5": -200}, "request_id": "mine", "stop_token_ids": [9]});
    send(&app, post_bytes(COMPLETIONS, body.to_string())).await;
    let request = script.requests.lock().unwrap()[0].clone();
    assert_eq!((request.id.as_str(), &*request.cache_salt, request.priority), ("mine", "s", -3));
    let sampling = &request.sampling;
    assert_eq!((sampling.max_tokens, sampling.seed, sampling.temperature), (3, 7, 0.5));
    assert_eq!((&sampling.logit_bias[..], &sampling.stop_token_ids[..]), (&[(5, -100.0)][..], &[9][..]));
}

#[tokio::test]
async fn dropping_the_answer_cancels_the_request() {
    let script = Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() };
    let open = script.open.clone();
    let app = testing::app(script);
    let response = routes(app.clone())
        .oneshot(post_bytes(CHAT, chat(json!({"stream": true})).to_string()))
        .await
        .unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!((open.load(Ordering::SeqCst), app.drain.running()), (1, 1));
    drop(body);
    assert_eq!((open.load(Ordering::SeqCst), app.drain.running()), (0, 0));
}

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
            assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
        }
        assert_ne!(status(method, path, Some("sesame")).await.status, 401, "{path}");
    }
    for path in ["/health", "/livez", "/readyz"] {
        assert_eq!(status("GET", path, None).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn models_and_version_are_told() {
    let models = get(says("x"), "/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("test")));
    assert_eq!(models["data"][0]["max_model_len"], testing::MAX_MODEL_LEN);
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
async fn a_model_without_template_points_to_completions() {
    let text = testing::model_text_with(&Value::Null, None);
    let app = App::new(Arc::new(text), Arc::new(says("x")), testing::config());
    let answer = send(&app, post_bytes(CHAT, chat(json!({})).to_string())).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("/v1/completions"), "{}", answer.body);
}
