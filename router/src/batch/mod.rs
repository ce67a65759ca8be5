//! Runs a file of requests in OpenAI's batch format: one JSON object a line with `custom_id`, `method`,
//! `url` and `body`, one line of output for each. `input` reads lines, `output` is the file of answers and
//! the record of what is done, `runner` bounds the requests in flight, and an [`Answerer`] sends them. `jobs`
//! keeps batches that clients upload to a server.

pub mod input;
pub mod jobs;
pub mod local;
pub mod output;
pub mod runner;

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

pub use input::{Call, Endpoint};

/// What a server said to one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `x-request-id` of the answer; empty if it had none.
    pub request_id: String,
    /// When the server asks to be tried again.
    pub retry_after: Option<Duration>,
    /// The body; a string if it was not JSON.
    pub body: Value,
}

impl Answer {
    /// Whether the same request may succeed later: the server is full, starting or gone.
    pub fn is_transient(&self) -> bool {
        matches!(self.status, 408 | 409 | 429 | 502 | 503 | 504)
    }
}

/// Sends requests: to a router in this process, or over HTTP.
pub trait Answerer: Send + Sync {
    /// Sends `call` under the idempotency key `key`.
    ///
    /// # Errors
    /// The cause, if no whole answer came.
    fn answer<'a>(&'a self, call: &'a Call, key: &'a str) -> BoxFuture<'a, Result<Answer, String>>;
}

/// Gives requests that have no priority one.
pub struct WithPriority<'a> {
    /// Sends them.
    pub answerer: &'a dyn Answerer,
    /// The priority; `None` leaves requests as they are.
    pub priority: Option<i32>,
}

impl Answerer for WithPriority<'_> {
    fn answer<'a>(&'a self, call: &'a Call, key: &'a str) -> BoxFuture<'a, Result<Answer, String>> {
        let Some(priority) = self.priority else { return self.answerer.answer(call, key) };
        async move {
            let mut call = call.clone();
            if let Some(body) = call.body.as_object_mut() {
                body.entry("priority").or_insert_with(|| priority.into());
            }
            self.answerer.answer(&call, key).await
        }
        .boxed()
    }
}
