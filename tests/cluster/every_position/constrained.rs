//! Fifty constrained answers over HTTP. At each position the worker, the router or both fail; the client goes
//! on at another router with `Last-Event-ID`. What it assembles from the events of both connections equals
//! the undisturbed answer.
//!
//! Every position takes minutes, so a usual run tries each [`STRIDE`]th, and `TEST_EVERY_POSITION=1` all.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Map, Value, json};
use skein_router::app::App;
use skein_router::serve::serve;
use skein_text::model_text::ModelText;
use skein_text::sources::TextSources;
use skein_worker::draft::Speculate;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::{AT_ONCE, Cut, CuttingConnector, MODEL, fresh_id, model, router_config, start_router};
use super::{TIMEOUT, start_worker_of};

/// Distance of the positions that a usual run tries.
const STRIDE: usize = 12;
/// Answers of each kind.
const SEEDS: usize = 5;
/// Thinks if asked to, and has Hermes' calls.
const TEMPLATE: &str = "{{ bos_token }}{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}\
                        {% for message in messages %}{{ message.content }}{% endfor %}\
                        <think>\n{% if not thinks %}</think>\n{% endif %}{# <tool_call> #}";

/// A model directory whose tokenizer has `</think>` as a control token, as that of a model that reasons: the
/// shipped model's with another name for its padding.
fn reasoning_model() -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    for file in std::fs::read_dir(model()).expect("the shipped model").flatten() {
        let text = || std::fs::read_to_string(file.path()).expect("it is text");
        let to = directory.path().join(file.file_name());
        if file.file_name().to_string_lossy().starts_with("tokenizer") {
            std::fs::write(to, text().replace("<|pad|>", "</think>")).expect("it can be written");
        } else if file.path().is_file() {
            std::os::unix::fs::symlink(file.path(), to).expect("it can be linked");
        }
    }
    directory
}

fn chat(seed: usize, fields: Value) -> (&'static str, Value) {
    let asked = json!({"messages": [{"role": "user", "content": format!("def weather(city, {seed}):")}],
        "seed": seed, "temperature": 1.1, "max_tokens": 44, "stream": true,
        "stream_options": {"include_usage": true}, "return_token_ids": true});
    ("/v1/chat/completions", with(asked, fields))
}

fn completion(seed: usize, fields: Value) -> (&'static str, Value) {
    let asked = json!({"prompt": format!("The list of {seed} is"), "seed": seed, "temperature": 1.0,
        "max_tokens": 40, "stream": true, "return_token_ids": true});
    ("/v1/completions", with(asked, fields))
}

fn with(mut asked: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    asked.as_object_mut().expect("it is an object").extend(fields);
    asked
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"mood": {"enum": ["glad", "sad", "so so"]}, "of": {"type": "integer"},
        "why": {"type": "string", "maxLength": 20}}, "required": ["mood", "of"], "additionalProperties": false})
}

fn json_answer() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "mood", "schema": schema()}})
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": false});
    json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}])
}

/// Ten kinds of requests, [`SEEDS`] of each.
fn cases() -> Vec<(String, &'static str, Value)> {
    let penalties = json!({"response_format": json_answer(), "repetition_penalty": 1.3,
        "presence_penalty": 0.7, "logprobs": true, "top_logprobs": 2});
    let tag = json!({"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}],
        "triggers": ["<a"], "type": "structural_tag"});
    let list = "root ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [0-9] [0-9]? | root";
    let kind = |name: &str, request: &dyn Fn(usize) -> (&'static str, Value)| {
        let each = (0..SEEDS).map(|seed| (seed, request(seed)));
        each.map(|(seed, (path, body))| (format!("{name} {seed}"), path, body)).collect::<Vec<_>>()
    };
    [
        kind("schema", &|seed| chat(seed, json!({"response_format": json_answer()}))),
        kind("schema, penalties, log-probabilities", &|seed| chat(seed, penalties.clone())),
        kind("schema, n = 3", &|seed| chat(seed, json!({"response_format": json_answer(), "n": 3}))),
        kind("expression, greedy", &|seed| {
            let regex = format!("[a-z ]{{{},30}}(!|\\?)", 3 + seed);
            completion(seed, json!({"structured_outputs": {"regex": regex}, "temperature": 0}))
        }),
        kind("grammar, min_tokens, n = 2", &|seed| {
            completion(seed, json!({"structured_outputs": {"grammar": list}, "min_tokens": 5, "n": 2}))
        }),
        kind("structural tag", &|seed| {
            let biased = json!({"response_format": tag, "ignore_eos": true, "max_tokens": 32});
            chat(seed, biased)
        }),
        kind("required call", &|seed| chat(seed, json!({"tools": tools(), "tool_choice": "required"}))),
        kind("parallel calls, n = 2", &|seed| {
            chat(seed, json!({"tools": tools(), "tool_choice": "required", "n": 2, "max_tokens": 60}))
        }),
        kind("thinking before a schema", &|seed| {
            let thinks = json!({"thinks": true});
            chat(seed, json!({"response_format": json_answer(), "chat_template_kwargs": thinks}))
        }),
        kind("thinking before a call", &|seed| {
            let thinks = json!({"thinks": true});
            chat(
                seed,
                json!({"tools": tools(), "tool_choice": "required", "chat_template_kwargs": thinks,
                    "max_tokens": 80}),
            )
        }),
    ]
    .concat()
}

/// What a client assembles of one choice.
#[derive(Debug, Default, Clone, PartialEq)]
struct Choice {
    content: String,
    reasoning: String,
    /// Name and arguments of each call by its index.
    calls: BTreeMap<u64, (String, String)>,
    token_ids: Vec<u64>,
    /// As JSON text, so that equality is bit equality.
    logprobs: String,
    finish: Option<String>,
}

/// What a client assembles of the events of one or two connections.
#[derive(Debug, Default, Clone, PartialEq)]
struct Heard {
    choices: BTreeMap<u64, Choice>,
    usage: Option<Value>,
    is_done: bool,
}

impl Heard {
    fn take(&mut self, data: &str) {
        assert!(!self.is_done, "{data} after [DONE]");
        if data == "[DONE]" {
            self.is_done = true;
            return;
        }
        let event: Value = serde_json::from_str(data).expect("an event is JSON");
        assert!(event.get("error").is_none(), "{event}");
        if let Some(usage) = event["usage"].as_object() {
            // How much of the prompt was cached depends on the worker.
            let counts = usage.iter().filter(|(name, _)| *name != "prompt_tokens_details");
            self.usage = Some(counts.map(|(name, count)| (name.clone(), count.clone())).collect());
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            self.choices.entry(choice["index"].as_u64().expect("an index")).or_default().take(choice);
        }
    }
}

impl Choice {
    fn take(&mut self, choice: &Value) {
        assert_eq!(self.finish, None, "{choice} after the end");
        let delta = choice.get("delta").unwrap_or(choice);
        let text = |name: &str| delta[name].as_str().unwrap_or_default();
        self.content += text("content");
        self.content += text("text");
        self.reasoning += text("reasoning_content");
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index");
            if let Some(name) = call["function"]["name"].as_str() {
                let begun = self.calls.insert(index, (name.to_owned(), String::new()));
                assert_eq!(begun, None, "a call begins once");
            }
            let (_, arguments) = self.calls.get_mut(&index).expect("the call has begun");
            *arguments += call["function"]["arguments"].as_str().unwrap_or_default();
        }
        self.token_ids.extend(choice["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64));
        for token in choice["logprobs"]["content"].as_array().into_iter().flatten() {
            write!(self.logprobs, "{token}").expect("a string takes it");
        }
        self.finish = choice["finish_reason"].as_str().map(str::to_owned);
    }
}

/// A router with the HTTP API in this process.
struct HttpRouter {
    url: String,
    connector: CuttingConnector,
    served: AbortHandle,
}

impl HttpRouter {
    async fn start(text: &Arc<ModelText>, workers: &[SocketAddr], connector: CuttingConnector) -> Self {
        let cluster = start_router(workers, connector.clone()).await;
        let app = App::new(text.clone(), Arc::new(cluster), router_config());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        let served = tokio::spawn(serve(listener, app, std::future::pending())).abort_handle();
        Self { url, connector, served }
    }

    /// As `kill -9` does, as far as clients and workers can tell.
    fn kill(&self) {
        self.connector.sever();
        self.served.abort();
    }
}

impl Drop for HttpRouter {
    fn drop(&mut self) {
        self.served.abort();
    }
}

/// A client of one answer, over as many connections as it takes.
struct Client<'a> {
    path: &'a str,
    body: Value,
    heard: Heard,
    events: usize,
    last_event_id: Option<String>,
}

impl<'a> Client<'a> {
    fn of(path: &'a str, body: &Value) -> Self {
        let body = with(body.clone(), json!({"request_id": fresh_id()}));
        Self { path, body, heard: Heard::default(), events: 0, last_event_id: None }
    }

    /// Reads until the end, or until `most` events have arrived over all connections.
    async fn read(&mut self, router: &HttpRouter, most: usize) {
        let mut request =
            reqwest::Client::new().post(format!("{}{}", router.url, self.path)).json(&self.body);
        if let Some(id) = &self.last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = request.send().await.expect("the router answers");
        let status = response.status();
        assert!(status.is_success(), "{status}: {}", response.text().await.unwrap_or_default());
        let (mut bytes, mut pending) = (response.bytes_stream(), Vec::new());
        while let Some(more) = bytes.next().await {
            pending.extend_from_slice(&more.expect("the connection lasts"));
            while let Some(end) = pending.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = pending.drain(..end + 2).collect();
                self.take(std::str::from_utf8(&event).expect("an event is text"));
                if self.events == most {
                    return;
                }
            }
        }
    }

    fn take(&mut self, event: &str) {
        for line in event.lines() {
            if let Some(data) = line.strip_prefix("data: ") {
                self.events += 1;
                self.heard.take(data);
            } else if let Some(id) = line.strip_prefix("id:") {
                self.last_event_id = Some(id.trim().to_owned());
            }
        }
    }
}

/// The process that is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fails {
    Worker,
    Router,
    Both,
}

struct Scene {
    workers: [SocketAddr; 2],
    text: Arc<ModelText>,
}

impl Scene {
    /// Only one of the workers speculates.
    async fn start(directory: &Path) -> Self {
        let sources = TextSources { chat_template: Some(TEMPLATE.to_owned()), ..TextSources::default() };
        let text = ModelText::load_with(directory, &[MODEL.to_owned()], &sources).expect("it loads");
        let workers = [
            start_worker_of(directory, Speculate::Auto).await,
            start_worker_of(directory, Speculate::Off).await,
        ];
        Self { workers, text: Arc::new(text) }
    }

    /// The answer when `fails` fails after `position` units or events; without it, undisturbed.
    async fn answer(&self, path: &str, body: &Value, fault: Option<(Fails, usize)>) -> (Heard, usize) {
        let mut client = Client::of(path, body);
        let cut = match fault {
            Some((Fails::Worker, after)) => Some((Cut::Kill, after)),
            _ => None,
        };
        let router = HttpRouter::start(&self.text, &self.workers, CuttingConnector::new(cut)).await;
        let Some((fails @ (Fails::Router | Fails::Both), events)) = fault else {
            client.read(&router, usize::MAX).await;
            return (client.heard, client.events);
        };
        let connector = router.connector.of_another_router();
        let other = HttpRouter::start(&self.text, &self.workers, connector).await;
        client.read(&router, events).await;
        router.kill();
        if fails == Fails::Both {
            router.connector.kill_the_worker_asked_last();
        }
        if !client.heard.is_done {
            client.read(&other, usize::MAX).await;
        }
        (client.heard, client.events)
    }
}

fn units(heard: &Heard) -> usize {
    heard.choices.values().map(|choice| choice.token_ids.len() + 1).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_constrained_answers_survive_worker_router_and_both_at_any_position() {
    let stride = if std::env::var_os("TEST_EVERY_POSITION").is_some() { 1 } else { STRIDE };
    let directory = reasoning_model();
    let scene = Scene::start(directory.path()).await;
    let mut seen: Map<String, Value> = Map::new();
    let (mut runs, mut answers) = (0, 0);
    for (at, (name, path, body)) in cases().into_iter().enumerate() {
        let (undisturbed, events) = scene.answer(path, &body, None).await;
        assert!(undisturbed.is_done, "{name}: {undisturbed:?}");
        seen.insert(name.clone(), format!("{undisturbed:?}").into());
        let faults = [(Fails::Worker, units(&undisturbed)), (Fails::Router, events), (Fails::Both, events)];
        // A worker can fail before its first unit; a client has an event before it can lose its router.
        let places = faults.iter().flat_map(|&(fails, end)| {
            let first = if fails == Fails::Worker { 0 } else { 1 };
            (first + at % stride..end).step_by(stride).map(move |place| (fails, place))
        });
        let each = places.map(|fault| {
            let (scene, undisturbed, name, body) = (&scene, &undisturbed, &name, &body);
            async move {
                let answer = tokio::time::timeout(TIMEOUT, scene.answer(path, body, Some(fault))).await;
                let (heard, _) =
                    answer.unwrap_or_else(|_| panic!("{name}, {fault:?}: no end in {TIMEOUT:?}"));
                assert_eq!(&heard, undisturbed, "{name}, {fault:?}");
            }
        });
        runs += futures::stream::iter(each).buffer_unordered(AT_ONCE).count().await;
        answers += 1;
    }
    assert_eq!(answers, 50);
    let has = |name: &str, part: &str| {
        seen.iter().any(|(case, heard)| case.starts_with(name) && heard.to_string().contains(part))
    };
    assert!(has("thinking before a schema", "mood"), "no answer after thinking: {seen:#?}");
    assert!(has("required call", "calls: {0"), "no call: {seen:#?}");
    assert!(has("thinking before a call", "calls: {0"), "no call after thinking: {seen:#?}");
    println!("{answers} answers, {runs} runs with a fault");
}
