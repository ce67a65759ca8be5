//! Messages that a rendering process has, so that a conversation's turn sends it only those that are new.
//! Both sides number them: this process keeps the JSON of each, compares it byte by byte, and says which
//! ones to forget; the other keeps the template's values. A template cannot change a value, so a rendering
//! is the same whether its messages were sent with it or before.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use lru::LruCache;
use minijinja::Value;
use serde::Deserialize;
use serde_json::Map;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::rendering::Rendering;
use super::template_env::FromJson;

/// Most bytes of messages in one process, in JSON and with [`MESSAGE_BYTES`] each. Its values take about
/// twice as many, of 128 MiB or more that it may have.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that a message takes beside its JSON, on either side.
const MESSAGE_BYTES: usize = 512;

/// Number of a message that the process does not keep.
const NOT_KEPT: u64 = 0;

/// What one process has, as this one knows it.
pub(super) struct SentMessages {
    /// By the hash of their JSON.
    messages: LruCache<u64, Sent>,
    seed: u64,
    bytes: usize,
    next: u64,
    forgotten: Vec<u64>,
}

struct Sent {
    scope: Box<str>,
    json: Box<[u8]>,
    number: u64,
}

/// A request to a process.
pub(super) struct Request {
    /// To send.
    pub bytes: Vec<u8>,
    /// Size of all messages, those that are not sent again included.
    pub whole_bytes: usize,
    new: Vec<(u64, Sent)>,
}

impl Default for SentMessages {
    fn default() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self { messages: LruCache::unbounded(), seed, bytes: 0, next: NOT_KEPT + 1, forgotten: Vec::new() }
    }
}

impl SentMessages {
    /// The request for `rendering`. The process has its messages once it has answered: then call
    /// [`Self::answered`].
    pub fn request(&mut self, rendering: &Rendering<'_>) -> serde_json::Result<Request> {
        let Rendering { messages, add_generation_prompt, arguments, kept_in } = rendering;
        let seed = kept_in.map(|scope| xxh3_64_with_seed(scope.as_bytes(), self.seed));
        let head =
            serde_json::json!({"add_generation_prompt": add_generation_prompt, "forget": self.forgotten});
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.pop();
        bytes.extend_from_slice(b",\"arguments\":");
        serde_json::to_writer(&mut bytes, arguments)?;
        bytes.extend_from_slice(b",\"messages\":[");
        let (mut json, mut whole_bytes, mut new) = (Vec::new(), bytes.len(), Vec::new());
        for (at, message) in messages.as_array().into_iter().flatten().enumerate() {
            json.clear();
            serde_json::to_writer(&mut json, message)?;
            whole_bytes += json.len();
            let hash = seed.map(|seed| xxh3_64_with_seed(&json, seed));
            let is_it = |sent: &&Sent| *sent.json == *json && Some(&*sent.scope) == *kept_in;
            let known = hash.and_then(|hash| self.messages.get(&hash)).filter(is_it).map(|sent| sent.number);
            bytes.extend_from_slice(if at > 0 { b",[" } else { b"[" });
            if let Some(number) = known {
                serde_json::to_writer(&mut bytes, &number)?;
                bytes.extend_from_slice(b",null");
            } else {
                let number = if hash.is_some() { self.next } else { NOT_KEPT };
                serde_json::to_writer(&mut bytes, &number)?;
                bytes.push(b',');
                bytes.extend_from_slice(&json);
                if let (Some(hash), Some(scope)) = (hash, kept_in) {
                    new.push((hash, Sent { scope: (*scope).into(), json: json.as_slice().into(), number }));
                    self.next += 1;
                }
            }
            bytes.push(b']');
        }
        bytes.extend_from_slice(b"]}");
        Ok(Request { bytes, whole_bytes, new })
    }

    /// The process has answered `request` and has its messages.
    pub fn answered(&mut self, request: Request) {
        self.forgotten.clear();
        for (hash, sent) in request.new {
            self.bytes += sent.bytes();
            if let Some(other) = self.messages.put(hash, sent) {
                self.forget(&other);
            }
        }
        while self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.messages.pop_lru() else { break };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, sent: &Sent) {
        self.bytes -= sent.bytes();
        self.forgotten.push(sent.number);
    }
}

impl Sent {
    fn bytes(&self) -> usize {
        MESSAGE_BYTES + self.scope.len() + self.json.len()
    }
}

/// A request as the process reads it.
#[derive(Debug, Deserialize)]
pub(super) struct ReceivedRequest {
    /// Messages by their numbers; those that are known are left out.
    messages: Vec<(u64, Option<FromJson>)>,
    pub add_generation_prompt: bool,
    pub arguments: Map<String, serde_json::Value>,
    forget: Vec<u64>,
}

/// The messages in a process.
#[derive(Debug, Default)]
pub(super) struct ReceivedMessages(HashMap<u64, Value>);

impl ReceivedMessages {
    /// The messages of `request`, whose new ones are kept; `None` if one is unknown.
    pub fn conversation(&mut self, request: &mut ReceivedRequest) -> Option<Value> {
        for number in request.forget.drain(..) {
            self.0.remove(&number);
        }
        let message = |(number, new): (u64, Option<FromJson>)| match new {
            Some(FromJson(message)) => {
                if number != NOT_KEPT {
                    self.0.insert(number, message.clone());
                }
                Some(message)
            }
            None => self.0.get(&number).cloned(),
        };
        request.messages.drain(..).map(message).collect::<Option<Vec<Value>>>().map(Value::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Both sides.
    #[derive(Default)]
    struct Pair {
        ours: SentMessages,
        theirs: ReceivedMessages,
    }

    impl Pair {
        /// Sends `messages` and checks that they arrive. Returns the bytes sent.
        fn send(&mut self, messages: &serde_json::Value) -> usize {
            self.send_in(Some("scope"), messages)
        }

        fn send_in(&mut self, kept_in: Option<&str>, messages: &serde_json::Value) -> usize {
            let arguments = Map::from_iter([("tools".to_owned(), json!([1, "é"]))]);
            let rendering =
                Rendering { messages, add_generation_prompt: true, arguments: &arguments, kept_in };
            let request = self.ours.request(&rendering).unwrap();
            let mut received: ReceivedRequest = serde_json::from_slice(&request.bytes).unwrap();
            let FromJson(expected) = serde_json::from_value(messages.clone()).unwrap();
            assert_eq!(self.theirs.conversation(&mut received), Some(expected));
            assert!(received.add_generation_prompt && received.arguments == arguments);
            let sent = request.bytes.len();
            self.ours.answered(request);
            sent
        }
    }

    fn message(at: usize, bytes: usize) -> serde_json::Value {
        json!({"role": "user", "content": format!("{at} {}", "x".repeat(bytes)), "extra": [at, null]})
    }

    #[test]
    fn a_turn_sends_what_is_new() {
        let mut pair = Pair::default();
        let mut messages: Vec<_> = (0..50).map(|at| message(at, 1000)).collect();
        assert!(pair.send(&messages.clone().into()) > 50_000);
        messages.push(message(50, 1000));
        assert!(pair.send(&messages.clone().into()) < 2_500);
        // One that was changed in the middle, one that is there twice, and one that is left out.
        messages[20] = message(77, 1000);
        messages[21] = messages[22].clone();
        messages.remove(3);
        assert!(pair.send(&messages.into()) < 2_500);
        assert!(pair.send(&json!([message(1, 1000)])) < 200);
    }

    #[test]
    fn new_messages_that_are_equal_arrive_twice() {
        let mut pair = Pair::default();
        for _ in 0..3 {
            pair.send(&json!([message(1, 10), message(1, 10), message(2, 10)]));
        }
        assert_eq!(pair.theirs.0.len(), 2, "one of the first two was forgotten");
    }

    #[test]
    fn both_sides_forget_the_least_recently_used() {
        let mut pair = Pair::default();
        for at in 0..40 {
            pair.send(&json!([message(0, 10), message(at, 1024 * 1024)]));
            assert!(pair.ours.bytes <= MOST_BYTES);
            assert!(pair.theirs.0.len() <= 10, "{at}");
        }
        assert!(
            pair.send(&json!([message(0, 10), message(39, 1024 * 1024)])) < 200,
            "the last ones are there"
        );
        assert!(pair.send(&json!([message(2, 1024 * 1024)])) > 1024 * 1024);
    }

    #[test]
    fn the_order_of_fields_counts() {
        let mut pair = Pair::default();
        pair.send(&json!([{"role": "user", "content": "x"}]));
        let request = json!([{"content": "x", "role": "user"}]);
        let rendering = Rendering {
            messages: &request,
            add_generation_prompt: true,
            arguments: &Map::new(),
            kept_in: Some("scope"),
        };
        assert_eq!(pair.ours.request(&rendering).unwrap().new.len(), 1);
    }

    #[test]
    fn scopes_do_not_share_messages() {
        let mut pair = Pair::default();
        let messages = serde_json::Value::from((0..5).map(|at| message(at, 1000)).collect::<Vec<_>>());
        for kept_in in [Some("one"), Some("other"), None, None] {
            assert!(pair.send_in(kept_in, &messages) > 5_000, "{kept_in:?}");
        }
        assert_eq!((pair.theirs.0.len(), pair.ours.messages.len()), (10, 10), "without a scope none is kept");
        assert!(pair.send_in(Some("one"), &messages) < 300);
    }

    #[test]
    fn an_unknown_message_is_none() {
        let bytes = br#"{"add_generation_prompt":true,"forget":[9],"arguments":{},"messages":[[3,null]]}"#;
        let mut received: ReceivedRequest = serde_json::from_slice(bytes).unwrap();
        assert_eq!(ReceivedMessages::default().conversation(&mut received), None);
    }
}
