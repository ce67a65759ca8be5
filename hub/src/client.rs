//! Sends one HTTP request: redirects, timeouts, and classification of retryable failures.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;
use url::Url;

use crate::connect::{Connector, Unresolved, connector};
use crate::environment::{Environment, Token};
use crate::error::HubError;

/// Timeout for a response's headers.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// Longest pause within a body.
const BODY_STALL: Duration = Duration::from_secs(30);
/// Most redirects per request.
const MAX_REDIRECTS: usize = 8;
/// Longest wait that a server's `Retry-After` may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Largest body that is read into memory, in bytes: a listing of about ten thousand files.
const MAX_TEXT_BYTES: usize = 16 << 20;
const AGENT: &str = concat!("skein/", env!("CARGO_PKG_VERSION"));

/// Why a request failed.
#[derive(Debug)]
pub enum Trouble {
    /// Transient: a retry may succeed.
    Passing { why: String, retry_after: Option<Duration> },
    /// The server's name has no address. Transient during a download; without a network it stays so.
    Nameless { host: String, why: String },
    /// Permanent: a retry would fail the same way.
    Lasting(HubError),
}

impl Trouble {
    /// Transient failure of the connection.
    pub fn passing(why: impl fmt::Display) -> Self {
        Self::Passing { why: why.to_string(), retry_after: None }
    }
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Self {
        Self::Lasting(error)
    }
}

/// Which redirects to follow. Redirects within the hub are always followed: it redirects old model names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Redirects to any server.
    All,
    /// Redirects within the hub only; another server's address is returned.
    Hub,
}

/// Response whose body has not been read.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status code.
    pub status: StatusCode,
    /// HTTP response headers.
    pub headers: HeaderMap,
    body: Incoming,
}

impl Answer {
    /// Next part of the body; `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Trouble> {
        loop {
            let frame = timeout(BODY_STALL, self.body.frame()).await;
            let frame = frame
                .map_err(|_| Trouble::passing(format!("nothing arrived for {} s", BODY_STALL.as_secs())))?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(Trouble::passing(chain(&error))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole body, up to its size limit.
    pub async fn text(self) -> Result<Bytes, Trouble> {
        let whole = timeout(2 * BODY_STALL, Limited::new(self.body, MAX_TEXT_BYTES).collect()).await;
        let whole = whole.map_err(|_| Trouble::passing("the response did not end in time"))?;
        whole.map(|whole| whole.to_bytes()).map_err(Trouble::passing)
    }

    /// Value of a header, if present and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// HTTP client for a hub and the servers that it redirects to.
#[derive(Debug, Clone)]
pub struct Client {
    inner: HyperClient<Connector, Empty<Bytes>>,
    endpoint: Url,
    token: Option<Token>,
}

impl Client {
    /// Client for the hub of `environment`; opens no connection.
    pub fn new(environment: &Environment) -> Self {
        Self {
            inner: HyperClient::builder(TokioExecutor::new()).build(connector()),
            endpoint: environment.endpoint.clone(),
            token: environment.token.clone(),
        }
    }

    /// URL of `path` at the hub.
    pub fn url(&self, path: &str) -> Result<Url, HubError> {
        let failed = |error| HubError::Protocol { url: path.to_owned(), why: format!("not a path: {error}") };
        self.endpoint.join(path).map_err(failed)
    }

    /// Address of the hub, for messages.
    pub fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// Whether requests carry a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Requests the content from byte `from`. Server errors count as transient.
    pub async fn send(
        &self,
        method: Method,
        url: &Url,
        from: u64,
        follow: Follow,
    ) -> Result<Answer, Trouble> {
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.send_once(&method, &at, from).await?;
            let Some(next) = redirect(&answer, &at)? else { return checked(answer) };
            if follow == Follow::Hub && !is_same_server(&next, &self.endpoint) {
                return Ok(answer);
            }
            at = next;
        }
        Err(Trouble::Lasting(protocol(url, format!("more than {MAX_REDIRECTS} redirects"))))
    }

    async fn send_once(&self, method: &Method, url: &Url, from: u64) -> Result<Answer, Trouble> {
        let mut request = Request::builder().method(method).uri(url.as_str()).header(USER_AGENT, AGENT);
        // No compression, so that sizes and ranges count bytes of the file.
        request = request.header(ACCEPT_ENCODING, "identity");
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        // Other servers get no token: the hub redirects to signed URLs.
        if let Some(token) = self.token.as_ref().filter(|_| is_same_server(url, &self.endpoint)) {
            request = request.header(AUTHORIZATION, token.header());
        }
        let request = request.body(Empty::new()).map_err(|error| protocol(url, error.to_string()))?;
        let answer = timeout(HEADERS_WITHIN, self.inner.request(request)).await;
        let late = |_| Trouble::passing(format!("no response within {} s", HEADERS_WITHIN.as_secs()));
        let answer = answer.map_err(late)?.map_err(|error| of_connection(&error, url))?;
        let (head, body) = answer.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

/// Protocol error at `url`, without the query, which may contain a signature.
pub fn protocol(url: &Url, why: String) -> HubError {
    let mut shown = url.clone();
    shown.set_query(None);
    HubError::Protocol { url: shown.to_string(), why }
}

/// Target of a redirect in `answer`, if any.
fn redirect(answer: &Answer, at: &Url) -> Result<Option<Url>, HubError> {
    let is_redirect = [301, 302, 303, 307, 308].contains(&answer.status.as_u16());
    let Some(to) = answer.headers.get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let bad = || protocol(at, "it redirects to something that is not an address".to_owned());
    let next = to.to_str().ok().and_then(|to| at.join(to).ok()).ok_or_else(bad)?;
    let is_weaker = at.scheme() == "https" && next.scheme() != "https";
    if is_weaker || !["http", "https"].contains(&next.scheme()) {
        return Err(protocol(at, format!("it redirects to {}://, which is not safe", next.scheme())));
    }
    Ok(Some(next))
}

/// Converts statuses that invite a retry to errors.
fn checked(answer: Answer) -> Result<Answer, Trouble> {
    let is_passing = answer.status.is_server_error() || [408, 429].contains(&answer.status.as_u16());
    if !is_passing {
        return Ok(answer);
    }
    let seconds = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    Err(Trouble::Passing { why: format!("the server returned {}", answer.status), retry_after })
}

fn is_same_server(a: &Url, b: &Url) -> bool {
    a.origin() == b.origin()
}

/// A failed connection may succeed later, unless the server's certificate is not trusted.
fn of_connection(error: &(dyn Error + 'static), url: &Url) -> Trouble {
    if is_untrusted(error) {
        let server = url.host_str().unwrap_or_default().to_owned();
        return Trouble::Lasting(HubError::Certificate { server, why: chain(error) });
    }
    match unresolved(error) {
        Some(Unresolved { host, why }) => Trouble::Nameless { host: host.clone(), why: why.clone() },
        None => Trouble::passing(chain(error)),
    }
}

/// The failed lookup of a name among the causes of `error`.
fn unresolved<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Unresolved> {
    std::iter::successors(Some(error), |error| (*error).source()).find_map(|error| error.downcast_ref())
}

/// Whether an untrusted certificate is the cause. `io::Error` omits the error it wraps from its sources.
fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)))
        || wrapped.is_some_and(|inner| is_untrusted(inner))
        || error.source().is_some_and(is_untrusted)
}

/// Error text with its causes, which hyper's own text omits.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}
