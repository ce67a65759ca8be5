//! Paths that are passed on, and the parts of a request that an attempt needs.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method};
use skein_choice::receipt::Receipts;
use skein_node::clock::{self, Timestamp};
use skein_router::drain::Lease;
use skein_router::refusal::Refusal;

use super::prompt::Prompt;

/// Header by which a request allows or forbids that its stream continues by text.
pub const RESUME: HeaderName = HeaderName::from_static("x-skein-resume");

/// A path that is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Path, as the client sends it.
    pub path: &'static str,
    /// How its streams can continue.
    pub continues: Option<Continues>,
}

/// API whose streams can continue by text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continues {
    /// `/v1/chat/completions`: the answer so far becomes the last message.
    Chat,
    /// `/v1/completions`: the answer so far is added to the prompt.
    Completion,
}

/// Generation, embedding and scoring: requests that another worker may repeat. Other paths of a worker, such
/// as those that load adapters or put it to sleep, are not for clients.
const ROUTES: [Route; 22] = [
    Route { path: "/v1/chat/completions", continues: Some(Continues::Chat) },
    Route { path: "/v1/completions", continues: Some(Continues::Completion) },
    plain("/v1/responses"),
    plain("/v1/messages"),
    plain("/v1/messages/count_tokens"),
    plain("/v1/embeddings"),
    plain("/v1/rerank"),
    plain("/v2/rerank"),
    plain("/rerank"),
    plain("/v1/score"),
    plain("/score"),
    plain("/pooling"),
    plain("/classify"),
    plain("/tokenize"),
    plain("/detokenize"),
    plain("/apply-template"),
    plain("/generate"),
    plain("/generate_stream"),
    plain("/completion"),
    plain("/infill"),
    plain("/embedding"),
    plain("/embed"),
];

const fn plain(path: &'static str) -> Route {
    Route { path, continues: None }
}

/// Paths that count tokens or convert them, and compute nothing.
const FREE: [&str; 4] = ["/v1/messages/count_tokens", "/tokenize", "/detokenize", "/apply-template"];

impl Route {
    /// Whether a request is work for a model, which limits of tokens and the usage log are about.
    pub fn computes(&self) -> bool {
        !FREE.contains(&self.path)
    }

    /// The route of a request.
    ///
    /// # Errors
    /// If the path or the method is not passed on.
    pub fn of(method: &Method, path: &str) -> Result<Self, Refusal> {
        let shown: String = path.chars().take(200).collect();
        let Some(route) = ROUTES.into_iter().find(|route| route.path == path) else {
            return Err(Refusal::NotFound(format!("`{shown}` is not passed on to the workers.")));
        };
        if method != Method::POST {
            return Err(Refusal::MethodNotAllowed(format!("{method} is not allowed on `{shown}`.")));
        }
        Ok(route)
    }
}

/// A request, as every attempt needs it.
pub struct Call {
    /// Properties of its path.
    pub route: Route,
    /// Path and query at the worker.
    pub target: String,
    /// Headers for the worker.
    pub headers: HeaderMap,
    /// Body as it arrived.
    pub body: Bytes,
    /// What a choice depends on.
    pub prompt: Prompt,
    /// Whether its stream may continue by text.
    pub resumes: bool,
    /// When it arrived.
    pub arrived: Timestamp,
    /// Longest time that it may take.
    pub timeout: Duration,
    /// Collects why workers were chosen, if the client asked.
    pub receipts: Option<Receipts>,
    /// Held while it runs.
    pub lease: Lease,
}

impl Call {
    /// Whether it may continue to run.
    ///
    /// # Errors
    /// If its time is over, or this process shuts down.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.lease.is_over() {
            return Err(Refusal::Draining);
        }
        if clock::now().since(self.arrived) >= self.timeout {
            return Err(Refusal::DeadlineExceeded { timeout: self.timeout });
        }
        Ok(())
    }
}

/// Whether the stream of a request may continue by text: as the client says, else as the operator says.
///
/// # Errors
/// If the header has another value.
pub fn resumes(headers: &HeaderMap, by_default: bool) -> Result<bool, Refusal> {
    match headers.get(RESUME).map(http::HeaderValue::as_bytes) {
        None => Ok(by_default),
        Some(b"text") => Ok(true),
        Some(b"never") => Ok(false),
        Some(_) => Err(Refusal::invalid("X-Skein-Resume", "X-Skein-Resume must be `text` or `never`.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_may_be_repeated_are_passed_on() {
        let route =
            |method, path| Route::of(&method, path).map(|route| route.path).map_err(|no| no.http().status);
        assert_eq!(route(Method::POST, "/v1/completions"), Ok("/v1/completions"));
        assert_eq!(route(Method::GET, "/v1/completions"), Err(405));
        for path in ["/v1/load_lora_adapter", "/sleep", "/slots/0", "/v1/completions/../../sleep", ""] {
            assert_eq!(route(Method::POST, path), Err(404), "{path}");
        }
    }

    #[test]
    fn the_client_decides_about_resuming_before_the_operator() {
        let headers = |value: &str| HeaderMap::from_iter([(RESUME, value.parse().unwrap())]);
        assert_eq!(resumes(&HeaderMap::new(), true).ok(), Some(true));
        assert_eq!(resumes(&headers("text"), false).ok(), Some(true));
        assert_eq!(resumes(&headers("never"), true).ok(), Some(false));
        assert!(resumes(&headers("maybe"), true).is_err());
    }
}
