//! Writes the JSON lines of an answer.

use futures::Stream;
use serde_json::{Map, Value, json};
use skein_node::clock::{self, Timestamp};
use skein_text::formats::Piece;
use skein_text::strftime::strftime;

use crate::api::answer::call_arguments::Arguments;
use crate::api::answer::choices::Message;
use crate::api::answer::single::Single;
use crate::refusal::Refusal;
use crate::text::text_stream::{TextFinish, Usage};

/// Which of the two paths a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/api/chat`
    Chat,
    /// `/api/generate`
    Generate,
}

/// Builds the JSON lines of an answer.
pub struct Lines {
    kind: Kind,
    model: String,
    received_at: Timestamp,
    first_at: Option<Timestamp>,
}

impl Lines {
    /// Lines of an answer of `model` to a request that was received at `received_at`.
    pub fn new(kind: Kind, model: String, received_at: Timestamp) -> Self {
        Self { kind, model, received_at, first_at: None }
    }

    /// The lines of a streamed answer. A call is one line, sent when its arguments are complete.
    pub fn all(mut self, mut single: Single) -> impl Stream<Item = Result<Value, Refusal>> + Send {
        async_stream::try_stream! {
            let (mut reason, mut message, mut calls) = ("stop", Message::default(), 0);
            while let Some(part) = single.next().await {
                let part = part?;
                self.first_at.get_or_insert_with(clock::now);
                reason = part.finish.as_ref().map_or(reason, TextFinish::reason);
                for piece in part.pieces {
                    let is_complete = !matches!(piece, Piece::Call { .. } | Piece::Arguments { .. });
                    message.extend(vec![piece]);
                    if is_complete {
                        let message = std::mem::take(&mut message);
                        let had = calls;
                        calls += message.calls.len();
                        yield self.line(shown(message, had, &single, false));
                    }
                }
            }
            yield self.last(reason, shown(message, calls, &single, reason == "length"), single.usage());
        }
    }

    /// The whole answer.
    pub async fn whole(mut self, mut single: Single) -> Result<Value, Refusal> {
        let (mut reason, mut message) = ("stop", Message::default());
        while let Some(part) = single.next().await {
            let part = part?;
            self.first_at.get_or_insert_with(clock::now);
            reason = part.finish.as_ref().map_or(reason, TextFinish::reason);
            message.extend(part.pieces);
        }
        Ok(self.last(reason, shown(message, 0, &single, reason == "length"), single.usage()))
    }

    /// The answer to a request without a prompt.
    pub fn without_prompt(&self, reason: &str) -> Value {
        self.last(reason, empty(), Usage::default())
    }

    fn line(&self, mut message: Map<String, Value>) -> Value {
        let mut line = json!({"model": self.model, "created_at": now()});
        match self.kind {
            Kind::Chat => {
                message.insert("role".to_owned(), "assistant".into());
                line["message"] = message.into();
            }
            Kind::Generate => {
                line["response"] = message.shift_remove("content").unwrap_or_default();
                if let Some(thinking) = message.shift_remove("thinking") {
                    line["thinking"] = thinking;
                }
            }
        }
        line["done"] = false.into();
        line
    }

    /// Last line, with token counts and durations in nanoseconds.
    fn last(&self, reason: &str, message: Map<String, Value>, usage: Usage) -> Value {
        let mut line = self.line(message);
        let end = clock::now();
        let first = self.first_at.unwrap_or(end);
        let nanos =
            |from: Timestamp, to: Timestamp| u64::try_from(to.since(from).as_nanos()).unwrap_or(u64::MAX);
        line["done"] = true.into();
        line["done_reason"] = if reason == "tool_calls" { "stop" } else { reason }.into();
        line["total_duration"] = nanos(self.received_at, end).into();
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanos(self.received_at, first).into();
        line["eval_count"] = usage.completion_tokens.into();
        line["eval_duration"] = nanos(first, end).into();
        line
    }
}

fn empty() -> Map<String, Value> {
    Map::from_iter([("content".to_owned(), Value::from(""))])
}

/// A message in Ollama's form. `had` is the number of calls in earlier lines; `is_cut`: the answer ended at
/// its length.
fn shown(message: Message, had: usize, single: &Single, is_cut: bool) -> Map<String, Value> {
    let Message { mut content, reasoning, calls } = message;
    let mut shown_calls = Vec::new();
    for (at, (name, arguments)) in (had..).zip(calls) {
        match Arguments::of(&name, &arguments, is_cut) {
            Arguments::Object(arguments) => {
                let id = single.call_id(u32::try_from(at).unwrap_or(u32::MAX), &name);
                let function = json!({"index": at, "name": name, "arguments": arguments});
                shown_calls.push(json!({"id": id, "function": function}));
            }
            Arguments::Text(text) => content += &text,
        }
    }
    let mut shown = empty();
    shown["content"] = content.into();
    if !reasoning.is_empty() {
        shown.insert("thinking".to_owned(), reasoning.into());
    }
    if !shown_calls.is_empty() {
        shown.insert("tool_calls".to_owned(), shown_calls.into());
    }
    shown
}

fn now() -> String {
    strftime("%Y-%m-%dT%H:%M:%SZ", clock::unix_time())
}
