//! Ollama's API over the scripted generator.

use super::*;

async fn ask(path: &str, body: Value) -> (Vec<TokenRequest>, Answer) {
    asked(path, &body, "t").await
}

fn lines(answer: &Answer) -> Vec<Value> {
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_chat_streams_lines_of_json() {
    let body =
        json!({"model": "test:latest", "messages": [{"role": "user", "content": "hi"}], "keep_alive": "5m"});
    let (requests, answer) = ask("/api/chat", body).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "application/x-ndjson"),
        "{}",
        answer.body
    );
    let lines = lines(&answer);
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["message"]["content"], &lines[0]["done"]), (&json!("x"), &json!(false)));
    let last = &lines[1];
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["model"]),
        (&json!(true), &json!("stop"), &json!("test:latest"))
    );
    assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&json!(6), &json!(1)));
    let tokens =
        testing::model_text().tokenizer.encode("<|bos|><|user|>hi<|end|><|assistant|>", false).unwrap();
    assert_eq!(requests[0].prompt.to_vec(), tokens);
}

#[tokio::test]
async fn a_prompt_goes_through_the_template_unless_it_is_raw() {
    let body = |raw: bool| {
        json!({"model": "test", "prompt": "hi", "raw": raw, "stream": false,
        "options": {"num_predict": 3, "seed": 7, "temperature": 0.5, "num_ctx": 2048, "stop": ["z"]}})
    };
    let (requests, answer) = ask("/api/generate", body(false)).await;
    assert_eq!((answer.status, &answer.json()["response"]), (200, &json!("x")), "{}", answer.body);
    let sampling = &requests[0].sampling;
    assert_eq!((sampling.max_tokens, sampling.seed, sampling.temperature), (3, 7, 0.5));
    assert_eq!(requests[0].prompt.len(), 6);
    let (requests, _) = ask("/api/generate", body(true)).await;
    assert_eq!(requests[0].prompt.to_vec(), [0, 108, 109]);
}

#[tokio::test]
async fn without_a_prompt_the_model_is_loaded_already() {
    for (path, body) in
        [("/api/generate", json!({"model": "test"})), ("/api/chat", json!({"model": "test", "messages": []}))]
    {
        let (requests, answer) = ask(path, body).await;
        assert_eq!((answer.status, &answer.json()["done_reason"]), (200, &json!("load")));
        assert!(requests.is_empty());
    }
}

#[tokio::test]
async fn what_it_cannot_do_is_refused_in_ollamas_form() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (extra, word) in [
        (json!({"format": "json"}), "format"),
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"think": true}), "think"),
        (json!({"options": {"mirostat": 1}}), "mirostat"),
        (json!({"options": {"temperature": 9}}), "temperature"),
        (json!({"messages": [{"role": "user", "content": "hi", "images": ["aGk="]}]}), "images"),
    ] {
        let mut body = json!({"model": "test", "messages": messages});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (_, answer) = ask("/api/chat", body).await;
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 400 && error.contains(word), "{}", answer.body);
    }
    let (_, answer) = ask("/api/chat", json!({"model": "other", "messages": messages})).await;
    assert_eq!((answer.status, answer.json()["error"].is_string()), (404, true));
    let off = json!({"model": "test", "messages": messages, "stream": false, "format": "", "tools": [], "think": false});
    assert_eq!(ask("/api/chat", off).await.1.status, 200);
}

#[tokio::test]
async fn models_are_listed_and_shown() {
    let tags = get(says("x"), "/api/tags").await.json();
    assert_eq!(tags["models"][0]["name"], "test");
    let details = json!({"parent_model": "", "format": "safetensors", "family": "llama", "families": ["llama"],
        "parameter_size": "7.3M", "quantization_level": "BF16"});
    assert_eq!((&tags["models"][0]["size"], &tags["models"][0]["details"]), (&json!(14_600_000), &details));
    let shown = post(says("x"), "/api/show", json!({"model": "test:latest"})).await.json();
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert_eq!(shown["model_info"]["llama.context_length"], testing::MAX_MODEL_LEN);
    assert_eq!(
        (&shown["model_info"]["general.parameter_count"], &shown["details"]),
        (&json!(7_340_000), &details)
    );
    assert!(get(says("x"), "/api/version").await.json()["version"].is_string());
}

#[tokio::test]
async fn an_error_in_mid_answer_is_the_last_line() {
    let say = vec![Say::Delta(delta(0, "a")), Say::Fail(Refusal::Internal)];
    let body = json!({"prompt": "hi"});
    let answer = send(
        &testing::app(Script { say, ..Script::default() }),
        post_bytes("/api/generate", body.to_string()),
    )
    .await;
    let lines = lines(&answer);
    assert_eq!((answer.status, lines.len()), (200, 2));
    assert!(lines[1]["error"].is_string(), "{}", answer.body);
}

#[tokio::test]
async fn an_unknown_path_below_api_is_refused_in_ollamas_form() {
    let (_, answer) = ask("/api/nothing", json!({})).await;
    assert_eq!(
        (answer.status, answer.json()),
        (404, json!({"error": "There is no path `/api/nothing` here."}))
    );
    let (_, answer) = ask("/api/tags", json!({})).await;
    assert_eq!(
        (answer.status, answer.json()),
        (405, json!({"error": "POST is not allowed on `/api/tags`."}))
    );
}
