//! Requests of OpenAI's Codex and Anthropic's Claude Code, field by field, and what they need in the answer.

use super::tools::{MESSAGES, RESPONSES, app, ask, message, named, reached};
use super::*;

/// Fields of every Codex request.
fn codex(extra: Value) -> Value {
    let mut body = json!({
        "model": "test", "instructions": "You are a coding agent.", "store": false, "stream": true,
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]}],
        "tools": [shell(), apply_patch(), namespace(), {"type": "web_search", "external_web_access": false}],
        "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"effort": null, "summary": "auto"},
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "019a", "service_tier": "auto",
        "text": {"verbosity": "low"}, "client_metadata": {"x-codex-installation-id": "1"}, "request_id": "t"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn shell() -> Value {
    json!({"type": "function", "name": "shell", "description": "Runs a command", "strict": false, "parameters": {
        "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
        "required": ["command"], "additionalProperties": false}})
}

fn apply_patch() -> Value {
    json!({"type": "custom", "name": "apply_patch", "description": "Edits files",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\""}})
}

fn namespace() -> Value {
    json!({"type": "namespace", "name": "mcp__files", "description": "Files", "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]})
}

fn call(name: &str, arguments: &Value) -> String {
    format!("<tool_call>\n{}\n</tool_call>", json!({"name": name, "arguments": arguments}))
}

/// The response in a stream's last event, and all events.
async fn response(text: &str, body: &Value) -> (Value, Vec<(String, Value)>) {
    let answer = ask(&app(text, 3).0, RESPONSES, body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let events = named(&answer);
    (events.last().unwrap().1["response"].clone(), events)
}

#[tokio::test]
async fn codex_is_taken_with_all_its_fields() {
    let (prompt, grammar) = reached(RESPONSES, codex(json!({}))).await.unwrap();
    let expected = "T:shell;T:apply_patch;T:mcp__files__read;<|system|>You are a coding agent.\n\nrules<|end|>\
                    <|user|>fix it<|end|><|assistant|>";
    assert_eq!((prompt.as_str(), grammar), (expected, None));
    let answer = ask(&app("x", 1).0, RESPONSES, &codex(json!({}))).await;
    let ignored = answer.header("x-ignored-params");
    assert!(ignored.contains("tools[3].web_search") && ignored.contains("text.verbosity=low"), "{ignored}");
}

#[tokio::test]
async fn a_free_text_tool_is_called_with_free_text() {
    let patch = "*** Begin Patch\n*** Update File: a.rs\n+let x = \"é\\n\";\n*** End Patch";
    let text = call("apply_patch", &json!({"input": patch}));
    let (response, events) = response(&text, &codex(json!({}))).await;
    let item = &response["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["status"]),
        (&json!("custom_tool_call"), &json!("apply_patch"), &json!("completed"))
    );
    assert_eq!(item["input"], patch);
    assert!(
        item["id"].as_str().unwrap().starts_with("ctc_")
            && item["call_id"].as_str().unwrap().starts_with("call_")
    );
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds, expected);
    assert_eq!((&events[3].1["delta"], &events[3].1["item_id"]), (&json!(patch), &item["id"]));
    assert_eq!(&events[5].1["item"], item, "output_item.done and completed show one item");
    // Unexpected arguments from the model still reach the client.
    let (response, _) = self::response(&call("apply_patch", &json!({"patch": "p"})), &codex(json!({}))).await;
    assert_eq!(response["output"][0]["input"], "{\"patch\":\"p\"}");
}

#[tokio::test]
async fn functions_in_a_namespace_are_called_by_their_own_name() {
    let text =
        call("mcp__files__read", &json!({"path": "a"})) + "\n" + &call("shell", &json!({"command": ["ls"]}));
    let (response, _) = response(&text, &codex(json!({}))).await;
    let (first, second) = (&response["output"][0], &response["output"][1]);
    assert_eq!((&first["name"], &first["namespace"]), (&json!("read"), &json!("mcp__files")));
    assert_eq!((&second["name"], second.get("namespace")), (&json!("shell"), None));
    assert_ne!(first["call_id"], second["call_id"]);
}

#[tokio::test]
async fn codex_sends_back_what_it_got() {
    let input = json!([
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}], "encrypted_content": null},
        {"type": "function_call", "name": "read", "namespace": "mcp__files", "arguments": "{\"path\":\"a\"}", "call_id": "c1"},
        {"type": "custom_tool_call", "status": "completed", "call_id": "c2", "name": "apply_patch", "input": "p\nq"},
        {"type": "function_call_output", "call_id": "c1", "output": "r1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "r2"}]},
        // Codex repeats messages without id and status.
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "late rule"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]}]);
    let (prompt, _) = reached(RESPONSES, codex(json!({"input": input}))).await.unwrap();
    let expected = "T:shell;T:apply_patch;T:mcp__files__read;<|system|>You are a coding agent.<|end|><|user|>q<|end|>\
                    <|assistant|><think>so</think><tool_call>mcp__files__read{\"path\": \"a\"}<tool_call>apply_patch{\"input\": \"p\\nq\"}<|end|>\
                    <|user|>r1<|end|><|user|>r2<|end|><|assistant|>done<|end|><|system|>late rule<|end|><|user|>go on<|end|><|assistant|>";
    assert_eq!(prompt, expected);
}

#[tokio::test]
async fn tools_of_other_kinds_are_refused_with_what_to_do() {
    let check = async |tool: Value, expected: &str| {
        let refused = reached(RESPONSES, codex(json!({"tools": [tool]}))).await.unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    };
    check(json!({"type": "local_shell"}), "tools[0].type `local_shell` is a tool that only OpenAI's models")
        .await;
    check(json!({"type": "mcp", "server_url": "https://x"}), "this server runs no tools itself").await;
    check(json!({"type": "custom", "name": "a b"}), "tools[0] must have a name").await;
    check(
        json!({"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"}]}),
        "got `custom`",
    )
    .await;
}

#[tokio::test]
async fn allowed_tools_limit_the_calls_but_not_the_prompt() {
    let flat = |mode: &str, tools: Value| json!({"tool_choice": {"type": "allowed_tools", "mode": mode, "tools": tools}});
    let (prompt, grammar) =
        reached(RESPONSES, codex(flat("required", json!([{"type": "custom", "name": "apply_patch"}]))))
            .await
            .unwrap();
    assert!(prompt.starts_with("T:shell;T:apply_patch;T:mcp__files__read;"), "{prompt}");
    let grammar = grammar.unwrap();
    assert!(grammar.contains("apply_patch") && !grammar.contains("\\\"shell\\\""), "{grammar}");
    let chat = |mode: &str, names: &[&str]| {
        let tools: Vec<Value> =
            names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
        super::chat(json!({"request_id": "t", "tools": [tool("f"), tool("g")],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}}))
    };
    let (_, grammar) = reached(CHAT, chat("auto", &["g"])).await.unwrap();
    let grammar = grammar.unwrap();
    assert!(grammar.contains("\\\"g\\\"") && !grammar.contains("\\\"f\\\""), "{grammar}");
    assert_eq!(reached(CHAT, chat("auto", &["f", "g"])).await.unwrap().1, None, "all of them is no limit");
    for (mode, names, expected) in [
        ("auto", &["h"][..], "tool_choice allows `h`, which is not among the tools"),
        ("none", &["f"], "tool_choice must be"),
        ("auto", &[], "tool_choice must be"),
    ] {
        let refused = reached(CHAT, chat(mode, names)).await.unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

/// A request with the fields that Claude Code adds.
fn claude_code(extra: Value) -> Value {
    let mut body = message(json!({
        "max_tokens": 32000, "stream": true, "metadata": {"user_id": "user_1_account__session_2"},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.177; cc_entrypoint=cli; cch=00000;"},
            {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "Read", "description": "Reads", "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"file_path": {"type": "string"}},
            "required": ["file_path"], "additionalProperties": false}}],
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}));
    body["max_tokens"] = 40.into();
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn claude_code_is_taken_with_all_its_fields() {
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>r</system-reminder>"}, {"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": ""}, {"type": "tool_use", "id": "c1", "name": "Read", "input": {"file_path": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r1", "is_error": true, "cache_control": {"type": "ephemeral"}}]}]);
    let (prompt, grammar) = reached(MESSAGES, claude_code(json!({"messages": messages}))).await.unwrap();
    let expected = "T:Read;<|system|>You are a coding agent.<|end|><|user|><system-reminder>r</system-reminder>\nq<|end|>\
                    <|assistant|><think>so</think><tool_call>Read{\"file_path\": \"a\"}<|end|><|user|>r1<|end|><|assistant|>";
    assert_eq!((prompt.as_str(), grammar), (expected, None));
    let answer = ask(&app("x", 1).0, MESSAGES, &claude_code(json!({}))).await;
    let ignored = answer.header("x-ignored-params");
    assert!(ignored.contains("context_management.clear_thinking_20251015"), "{ignored}");
    let counted =
        ask(&app("x", 1).0, "/v1/messages/count_tokens", &claude_code(json!({"stream": null}))).await;
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 10, "{}", counted.body);
}

#[tokio::test]
async fn claude_code_gets_the_sentences_that_it_reads() {
    // The prompt has 3 tokens, the model 64.
    let long = ask(&app("x", 1).0, MESSAGES, &message(json!({"max_tokens": 32000}))).await;
    let error = long.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!((long.status, long.json()["error"]["type"].as_str()), (400, Some("invalid_request_error")));
    let (sums, limit) = error.split_once(" > ").expect(&error);
    assert!(sums.starts_with("input length and `max_tokens` exceed context limit: "), "{error}");
    assert!(sums.ends_with(" + 32000") && limit.starts_with(char::is_numeric), "{error}");
    let results = |content: Value| {
        let messages = json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "Read", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": content}]}]);
        claude_code(json!({"messages": messages}))
    };
    let picture =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}});
    let seen = results(json!([{"type": "text", "text": "a"}, picture]));
    let (prompt, _) = reached(MESSAGES, seen).await.unwrap();
    assert!(prompt.contains("a\n[image: this model reads text only]"), "{prompt}");
    let own = json!({"messages": [{"role": "user", "content": [picture]}]});
    let refused = reached(MESSAGES, claude_code(own)).await.unwrap_err();
    assert!(refused.contains("messages.0.content.0.image: this model reads text only."), "{refused}");
    let found = json!([{"type": "tool_reference", "tool_name": "WebFetch"}]);
    let (prompt, _) = reached(MESSAGES, results(found)).await.unwrap();
    assert!(prompt.contains("<|user|>The tool WebFetch is available.<|end|>"), "{prompt}");
}

#[tokio::test]
async fn reasoning_whose_display_is_omitted_has_blocks_without_text() {
    let omitted = |stream: bool| {
        message(json!({"stream": stream, "thinking": {"type": "adaptive", "display": "omitted"}}))
    };
    let content =
        json!([{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": "Well"}]);
    let said = app("<think>Hm</think>Well", 3).0;
    assert_eq!(ask(&said, MESSAGES, &omitted(false)).await.json()["content"], content);
    let streamed = ask(&said, MESSAGES, &omitted(true)).await.body;
    assert!(streamed.contains("\"type\":\"thinking\"") && !streamed.contains("thinking_delta"), "{streamed}");
    assert!(!streamed.contains("Hm"), "{streamed}");
}

#[tokio::test]
async fn a_search_that_no_server_runs_is_refused_and_not_answered_from_memory() {
    let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8});
    let refused = reached(MESSAGES, message(json!({"tools": [search]}))).await.unwrap_err();
    assert!(refused.contains("`web_search_20250305` is a tool that Anthropic's servers run"), "{refused}");
    let beside = json!({"tools": [search, {"name": "Read", "input_schema": {"type": "object"}}]});
    let answer = ask(&app("x", 1).0, MESSAGES, &message(beside)).await;
    assert_eq!((answer.status, answer.header("x-ignored-params")), (200, "tools.web_search_20250305"));
}

#[tokio::test]
async fn codex_goes_on_after_it_has_seen_a_picture() {
    let input = json!([
        {"type": "message", "role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [
            {"type": "input_text", "text": "a.png"}, {"type": "input_image", "image_url": "data:image/png;base64,iVBO"}]}]);
    let (prompt, _) = reached(RESPONSES, json!({"input": input})).await.unwrap();
    assert!(prompt.contains("a.png\n[input_image: this model reads text only]"), "{prompt}");
    let own = json!([{"role": "developer", "content": "d"}, {"role": "developer", "content": "e"},
        {"role": "user", "content": [{"type": "input_text", "text": "q"}, {"type": "input_image", "image_url": "x"}]}]);
    let refused = reached(RESPONSES, json!({"input": own})).await.unwrap_err();
    assert!(
        refused.contains("input[2].content[1] is `input_image`: this model reads text only."),
        "{refused}"
    );
}

#[tokio::test]
async fn errors_have_the_names_of_the_api() {
    let long =
        ask(&app("x", 1).0, RESPONSES, &json!({"input": "q", "max_output_tokens": 32000})).await.json();
    assert_eq!(
        (&long["error"]["param"], &long["error"]["code"]),
        (&json!("max_output_tokens"), &json!("context_length_exceeded"))
    );
    assert!(
        long["error"]["message"].as_str().unwrap().starts_with("max_output_tokens is too large: 32000."),
        "{long}"
    );
    let schema = json!({"type": "json_schema", "name": "s", "strict": true, "schema": {"type": "object", "properties": {"a": {"uniqueItems": true}}}});
    let refused =
        ask(&app("x", 1).0, RESPONSES, &json!({"input": "q", "text": {"format": schema}})).await.json();
    let error = refused["error"]["message"].as_str().unwrap();
    assert!(error.contains("text.format") && !error.contains("response_format"), "{error}");
}

#[tokio::test]
async fn an_effort_that_the_template_does_not_read_is_listed_and_not_refused() {
    for (path, body, name) in [
        (CHAT, chat(json!({"reasoning_effort": "high"})), "reasoning_effort=high"),
        (RESPONSES, json!({"input": "q", "reasoning": {"effort": "low"}}), "reasoning.effort=low"),
        (MESSAGES, message(json!({"output_config": {"effort": "max"}})), "output_config.effort=high"),
    ] {
        let answer = ask(&app("x", 1).0, path, &body).await;
        assert_eq!((answer.status, answer.header("x-ignored-params")), (200, name), "{}", answer.body);
    }
}
