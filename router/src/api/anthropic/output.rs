//! Blocks of an answer and the stream events that build them. Both come from the same state, so the events
//! add up to the whole answer.

use serde_json::{Value, json};
use skein_text::formats::Piece;

use super::error::error_object;
use crate::api::answer::call_arguments::Arguments;
use crate::api::answer::response_id::response_id;
use crate::api::answer::single::output::Output;
use crate::api::answer::single::{Part, Single};
use crate::api::http::sse::NamedEvent;
use crate::refusal::Refusal;
use crate::text::text_stream::{StopCause, TextFinish, Usage};

/// An answer in progress.
pub struct Message {
    id: String,
    model: String,
    /// Completed content blocks.
    blocks: Vec<Value>,
    open: Option<Block>,
    finish: Option<TextFinish>,
    /// Whether blocks of reasoning have no text.
    omits_thinking: bool,
}

/// Content block under construction.
struct Block {
    kind: Kind,
    text: String,
    id: String,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

impl Block {
    /// The block, of which no more comes; `is_cut`: the answer ended at its length.
    fn value(&self, is_cut: bool) -> Value {
        match self.kind {
            Kind::Text => json!({"type": "text", "text": self.text}),
            Kind::Thinking => json!({"type": "thinking", "thinking": self.text, "signature": ""}),
            Kind::Call => match Arguments::of(&self.name, &self.text, is_cut) {
                Arguments::Object(input) => {
                    json!({"type": "tool_use", "id": self.id, "name": self.name, "input": input})
                }
                // Clients see by `stop_reason` that the call is not whole.
                Arguments::Text(_) if is_cut => {
                    json!({"type": "tool_use", "id": self.id, "name": self.name, "input": {}})
                }
                Arguments::Text(text) => json!({"type": "text", "text": text}),
            },
        }
    }
}

impl Message {
    /// Answer to the request `id`. `omits_thinking`: blocks of reasoning come without their text.
    pub fn new(id: &str, model: &str, omits_thinking: bool) -> Self {
        Self {
            id: response_id("msg_", id),
            model: model.to_owned(),
            blocks: Vec::new(),
            open: None,
            finish: None,
            omits_thinking,
        }
    }
}

impl Output for Message {
    const API: crate::metrics::ParsedApi = crate::metrics::ParsedApi::Chat;

    fn begin(&mut self, usage: Usage) -> Vec<NamedEvent> {
        let object = json!({"type": "message_start", "message": self.whole(usage)});
        vec![NamedEvent { event: "message_start", object }]
    }

    fn take(&mut self, part: Part, single: &Single) -> Vec<NamedEvent> {
        let mut events = Vec::new();
        for piece in part.pieces {
            match piece {
                Piece::Content(text) => self.grow(Kind::Text, &text, &mut events),
                Piece::Reasoning(text) => self.grow(Kind::Thinking, &text, &mut events),
                Piece::Arguments { json, .. } => self.grow(Kind::Call, &json, &mut events),
                Piece::Call { index, name } => {
                    let id = single.call_id(index, &name);
                    self.open(Block { kind: Kind::Call, text: String::new(), id, name }, &mut events);
                }
                Piece::CallEnd { .. } => self.close(false, &mut events),
            }
        }
        if part.finish.is_some() {
            self.close(!matches!(part.finish, Some(TextFinish::Stop(_))), &mut events);
            self.finish = part.finish;
        }
        events
    }

    fn end(&mut self, usage: Usage) -> Vec<NamedEvent> {
        let message = self.whole(usage);
        let delta = json!({"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]});
        let object = json!({"type": "message_delta", "delta": delta, "usage": message["usage"]});
        let stop = json!({"type": "message_stop"});
        vec![
            NamedEvent { event: "message_delta", object },
            NamedEvent { event: "message_stop", object: stop },
        ]
    }

    fn failed(&mut self, refusal: &Refusal, _: Usage) -> NamedEvent {
        NamedEvent { event: "error", object: error_object(refusal) }
    }

    fn whole(&self, usage: Usage) -> Value {
        let (stop_reason, stop_sequence) = match &self.finish {
            None => (Value::Null, Value::Null),
            Some(TextFinish::Length) => ("max_tokens".into(), Value::Null),
            Some(TextFinish::Abort) => ("pause_turn".into(), Value::Null),
            Some(TextFinish::Stop(StopCause::Text(text))) => ("stop_sequence".into(), text.as_str().into()),
            Some(TextFinish::Stop(_)) if self.blocks.iter().any(|block| block["type"] == "tool_use") => {
                ("tool_use".into(), Value::Null)
            }
            Some(TextFinish::Stop(_)) => ("end_turn".into(), Value::Null),
        };
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": self.blocks,
            "stop_reason": stop_reason, "stop_sequence": stop_sequence,
            "usage": {
                "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": usage.cached_tokens,
                "output_tokens": usage.completion_tokens,
            },
        })
    }
}

impl Message {
    fn grow(&mut self, kind: Kind, text: &str, events: &mut Vec<NamedEvent>) {
        if self.open.as_ref().is_none_or(|block| block.kind != kind) {
            self.open(Block { kind, text: String::new(), id: String::new(), name: String::new() }, events);
        }
        if kind == Kind::Thinking && self.omits_thinking {
            return;
        }
        if let Some(block) = &mut self.open {
            block.text.push_str(text);
        }
        let delta = match kind {
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Call => json!({"type": "input_json_delta", "partial_json": text}),
        };
        let index = self.blocks.len();
        let object = json!({"type": "content_block_delta", "index": index, "delta": delta});
        events.push(NamedEvent { event: "content_block_delta", object });
    }

    fn open(&mut self, block: Block, events: &mut Vec<NamedEvent>) {
        self.close(false, events);
        let index = self.blocks.len();
        let object =
            json!({"type": "content_block_start", "index": index, "content_block": block.value(true)});
        events.push(NamedEvent { event: "content_block_start", object });
        self.open = Some(block);
    }

    fn close(&mut self, is_cut: bool, events: &mut Vec<NamedEvent>) {
        let Some(block) = self.open.take() else { return };
        let object = json!({"type": "content_block_stop", "index": self.blocks.len()});
        events.push(NamedEvent { event: "content_block_stop", object });
        self.blocks.push(block.value(is_cut));
    }
}
