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
    for (path, body, reason) in [
        ("/api/generate", json!({"model": "test"}), "load"),
        ("/api/chat", json!({"model": "test", "messages": []}), "load"),
        ("/api/chat", json!({"model": "test", "messages": [], "keep_alive": 0}), "unload"),
        ("/api/generate", json!({"model": "test", "keep_alive": "0s"}), "unload"),
        ("/api/generate", json!({"model": "test", "keep_alive": -1}), "load"),
    ] {
        let (requests, answer) = ask(path, body).await;
        assert_eq!((answer.status, &answer.json()["done_reason"]), (200, &json!(reason)));
        assert!(requests.is_empty());
    }
}

#[tokio::test]
async fn options_of_ollama_have_ollamas_meaning() {
    let answered = |options: Value| async move {
        let body = json!({"model": "test", "prompt": "hi", "stream": false, "options": options});
        let (requests, answer) = ask("/api/generate", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let sampling = requests[0].sampling.clone();
        (sampling, answer.header("x-ignored-params").to_owned())
    };
    let room = testing::MAX_MODEL_LEN - 6;
    for (num_predict, most) in
        [(3, 3), (100_000, room), (-1, room), (-2, room), (0, room), (1_i64 << 40, room)]
    {
        let (sampling, _) = answered(json!({"num_predict": num_predict, "stop": ""})).await;
        assert_eq!(sampling.max_tokens, most, "num_predict {num_predict}");
    }
    for (options, penalty, ignored) in [
        (json!({"repeat_last_n": 64}), 1.0, ""),
        (json!({"repeat_last_n": 64, "repeat_penalty": 1.0}), 1.0, ""),
        (json!({"repeat_last_n": 64, "repeat_penalty": 1.5}), 1.5, "options.repeat_last_n"),
        (json!({"repeat_last_n": -1, "repeat_penalty": 1.5}), 1.5, ""),
        (json!({"repeat_last_n": 0, "repeat_penalty": 1.5}), 1.0, ""),
        (json!({"num_ctx": 4096, "no_such": 1}), 1.0, "options.no_such"),
    ] {
        let (sampling, told) = answered(options.clone()).await;
        assert_eq!((sampling.repetition_penalty, told.as_str()), (penalty, ignored), "{options}");
    }
}

#[tokio::test]
async fn a_format_constrains_the_answer() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    for (format, is_constrained) in
        [(json!("json"), true), (schema, true), (json!(""), false), (Value::Null, false)]
    {
        let body = json!({"prompt": "hi", "format": format});
        let (requests, answer) = ask("/api/generate", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(requests[0].sampling.grammar.is_some(), is_constrained, "{format}");
    }
    for format in [json!("xml"), json!(7), json!({"type": "no such type"})] {
        let (_, answer) = ask("/api/generate", json!({"prompt": "hi", "format": format})).await;
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 400 && error.starts_with("format"), "{}", answer.body);
    }
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
}

/// The message that the lines of a streamed chat add up to.
fn joined(lines: &[Value]) -> Value {
    let text =
        |name: &str| lines.iter().filter_map(|line| line["message"][name].as_str()).collect::<String>();
    let calls = lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().cloned();
    json!({"role": "assistant", "content": text("content"), "thinking": text("thinking"), "tool_calls": calls.collect::<Vec<_>>()})
}

#[tokio::test]
async fn reasoning_and_calls_have_places_of_their_own() {
    let mut body = json!({
        "model": "test", "messages": [{"role": "user", "content": "hi"}], "tools": [tool("f"), tool("g")], "stream": false,
    });
    for cut in [1, 3, 1000] {
        let (app, _) = tools::app(tools::TEXT, cut);
        body["stream"] = false.into();
        let whole = tools::ask(&app, "/api/chat", &body).await.json();
        let message = &whole["message"];
        assert_eq!(
            (&message["content"], &message["thinking"]),
            (&json!("Well."), &json!("Hm é.")),
            "{message}"
        );
        let calls = message["tool_calls"].as_array().unwrap();
        let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
        assert_eq!(functions[0], &json!({"index": 0, "name": "f", "arguments": {"a": "x\n"}}));
        assert_eq!(functions[1], &json!({"index": 1, "name": "g", "arguments": {}}));
        assert!(calls[0]["id"].is_string() && calls[0]["id"] != calls[1]["id"]);
        assert_eq!(whole["done_reason"], "stop");
        body["stream"] = true.into();
        let (app, _) = tools::app(tools::TEXT, cut);
        let streamed = joined(&lines(&tools::ask(&app, "/api/chat", &body).await));
        for part in ["content", "thinking"] {
            assert_eq!(streamed[part], message[part], "{part}");
        }
        let of = |calls: &Value| {
            calls.as_array().unwrap().iter().map(|call| call["function"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(&streamed["tool_calls"]), of(&message["tool_calls"]));
    }
}

#[tokio::test]
async fn a_call_that_was_cut_is_shown_and_not_made() {
    let body =
        json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool("f")], "stream": false});
    let begun = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a";
    let (app, _) = tools::app_that_ends(begun, 3, FinishReason::Length);
    let answer = tools::ask(&app, "/api/chat", &body).await.json();
    let shown = "{\"name\": \"f\", \"arguments\": {\"a";
    assert!(answer["message"]["content"].as_str().unwrap().starts_with(shown), "{answer}");
    assert!(answer["message"].get("tool_calls").is_none(), "{answer}");
}

#[tokio::test]
async fn a_call_whose_arguments_are_no_json_is_shown_and_not_made() {
    let written = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": True}}\n</tool_call>";
    let shown = "{\"name\": \"f\", \"arguments\": {\"a\": True}}";
    let (app, _) = tools::app(written, 3);
    let body =
        json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool("f")], "stream": false});
    let answer = tools::ask(&app, "/api/chat", &body).await.json();
    assert_eq!(answer["message"], json!({"role": "assistant", "content": shown}), "{answer}");
    let body = json!({"max_tokens": 40, "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}]});
    let answer = tools::ask(&app, tools::MESSAGES, &body).await.json();
    assert_eq!(answer["content"], json!([{"type": "text", "text": shown}]), "{answer}");
    assert_eq!(answer["stop_reason"], "end_turn");
}

#[tokio::test]
async fn a_body_of_any_type_is_read_as_json() {
    let mut request = post_bytes("/api/generate", json!({"prompt": "hi"}).to_string());
    let form = "application/x-www-form-urlencoded".parse().unwrap();
    request.headers_mut().insert("content-type", form);
    assert_eq!(send(&testing::app(says("x")), request).await.status, 200);
}

#[tokio::test]
async fn think_switches_reasoning() {
    let body = |think: Value| json!({"prompt": "hi", "think": think, "stream": false});
    for (think, thinking) in [
        (Value::Null, json!("Hm é.")),
        (json!(true), json!("Hm é.")),
        (json!("low"), json!("Hm é.")),
        (json!(false), Value::Null),
    ] {
        let (app, script) = tools::app(tools::TEXT, 5);
        let answer = tools::ask(&app, "/api/generate", &body(think.clone())).await.json();
        assert_eq!(answer["thinking"], thinking, "{think}: {answer}");
        let prompt = app.text.tokenizer.decode(&script.requests.lock().unwrap()[0].prompt, false).unwrap();
        assert_eq!(prompt.ends_with("<think></think>"), think == false, "{think}: {prompt}");
    }
    for think in [json!("much"), json!(3)] {
        let (app, _) = tools::app(tools::TEXT, 5);
        assert_eq!(tools::ask(&app, "/api/generate", &body(think)).await.status, 400);
    }
}

#[tokio::test]
async fn calls_and_results_of_the_history_reach_the_template() {
    let body = json!({"messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "thinking": "T",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"name": "g", "arguments": {}}}]},
        {"role": "tool", "tool_name": "g", "content": "G"},
        {"role": "tool", "tool_name": "f", "content": "F"},
    ]});
    let (prompt, _) = tools::reached("/api/chat", body).await.unwrap();
    let expected =
        "<think>T</think><tool_call>f{\"a\": 1}<tool_call>g{}<|end|><|user|>G<|end|><|user|>F<|end|>";
    assert!(prompt.contains(expected), "{prompt}");
    let begun =
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]});
    let (prompt, _) = tools::reached("/api/chat", begun).await.unwrap();
    assert!(prompt.ends_with("Well, ") || prompt.ends_with("Well,"), "{prompt}");
}

#[tokio::test]
async fn what_it_cannot_do_is_refused_in_ollamas_form() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (extra, word) in [
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"tools": [tool("f")]}), "tools"),
        (json!({"think": true}), "does not support thinking"),
        (json!({"options": {"mirostat": 1}}), "mirostat"),
        (json!({"options": {"temperature": 9}}), "temperature"),
        (json!({"messages": [{"role": "user", "content": "hi", "images": ["aGk="]}]}), "images"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": "hi"}), "messages"),
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
    let running = get(says("x"), "/api/ps").await.json();
    let running = &running["models"][0];
    assert_eq!(
        (&running["name"], &running["context_length"]),
        (&json!("test"), &json!(testing::MAX_MODEL_LEN))
    );
    assert_eq!((&running["digest"], running["expires_at"].is_string()), (&tags["models"][0]["digest"], true));
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
    assert_eq!(shown["capabilities"], json!(["completion"]));
    let (app, _) = tools::app("x", 1);
    let shown = tools::ask(&app, "/api/show", &json!({"model": "test"})).await.json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
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
