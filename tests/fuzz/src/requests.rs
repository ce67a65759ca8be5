//! What clients send to a router: bodies of every API over HTTP, heads, and messages over gRPC.

use std::cell::LazyCell;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use http::{Request, Response};
use http_body_util::BodyExt;
use prost::Message;
use serde_json::json;
use skein_proto::inference::infer_parameter::ParameterChoice;
use skein_proto::inference::model_infer_request::InferInputTensor;
use skein_proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use skein_proto::worker::v1 as wire;
use skein_router::batch::input::Item;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

use crate::input::{choice, directory, join, parts};
use crate::target::Target;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "bodies",
            about: "bodies of OpenAI's, Anthropic's, Ollama's, KServe's and our own API",
            run: bodies,
            seeds: body_seeds,
            replays: 60,
        },
        Target {
            name: "heads",
            about: "a path with its query and headers, event ids among them",
            run: heads,
            seeds: head_seeds,
            replays: 100,
        },
        Target {
            name: "grpc",
            about: "messages of every gRPC service of a router, some compressed",
            run: grpc,
            seeds: grpc_seeds,
            replays: 100,
        },
        Target {
            name: "batch_line",
            about: "a line of a batch's input",
            run: batch_line,
            seeds: batch_seeds,
            replays: 1000,
        },
    ]
}

/// Longest wait for an answer; every body here is answered at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Most parts of an answer that are read: some calls watch for ever.
const MAX_FRAMES: usize = 64;

struct Served {
    runtime: Runtime,
    routes: Router,
}

thread_local! {
    static SERVED: LazyCell<Served> = LazyCell::new(|| {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let batches = directory().keep();
        let routes = runtime.block_on(async { skein_router::fuzzing::routes(&batches) });
        Served { runtime, routes }
    });
}

/// The status of an answer, and of what it says at the end.
fn ask(request: Request<Body>) -> (u16, Option<String>) {
    SERVED.with(|served| {
        served.runtime.block_on(async {
            let answered = async {
                let response: Response<_> = served.routes.clone().oneshot(request).await.expect("infallible");
                let (head, mut body) = response.into_parts();
                let mut grpc = head.headers.get("grpc-status").cloned();
                for _ in 0..MAX_FRAMES {
                    let next = tokio::time::timeout(Duration::from_millis(200), body.frame()).await;
                    let Ok(Some(Ok(frame))) = next else { break };
                    grpc = frame
                        .trailers_ref()
                        .and_then(|trailers| trailers.get("grpc-status").cloned())
                        .or(grpc);
                }
                (head.status.as_u16(), grpc.and_then(|status| status.to_str().ok().map(str::to_owned)))
            };
            tokio::time::timeout(ANSWER_TIMEOUT, answered).await.expect("an answer in time")
        })
    })
}

/// Paths that take a body. Those that another process would carry out are not here.
const PATHS: [&str; 15] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/tokenize",
    "/detokenize",
    "/v2/models/test/infer",
    "/v2/models/test/generate",
    "/v2/models/test/generate_stream",
    "/v2/repository/index",
    "/v1/batches",
];

/// The first byte is the path. A refusal is a status below 500.
fn bodies(data: &[u8]) {
    let Some((path, body)) = choice(data) else { return };
    let path = PATHS[path % PATHS.len()];
    let mut request = Request::post(path).header("content-type", "application/json");
    if path.starts_with("/v2/") {
        // Where JSON ends and tensors in binary begin.
        let json = body.windows(2).position(|window| window == b"}\n").map_or(body.len(), |at| at + 1);
        request = request.header("inference-header-content-length", json);
    }
    let (status, _) = ask(request.body(Body::from(Bytes::copy_from_slice(body))).expect("a request"));
    assert!(status < 500, "{path}: {status}");
}

fn body_seeds() -> Vec<Vec<u8>> {
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]});
    let tool = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": "{\"a\": \"x\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]}]);
    let chat = json!({"messages": messages, "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": false, "stream": true, "n": 2, "max_tokens": 9, "seed": 3, "stop": ["x", "y"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}, "logprobs": true, "top_logprobs": 2,
        "chat_template_kwargs": {"k": [1]}, "stream_options": {"include_usage": true}, "reasoning_effort": "low"});
    let completion = json!({"prompt": ["a", [5, 6]], "structured_outputs": {"regex": "[a-c]+"}, "logprobs": 2, "max_tokens": 5, "echo": true,
        "logit_bias": {"5": 1}, "temperature": 0.5, "bad_words": ["b"], "allowed_token_ids": [5], "truncate_prompt_tokens": 8,
        "guided_grammar": null, "prompt_logprobs": 1, "cache_salt": "s", "priority": 1, "request_id": "r", "min_tokens": 1});
    let responses = json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}, {"type": "reasoning", "summary": []},
        {"type": "function_call_output", "call_id": "c", "output": "r"}], "tools": [{"type": "function", "name": "f", "parameters": schema},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}, "stream": true, "instructions": "i"});
    let anthropic = json!({"model": "test", "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]}],
        "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}, "thinking": {"type": "enabled"}, "stream": true});
    let ollama = json!({"model": "test", "messages": messages, "format": schema, "options": {"num_predict": 5, "temperature": 0, "stop": ["x"]},
        "tools": [tool], "think": true, "keep_alive": "5m"});
    let generate = json!({"model": "test", "prompt": "p", "system": "s", "raw": false, "format": "json", "context": [5], "options": {"seed": 1}});
    let tensor = json!({"id": "i", "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["q"]},
        {"name": "stream", "shape": [1], "datatype": "BOOL", "data": [false]}, {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [5]}],
        "parameters": {"temperature": 0.5}, "outputs": [{"name": "text_output", "parameters": {"binary_data": true}}]});
    let binary = "{\"inputs\":[{\"name\":\"text_input\",\"shape\":[1],\"datatype\":\"BYTES\",\"parameters\":{\"binary_data_size\":5}}]}\n\u{1}\0\0\0q";
    let flat = json!({"text_input": "q", "parameters": {"max_tokens": 5, "stop": "x"}, "stream": false});
    let batch = json!({"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"a": "b"}});
    let bodies = [
        (0, chat.to_string()),
        (1, completion.to_string()),
        (2, responses.to_string()),
        (3, anthropic.to_string()),
        (4, anthropic.to_string()),
        (5, ollama.to_string()),
        (6, generate.to_string()),
        (7, json!({"model": "test", "verbose": true}).to_string()),
        (
            8,
            json!({"messages": messages, "add_generation_prompt": true, "return_token_strs": true})
                .to_string(),
        ),
        (9, json!({"tokens": [5, 6, 0]}).to_string()),
        (10, tensor.to_string()),
        (10, binary.to_owned()),
        (11, flat.to_string()),
        (12, flat.to_string()),
        (13, json!({"ready": true}).to_string()),
        (14, batch.to_string()),
    ];
    bodies.into_iter().map(|(path, body)| [&[path][..], body.as_bytes()].concat()).collect()
}

/// The first part is `METHOD PATH`, the others are `header: value`, the last is the body.
fn heads(data: &[u8]) {
    if let Ok(id) = std::str::from_utf8(data)
        && let Ok((request, progress)) = skein_router::fuzzing::Progress::parse(id)
    {
        assert_eq!(progress.event_id(&request).as_deref(), Some(id));
    }
    let mut parts = parts(data);
    let body =
        if parts.len() > 1 { parts.pop().unwrap_or_default() } else { b"{\"prompt\":\"a\",\"stream\":true}" };
    let line = String::from_utf8_lossy(parts[0]);
    let (method, path) = line.split_once(' ').unwrap_or(("POST", &line));
    let mut request = Request::builder().method(method).uri(path);
    for header in &parts[1..] {
        let at = header.iter().position(|byte| *byte == b':').unwrap_or(header.len());
        request = request.header(&header[..at], header[at..].strip_prefix(b": ").unwrap_or_default());
    }
    let Ok(request) = request.body(Body::from(Bytes::copy_from_slice(body))) else { return };
    let path = request.uri().path().to_owned();
    let (status, _) = ask(request);
    assert!(status < 500, "{path}: {status}");
}

fn head_seeds() -> Vec<Vec<u8>> {
    let body = r#"{"prompt":"a","stream":true,"request_id":"mine"}"#;
    let version = "@00c0ffee00c0ffee";
    vec![
        join(&["POST /v1/completions", "content-type: application/json", "last-event-id: mine/2.5", body]),
        join(&[
            "POST /v1/completions",
            "content-type: application/json",
            &format!("last-event-id: mine/12.57f,9.40{version}"),
            body,
        ]),
        format!("mine/12.57f,9.40{version}+").into_bytes(),
        join(&["GET /v1/files?limit=3&after=file-1&order=desc&purpose=batch", "authorization: Bearer k", ""]),
        join(&["GET /v1/batches?limit=100&after=batch_1", "accept: text/html", ""]),
        join(&[
            "GET /v1/models/te%73t",
            "x-request-id: r",
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "",
        ]),
        join(&["GET /metrics", "accept: application/openmetrics-text; version=1.0.0", ""]),
        join(&[
            "POST /v1/files",
            "content-type: multipart/form-data; boundary=b",
            "--b\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{}\r\n--b--\r\n",
        ]),
        join(&[
            "POST /v2/models/test/versions/1/infer",
            "inference-header-content-length: 9",
            "content-encoding: gzip",
            "{}",
        ]),
        join(&["OPTIONS /v1/completions", "origin: http://x", "access-control-request-method: POST", ""]),
        join(&[
            "POST /v1/chat/completions",
            "content-type: application/json; charset=utf-8",
            "x-skein-receipt: true",
            "idempotency-key: k",
            r#"{"messages":[]}"#,
        ]),
    ]
}

/// Methods of gRPC. Those of adapters are not here: the model of this target has none.
const METHODS: [&str; 16] = [
    "/skein.v1.Inference/Generate",
    "/skein.v1.Inference/Tokenize",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
    "/inference.GRPCInferenceService/ModelMetadata",
    "/inference.GRPCInferenceService/ModelConfig",
    "/inference.GRPCInferenceService/RepositoryIndex",
    "/inference.GRPCInferenceService/RepositoryModelLoad",
    "/inference.GRPCInferenceService/RepositoryModelUnload",
    "/skein.worker.v1.Worker/Generate",
    "/skein.worker.v1.Worker/Attach",
    "/skein.worker.v1.Worker/Abort",
    "/skein.worker.v1.Worker/Release",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
    "/grpc.health.v1.Health/Check",
];

/// The first byte is the method, the second says whether the messages are compressed; parts are messages.
fn grpc(data: &[u8]) {
    let Some((method, rest)) = choice(data) else { return };
    let Some((compressed, messages)) = choice(rest) else { return };
    let compressed = compressed & 1;
    let mut body = Vec::new();
    for message in parts(messages) {
        body.push(compressed as u8);
        body.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend_from_slice(message);
    }
    let path = METHODS[method % METHODS.len()];
    let mut request = Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    if compressed == 1 {
        request = request.header("grpc-encoding", "gzip");
    }
    let (status, grpc) = ask(request.body(Body::from(body)).expect("a request"));
    // UNKNOWN and INTERNAL are faults of ours; tonic answers INTERNAL to a stream with bytes that are no
    // message.
    let is_stream = path.ends_with("ModelStreamInfer") || path.ends_with("Info") || path.ends_with("Process");
    let is_fault = matches!(grpc.as_deref(), Some("2")) || (grpc.as_deref() == Some("13") && !is_stream);
    assert!(status == 200 && !is_fault, "{path}: {status} {grpc:?}");
}

fn grpc_seeds() -> Vec<Vec<u8>> {
    let seed = |method: u8, messages: &[Vec<u8>]| [&[method, 0][..], &join(messages)].concat();
    let bytes = |name: &str, text: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: "BYTES".to_owned(),
        shape: vec![1],
        contents: Some(InferTensorContents {
            bytes_contents: vec![text.as_bytes().to_vec().into()],
            ..InferTensorContents::default()
        }),
        ..InferInputTensor::default()
    };
    let parameter = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(5)) };
    let infer = ModelInferRequest {
        model_name: "test".to_owned(),
        id: "i".to_owned(),
        inputs: vec![bytes("text_input", "q"), bytes("sampling_parameters", "{\"max_tokens\": 3}")],
        parameters: [("max_tokens".to_owned(), parameter)].into(),
        ..ModelInferRequest::default()
    };
    let generate = crate::wire::generate_request();
    let attach = wire::AttachRequest {
        request_id: "r".to_owned(),
        stream_key: vec![7; 16],
        samples: vec![wire::SamplePosition { index: 0, from_position: 3 }],
        ..wire::AttachRequest::default()
    };
    let text = |tag: u8, text: &str| [&[tag << 3 | 2, text.len() as u8][..], text.as_bytes()].concat();
    vec![
        seed(0, &[text(1, "test"), text(2, "q")]),
        seed(1, &[[text(1, "test"), text(2, "q")].concat()]),
        seed(2, &[infer.encode_to_vec()]),
        seed(3, &[infer.encode_to_vec(), infer.encode_to_vec()]),
        seed(4, &[text(1, "test")]),
        seed(7, &[generate.encode_to_vec()]),
        seed(8, &[attach.encode_to_vec()]),
        seed(11, &[text(7, ""), text(4, "skein.v1.Inference")]),
        seed(12, &[text(2, ""), text(3, "{\"prompt\": \"a\"}")]),
        seed(13, &[Vec::new()]),
        [&[2, 1][..], &gzipped_nothing()].concat(),
    ]
}

/// An empty message, compressed.
fn gzipped_nothing() -> Vec<u8> {
    vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

fn batch_line(data: &[u8]) {
    if let Ok(item) = Item::parse(data) {
        assert!(!item.custom_id.is_empty() && item.key().len() == 42);
        assert!(item.call.is_ok_and(|call| call.body.is_object()) || item.digest != 0);
    }
}

fn batch_seeds() -> Vec<Vec<u8>> {
    vec![br#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[]}}"#.to_vec()]
}
