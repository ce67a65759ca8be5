//! Runs a file of requests in OpenAI's batch format: one JSON object per line with `custom_id`, `method`,
//! `url` and `body`; each produces one output line. `input` parses lines, `disk` is where files are, `output`
//! is the file of answers and the record of progress, `runner` limits the requests in flight, and an
//! [`Answerer`] sends them. `jobs` manages batches uploaded to a server.

pub mod disk;
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

/// A server's response to one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Status code of the HTTP response.
    pub status: u16,
    /// `x-request-id` of the response; empty if absent.
    pub request_id: String,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Body of the response; a string if it was not JSON.
    pub body: Value,
}

impl Answer {
    /// Whether the same request may succeed later: the server is full, starting or unreachable.
    pub fn is_transient(&self) -> bool {
        matches!(self.status, 408 | 409 | 429 | 502 | 503 | 504)
    }
}

/// Sends requests: to a router in this process, or over HTTP.
pub trait Answerer: Send + Sync {
    /// Sends `call` under the idempotency key `key`.
    ///
    /// # Errors
    /// Why no complete response arrived.
    fn answer<'a>(&'a self, call: &'a Call, key: &'a str) -> BoxFuture<'a, Result<Answer, String>>;
}

/// Gives requests without a priority a default one.
pub struct WithPriority<'a> {
    /// Answers each request of the batch.
    pub answerer: &'a dyn Answerer,
    /// The default priority; `None` leaves requests unchanged.
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
