//! Sends the requests of a batch to a server over HTTP.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderName;
use skein_client::{Client, Limits, RequestError};
use skein_router::batch::local::{MAX_ANSWER_BYTES, answer};
use skein_router::batch::{Answer, Answerer, Call};

use crate::exit::Failure;
use crate::server_access::Certificates;

/// How long a client waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may send nothing. An answer is sent as a whole, so this also bounds its generation.
const READ_TIMEOUT: Duration = Duration::from_secs(3600);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Client of an OpenAI-compatible server.
pub struct Remote {
    http: Client,
    base_url: String,
    api_key: Option<String>,
}

impl Remote {
    /// A client of the server at `url`, which may end with `/v1`.
    ///
    /// # Errors
    /// If `url` is not an HTTP URL, or a file of `certificates` cannot be used.
    pub fn new(url: &str, certificates: &Certificates, api_key: Option<String>) -> Result<Self, Failure> {
        let limits = Limits { connect: CONNECT_TIMEOUT, read: Some(READ_TIMEOUT), whole: None };
        let (http, base_url) = certificates.client("--server", url, limits)?;
        Ok(Self { http, base_url, api_key })
    }

    async fn send(&self, call: &Call, key: &str) -> Result<Answer, RequestError> {
        let url = format!("{}{}", self.base_url, call.endpoint.path());
        let request = self.http.post(&url, &call.body).header(REQUEST_ID, key);
        let request = if call.names_itself() { request } else { request.header(IDEMPOTENCY_KEY, key) };
        let mut response = request.bearer(self.api_key.as_deref()).send().await?;
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
        async move { sent.await.map_err(|error| error.to_string()) }.boxed()
    }
}
