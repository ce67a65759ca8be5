//! Routes for training: token ids in and out, the stop token among them, and having generation stand still.

use super::*;
use crate::config::RouterConfig;

const GENERATE: &str = "/inference/v1/generate";

/// Two tokens, and the stop token 1 with its log-probabilities.
fn stops() -> Script {
    let stop =
        skein_proto::logprobs::TokenLogprobs { token: 1, logprob: -0.25, rank: 1, top: vec![(1, -0.25)] };
    let mut end = finish(0, STOP);
    end.stop_logprobs = Some(Box::new(stop));
    Script::of([delta(0, "hi"), end])
}

fn tokens_of(logprobs: &Value) -> Vec<(&str, f64)> {
    let entries = logprobs["content"].as_array().unwrap().iter();
    entries.map(|entry| (entry["token"].as_str().unwrap(), entry["logprob"].as_f64().unwrap())).collect()
}

#[tokio::test]
async fn token_ids_give_token_ids_with_the_stop_token_and_its_log_probability() {
    let script = stops();
    let body = json!({"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 9, "logprobs": 1, "prompt_logprobs": 0,
        "temperature": 0.5, "detokenize": false}});
    let app = testing::app(script);
    let mut sent = body.clone();
    sent["request_id"] = json!("t");
    let answer = send(&app, post_bytes(GENERATE, sent.to_string())).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    let choice = &answer["choices"][0];
    let ids = testing::tokens("hi");
    assert_eq!(choice["token_ids"], json!([ids[0], ids[1], 1]));
    assert_eq!(
        tokens_of(&choice["logprobs"]),
        [
            (&*format!("token_id:{}", ids[0]), -0.5),
            (&*format!("token_id:{}", ids[1]), -0.5),
            ("token_id:1", -0.25)
        ]
    );
    assert_eq!((&answer["request_id"], &choice["finish_reason"]), (&json!("t"), &json!("stop")));
    assert_eq!(answer["prompt_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn a_stream_of_token_ids_ends_with_the_stop_token() {
    let body = json!({"token_ids": [5], "stream": true, "stream_options": {"include_usage": true},
        "sampling_params": {"logprobs": 0}});
    let answer = post(stops(), GENERATE, body).await;
    let events = answer.events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let ids: Vec<u64> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap())
        .flat_map(|choice| choice["token_ids"].as_array().unwrap())
        .map(|id| id.as_u64().unwrap())
        .collect();
    assert_eq!(ids, [u64::from(testing::tokens("h")[0]), u64::from(testing::tokens("i")[0]), 1]);
    let [_, end, usage] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!(tokens_of(&end["choices"][0]["logprobs"]), [("token_id:1", -0.25)]);
    assert_eq!(usage["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn wrong_bodies_are_refused_by_their_fields() {
    for (body, field) in [
        (json!({}), "token_ids"),
        (json!({"token_ids": []}), "token_ids"),
        (json!({"token_ids": "hi"}), "token_ids"),
        (json!({"token_ids": [-1]}), "token_ids"),
        (json!({"token_ids": vec![5; 300]}), "token_ids"),
        (json!({"token_ids": [5], "sampling_params": {"echo": true}}), "echo"),
        (json!({"token_ids": [5], "sampling_params": {"temperature": -1}}), "temperature"),
        (json!({"token_ids": [5], "sampling_params": []}), "sampling_params"),
        (json!({"token_ids": [5], "max_tokens": 0}), "max_tokens"),
    ] {
        let answer = post(says("x"), GENERATE, body.clone()).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some(field)), "{body}");
    }
    let body = json!({"token_ids": [5], "sampling_params": {"beams": 4}});
    let answer = post(says("x"), GENERATE, body).await;
    assert_eq!((answer.status, answer.header("x-ignored-params")), (200, "beams"));
}

#[tokio::test]
async fn token_ids_beside_a_text_have_the_stop_token_too() {
    for stream in [false, true] {
        let body = json!({"prompt": "a", "return_token_ids": true, "logprobs": 0, "stream": stream});
        let answer = post(stops(), COMPLETIONS, body).await;
        assert!(answer.body.contains("-0.25"), "{}", answer.body);
        let body = chat(json!({"return_token_ids": true, "logprobs": true, "stream": stream}));
        let answer = post(stops(), CHAT, body).await;
        assert!(answer.body.contains("-0.25"), "{}", answer.body);
        // Without token ids an answer is what it was.
        let body = chat(json!({"logprobs": true, "stream": stream}));
        let answer = post(stops(), CHAT, body).await;
        assert!(!answer.body.contains("-0.25"), "{}", answer.body);
    }
    let body = json!({"prompt": "a", "return_token_ids": true, "logprobs": 0});
    let choice = post(stops(), COMPLETIONS, body).await.json()["choices"][0].clone();
    let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    assert!(lists.iter().all(|list| choice["logprobs"][list].as_array().unwrap().len() == 3), "{choice}");
    assert_eq!((choice["token_ids"].as_array().unwrap().len(), &choice["text"]), (3, &json!("hi")));
}

fn training_app(script: Script) -> App {
    let config = RouterConfig { runtime_swaps: true, ..testing::config() };
    App::new(Arc::new(testing::model_text()), Arc::new(script), config)
}

fn order(path: &str) -> Request<Body> {
    post_bytes(path, "{}")
}

#[tokio::test]
async fn generation_stands_still_and_goes_on() {
    let app = training_app(says("x"));
    let is_paused = async || {
        let asked = Request::get("/is_paused").body(Body::empty()).unwrap();
        send(&app, asked).await.json()["is_paused"].as_bool().unwrap()
    };
    assert!(!is_paused().await);
    for (path, body) in [
        ("/pause?mode=sleep", "{}"),
        ("/pause?mod=keep", "{}"),
        ("/pause", r#"{"modes": "keep"}"#),
        ("/abort_requests", r#"{"ids": ["x"]}"#),
        ("/abort_requests", r#"{"request_ids": []}"#),
    ] {
        assert_eq!(send_odd(&app, post_bytes(path, body)).await.status, 400, "{path} {body}");
    }
    let many = json!({"request_ids": vec!["x"; 16_385]});
    assert_eq!(send_odd(&app, post_bytes("/abort_requests", many.to_string())).await.status, 400);
    assert!(!is_paused().await);
    for mode in ["", "?mode=keep", "?mode=wait&clear_cache=true", "?mode=abort"] {
        let empty = Request::post(format!("/pause{mode}")).body(Body::empty()).unwrap();
        let answer = send(&app, empty).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"status":"paused"}"#), "{mode}");
        assert!(is_paused().await);
    }
    assert_eq!(send(&app, post_bytes("/pause", r#"{"mode": "keep"}"#)).await.status, 200);
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post_bytes(COMPLETIONS, r#"{"prompt": "a"}"#)).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    let answer = send(&app, order("/resume")).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"status":"resumed"}"#));
    assert_eq!((waiting.await.unwrap().status, is_paused().await), (200, false));
}

#[tokio::test]
async fn an_aborted_request_ends_in_every_api_with_what_it_has() {
    for (path, body, expected) in [
        (COMPLETIONS, json!({"prompt": "a"}), r#""finish_reason":"abort""#),
        (CHAT, chat(json!({})), r#""finish_reason":"abort""#),
        (GENERATE, json!({"token_ids": [5]}), r#""finish_reason":"abort""#),
        ("/v1/responses", json!({"input": "a"}), r#""status":"incomplete""#),
        (
            "/v1/messages",
            json!({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}),
            "pause_turn",
        ),
        ("/api/generate", json!({"prompt": "a", "stream": false}), r#""done_reason":"abort""#),
    ] {
        let app =
            training_app(Script { say: vec![Say::Delta(delta(0, "hi")), Say::Hang], ..Script::default() });
        let running = tokio::spawn({
            let (app, request) = (app.clone(), post_bytes(path, body.to_string()));
            async move { send(&app, request).await }
        });
        let has_tokens = async || {
            let metrics = send(&app, Request::get("/metrics").body(Body::empty()).unwrap()).await.body;
            metrics
                .lines()
                .any(|line| line.starts_with("vllm:generation_tokens_total{") && line.ends_with(" 2"))
        };
        while !has_tokens().await {
            assert!(!running.is_finished(), "{path}: it ended by itself");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let answer = send(&app, post_bytes("/abort_requests", "{}")).await;
        assert_eq!(answer.json(), json!({"status": "aborted", "aborted": 1}), "{path}");
        let answer = running.await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.body.contains(expected), "{path}: {}", answer.body);
        assert!(path == GENERATE || answer.body.contains("hi"), "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn only_an_operator_has_generation_stand_still() {
    for path in ["/pause", "/resume", "/abort_requests"] {
        assert_eq!(send_odd(&testing::app(says("x")), order(path)).await.status, 404, "{path}");
    }
    let mut config = RouterConfig { runtime_swaps: true, ..testing::config() };
    config.api_keys = vec!["sesame".to_owned()];
    let app = App::new(Arc::new(testing::model_text()), Arc::new(says("x")), config);
    let mut request = order("/pause");
    request.headers_mut().insert("authorization", "Bearer sesame".parse().unwrap());
    let answer = send(&app, request).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert!(!app.pauses.as_ref().unwrap().is_paused());
}

#[tokio::test]
async fn other_transfers_than_a_directory_are_refused_by_name() {
    let mut app = training_app(says("x"));
    app.swap_models(Arc::new(super::description::NoSwap));
    for (body, expected) in [
        (json!({}), "update_info.model_path is required"),
        (json!({"update_info": {"names": ["w"], "dtype_names": ["bfloat16"]}}), "NCCL"),
        (json!({"update_info": {"model_path": 7}}), "model_path must be a string"),
    ] {
        let answer = send(&app, post_bytes("/update_weights", body.to_string())).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.body.contains(expected), "{body}: {}", answer.body);
    }
}
