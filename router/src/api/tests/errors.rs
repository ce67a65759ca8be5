//! Refusals and their exact text.

use super::*;

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
    check(COMPLETIONS, json!({"prompt": "a", "n": 1_000_000}), "n", "n must be in [1, 128], got 1000000.")
        .await;
    check(
        COMPLETIONS,
        json!({"prompt": "a", "suffix": "b"}),
        "suffix",
        "suffix is not supported: no model here fills in the middle; leave it out.",
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
        &format!("max_tokens must be in [1, {}], got 0.", testing::MAX_MODEL_LEN),
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
        "tools[0].function is required: an object with name and parameters.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema":
            {"type": "object", "properties": {"b": {"uniqueItems": true}}}}}})),
        "response_format",
        "response_format: the schema has `uniqueItems` at \"/properties/b\": equal items cannot be prevented; \
         leave it out and check the answer.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"response_format": {"type": "json_object"}, "guided_choice": ["a"]})),
        "response_format",
        "only one field may constrain the answer's format, got response_format, guided_choice.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"structured_outputs": {"regex": "(a"}})),
        "structured_outputs",
        "structured_outputs: the regular expression is not usable: unclosed group, at character 1.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"structured_outputs": {"regex": "a", "choice": ["a"]}})),
        "structured_outputs",
        "only one field may constrain the answer's format, got structured_outputs.regex, structured_outputs.choice.",
    )
    .await;
    check(
        CHAT,
        chat(json!({"structured_outputs": {"whitespace_pattern": " ", "regex": "a"}})),
        "structured_outputs",
        "structured_outputs.whitespace_pattern is not supported; leave it out.",
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
    check(CHAT, chat(json!({"logprobs": 1})), "logprobs", "logprobs must be true or false, got 1.").await;
    check(
        CHAT,
        chat(json!({"chat_template": "{{ 1 }}"})),
        "chat_template",
        "chat_template is not supported: it would run code from the request; leave it out.",
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
        &body(
            "The model `x` does not exist; this server has `test`.",
            invalid,
            "\"model\"",
            "model_not_found",
        ),
    )
    .await;
    let long =
        post(Script::default(), COMPLETIONS, json!({"prompt": "x".repeat(255), "max_tokens": 1})).await;
    let sentence = "This model's maximum context length is 256 tokens. However, you requested 257 tokens (256 in the prompt, 1 for the output). Please reduce the length of the prompt or of the output.";
    check_error(long, 400, &body(sentence, invalid, "\"prompt\"", "context_length_exceeded")).await;
    let output = post(Script::default(), COMPLETIONS, json!({"prompt": "ab", "max_tokens": 254})).await;
    let sentence = "max_tokens is too large: 254. This model's maximum context length is 256 tokens and the prompt has 3; ask for at most 253 tokens.";
    check_error(output, 400, &body(sentence, invalid, "\"max_tokens\"", "context_length_exceeded")).await;
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
async fn bodies_that_are_not_json_are_refused() {
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
    let odd = Request::post(CHAT).header("content-type", vec![0xFF_u8; 1000]).body("{}".into()).unwrap();
    let answer = send(&app, odd).await;
    assert_eq!(answer.status, 415);
    assert!(answer.body.len() < 400, "{}", answer.body);
}

#[tokio::test]
async fn a_compressed_body_is_refused_as_such() {
    let app = testing::app(says("x"));
    let body = r#"{"prompt": "a"}"#;
    let request = |encoding: &str| {
        let request = Request::post(COMPLETIONS).header("content-type", "application/json");
        request.header("content-encoding", encoding).body(body.into()).unwrap()
    };
    let answer = send(&app, request("gzip")).await;
    let message = "The body is compressed (content-encoding `gzip`); send it as it is.";
    assert_eq!((answer.status, &answer.json()["error"]["message"]), (415, &json!(message)));
    assert_eq!(answer.header("accept-encoding"), "identity");
    assert_eq!(send(&app, request("identity")).await.status, 200);
}

#[tokio::test]
async fn a_huge_content_length_is_refused_before_the_body_arrives() {
    let app = testing::app(says("x"));
    // A body that never arrives.
    let body = Body::from_stream(futures::stream::pending::<Result<&str, std::io::Error>>());
    let request = Request::post(COMPLETIONS).header("content-length", "99999999999").body(body).unwrap();
    let answer = send(&app, request).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("request_too_large")));
}

#[tokio::test]
async fn several_faults_of_one_body_are_named_in_one_answer() {
    let body = json!({"prompt": "a", "temperature": "hot", "n": 1.5, "suffix": "b", "guided_json": 3});
    let error = post(says("x"), COMPLETIONS, body).await.json()["error"].clone();
    let message = "guided_json: the JSON schema is not usable: a schema must be an object. \
        n must be a 64-bit integer, got 1.5. temperature must be a number, got a string. \
        suffix is not supported: no model here fills in the middle; leave it out.";
    assert_eq!((&error["param"], &error["message"]), (&json!("guided_json"), &json!(message)));
}

#[tokio::test]
async fn a_bad_timeout_header_is_told_with_its_value_and_range() {
    for value in ["-5", "0", "soon"] {
        let request = Request::post(COMPLETIONS).header("x-request-timeout-ms", value);
        let answer = send(&testing::app(says("x")), request.body(r#"{"prompt": "a"}"#.into()).unwrap()).await;
        let message =
            format!("x-request-timeout-ms must be milliseconds, 1 to 18446744073709551615, got `{value}`.");
        assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (400, Some(&*message)));
    }
}

#[tokio::test]
async fn a_seed_beyond_64_bits_is_told_as_it_is() {
    let error = async |seed: &str| {
        let body = format!(r#"{{"prompt": "a", "seed": {seed}}}"#);
        send(&testing::app(says("x")), post_bytes(COMPLETIONS, body)).await
    };
    for (seed, shown) in [
        ("9223372036854775808", "9223372036854775808"),
        ("18446744073709551616", "18446744073709551616"),
        ("-99999999999999999999", "-99999999999999999999"),
        ("1e30", "1e30"),
    ] {
        let message = format!("seed must be a 64-bit integer, got {shown}.");
        assert_eq!(error(seed).await.json()["error"]["message"], message);
    }
    for seed in ["9223372036854775807", "-9223372036854775808", "-1", "0"] {
        assert_eq!(error(seed).await.status, 200, "{seed}");
    }
}

#[tokio::test]
async fn only_the_assistants_own_words_can_be_continued() {
    let ask = async |role: &str| {
        let messages = json!([{"role": "user", "content": "hi"}, {"role": role, "content": "so"}]);
        post(says("x"), CHAT, json!({"messages": messages, "continue_final_message": true})).await
    };
    let message = "continue_final_message requires the last message to be the assistant's, got role `user`.";
    check_error(ask("user").await, 400, &invalid("continue_final_message", message)).await;
    assert_eq!(ask("assistant").await.status, 200);
}

#[tokio::test]
async fn an_error_in_mid_stream_is_the_last_chunk() {
    let say = vec![
        Say::Delta(delta(0, "a")),
        Say::Fail(Refusal::WorkersLost { moves: 3, reason: "connection refused".to_owned() }),
    ];
    let answer = post(Script { say, ..Script::default() }, CHAT, chat(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let last = r#"{"error":{"message":"The request could not be finished after 3 attempts to move it to another worker: the workers failed.","type":"server_error","param":null,"code":"engine_error"}}"#;
    assert_eq!(answer.events().last().unwrap(), last);
}

#[tokio::test]
async fn a_workers_own_error_text_does_not_reach_clients() {
    let reason = "Unavailable: the engine failed: row 392 has no finite logit".to_owned();
    let lost = Refusal::WorkersLost { moves: 3, reason };
    let answer = post(Script { refuse: Some(lost), ..Script::default() }, CHAT, chat(json!({}))).await;
    let sentence = "The request could not be finished after 3 attempts to move it to another worker: the workers failed.";
    assert_eq!((answer.status, &answer.json()["error"]["message"]), (500, &json!(sentence)));
}

#[tokio::test]
async fn each_api_refuses_in_its_own_form_what_no_handler_sees() {
    let mut config = testing::config();
    config.api_keys = vec!["sesame".to_owned()];
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let ask = async |method: &str, path: &str, kind: &str, key: &str| {
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.header("authorization", format!("Bearer {key}"));
        send(&app, request.body(Body::empty()).unwrap()).await
    };
    let cases = [
        ("GET", "/v1/messages", 405, "/error/message", "GET is not allowed on `/v1/messages`."),
        ("GET", "/api/chat", 405, "/error", "GET is not allowed on `/api/chat`."),
        ("POST", "/api/nope", 404, "/error", "There is no path `/api/nope` here."),
        ("POST", "/api/", 404, "/error", "There is no path `/api/` here."),
        ("POST", "/api", 404, "/error/message", "There is no path `/api` here."),
        ("GET", "/health/x", 404, "/error/message", "There is no path `/health/x` here."),
    ];
    for (method, path, status, pointer, message) in cases {
        let refused = ask(method, path, "application/json", "sesame").await;
        assert_eq!((refused.status, &refused.json()["type"] == "error"), (status, path == "/v1/messages"));
        assert_eq!(refused.json().pointer(pointer), Some(&json!(message)), "{path}: {}", refused.body);
        let keyless = ask(method, path, "application/json", "wrong").await;
        assert_eq!(keyless.status, 401, "{path}");
        assert_eq!(keyless.json().pointer(pointer), Some(&json!("Incorrect API key provided.")), "{path}");
    }
    for (path, key, code) in
        [("/no.Service/Call", "sesame", "5"), ("/skein.v1.Inference/Generate", "wrong", "16")]
    {
        let refused = ask("POST", path, "application/grpc", key).await;
        assert_eq!((refused.status, refused.header("grpc-status")), (200, code), "{path}: {}", refused.body);
    }
}
