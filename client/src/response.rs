//! Answers, read as they arrive.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::error::{RequestError, root_cause};

/// Longest answer that is read as a whole, in bytes.
const MAX_JSON_BYTES: usize = 64 << 20;

/// An answer whose head has arrived.
#[derive(Debug)]
pub struct Response {
    answer: http::Response<Incoming>,
    read: Option<Duration>,
    deadline: Option<(Instant, Duration)>,
}

impl Response {
    pub(crate) fn new(
        answer: http::Response<Incoming>,
        read: Option<Duration>,
        deadline: Option<(Instant, Duration)>,
    ) -> Self {
        Self { answer, read, deadline }
    }

    /// Status code.
    pub fn status(&self) -> StatusCode {
        self.answer.status()
    }

    /// Headers.
    pub fn headers(&self) -> &HeaderMap {
        self.answer.headers()
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// If the connection breaks, or nothing arrives in time.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, RequestError> {
        let read = self.read.map(|read| (Instant::now() + read, read));
        let first = [read, self.deadline].into_iter().flatten().min();
        loop {
            let next = self.answer.frame();
            let next = match first {
                Some((at, most)) => timeout_at(at, next).await.map_err(|_| RequestError::Timeout(most))?,
                None => next.await,
            };
            match next {
                None => return Ok(None),
                Some(Err(error)) => return Err(RequestError::Cut(root_cause(&error))),
                // Anything else are trailers.
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The whole body, of at most `most` bytes.
    ///
    /// # Errors
    /// As for [`chunk`](Self::chunk), or if it is longer.
    pub async fn bytes(mut self, most: usize) -> Result<Vec<u8>, RequestError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > most {
                return Err(RequestError::TooLong(most));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// As for [`bytes`](Self::bytes), or if it is not JSON.
    pub async fn json(self) -> Result<Value, RequestError> {
        Ok(serde_json::from_slice(&self.bytes(MAX_JSON_BYTES).await?)?)
    }
}
