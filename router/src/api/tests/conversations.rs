//! Conversations that a template takes only in part, answers that the client begins, and what earlier turns
//! may lack, over every API.

use skein_text::model_text::ModelText;

use super::tools::{MESSAGES, RESPONSES, app, ask, named, reached};
use super::*;

/// A template without `else`: it drops other roles, and a system message behind the first place.
const BRANCHES: &str = "{% for m in messages %}{% if m.role == 'system' and loop.first %}S:{{ m.content }};\
    {% elif m.role == 'user' %}U:{{ m.content }};{% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}";
const TOKENIZE: &str = "/tokenize";
const OLLAMA: &str = "/api/chat";

fn branches() -> (App, Arc<Script>) {
    let text: ModelText = testing::model_text_with(&Value::Null, Some(BRANCHES));
    let script = Arc::new(says("x"));
    (App::new(Arc::new(text), script.clone(), testing::config()), script)
}

fn say(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// The prompt of `messages` with that template, or the error's message.
async fn prompt(path: &str, messages: &Value) -> Result<String, String> {
    let (app, script) = branches();
    let body = json!({"model": "test", "messages": messages, "stream": false});
    let answer = ask(&app, path, &body).await;
    let object = answer.json();
    if answer.status != 200 {
        assert_eq!(answer.status, 400, "{}", answer.body);
        let error = &object["error"];
        return Err(error["message"].as_str().or(error.as_str()).unwrap().to_owned());
    }
    let tokens: Vec<u32> = match object["tokens"].as_array() {
        Some(tokens) => tokens.iter().map(|token| u32::try_from(token.as_u64().unwrap()).unwrap()).collect(),
        None => script.requests.lock().unwrap()[0].prompt.to_vec(),
    };
    Ok(app.text.tokenizer.decode(&tokens, false).unwrap())
}

#[tokio::test]
async fn no_instruction_is_lost_in_a_template() {
    for path in [CHAT, TOKENIZE, OLLAMA] {
        let developer = json!([say("developer", "ALWAYS say X"), say("user", "q")]);
        assert_eq!(prompt(path, &developer).await.unwrap(), "S:ALWAYS say X;U:q;", "{path}");
        let both = json!([say("system", "a"), say("user", "q"), say("developer", "b"), say("user", "r")]);
        assert_eq!(prompt(path, &both).await.unwrap(), "S:a\n\nb;U:q;U:r;", "{path}");
        let late = json!([say("system", "a"), say("user", "q"), say("system", "b")]);
        assert_eq!(prompt(path, &late).await.unwrap(), "S:a\n\nb;U:q;", "{path}");
        for role in ["banana", "function", "tool"] {
            let lost = json!([say("user", "q"), say(role, "ALWAYS say X")]);
            let message = prompt(path, &lost).await.unwrap_err();
            assert!(message.contains("messages[1]") && message.contains(&format!("`{role}`")), "{message}");
        }
    }
}

#[tokio::test]
async fn earlier_turns_may_lack_content_and_arguments() {
    let call = |arguments: Value| {
        let function = json!({"name": "f", "arguments": arguments});
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": function}]})
    };
    for (message, expected) in [
        (call(json!("")), "<tool_call>f{}"),
        (call(json!(null)), "<tool_call>f{}"),
        (call(json!("[1]")), "<tool_call>f{}"),
        (call(json!("{\"a\": 1}")), "<tool_call>f{\"a\": 1}"),
        (json!({"role": "assistant", "content": null, "refusal": "No."}), "No."),
        (json!({"role": "assistant", "content": null, "thinking": "so"}), "<think>so</think>"),
        (json!({"role": "assistant"}), ""),
    ] {
        let body = json!({"messages": [say("user", "q"), message, say("user", "r")]});
        let (prompt, _) = reached(CHAT, body).await.unwrap();
        let expected = format!("<|user|>q<|end|><|assistant|>{expected}<|end|><|user|>r<|end|><|assistant|>");
        assert_eq!(prompt, expected);
    }
}

#[tokio::test]
async fn an_answer_that_the_client_begins_is_continued() {
    let messages = json!([say("user", "q"), say("assistant", "Well, ")]);
    let body = json!({"model": "test", "max_tokens": 5, "messages": messages});
    let (prompt, _) = reached(MESSAGES, body.clone()).await.unwrap();
    assert_eq!(prompt, "<|user|>q<|end|><|assistant|>Well, ");
    let (app, _) = app("x", 1);
    let counted = ask(&app, "/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted["input_tokens"], app.text.tokenizer.encode(&prompt, false).unwrap().len());
    let (prompt, _) = reached(OLLAMA, json!({"model": "test", "messages": messages})).await.unwrap();
    assert_eq!(prompt, "<|user|>q<|end|><|assistant|>Well, ");
    let call = json!({"type": "tool_use", "id": "c", "name": "f", "input": {}});
    let called = json!([say("user", "q"), {"role": "assistant", "content": [call]}]);
    let refused = reached(MESSAGES, json!({"model": "test", "max_tokens": 5, "messages": called})).await;
    assert!(refused.unwrap_err().contains("messages[1] calls a tool"));
}

#[tokio::test]
async fn a_thought_that_the_client_begins_ends_as_reasoning() {
    let schema = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}});
    for (begun, extra, said, reasoning, content) in [
        ("<think>\nLet me see: ", json!({}), " 4.\n</think>\n\nFour.", json!(" 4."), "Four."),
        (
            "<think>\nLet me see: ",
            json!({"include_reasoning": false}),
            "4.</think>Four.",
            json!(null),
            "Four.",
        ),
        ("<think>\nLet me see: ", json!({"response_format": schema}), "4.</think>{}", json!("4."), "{}"),
        ("<think>x</think>The ", json!({}), " end.", json!(null), " end."),
        ("The ", json!({}), " end.", json!(null), " end."),
        ("", json!({}), "The end.", json!(null), "The end."),
    ] {
        let mut body = json!({"messages": [say("user", "what is <think>?"), say("assistant", begun)],
            "continue_final_message": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        for stream in [false, true] {
            body["stream"] = stream.into();
            let answer = ask(&app(said, 2).0, CHAT, &body).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            if stream {
                assert_eq!(contents(&answer, 1), [content]);
            } else {
                let message = &answer.json()["choices"][0]["message"];
                assert_eq!(
                    (&message["reasoning"], &message["content"]),
                    (&reasoning, &content.into()),
                    "{body}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_schema_beside_json_object_is_enforced_and_other_members_are_listed() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let held = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let held = reached(CHAT, chat(json!({"response_format": held}))).await.unwrap().1;
    for (format, ignored) in [
        (json!({"type": "json_object", "schema": schema}), ""),
        (json!({"type": "json_object", "schema": schema, "strict": true}), "response_format.strict"),
        (
            json!({"type": "json_schema", "schema": {}, "json_schema": {"name": "n", "strict": null, "schema": schema, "zag": 1}}),
            "response_format.schema, response_format.json_schema.zag",
        ),
    ] {
        let body = chat(json!({"response_format": format}));
        assert_eq!(reached(CHAT, body.clone()).await.unwrap().1, held, "{format}");
        let answer = post(says("{}"), CHAT, body).await;
        assert_eq!((answer.status, answer.header("x-ignored-params")), (200, ignored), "{}", answer.body);
    }
    let any = reached(CHAT, chat(json!({"response_format": {"type": "json_object", "schema": null}}))).await;
    assert_ne!(any.unwrap().1, held);
    let bad = json!({"type": "json_object", "schema": {"properties": {"b": {"uniqueItems": true}}}});
    assert_eq!(post(says("{}"), CHAT, chat(json!({"response_format": bad}))).await.status, 400);
}

#[tokio::test]
async fn stop_strings_that_end_together_go_by_their_order() {
    let body = json!({"prompt": "a", "stop": ["Y", "XY"]});
    let choice = post(says("abXYcd"), COMPLETIONS, body).await.json()["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("abX"), &json!("Y")));
}

#[tokio::test]
async fn responses_give_the_log_probabilities_that_were_asked_for() {
    let body = |extra: Value| {
        let mut body = json!({"input": "hi", "request_id": "t"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let of = |answer: &Value| {
        let message = answer["output"].as_array().unwrap().last().unwrap().clone();
        message["content"][0]["logprobs"].as_array().unwrap().clone()
    };
    let include = json!(["message.output_text.logprobs"]);
    let text = "<think>h</think>Yes";
    for (extra, count, top) in [
        (json!({}), 0, 0),
        (json!({"include": include}), 3, 0),
        (json!({"include": include, "top_logprobs": 2}), 3, 1),
        (json!({"top_logprobs": 2}), 3, 1),
        (json!({"top_logprobs": 0}), 0, 0),
    ] {
        let whole = ask(&app(text, 1).0, RESPONSES, &body(extra.clone())).await;
        assert_eq!(whole.status, 200, "{}", whole.body);
        let logprobs = of(&whole.json());
        let said: Vec<&str> =
            logprobs.iter().rev().take(count).map(|at| at["token"].as_str().unwrap()).collect();
        assert_eq!(said, ["s", "e", "Y"][..count], "{extra}");
        assert_eq!(logprobs.is_empty(), count == 0);
        assert!(logprobs.iter().all(|at| at["top_logprobs"].as_array().unwrap().is_empty() == (top == 0)));
        let mut streamed = body(extra);
        streamed["stream"] = true.into();
        let events = named(&ask(&app(text, 1).0, RESPONSES, &streamed).await);
        let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
        let deltas: Vec<Value> =
            deltas.flat_map(|(_, data)| data["logprobs"].as_array().unwrap().clone()).collect();
        assert_eq!(deltas, logprobs);
        assert_eq!(of(&events.last().unwrap().1["response"]), logprobs);
    }
    let refused = ask(&app(text, 1).0, RESPONSES, &body(json!({"top_logprobs": 21}))).await;
    assert!(refused.status == 400 && refused.body.contains("top_logprobs must be in [0, 20], got 21."));
}

#[tokio::test]
async fn anthropics_clients_get_their_form_of_models_and_of_unknown_paths() {
    let get = async |path: &str| {
        let request = Request::get(path).header("anthropic-version", "2023-06-01");
        let answer = send(&testing::app(says("x")), request.body(Body::empty()).unwrap()).await;
        (answer.status, answer.json())
    };
    let (status, list) = get("/v1/models").await;
    assert_eq!(
        (status, &list["has_more"], &list["first_id"], &list["last_id"]),
        (200, &json!(false), &json!("test"), &list["data"].as_array().unwrap().last().unwrap()["id"])
    );
    let model = &list["data"][0];
    assert_eq!(
        (&model["type"], &model["id"], &model["display_name"]),
        (&json!("model"), &json!("test"), &json!("test"))
    );
    assert!(model["created_at"].as_str().unwrap().ends_with('Z'), "{model}");
    assert_eq!(get("/v1/models/test").await, (200, model.clone()));
    assert_eq!(
        get("/v1/models?after_id=test&limit=1").await.1["data"].as_array().unwrap().len(),
        list["data"].as_array().unwrap().len() - 1
    );
    for (path, status, kind) in [
        ("/v1/models/other", 404, "not_found_error"),
        ("/v1/models/%ff", 400, "invalid_request_error"),
        ("/v1/models?limit=0", 400, "invalid_request_error"),
        ("/v1/models?limit=x", 400, "invalid_request_error"),
        ("/v1/nothing", 404, "not_found_error"),
    ] {
        let (got, body) = get(path).await;
        assert_eq!(
            (got, &body["type"], &body["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn messages_ignores_tools_of_anthropics_servers_and_names_its_own_fields() {
    let body = |extra: Value| {
        let mut body = json!({"model": "test", "max_tokens": 5, "messages": [say("user", "q")]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let ours = json!({"name": "f", "input_schema": {"type": "object"}});
    let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 3});
    let (app, script) = app("x", 1);
    let answer = ask(&app, MESSAGES, &body(json!({"tools": [search, ours]}))).await;
    assert_eq!(
        (answer.status, answer.header("x-ignored-params")),
        (200, "tools.web_search_20250305"),
        "{}",
        answer.body
    );
    let tokens = script.requests.lock().unwrap()[0].prompt.to_vec();
    assert!(app.text.tokenizer.decode(&tokens, false).unwrap().starts_with("T:f;<|user|>q"));
    for (extra, expected) in [
        (
            json!({"tools": [search, {"type": "bash_20250124", "name": "bash"}]}),
            "tools[1].type must be `custom`",
        ),
        (json!({"stop_sequences": 5}), "stop_sequences must be a string or a list"),
        (json!({"temperature": "x", "stop_sequences": [5]}), " stop_sequences must be"),
        (json!({"output_format": {"type": "json_schema"}}), "output_format.schema is required"),
    ] {
        let refused = reached(MESSAGES, body(extra)).await.unwrap_err();
        assert!(refused.contains(expected) && !refused.contains("response_format"), "{refused}");
    }
}

#[tokio::test]
async fn a_late_developer_is_the_system_in_responses_as_in_chat() {
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let turns = json!([say("user", "a"), say("developer", "D"), say("user", "b")]);
    let (of_responses, _) = reached(RESPONSES, json!({"input": turns})).await.unwrap();
    let (of_chat, _) = reached(CHAT, json!({"messages": turns})).await.unwrap();
    assert_eq!(of_responses, of_chat);
    assert!(of_chat.contains("<|user|>a<|end|><|system|>D<|end|><|user|>b"), "{of_chat}");
}
