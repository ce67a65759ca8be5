//! Builds a conversation in the form that chat templates expect from the items or blocks of other APIs.
//! System texts are joined into one first message; calls and reasoning are merged into the assistant message
//! to which they belong.

use serde_json::{Map, Value, json};

use crate::request::Prompt;

/// Conversation under construction.
#[derive(Debug, Default)]
pub struct Conversation {
    system: Vec<String>,
    messages: Vec<Map<String, Value>>,
    continues: bool,
}

impl Conversation {
    /// Adds a system text. A text before the first message joins the system message; a later one stays in
    /// place.
    pub fn system(&mut self, text: &str) {
        if self.messages.is_empty() {
            self.system.push(text.to_owned());
        } else {
            self.says("system", text.into());
        }
    }

    /// Adds a text of a developer: as [`system`](Self::system), but a later one keeps its role, which some
    /// templates know.
    pub fn develops(&mut self, text: &str) {
        if self.messages.is_empty() {
            self.system.push(text.to_owned());
        } else {
            self.says("developer", text.into());
        }
    }

    /// Adds a message; `content` is a string or a list of parts.
    pub fn says(&mut self, role: &str, content: Value) {
        let message = [("role".to_owned(), Value::from(role)), ("content".to_owned(), content)];
        self.messages.push(Map::from_iter(message));
    }

    /// Adds text of the assistant.
    pub fn assistant_says(&mut self, text: &str) {
        let message = self.assistant(|message| !message.contains_key("tool_calls"));
        append(message, "content", text);
    }

    /// Adds reasoning that precedes a text or call of the assistant.
    pub fn reasons(&mut self, text: &str) {
        let message =
            self.assistant(|message| message["content"] == "" && !message.contains_key("tool_calls"));
        append(message, "reasoning_content", text);
    }

    /// Adds a call; `arguments` is JSON.
    pub fn calls(&mut self, id: &str, name: &str, arguments: &str) {
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let message = self.assistant(|_| true);
        match message.get_mut("tool_calls") {
            Some(Value::Array(calls)) => calls.push(call),
            _ => {
                message.insert("tool_calls".to_owned(), json!([call]));
            }
        }
    }

    /// Adds the result of a call, with the function's name, which some templates require.
    pub fn result(&mut self, id: &str, text: &str) {
        let calls = self.messages.iter().rev().filter_map(|message| message.get("tool_calls")?.as_array());
        let name = calls.flatten().find(|call| call["id"] == id).map(|call| call["function"]["name"].clone());
        self.says("tool", text.into());
        if let Some(message) = self.messages.last_mut() {
            message.insert("tool_call_id".to_owned(), id.into());
            message.extend(name.map(|name| ("name".to_owned(), name)));
        }
    }

    /// Latest message if it is the assistant's and `fits`; otherwise a new one.
    fn assistant(&mut self, fits: impl Fn(&Map<String, Value>) -> bool) -> &mut Map<String, Value> {
        let is_open =
            self.messages.last().is_some_and(|message| message["role"] == "assistant" && fits(message));
        if !is_open {
            self.says("assistant", "".into());
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    /// Has the answer continue the last message if that is the assistant's.
    pub fn continue_assistant(&mut self) {
        self.continues = self.messages.last().is_some_and(|message| message["role"] == "assistant");
    }

    /// Finishes the prompt. `template_kwargs` are extra template variables.
    pub fn prompt(self, template_kwargs: Map<String, Value>) -> Prompt {
        let system = self.system.join("\n\n");
        let system = (!system.is_empty()).then(|| json!({"role": "system", "content": system}));
        let messages = system.into_iter().chain(self.messages.into_iter().map(Value::Object));
        Prompt::Chat {
            messages: messages.collect(),
            add_generation_prompt: !self.continues,
            continue_final_message: self.continues,
            template_kwargs,
        }
    }
}

fn append(message: &mut Map<String, Value>, name: &str, text: &str) {
    match message.get_mut(name) {
        Some(Value::String(all)) if all.is_empty() => all.push_str(text),
        Some(Value::String(all)) => *all = format!("{all}\n{text}"),
        _ => {
            message.insert(name.to_owned(), text.into());
        }
    }
}
