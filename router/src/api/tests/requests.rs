//! Requests that reach the generator, and their ids.

use super::*;

#[tokio::test]
async fn calls_that_share_an_x_request_id_have_ids_of_their_own() {
    let (first, answer) = asked(COMPLETIONS, &json!({"prompt": "a"}), "trace").await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, "trace"));
    assert_eq!(answer.json()["id"], format!("cmpl-{}", first[0].id));
    let (second, answer) = asked(CHAT, &chat(json!({})), "trace").await;
    assert_eq!(answer.header("x-request-id"), "trace");
    assert!(first[0].id != second[0].id && &*first[0].id != "trace" && &*second[0].id != "trace");
    let named = json!({"prompt": "a", "request_id": "mine"});
    let (third, answer) = asked(COMPLETIONS, &named, "trace").await;
    assert_eq!((&*third[0].id, answer.header("x-request-id")), ("mine", "trace"));
    let (third, answer) = asked(COMPLETIONS, &named, "not a name").await;
    assert_eq!((&*third[0].id, answer.header("x-request-id")), ("mine", "mine"));
}

#[tokio::test]
async fn a_long_request_id_has_room_for_the_numbers_of_its_prompts() {
    let call = |id: &str| json!({"prompt": ["a", "b"], "request_id": id});
    for length in [127, 128] {
        let id = "i".repeat(length);
        let (requests, answer) = asked(COMPLETIONS, &call(&id), "trace").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let ids: Vec<&str> = requests.iter().map(|request| &*request.id).collect();
        assert_eq!(ids, [format!("{id}-0"), format!("{id}-1")]);
    }
    let (_, answer) = asked(COMPLETIONS, &call(&"i".repeat(129)), "trace").await;
    let message = "request_id must be 1 to 128 printable ASCII bytes without spaces, got 129 bytes.";
    check_error(answer, 400, &invalid("request_id", message)).await;
}

#[tokio::test]
async fn add_special_tokens_reaches_the_generator() {
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
async fn logit_bias_keys_that_are_not_plain_digits_are_refused_by_the_router() {
    let check = async |bias: Value, message: &str| {
        let answer = post(says("x"), COMPLETIONS, json!({"prompt": "a", "logit_bias": bias})).await;
        check_error(answer, 400, &invalid("logit_bias", message)).await;
    };
    check(json!({"+5": 1, "5": 2}), "logit_bias keys must be token ids, got `+5`.").await;
    check(json!({"": 1}), "logit_bias keys must be token ids, got ``.").await;
    check(json!({"5": 2, "05": 3}), "logit_bias names token 5 more than once.").await;
}

#[tokio::test]
async fn more_prompts_than_the_queue_can_hold_are_refused_without_retry() {
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
        "cache_salt": "s", "logit_bias": {"5": -200}, "request_id": "mine", "stop_token_ids": [9],
        "allowed_token_ids": [9, 5, 9], "bad_words": ["ab"]});
    send(&app, post_bytes(COMPLETIONS, body.to_string())).await;
    let request = script.requests.lock().unwrap()[0].clone();
    assert_eq!((&*request.id, &*request.cache_salt, request.priority), ("mine", "s", -3));
    let sampling = &request.sampling;
    assert_eq!((sampling.max_tokens, sampling.seed, sampling.temperature), (3, 7, 0.5));
    assert_eq!((&sampling.logit_bias[..], &sampling.stop_token_ids[..]), (&[(5, -100.0)][..], &[9][..]));
    assert_eq!(
        (&sampling.allowed_token_ids[..], &sampling.bad_words[0]),
        (&[5, 9][..], &testing::tokens("ab"))
    );
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
async fn an_idempotency_key_is_the_id_of_a_request_whose_body_has_none() {
    let script = Arc::new(says("x"));
    let app = App::new(Arc::new(testing::model_text()), script.clone(), testing::config());
    let post = async |key: &str, body: Value| {
        let request = Request::post(COMPLETIONS).header("idempotency-key", key);
        send(&app, request.body(body.to_string().into()).unwrap()).await
    };
    assert_eq!(post("key", json!({"prompt": "a"})).await.header("x-request-id"), "key");
    assert_eq!(post("key", json!({"prompt": "a"})).await.json()["id"], "cmpl-key");
    assert_eq!(post("other", json!({"prompt": "a", "request_id": "other"})).await.json()["id"], "cmpl-other");
    let requests = script.requests.lock().unwrap().clone();
    assert_eq!(requests[0].stream_key(), requests[1].stream_key(), "the second joins the first");
    assert_ne!(requests[0].stream_key(), requests[2].stream_key());
    let refused = async |key: &str, body: Value| {
        let refused = post(key, body).await;
        assert_eq!(
            (refused.status, refused.json()["error"]["param"].as_str()),
            (400, Some("Idempotency-Key"))
        );
    };
    refused(&"k".repeat(129), json!({"prompt": "a"})).await;
    refused("key", json!({"prompt": "a", "request_id": "body"})).await;
}

#[tokio::test]
async fn keys_share_no_request_id_and_no_prefix_cache() {
    let script = Arc::new(says("x"));
    let config =
        crate::config::RouterConfig { api_keys: vec!["one".into(), "other".into()], ..testing::config() };
    let app = App::new(Arc::new(testing::model_text()), script.clone(), config);
    for key in ["one", "other"] {
        let body = json!({"prompt": "hi", "request_id": "order-1001", "cache_salt": "s"});
        let request = Request::post(COMPLETIONS).header("authorization", format!("Bearer {key}"));
        let request = request.body(Body::from(body.to_string())).unwrap();
        assert_eq!(send(&app, request).await.status, 200);
    }
    let requests = script.requests.lock().unwrap().clone();
    let [one, other] = &requests[..] else { panic!("{} requests", requests.len()) };
    assert_eq!((&*one.id, &*other.id), ("order-1001", "order-1001"));
    assert_ne!(one.tenant, other.tenant);
    assert_ne!(one.cache_salt, other.cache_salt);
    assert_ne!(one.stream_key(), other.stream_key());
    assert_ne!(one.call, other.call);
    // Ollama's routes also require the key.
    let request = Request::post("/api/generate").header("authorization", "Bearer one");
    let request = request.body(Body::from(json!({"prompt": "hi", "raw": true}).to_string())).unwrap();
    assert_eq!(send(&app, request).await.status, 200);
    assert_eq!(script.requests.lock().unwrap()[2].tenant, one.tenant);
}
