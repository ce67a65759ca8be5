//! A streaming OpenAI client that writes down what it saw and when.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use skein_node::clock::{self, Timestamp};

/// What one choice of a stream said, put together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// All text.
    pub text: String,
    /// All token ids (with `return_token_ids`).
    pub token_ids: Vec<u64>,
    /// All token log-probabilities, as their JSON text so that equality is bit equality.
    pub logprobs: Vec<String>,
    /// `finish_reason`, once.
    pub finish: Option<String>,
}

/// A whole stream as its client saw it.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// By `index`.
    pub choices: BTreeMap<u64, Choice>,
    /// The last usage object.
    pub usage: Option<Value>,
    /// The error object of an error chunk or error body.
    pub error: Option<Value>,
    /// HTTP status.
    pub status: u16,
    /// `[DONE]` came.
    pub done: bool,
    /// Send to first content.
    pub ttft: Option<Duration>,
    /// Longest silence between two content chunks.
    pub longest_gap: Duration,
}

impl History {
    /// Ended as a stream should: status 200, every choice finished once, `[DONE]`, no error.
    pub fn complete(&self) -> bool {
        self.status == 200
            && self.done
            && self.error.is_none()
            && !self.choices.is_empty()
            && self.choices.values().all(|choice| choice.finish.is_some())
    }
}

/// POSTs `body` (a streaming request) to `url` and follows it to its end.
///
/// # Errors
/// When the connection fails before or during the stream.
pub async fn stream(client: &reqwest::Client, url: &str, body: &Value) -> Result<History, reqwest::Error> {
    let sent = clock::now();
    let response = client.post(url).json(body).send().await?;
    let mut history = History { status: response.status().as_u16(), ..History::default() };
    if history.status != 200 {
        history.error = Some(response.json::<Value>().await?["error"].take());
        return Ok(history);
    }
    let mut last = sent;
    let mut pending = Vec::new();
    let mut bytes = response.bytes_stream();
    while let Some(chunk) = bytes.next().await {
        pending.extend_from_slice(&chunk?);
        while let Some(end) = pending.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = pending.drain(..end + 2).collect();
            let text = std::str::from_utf8(&event).expect("SSE is valid UTF-8, event by event");
            for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
                history.take(data, sent, &mut last);
            }
        }
    }
    Ok(history)
}

impl History {
    fn take(&mut self, data: &str, sent: Timestamp, last: &mut Timestamp) {
        if data == "[DONE]" {
            assert!(!self.done, "[DONE] came twice");
            self.done = true;
            return;
        }
        let value: Value = serde_json::from_str(data).expect("every SSE data line is JSON");
        if let Some(error) = value.get("error") {
            self.error = Some(error.clone());
            return;
        }
        if value["usage"].is_object() {
            self.usage = Some(value["usage"].clone());
        }
        for choice in value["choices"].as_array().into_iter().flatten() {
            self.take_choice(choice, sent, last);
        }
    }

    fn take_choice(&mut self, choice: &Value, sent: Timestamp, last: &mut Timestamp) {
        let index = choice["index"].as_u64().expect("a choice has an index");
        let entry = self.choices.entry(index).or_default();
        assert!(entry.finish.is_none(), "choice {index} went on after its finish_reason");
        let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()).unwrap_or("");
        let ids: Vec<u64> =
            choice["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        if !text.is_empty() || !ids.is_empty() {
            let now = clock::now();
            match self.ttft {
                None => self.ttft = Some(now.since(sent)),
                Some(_) => self.longest_gap = self.longest_gap.max(now.since(*last)),
            }
            *last = now;
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
}
