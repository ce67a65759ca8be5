//! The content of one stream, assembled from its events, and its timing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use skein_node::clock::{self, Timestamp};

/// The content of one choice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// The whole text.
    pub text: String,
    /// All token ids (present with `return_token_ids`).
    pub token_ids: Vec<u64>,
    /// All token log-probabilities, as JSON text, so that equality is bit equality.
    pub logprobs: Vec<String>,
    /// `finish_reason`, once received.
    pub finish: Option<String>,
}

/// A whole stream as its client saw it.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The choices by `index`.
    pub choices: BTreeMap<u64, Choice>,
    /// The last usage object.
    pub usage: Option<Value>,
    /// The error object of an error chunk or error body.
    pub error: Option<Value>,
    /// Status code of the answer.
    pub status: u16,
    /// Whether `[DONE]` arrived.
    pub done: bool,
    /// Time from sending to the first content.
    pub ttft: Option<Duration>,
    /// Longest time between two chunks with content.
    pub longest_gap: Duration,
    /// Connections after the first one.
    pub reconnects: u32,
    /// Protocol violations, such as a second `[DONE]` or content after a choice has finished.
    pub violations: Vec<String>,
}

impl History {
    /// Whether the stream ended properly: status 200, every choice finished once, `[DONE]`, no error.
    pub fn complete(&self) -> bool {
        self.status == 200
            && self.done
            && self.error.is_none()
            && self.violations.is_empty()
            && !self.choices.is_empty()
            && self.choices.values().all(|choice| choice.finish.is_some())
    }

    /// Whether another connection could bring nothing more.
    pub fn over(&self) -> bool {
        self.done || self.error.is_some()
    }

    /// Whether any choice has content.
    pub fn has_content(&self) -> bool {
        self.choices.values().any(|choice| !choice.text.is_empty() || !choice.token_ids.is_empty())
    }
}

/// Builds a history from the bytes of one or several connections.
#[derive(Debug)]
pub struct Reader {
    /// The history so far.
    pub history: History,
    sent: Timestamp,
    last: Timestamp,
    pending: Vec<u8>,
    events: u64,
    last_event_id: Option<String>,
}

impl Reader {
    /// Starts the clock: the request is about to be sent.
    pub fn new() -> Self {
        let now = clock::now();
        let history = History::default();
        Self { history, sent: now, last: now, pending: Vec::new(), events: 0, last_event_id: None }
    }

    /// Drops the incomplete event of a lost connection.
    pub fn new_connection(&mut self) {
        self.pending.clear();
    }

    /// Number of events with data seen so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The id of the last event that had one.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// Processes the next bytes.
    ///
    /// # Panics
    /// If they are not server-sent events of JSON.
    pub fn read(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = self.pending.drain(..end + 2).collect();
            let text = std::str::from_utf8(&event).expect("SSE is valid UTF-8, event by event");
            for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
                self.events += 1;
                self.take(data);
            }
            // An event, and its id, counts as seen only when all of it has been read.
            if let Some(id) = text.lines().find_map(|line| line.strip_prefix("id:")) {
                self.last_event_id = Some(id.trim().to_owned());
            }
        }
    }

    /// Processes the whole answer of a request without streaming, which has no TTFT and no gaps.
    pub fn take_whole(&mut self, answer: &Value) {
        self.take_value(answer);
        self.history.ttft = None;
        self.history.done = true;
    }

    fn take(&mut self, data: &str) {
        if self.history.done {
            self.history.violations.push(format!("{data} after [DONE]"));
            return;
        }
        if data == "[DONE]" {
            self.history.done = true;
            return;
        }
        let value: Value = serde_json::from_str(data).expect("every SSE data line is JSON");
        self.take_value(&value);
    }

    fn take_value(&mut self, value: &Value) {
        if let Some(error) = value.get("error") {
            self.history.error = Some(error.clone());
            return;
        }
        if value["usage"].is_object() {
            self.history.usage = Some(value["usage"].clone());
        }
        for choice in value["choices"].as_array().into_iter().flatten() {
            self.take_choice(choice);
        }
    }

    fn take_choice(&mut self, choice: &Value) {
        let index = choice["index"].as_u64().expect("a choice has an index");
        let places = [&choice["text"], &choice["delta"]["content"], &choice["message"]["content"]];
        let text = places.into_iter().find_map(Value::as_str).unwrap_or("");
        let ids: Vec<u64> =
            choice["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        if !text.is_empty() || !ids.is_empty() {
            self.note_content();
        }
        let entry = self.history.choices.entry(index).or_default();
        if entry.finish.is_some() {
            self.history.violations.push(format!("choice {index} continued after its finish: {choice}"));
        }
        entry.text.push_str(text);
        entry.token_ids.extend(ids);
        let logprobs = &choice["logprobs"];
        let list = logprobs["token_logprobs"].as_array().or_else(|| logprobs["content"].as_array());
        entry.logprobs.extend(list.into_iter().flatten().map(Value::to_string));
        if let Some(reason) = choice["finish_reason"].as_str() {
            entry.finish = Some(reason.to_owned());
        }
    }

    fn note_content(&mut self) {
        let now = clock::now();
        match self.history.ttft {
            None => self.history.ttft = Some(now.since(self.sent)),
            Some(_) => self.history.longest_gap = self.history.longest_gap.max(now.since(self.last)),
        }
        self.last = now;
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, text: &str, token: u64) -> String {
        format!(
            "id: {id}\ndata: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":[{token}]}}]}}\n\n"
        )
    }

    #[test]
    fn half_an_event_of_a_lost_connection_is_not_seen() {
        let mut reader = Reader::new();
        reader.read(event(4, "a", 1).as_bytes());
        reader.read(&event(5, "b", 2).as_bytes()[..40]);
        assert_eq!((reader.last_event_id(), reader.events()), (Some("4"), 1));
        reader.new_connection();
        reader.read((event(5, "b", 2) + ": keep-alive\n\ndata: [DONE]\n\n").as_bytes());
        assert_eq!(reader.history.choices[&0].text, "ab");
        assert_eq!(reader.last_event_id(), Some("5"), "a comment and [DONE] have no id");
        assert!(reader.history.done);
    }

    #[test]
    fn words_after_the_end_are_breaches() {
        let mut reader = Reader::new();
        reader.read(b"data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n");
        reader.read(event(1, "b", 1).as_bytes());
        reader.read(b"data: [DONE]\n\ndata: [DONE]\n\n");
        assert_eq!(reader.history.violations.len(), 2, "{:?}", reader.history.violations);
        assert!(!reader.history.complete());
    }
}
