//! Sends the requests of a batch to a server over HTTP.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use skein_router::batch::local::{MAX_ANSWER_BYTES, answer};
use skein_router::batch::{Answer, Answerer, Call};

use crate::exit::{Failure, USAGE};

/// How long a client waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may send nothing. An answer is sent as a whole, so this also bounds its generation.
const READ_TIMEOUT: Duration = Duration::from_secs(3600);

/// Client of an OpenAI-compatible server.
pub struct Remote {
    http: reqwest::Client,
    base_url: String,
    api_key: Option<String>,
}

impl Remote {
    /// A client of the server at `url`, which may end with `/v1`.
    ///
    /// # Errors
    /// If `url` is not an HTTP URL.
    pub fn new(url: &str, api_key: Option<String>) -> Result<Self, Failure> {
        let base_url = base_url("--server", url)?;
        Ok(Self { http: http_client(READ_TIMEOUT)?, base_url, api_key })
    }

    async fn send(&self, call: &Call, key: &str) -> reqwest::Result<Answer> {
        let url = format!("{}{}", self.base_url, call.endpoint.path());
        let request = self.http.post(url).header("x-request-id", key).json(&call.body);
        let request = if call.names_itself() { request } else { request.header("idempotency-key", key) };
        let request = match &self.api_key {
            Some(api_key) => request.bearer_auth(api_key),
            None => request,
        };
        let mut response = request.send().await?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                break;
            }
            body.extend_from_slice(&chunk);
        }
        Ok(answer(response.status().as_u16(), response.headers(), &body))
    }
}

impl Answerer for Remote {
    fn answer<'a>(&'a self, call: &'a Call, key: &'a str) -> BoxFuture<'a, Result<Answer, String>> {
        let sent = self.send(call, key);
        async move { sent.await.map_err(|error| root_cause(&error)) }.boxed()
    }
}

/// HTTP client of a server that may send nothing for `read_timeout`.
///
/// # Errors
/// If the system's resolver cannot be set up.
pub fn http_client(read_timeout: Duration) -> Result<reqwest::Client, Failure> {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(read_timeout)
        .tcp_nodelay(true)
        .build()
        .map_err(Failure::other)
}

/// Removes `/v1` from the end of `url`, the value of `flag`.
///
/// # Errors
/// If it is not an HTTP URL.
pub fn base_url(flag: &str, url: &str) -> Result<String, Failure> {
    let base_url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    if base_url.starts_with("http://") {
        return Ok(base_url);
    }
    let message = format!(
        "{flag} {url} must be an http:// URL, for example http://127.0.0.1:8000; for https, put a proxy that ends TLS \
         on this machine"
    );
    Err(Failure::new(USAGE, message))
}

/// The innermost error: the outer message of reqwest says only that sending failed.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}
