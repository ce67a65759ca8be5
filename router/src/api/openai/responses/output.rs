//! Items of an answer and the stream events that build them. Both come from the same state, so the events add
//! up to the whole answer.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use skein_node::clock;
use skein_text::formats::Piece;
use skein_text::token_bytes::TokenBytes;

use super::ids::PREFIX;
use super::keep::Keep;
use super::tools::{Face, Faces, input_of};
use crate::api::answer::logprobs::{self, Names};
use crate::api::answer::response_id::response_id;
use crate::api::answer::single::output::Output;
use crate::api::answer::single::{Part, Single};
use crate::api::http::sse::NamedEvent;
use crate::api::openai::error::error_object;
use crate::metrics::ParsedApi;
use crate::refusal::Refusal;
use crate::text::text_stream::{TextFinish, Usage};

/// An answer in progress.
pub struct Items {
    id: String,
    model: String,
    /// Seconds since 1970.
    pub created_at: u64,
    standing: Standing,
    /// Where the answer goes when it has ended.
    pub keep: Option<Keep>,
    echo: Map<String, Value>,
    faces: Faces,
    /// Names the tokens of log-probabilities; `None` = there are none.
    tokens: Option<Arc<TokenBytes>>,
    /// Log-probabilities of tokens whose text has not come yet.
    scores: Vec<Value>,
    /// Completed output items.
    items: Vec<Value>,
    open: Option<Item>,
    finish: Option<TextFinish>,
    sequence: u64,
}

/// How an answer stands to those that are stored.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// Whether it is stored, too.
    pub is_stored: bool,
    /// Id of the one that it continues.
    pub previous: Option<String>,
    /// Whether the client comes back for it.
    pub is_background: bool,
}

/// Output item under construction.
struct Item {
    kind: Kind,
    id: String,
    text: String,
    /// Log-probabilities of the text's tokens, if requested.
    scores: Vec<Value>,
    call_id: String,
    /// The function's name as the client knows it.
    name: String,
    namespace: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Message,
    Reasoning,
    Call,
    /// A call of a free-text tool. It is sent whole, because its text is known only when its JSON is
    /// complete.
    Custom,
}

impl Item {
    fn new(kind: Kind) -> Self {
        let (id, text, call_id, name) = Default::default();
        Self { kind, id, text, scores: Vec::new(), call_id, name, namespace: None }
    }

    fn value(&self, status: &str) -> Value {
        let Self { id, text, call_id, name, .. } = self;
        match self.kind {
            Kind::Message => {
                let content = if status == "in_progress" { json!([]) } else { json!([self.part()]) };
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Kind::Reasoning => {
                let content = if status == "in_progress" { json!([]) } else { json!([self.part()]) };
                json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
            }
            Kind::Call => {
                let mut call = json!({
                    "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                    "arguments": text,
                });
                if let Some(namespace) = &self.namespace {
                    call["namespace"] = namespace.as_str().into();
                }
                call
            }
            Kind::Custom => json!({
                "id": id, "type": "custom_tool_call", "status": status, "call_id": call_id, "name": name,
                "input": input_of(text),
            }),
        }
    }

    /// Whether the item has parts with start and end events.
    fn has_parts(&self) -> bool {
        matches!(self.kind, Kind::Message | Kind::Reasoning)
    }

    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
            _ => {
                json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.scores})
            }
        }
    }
}

impl Items {
    /// Answer to the request `id`.
    pub fn new(
        id: &str,
        model: &str,
        standing: Standing,
        echo: Map<String, Value>,
        faces: Faces,
        tokens: Option<Arc<TokenBytes>>,
    ) -> Self {
        Self {
            tokens,
            scores: Vec::new(),
            id: response_id(PREFIX, id),
            model: model.to_owned(),
            created_at: clock::unix_time().as_secs(),
            standing,
            keep: None,
            echo,
            faces,
            items: Vec::new(),
            open: None,
            finish: None,
            sequence: 0,
        }
    }

    /// Id of the answer.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The answer before it is begun.
    pub fn queued(&self) -> Value {
        self.object("queued", Value::Null)
    }

    /// The answer while it is made.
    pub fn in_progress(&self) -> Value {
        self.object("in_progress", Value::Null)
    }

    fn failed_object(&self, refusal: &Refusal, usage: Usage) -> Value {
        let mut response = self.object("failed", usage_object(usage));
        let error = error_object(refusal);
        response["error"] = json!({"code": "server_error", "message": error["error"]["message"]});
        response
    }

    fn object(&self, status: &str, usage: Value) -> Value {
        let mut object = Map::new();
        let fixed = json!({
            "id": self.id, "object": "response", "created_at": self.created_at, "status": status,
            "error": null, "incomplete_details": null, "model": self.model, "output": self.items,
            "previous_response_id": self.standing.previous, "store": self.standing.is_stored,
            "background": self.standing.is_background, "truncation": "disabled", "usage": usage,
        });
        object.extend(fixed.as_object().cloned().unwrap_or_default());
        object.extend(self.echo.clone());
        object.into()
    }

    fn open_call(&mut self, call_id: String, name: String, events: &mut Vec<NamedEvent>) {
        let (kind, name, namespace) = match self.faces.get(&name).cloned() {
            None => (Kind::Call, name, None),
            Some(Face::Custom) => (Kind::Custom, name, None),
            Some(Face::Within { namespace, name }) => (Kind::Call, name, Some(namespace)),
        };
        self.open(Item { call_id, name, namespace, ..Item::new(kind) }, events);
    }

    fn grow_call(&mut self, json: &str, events: &mut Vec<NamedEvent>) {
        match &mut self.open {
            Some(item) if item.kind == Kind::Custom => item.text.push_str(json),
            _ => self.grow(Kind::Call, json, events),
        }
    }

    fn grow(&mut self, kind: Kind, text: &str, events: &mut Vec<NamedEvent>) {
        if self.open.as_ref().is_none_or(|item| item.kind != kind) {
            self.open(Item::new(kind), events);
        }
        let output_index = self.items.len();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let id = item.id.clone();
        let mut body = json!({"item_id": id, "output_index": output_index, "delta": text});
        let kind = match kind {
            Kind::Call | Kind::Custom => "response.function_call_arguments.delta",
            Kind::Message => {
                let scores = std::mem::take(&mut self.scores);
                body["content_index"] = 0.into();
                body["logprobs"] = scores.clone().into();
                item.scores.extend(scores);
                "response.output_text.delta"
            }
            Kind::Reasoning => {
                body["content_index"] = 0.into();
                "response.reasoning_text.delta"
            }
        };
        events.push(self.event(kind, body));
    }

    /// Begins an item and assigns its id.
    fn open(&mut self, mut item: Item, events: &mut Vec<NamedEvent>) {
        self.close("completed", events);
        let output_index = self.items.len();
        let prefix = match item.kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::Call => "fc",
            Kind::Custom => "ctc",
        };
        item.id = format!("{prefix}_{}_{output_index}", self.id.trim_start_matches(PREFIX));
        let body = json!({"output_index": output_index, "item": item.value("in_progress")});
        events.push(self.event("response.output_item.added", body));
        if item.has_parts() {
            let body = json!({
                "item_id": item.id, "output_index": output_index, "content_index": 0, "part": item.part(),
            });
            events.push(self.event("response.content_part.added", body));
        }
        self.open = Some(item);
    }

    fn close(&mut self, status: &str, events: &mut Vec<NamedEvent>) {
        let Some(item) = self.open.take() else { return };
        let output_index = self.items.len();
        for (kind, more) in last_events(&item) {
            let mut body = json!({"item_id": item.id, "output_index": output_index});
            if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
                body.extend(more);
            }
            events.push(self.event(kind, body));
        }
        let value = item.value(status);
        self.items.push(value.clone());
        let body = json!({"output_index": output_index, "item": value});
        events.push(self.event("response.output_item.done", body));
    }

    fn event(&mut self, kind: &'static str, body: Value) -> NamedEvent {
        let mut object = Map::from_iter([
            ("type".to_owned(), kind.into()),
            ("sequence_number".to_owned(), self.sequence.into()),
        ]);
        self.sequence += 1;
        if let Value::Object(body) = body {
            object.extend(body);
        }
        NamedEvent { event: kind, object: object.into() }
    }
}

impl Output for Items {
    const API: ParsedApi = ParsedApi::Responses;

    fn begin(&mut self, _: Usage) -> Vec<NamedEvent> {
        let response = self.in_progress();
        ["response.created", "response.in_progress"]
            .into_iter()
            .map(|kind| self.event(kind, json!({"response": response})))
            .collect()
    }

    fn take(&mut self, part: Part, single: &Single) -> Vec<NamedEvent> {
        let mut events = Vec::new();
        if let Some(bytes) = &self.tokens {
            let names = Names { bytes, as_ids: false };
            self.scores.extend(logprobs::list(names, &part.logprobs));
        }
        for piece in part.pieces {
            if !matches!(piece, Piece::Content(_)) {
                // Those of reasoning and calls have no place in the answer.
                self.scores.clear();
            }
            match piece {
                Piece::Content(text) => self.grow(Kind::Message, &text, &mut events),
                Piece::Reasoning(text) => self.grow(Kind::Reasoning, &text, &mut events),
                Piece::Arguments { json, .. } => self.grow_call(&json, &mut events),
                Piece::Call { index, name } => {
                    let call_id = single.call_id(index, &name);
                    self.open_call(call_id, name, &mut events);
                }
                Piece::CallEnd { .. } => self.close("completed", &mut events),
            }
        }
        if let Some(finish) = part.finish {
            let status = if is_cut(&finish) { "incomplete" } else { "completed" };
            self.close(status, &mut events);
            self.finish = Some(finish);
        }
        events
    }

    async fn settle(&mut self, usage: Usage, failure: Option<&Refusal>) {
        let Some(keep) = self.keep.take() else { return };
        let answer = match failure {
            None => self.whole(usage),
            Some(refusal) => self.failed_object(refusal, usage),
        };
        self.standing.is_stored = keep.add(&answer).await;
    }

    fn end(&mut self, usage: Usage) -> Vec<NamedEvent> {
        let response = self.whole(usage);
        let kind =
            if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        vec![self.event(kind, json!({"response": response}))]
    }

    fn failed(&mut self, refusal: &Refusal, usage: Usage) -> NamedEvent {
        let response = self.failed_object(refusal, usage);
        self.event("response.failed", json!({"response": response}))
    }

    fn whole(&self, usage: Usage) -> Value {
        let cut = self.finish.as_ref().filter(|finish| is_cut(finish));
        let status = if cut.is_some() { "incomplete" } else { "completed" };
        let mut response = self.object(status, usage_object(usage));
        if let Some(finish) = cut {
            let reason = if *finish == TextFinish::Abort { "abort" } else { "max_output_tokens" };
            response["incomplete_details"] = json!({"reason": reason});
        }
        response
    }
}

/// Whether an answer with this end is incomplete.
fn is_cut(finish: &TextFinish) -> bool {
    !matches!(finish, TextFinish::Stop(_))
}

/// The events that end an item's content, without its index.
fn last_events(item: &Item) -> Vec<(&'static str, Value)> {
    let text = &item.text;
    let part = || ("response.content_part.done", json!({"content_index": 0, "part": item.part()}));
    match item.kind {
        Kind::Call => {
            vec![("response.function_call_arguments.done", json!({"name": item.name, "arguments": text}))]
        }
        Kind::Custom => {
            let input = input_of(text);
            vec![
                ("response.custom_tool_call_input.delta", json!({"delta": input})),
                ("response.custom_tool_call_input.done", json!({"input": input})),
            ]
        }
        Kind::Message => {
            let done = json!({"content_index": 0, "text": text, "logprobs": item.scores});
            vec![("response.output_text.done", done), part()]
        }
        Kind::Reasoning => {
            vec![("response.reasoning_text.done", json!({"content_index": 0, "text": text})), part()]
        }
    }
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens.unwrap_or(0)},
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    })
}
