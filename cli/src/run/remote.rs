//! Client of a running server: OpenAI's API over HTTP. If the connection breaks, the request is sent again
//! with the last event's id, and a Skein server sends exactly the rest.

use std::time::Duration;

use http::HeaderName;
use serde_json::{Value, json};
use skein_client::{Client, Limits, Request, Response};
use skein_node::clock;
use skein_node::shutdown::Shutdown;
use skein_router::request::{Draft, Prompt};

use super::answer::{Answer, Unanswered};
use super::sampling;
use crate::exit::Failure;
use crate::server_access::Certificates;
use crate::server_events::{ServerEvent, ServerEvents};

/// How long a client waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may send nothing. Skein sends comments while a request waits.
const READ_TIMEOUT: Duration = Duration::from_secs(600);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Most attempts in a row without a new event before the answer fails.
const MAX_ATTEMPTS: u32 = 40;
/// Time between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// An OpenAI-compatible server and one of its models.
pub struct Remote {
    http: Client,
    base_url: String,
    api_key: Option<String>,
    /// Name of the model.
    pub model: String,
}

/// Why one connection ended.
enum Ended {
    /// The answer is complete, or the user stopped it.
    Done,
    /// The connection broke, with the reason.
    Broke(String),
}

impl Remote {
    /// Connects to the server at `url`. Without a `model`, the first that the server lists is used.
    ///
    /// # Errors
    /// If `url` is not an HTTP URL, or the server does not list its models.
    pub async fn connect(
        url: &str,
        certificates: &Certificates,
        api_key: Option<String>,
        model: Option<String>,
    ) -> Result<Self, Failure> {
        let limits = Limits { connect: CONNECT_TIMEOUT, read: Some(READ_TIMEOUT), whole: None };
        let (http, base_url) = certificates.client("--url", url, limits)?;
        let mut remote = Self { http, base_url, api_key, model: model.unwrap_or_default() };
        if remote.model.is_empty() {
            remote.model =
                remote.first_model().await.map_err(|why| Failure::other(format!("{url}: {why}")))?;
        }
        Ok(remote)
    }

    async fn first_model(&self) -> Result<String, String> {
        let request = self.authorized(self.http.get(&format!("{}/v1/models", self.base_url)));
        let response = request.send().await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let list = response.json().await.map_err(|error| error.to_string())?;
        let first = list["data"][0]["id"].as_str();
        first.map(str::to_owned).ok_or_else(|| "/v1/models lists no model; name one with --model".to_owned())
    }

    fn authorized<'a>(&self, request: Request<'a>) -> Request<'a> {
        request.bearer(self.api_key.as_deref())
    }

    /// Prints the answer to `draft` as it arrives, until it is complete or `stop` is requested.
    ///
    /// # Errors
    /// If the server refuses the request, or the connection breaks and cannot be resumed.
    pub async fn answer(&self, draft: &Draft, stop: &Shutdown) -> Result<Answer, Unanswered> {
        let (path, body) = self.body(draft);
        let key = format!("run-{}-{}", std::process::id(), clock::unix_time().as_nanos());
        let mut progress = Progress::default();
        let mut attempts = 0;
        let sent = clock::now();
        loop {
            let seen = progress.last_id.clone();
            let why = match self.read(path, &body, &key, &mut progress, stop).await? {
                Ended::Done => break,
                Ended::Broke(why) => why,
            };
            attempts = if progress.last_id == seen { attempts + 1 } else { 1 };
            let cannot_resume = progress.last_id.is_none() && !progress.answer.text.is_empty();
            if attempts > MAX_ATTEMPTS || cannot_resume {
                return Err(Unanswered::Server(format!("the connection broke: {why}")));
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_PAUSE) => {}
                () = stop.requested() => break,
            }
        }
        outln!();
        let first = progress.first.unwrap_or_else(clock::now);
        let (first, rest) = (first.since(sent), clock::now().since(first));
        Ok(Answer { first, rest, ..progress.answer })
    }

    /// Path and JSON body of the request.
    fn body(&self, draft: &Draft) -> (&'static str, Value) {
        let mut body = sampling::to_json(&draft.sampling);
        body.insert("model".into(), json!(self.model));
        body.insert("stream".into(), json!(true));
        body.insert("stream_options".into(), json!({"include_usage": true}));
        let path = match &draft.prompt {
            Prompt::Chat { messages, .. } => {
                body.insert("messages".into(), json!(messages));
                "/v1/chat/completions"
            }
            Prompt::Text(text) => {
                body.insert("prompt".into(), json!(text));
                "/v1/completions"
            }
            Prompt::Tokens(tokens) => {
                body.insert("prompt".into(), json!(tokens));
                "/v1/completions"
            }
        };
        (path, Value::Object(body))
    }

    /// Sends the request and reads events until the answer or the connection ends.
    async fn read(
        &self,
        path: &str,
        body: &Value,
        key: &str,
        progress: &mut Progress,
        stop: &Shutdown,
    ) -> Result<Ended, Unanswered> {
        let url = format!("{}{path}", self.base_url);
        let mut request = self.http.post(&url, body).header(IDEMPOTENCY_KEY, key);
        if let Some(id) = &progress.last_id {
            request = request.header(LAST_EVENT_ID, id);
        }
        let response = tokio::select! {
            response = self.authorized(request).send() => response,
            () = stop.requested() => return Ok(Ended::Done),
        };
        let mut response = match response {
            Ok(response) => response,
            Err(error) if progress.last_id.is_some() => return Ok(Ended::Broke(error.to_string())),
            Err(error) => return Err(Unanswered::Server(error.to_string())),
        };
        if !response.status().is_success() {
            let is_passing = response.status().as_u16() == 503 && progress.last_id.is_some();
            let why = refusal(response).await;
            return if is_passing { Ok(Ended::Broke(why)) } else { Err(Unanswered::Server(why)) };
        }
        let mut events = ServerEvents::default();
        loop {
            let chunk = tokio::select! {
                chunk = response.chunk() => chunk,
                () = stop.requested() => return Ok(Ended::Done),
            };
            let chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(Ended::Broke("it closed before the answer's end".to_owned())),
                Err(error) => return Ok(Ended::Broke(error.to_string())),
            };
            for event in events.push(&chunk).map_err(Unanswered::Server)? {
                if progress.take(event)? {
                    return Ok(Ended::Done);
                }
            }
        }
    }
}

/// State of an answer that is arriving.
#[derive(Default)]
struct Progress {
    answer: Answer,
    first: Option<clock::Timestamp>,
    /// Id of the last complete event.
    last_id: Option<String>,
}

impl Progress {
    /// Prints the text of an event; returns true at the end of the answer.
    fn take(&mut self, event: ServerEvent) -> Result<bool, Unanswered> {
        if event.data == "[DONE]" {
            return Ok(true);
        }
        let malformed = |error| Unanswered::Server(format!("an event is not JSON: {error}"));
        let chunk: Value = serde_json::from_str(&event.data).map_err(malformed)?;
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(Unanswered::Server(message_of(error)));
        }
        let choice = &chunk["choices"][0];
        let text =
            choice["delta"]["content"].as_str().or_else(|| choice["text"].as_str()).unwrap_or_default();
        if !text.is_empty() {
            self.first.get_or_insert_with(clock::now);
            self.answer.text.push_str(text);
            out!("{text}");
        }
        let usage = &chunk["usage"];
        if usage.is_object() {
            let count =
                |value: &Value| value.as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
            self.answer.tokens = count(&usage["completion_tokens"]);
            self.answer.prompt_tokens = count(&usage["prompt_tokens"]);
            self.answer.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]);
        }
        self.last_id = event.id.or(self.last_id.take());
        Ok(false)
    }
}

/// The server's error message, or the HTTP status if it has none.
async fn refusal(response: Response) -> String {
    let status = response.status();
    match response.json().await {
        Ok(body) if !body["error"].is_null() => message_of(&body["error"]),
        _ => format!("the server answered {status}"),
    }
}

fn message_of(error: &Value) -> String {
    error["message"].as_str().or_else(|| error.as_str()).map_or_else(|| error.to_string(), str::to_owned)
}
