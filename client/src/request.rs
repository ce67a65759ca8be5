//! Requests: a method, a URL, headers, perhaps JSON.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use http::uri::Scheme;
use http::{HeaderValue, Method, Uri};
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use skein_tls::ClientTls;
use tokio::time::{Instant, timeout_at};

use crate::connect::{Connector, connector};
use crate::error::{RequestError, root_cause};
use crate::response::Response;

/// Limits of waits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes of an answer, its first ones included; `None` = no limit.
    pub read: Option<Duration>,
    /// For a whole answer; `None` = no limit.
    pub whole: Option<Duration>,
}

/// A client; clones share its connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    limits: Limits,
    has_tls: bool,
}

impl Client {
    /// A client that trusts and shows what `tls` does. Without it, only `http` addresses can be reached.
    pub fn new(tls: Option<&ClientTls>, limits: Limits) -> Self {
        let mut http = legacy::Client::builder(TokioExecutor::new());
        let http = http.pool_timer(TokioTimer::new()).build(connector(tls, limits.connect));
        Self { http, limits, has_tls: tls.is_some() }
    }

    /// A request that reads `url`.
    pub fn get(&self, url: &str) -> Request<'_> {
        Request::new(self, Method::GET, url, Bytes::new())
    }

    /// A request that sends `body` to `url`.
    pub fn post(&self, url: &str, body: &Value) -> Request<'_> {
        let request = Request::new(self, Method::POST, url, body.to_string().into());
        request.header(CONTENT_TYPE, "application/json")
    }
}

/// A request that is not sent yet.
#[derive(Debug)]
pub struct Request<'a> {
    client: &'a Client,
    request: Result<http::Request<Full<Bytes>>, RequestError>,
}

impl<'a> Request<'a> {
    fn new(client: &'a Client, method: Method, url: &str, body: Bytes) -> Self {
        let request = parsed(url, client.has_tls).map(|uri| {
            let mut request = http::Request::new(Full::new(body));
            (*request.method_mut(), *request.uri_mut()) = (method, uri);
            request
        });
        Self { client, request }
    }

    /// Adds a header. A value that no header can carry makes the request fail.
    #[must_use]
    pub fn header(mut self, name: impl Into<HeaderName>, value: &str) -> Self {
        let name = name.into();
        if let Ok(request) = &mut self.request {
            match HeaderValue::from_str(value) {
                Ok(value) => drop(request.headers_mut().insert(name, value)),
                Err(_) => {
                    let why =
                        format!("the value of the header {name} has characters that no header can carry");
                    self.request = Err(RequestError::Invalid(why));
                }
            }
        }
        self
    }

    /// Adds a key, if there is one.
    #[must_use]
    pub fn bearer(self, key: Option<&str>) -> Self {
        match key {
            Some(key) => self.header(AUTHORIZATION, &format!("Bearer {key}")),
            None => self,
        }
    }

    /// Sends it and waits for the answer's head.
    ///
    /// # Errors
    /// If the server cannot be reached, is not trusted, or does not answer in time.
    pub async fn send(self) -> Result<Response, RequestError> {
        let Limits { read, whole, .. } = self.client.limits;
        let now = Instant::now();
        let deadline = whole.map(|whole| (now + whole, whole));
        let sent = self.client.http.request(self.request?);
        let first = [read.map(|read| (now + read, read)), deadline].into_iter().flatten().min();
        let answer = match first {
            Some((at, most)) => timeout_at(at, sent).await.map_err(|_| RequestError::Timeout(most))?,
            None => sent.await,
        };
        let answer = answer.map_err(|error| match error.is_connect() {
            true => RequestError::Connect(root_cause(&error)),
            false => RequestError::Broken(root_cause(&error)),
        })?;
        Ok(Response::new(answer, read, deadline))
    }
}

fn parsed(url: &str, has_tls: bool) -> Result<Uri, RequestError> {
    let uri: Uri =
        url.parse().map_err(|error| RequestError::Invalid(format!("`{url}` is not a URL: {error}")))?;
    let is_served = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => true,
        Some(scheme) if *scheme == Scheme::HTTPS => has_tls,
        _ => false,
    };
    if is_served && uri.host().is_some() {
        return Ok(uri);
    }
    let expected = if has_tls { "an http:// or https:// URL" } else { "an http:// URL" };
    Err(RequestError::Invalid(format!("`{url}` is not {expected}")))
}
