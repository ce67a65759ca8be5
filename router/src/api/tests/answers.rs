//! Content and format of answers and streams.

use super::*;

#[tokio::test]
async fn a_completion_has_openais_shape() {
    let answer = post(says("Hé"), COMPLETIONS, json!({"prompt": "ab"})).await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, "t"));
    let expected = concat!(
        r#"{"id":"cmpl-t","object":"text_completion","created":0,"model":"test","system_fingerprint":"skein-"#,
        env!("CARGO_PKG_VERSION"),
        r#"","choices":[{"index":0,"text":"Hé","logprobs":null,"finish_reason":"stop","stop_reason":null}],"#,
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
    let tokens = [testing::tokens("Hé"), vec![1]].concat();
    let expected = json!([{"index": 0, "message": {"role": "assistant", "content": "Hé", "refusal": null},
        "logprobs": null, "finish_reason": "stop", "stop_reason": null, "token_ids": tokens}]);
    assert_eq!(body["choices"], expected);
    let prompt =
        testing::model_text().tokenizer.encode("<|bos|><|user|>hi<|end|><|assistant|>", false).unwrap();
    assert_eq!(body["prompt_token_ids"], json!(prompt));
}

#[tokio::test]
async fn a_chat_stream_is_role_content_finish_usage_done() {
    let script = Script::of([delta(0, "A"), delta(0, "B"), finish(0, FinishReason::Length)]);
    let answer =
        post(script, CHAT, chat(json!({"stream": true, "stream_options": {"include_usage": true}}))).await;
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    let head = format!(
        r#"{{"id":"chatcmpl-t","object":"chat.completion.chunk","created":0,"model":"test","system_fingerprint":"{}","choices":["#,
        crate::api::answer::shapes::SYSTEM_FINGERPRINT
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

#[tokio::test]
async fn samples_may_interleave() {
    let script = Script::of([
        delta(1, "b"),
        delta(0, "a"),
        delta(2, "c"),
        delta(1, "B"),
        finish(1, STOP),
        delta(0, "A"),
        finish(2, FinishReason::Length),
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
    let script = Script::of([delta(0, "one EN"), delta(0, "D two"), finish(0, FinishReason::Abort)]);
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
    let ids: Vec<String> =
        script.requests.lock().unwrap().iter().map(|request| request.id.to_string()).collect();
    assert_eq!(ids, ["t-0", "t-1"]);
}

#[tokio::test]
async fn an_answer_reports_its_moves_if_there_were_any() {
    let moved = |moves, resume_exact| Script {
        journey: Journey { moves, resume_exact, ..Journey::default() },
        ..says("x")
    };
    let receipt = json!({"moves": 2, "resume_exact": false});
    for (path, body) in [(COMPLETIONS, json!({"prompt": "a"})), (CHAT, chat(json!({})))] {
        assert_eq!(post(moved(2, false), path, body.clone()).await.json()["skein"], receipt);
        assert_eq!(post(moved(0, true), path, body.clone()).await.json().get("skein"), None);
        let mut body = body;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let events = post(moved(2, false), path, body).await.events();
        let has_move =
            |event: &String| serde_json::from_str(event).is_ok_and(|event: Value| event["skein"] == receipt);
        let expected = [false, false, true, true, false];
        let has_move: Vec<bool> = events.iter().map(has_move).collect();
        assert_eq!(
            has_move[has_move.len() - 4..],
            expected[1..],
            "with the finish and with the usage: {events:?}"
        );
    }
    let prompts = post(moved(2, true), COMPLETIONS, json!({"prompt": ["a", "b"]})).await.json();
    assert_eq!(prompts["skein"], json!({"moves": 4, "resume_exact": true}));
}
