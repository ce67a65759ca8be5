//! Metrics after requests of every kind.

use super::*;

/// Value of the series with this name and these labels.
fn value(text: &str, name: &str, labels: &str) -> f64 {
    let line = text.lines().find(|line| {
        line.split(['{', ' ']).next() == Some(name) && labels.split(',').all(|label| line.contains(label))
    });
    line.unwrap_or_else(|| panic!("{name} {labels}: {text}")).rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn body(body: Value) -> Request<Body> {
    post_bytes(COMPLETIONS, body.to_string())
}

async fn scrape(app: &App) -> String {
    let answer = send(app, Request::get("/metrics").body(Body::empty()).unwrap()).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    answer.body
}

#[tokio::test]
async fn a_finished_answer_counts_its_tokens_and_its_end() {
    let mut script = says("three");
    script.journey = Journey { moves: 2, ..Journey::default() };
    let app = testing::app(script);
    send(&app, body(json!({"prompt": "ab", "max_tokens": 9}))).await;
    let text = scrape(&app).await;
    for (name, labels, expected) in [
        ("skein_requests_total", "", 1.0),
        ("skein_request_outcomes_total", "outcome=\"completed\"", 1.0),
        ("skein_requests_lost_total", "", 0.0),
        ("skein_requests_moved_total", "", 1.0),
        ("skein_request_moves_total", "", 2.0),
        ("vllm:request_success_total", "finished_reason=\"stop\",model_name=\"test\",engine=\"0\"", 1.0),
        ("vllm:prompt_tokens_total", "", 3.0), // with <|bos|>
        ("vllm:prefix_cache_hits_total", "", 1.0),
        ("vllm:prompt_tokens_by_source_total", "source=\"local_compute\"", 2.0),
        ("vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"", 1.0),
        ("vllm:prompt_tokens_cached_by_source_total", "source=\"device\"", 1.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", "", 2.0),
        ("vllm:request_max_num_generation_tokens_sum", "", 5.0),
        ("vllm:request_params_n_bucket", "le=\"1\"", 1.0),
        ("vllm:request_params_max_tokens_sum", "", 9.0),
        ("vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", 0.0),
        ("vllm:admission_rejections_total", "reason=\"max_num_queued_reqs\"", 3.0),
        ("vllm:admission_rejections_total", "reason=\"max_num_queued_tokens\"", 4.0),
        ("vllm:generation_tokens_total", "", 5.0),
        ("vllm:time_to_first_token_seconds_count", "", 1.0),
        ("vllm:e2e_request_latency_seconds_count", "", 1.0),
        ("vllm:request_generation_tokens_sum", "", 5.0),
        ("vllm:num_requests_running", "", 0.0),
        ("http_requests_total", "handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"", 1.0),
    ] {
        assert_eq!(value(&text, name, labels), expected, "{name} {labels}");
    }
}

#[tokio::test]
async fn a_stream_resumed_over_http_counts_as_resumed() {
    let app = testing::app(says("three"));
    let streamed = body(json!({"prompt": "ab", "stream": true, "request_id": "t"}));
    let events = send(&app, streamed).await.events_with_ids();
    assert_eq!(value(&scrape(&app).await, "skein_requests_resumed_total", ""), 0.0);
    for (id, resumed) in [("t/-", 0.0), (&*events[0].0, 1.0)] {
        let mut again = body(json!({"prompt": "ab", "stream": true}));
        again.headers_mut().insert("last-event-id", id.parse().unwrap());
        assert_eq!(send(&app, again).await.status, 200);
        assert_eq!(value(&scrape(&app).await, "skein_requests_resumed_total", ""), resumed, "{id}");
    }
}

#[tokio::test]
async fn a_lost_request_is_counted_as_lost_and_a_refused_one_as_refused() {
    let lost = Refusal::WorkersLost { moves: 3, reason: "gone".into() };
    let app = testing::app(Script { say: vec![Say::Fail(lost)], ..Script::default() });
    send(&app, body(json!({"prompt": "ab"}))).await;
    send(&app, body(json!({"prompt": "ab", "temperature": -1}))).await;
    send(&app, Request::get("/never/heard/of").body(Body::empty()).unwrap()).await;
    let text = scrape(&app).await;
    assert_eq!(value(&text, "skein_requests_lost_total", ""), 1.0);
    assert_eq!(value(&text, "skein_request_outcomes_total", "outcome=\"failed\""), 1.0);
    assert_eq!(value(&text, "vllm:request_success_total", "finished_reason=\"error\""), 1.0);
    assert_eq!(value(&text, "skein_requests_refused_total", "code=\"invalid_request\""), 1.0);
    assert_eq!(value(&text, "http_requests_total", "handler=\"none\",status=\"4xx\""), 1.0);
    assert!(!text.contains("never"), "no label holds what a client wrote: {text}");
}

#[tokio::test]
async fn a_client_that_leaves_counts_as_cancelled() {
    let app = testing::app(Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() });
    let asked = json!({"prompt": "ab", "stream": true});
    let response = routes(app.clone()).oneshot(body(asked)).await.unwrap();
    drop(response);
    let text = scrape(&app).await;
    assert_eq!(value(&text, "skein_request_outcomes_total", "outcome=\"cancelled\""), 1.0);
    assert_eq!(value(&text, "vllm:request_success_total", "finished_reason=\"abort\""), 1.0);
    assert_eq!(value(&text, "skein_requests_lost_total", ""), 0.0);
}

#[tokio::test]
async fn a_stop_string_ends_a_sample_with_stop() {
    let app = testing::app(Script { say: vec![Say::Delta(delta(0, "abc")), Say::Hang], ..Script::default() });
    send(&app, body(json!({"prompt": "ab", "stop": "b"}))).await;
    let text = scrape(&app).await;
    assert_eq!(value(&text, "vllm:request_success_total", "finished_reason=\"stop\""), 1.0);
    assert_eq!(value(&text, "vllm:request_success_total", "finished_reason=\"abort\""), 0.0);
    assert_eq!(value(&text, "skein_request_outcomes_total", "outcome=\"completed\""), 1.0);
}

#[tokio::test]
async fn what_the_tool_parser_finds_is_counted() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let text = "So.<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let (app, _) = tools::app(text, 1000);
    let ask = async |extra: Value| {
        let mut body = chat(extra);
        body["tools"] = json!([tool]);
        assert_eq!(send(&app, post_bytes(CHAT, body.to_string())).await.status, 200);
    };
    ask(json!({})).await;
    ask(json!({"stream": true})).await;
    ask(json!({"tool_choice": "none"})).await;
    let text = scrape(&app).await;
    let count = |labels: &str| value(&text, "vllm:tool_call_parser_invocations_total", labels);
    for mode in ["non_streaming", "streaming"] {
        let labels = format!("mode=\"{mode}\",outcome=\"tool_call\",request_type=\"chat_completions\"");
        assert_eq!(count(&labels), 1.0, "{mode}");
    }
    let responses = "mode=\"streaming\",outcome=\"tool_call\",request_type=\"responses\"";
    assert_eq!(count(responses), 0.0, "it is there from the start");
}
