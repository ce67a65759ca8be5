//! Requests of every kind that must survive a fault, each with the history of an undisturbed run.

use serde_json::{Value, json};

use crate::client;
use crate::history::History;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// One request and its undisturbed run.
#[derive(Debug, Clone)]
pub struct Case {
    /// Path of the endpoint, `/v1/...`
    pub path: &'static str,
    /// The JSON body, without `request_id`.
    pub body: Value,
    /// The undisturbed run.
    pub expected: History,
}

/// The requests that a load draws from.
#[derive(Debug)]
pub struct Corpus {
    /// At least one request.
    pub cases: Vec<Case>,
}

/// The request of kind `index` modulo 10: greedy, seeded, penalties, n > 1, stop strings, log-probabilities,
/// biases, chat, an expression.
pub fn mixed(index: usize, max_tokens: u32) -> (&'static str, Value) {
    let mut body = json!({
        "model": "skein-7m", "max_tokens": max_tokens, "stream": true,
        "stream_options": {"include_usage": true},
        "return_token_ids": true, "ignore_eos": true, "temperature": 0,
    });
    let path = if matches!(index % 10, 7..=9) { CHAT } else { COMPLETIONS };
    let start = match path {
        CHAT => {
            json!({"messages": [{"role": "user", "content": format!("What does function_{index} return?")}]})
        }
        // Every ninth prompt is long, so that a fault can hit its prefill.
        _ => {
            let context = "import os\nimport sys\n\n".repeat(if index.is_multiple_of(9) { 20 } else { 0 });
            json!({"prompt": format!("{context}def function_{index}(self, value):\n    \"\"\"Return the")})
        }
    };
    let few = max_tokens / 4;
    let kind = match index % 10 {
        0 => json!({}),
        1 => json!({"temperature": 0.9, "seed": 1000 + index, "top_p": 0.9}),
        2 => json!({"temperature": 0.7, "seed": index, "presence_penalty": 0.5, "frequency_penalty": 0.3,
                    "repetition_penalty": 1.1}),
        3 => json!({"temperature": 1.0, "seed": index, "n": 3, "top_k": 40}),
        4 => {
            json!({"temperature": 0.8, "seed": index, "logprobs": 2, "min_tokens": few, "ignore_eos": false})
        }
        5 => {
            json!({"temperature": 0.8, "seed": index, "stop": ["return x", "self.", "zzzz"], "min_tokens": few})
        }
        6 => {
            json!({"temperature": 0.8, "seed": index, "logit_bias": {"269": 2.0, "358": -3.5}, "min_p": 0.02})
        }
        7 => json!({"temperature": 0.6, "seed": index, "logprobs": true, "top_logprobs": 2}),
        8 => json!({"temperature": 0.9, "seed": index, "n": 2, "stop": ["\n\n"]}),
        _ => {
            json!({"temperature": 1.0, "seed": index, "structured_outputs": {"regex": "([a-z]{2,9}(, |\\. )){1,400}"}})
        }
    };
    let fields = body.as_object_mut().expect("an object");
    for extra in [start, kind] {
        fields.extend(extra.as_object().cloned().expect("an object"));
    }
    (path, body)
}

impl Corpus {
    /// Runs `count` mixed requests of `max_tokens` undisturbed at `url`, a few at a time. They use the model
    /// and its `adapters` in turn.
    ///
    /// # Panics
    /// If one of them does not complete.
    pub async fn record(url: &str, count: usize, max_tokens: u32, adapters: &[String]) -> Self {
        /// Few enough that recording is no load test.
        const AT_ONCE: usize = 16;
        use futures::StreamExt;
        let client = reqwest::Client::new();
        let runs = (0..count).map(|index| {
            let client = client.clone();
            async move {
                let (path, mut body) = mixed(index, max_tokens);
                if let Some(adapter) = (index % (adapters.len() + 1)).checked_sub(1) {
                    body["model"] = json!(adapters[adapter]);
                }
                let expected = client::stream_once(&client, &format!("{url}{path}"), &body).await;
                assert!(expected.complete(), "undisturbed request {index}: {expected:?}");
                Case { path, body, expected }
            }
        });
        Self { cases: futures::stream::iter(runs).buffered(AT_ONCE).collect().await }
    }

    /// The case of the load's request `number`, and its body with `request_id`. Some requests do not stream:
    /// a lost connection then loses the whole answer, and the retry must return all of it.
    pub fn request(&self, number: u64, request_id: &str) -> (&Case, Value) {
        /// One request in this many does not stream. Coprime to the number of kinds, so that every kind gets
        /// its turn.
        const WHOLE: u64 = 7;
        let case = &self.cases[number as usize % self.cases.len()];
        let mut body = case.body.clone();
        body["request_id"] = json!(request_id);
        if number % WHOLE == WHOLE - 1 {
            body["stream"] = json!(false);
            body.as_object_mut().expect("an object").remove("stream_options");
        }
        (case, body)
    }
}
