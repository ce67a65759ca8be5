//! Splits the choices of a call into reasoning, content and calls as they arrive.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use skein_text::formats::{Ids, Piece, Plan, Splitter};

use crate::metrics::ParserCounts;
use crate::request::TokenRequest;

/// Splitters of all choices of a call.
#[derive(Debug)]
pub struct Choices {
    splitters: Vec<Option<Splitter>>,
    include_reasoning: bool,
    /// `None` if answers are not searched for calls.
    counts: Option<ParserCounts>,
}

impl Choices {
    /// Splitters for `count` choices; without a plan all text is content.
    pub fn new(plan: Option<&Arc<Plan>>, count: usize, include_reasoning: bool) -> Self {
        let splitters = (0..count).map(|_| plan.cloned().map(Splitter::new)).collect();
        Self { splitters, include_reasoning, counts: None }
    }

    /// Counts what is found, if answers are searched for calls by `plan`.
    pub fn counted(self, plan: Option<&Arc<Plan>>, counts: impl FnOnce() -> ParserCounts) -> Self {
        let is_searched = plan.is_some_and(|plan| plan.calls.is_some());
        Self { counts: is_searched.then(counts), ..self }
    }

    /// Feeds text that the client received on an earlier connection and discards its pieces. `control_at`:
    /// where in it control tokens begin.
    pub fn skip(&mut self, choice: usize, text: &str, control_at: &[usize]) {
        if let Some(splitter) = self.splitter(choice) {
            splitter.push(text, control_at);
        }
    }

    /// Pieces in the next text of a choice.
    pub fn push(&mut self, choice: usize, text: String, control_at: &[usize]) -> Vec<Piece> {
        let text_is_empty = text.is_empty();
        let pieces = match self.splitter(choice) {
            Some(splitter) => splitter.push(&text, control_at),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Content(text)],
        };
        if let Some(counts) = self.counts.as_ref().filter(|_| !text_is_empty) {
            counts.part(pieces.iter().any(Piece::is_of_call));
        }
        self.shown(pieces)
    }

    /// Remaining pieces at the end of a choice.
    pub fn finish(&mut self, choice: usize) -> Vec<Piece> {
        let pieces = self.splitter(choice).map(Splitter::finish).unwrap_or_default();
        if let Some(counts) = &self.counts {
            counts.choice(self.has_calls(choice));
        }
        self.shown(pieces)
    }

    /// Whether a choice has had a call so far.
    pub fn has_calls(&self, choice: usize) -> bool {
        self.splitters.get(choice).and_then(Option::as_ref).is_some_and(Splitter::has_calls)
    }

    fn splitter(&mut self, choice: usize) -> Option<&mut Splitter> {
        self.splitters.get_mut(choice).and_then(Option::as_mut)
    }

    fn shown(&self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        if !self.include_reasoning {
            pieces.retain(|piece| !matches!(piece, Piece::Reasoning(_)));
        }
        pieces
    }
}

/// Assigns ids to the calls of a request.
#[derive(Debug, Clone, Default)]
pub struct CallIds {
    ids: Ids,
    stream: Vec<u8>,
}

impl CallIds {
    /// Ids for the calls that `plan` finds in answers to `request`.
    pub fn new(request: &TokenRequest, plan: Option<&Arc<Plan>>) -> Self {
        let ids = plan.map_or(Ids::Long, |plan| plan.ids());
        Self { ids, stream: request.stream_key().to_wire() }
    }

    /// Id of a call.
    pub fn id(&self, sample: usize, index: u32, name: &str) -> String {
        self.ids.id(&self.stream, u32::try_from(sample).unwrap_or(u32::MAX), index, name)
    }
}

/// A complete message.
#[derive(Debug, Default)]
pub struct Message {
    /// Text outside reasoning and calls.
    pub content: String,
    /// Reasoning text, without its markers.
    pub reasoning: String,
    /// Name and arguments of each call.
    pub calls: Vec<(String, String)>,
}

impl Message {
    /// Appends the next pieces.
    pub fn extend(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.content.push_str(&text),
                Piece::Reasoning(text) => self.reasoning.push_str(&text),
                Piece::Call { name, .. } => self.calls.push((name, String::new())),
                Piece::Arguments { json, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&json);
                    }
                }
                Piece::CallEnd { .. } => {}
            }
        }
    }

    /// Whether it has neither reasoning nor calls.
    pub fn is_content(&self) -> bool {
        self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Message object of a chat answer.
    pub fn chat(self, sample: usize, ids: &CallIds) -> Value {
        let content =
            if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { self.content.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reasoning.is_empty() {
            // `reasoning` is vLLM's newer name; most clients read the older one.
            message["reasoning_content"] = self.reasoning.as_str().into();
            message["reasoning"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            let call = |(index, (name, arguments)): (u32, (String, String))| {
                let id = ids.id(sample, index, &name);
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            };
            message["tool_calls"] = (0..).zip(self.calls).map(call).collect();
        }
        message
    }
}

/// `delta` object of a chat chunk.
pub fn chat_delta(pieces: Vec<Piece>, sample: usize, ids: &CallIds) -> Map<String, Value> {
    let mut message = Map::new();
    let mut append = |name: &str, text: &str| match message.get_mut(name) {
        Some(Value::String(all)) => all.push_str(text),
        _ => {
            message.insert(name.to_owned(), text.into());
        }
    };
    let mut calls: Vec<Value> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Content(text) => append("content", &text),
            Piece::Reasoning(text) => {
                append("reasoning_content", &text);
                append("reasoning", &text);
            }
            Piece::Call { index, name } => calls.push(json!({
                "index": index, "id": ids.id(sample, index, &name), "type": "function",
                "function": {"name": name, "arguments": ""},
            })),
            Piece::Arguments { index, json: part } => match calls.last_mut() {
                Some(call) if call["index"] == index => call["function"]["arguments"] = part.into(),
                _ => calls.push(json!({"index": index, "function": {"arguments": part}})),
            },
            Piece::CallEnd { .. } => {}
        }
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    message
}
