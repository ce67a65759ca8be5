//! All the ways in which a request can fail. Two exhaustive matches, [`Refusal::http`] and
//! [`Refusal::grpc_code`], decide what a client sees.

use std::sync::Arc;
use std::time::Duration;

use skein_node::trace;
use skein_text::{PromptTooLong, TextRefused};

use crate::request_lines::REQUEST_LINES;

/// Why a request was not answered, or not completely.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// A field is malformed or out of range.
    #[error("{message}")]
    Invalid {
        /// The field's name in the API; `None` = unknown.
        param: Option<&'static str>,
        /// What is wrong, the value, the limit, what to do.
        message: String,
    },
    /// The body is not a JSON object.
    #[error("{0}")]
    InvalidJson(String),
    /// Prompt and output do not fit. Clients match on this sentence.
    #[error(
        "This model's maximum context length is {max} tokens. However, you requested {} tokens ({prompt} in the prompt, {output} for the output). Please reduce the length of the prompt or of the output.",
        *prompt as u64 + *output as u64
    )]
    ContextLength {
        /// Longest sequence of the model, tokens.
        max: u32,
        /// Prompt length, tokens.
        prompt: u32,
        /// Output tokens requested.
        output: u32,
        /// `messages` or `prompt`.
        param: &'static str,
    },
    /// The prompt is far too long and was not fully tokenised.
    #[error(transparent)]
    PromptTooLong(PromptTooLong),
    /// The prompt fits, but not with `max_tokens`.
    #[error(
        "{field} is too large: {output}. This model's maximum context length is {max} tokens and the prompt has {prompt}; ask for at most {} tokens.",
        max - prompt
    )]
    OutputLength {
        /// The API's name of the most tokens of an answer.
        field: &'static str,
        /// Tokens of the longest sequence.
        max: u32,
        /// Prompt tokens, fewer than `max`.
        prompt: u32,
        /// Output tokens asked for.
        output: u32,
    },
    /// No served model has this name.
    #[error("The model `{asked}` does not exist; this server has {served}.")]
    ModelNotFound {
        /// The name in the request.
        asked: String,
        /// The names that there are.
        served: Arc<str>,
    },
    /// The path does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A response that a request continues is not stored.
    #[error("{0}")]
    NoPreviousResponse(String),
    /// The path exists, but not with this method.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// The content type is not JSON.
    #[error("Unsupported content-type `{0}`; send application/json.")]
    UnsupportedMediaType(String),
    /// The request names a content encoding in which its API takes no bodies.
    #[error("The body is compressed (content-encoding `{0}`); send it as it is.")]
    CompressedBody(String),
    /// The body is too large.
    #[error("The request body is over {limit} bytes; send a smaller one.")]
    TooLarge {
        /// Largest body, bytes.
        limit: usize,
    },
    /// The request has no API key.
    #[error(
        "This server requires an API key, but none was sent; send the header `Authorization: Bearer KEY`."
    )]
    MissingKey,
    /// The API key is wrong.
    #[error("Incorrect API key provided.")]
    Unauthorized,
    /// The API key is not enough for this.
    #[error("{0}")]
    Forbidden(String),
    /// The API key was valid until some time ago.
    #[error("This API key has expired; ask the operator of this server for another.")]
    KeyExpired,
    /// A limit of the key or of its tenant.
    #[error("{message}")]
    RateLimited {
        /// What is limited: `requests` or `tokens`.
        kind: &'static str,
        /// Whose limit, the limit, when to retry.
        message: String,
        /// When to retry.
        retry_after: Duration,
    },
    /// Something that excludes this is under way.
    #[error("{0}")]
    Conflict(String),
    /// A different request runs under this id.
    #[error("A request with id `{0}` is already running; use another id.")]
    DuplicateId(String),
    /// The client claims more of the answer than exists.
    #[error(
        "The answer under this request id is not the one that you have part of: the body or the model has changed. Send the request again without Last-Event-ID or resume_from."
    )]
    NotContinued,
    /// The answer began on a version of the model that no worker serves any more.
    #[error(
        "The answer began on a version of the model's weights that no worker serves any more, and another version would \
         not continue it; send the request again as a new one, without Last-Event-ID or resume_from."
    )]
    VersionGone,
    /// Refused by admission, or by every worker.
    #[error("The cluster is at its limit ({reason}); retry after {} ms.", retry_after.as_millis())]
    Overloaded {
        /// The limit that was reached.
        reason: String,
        /// When to retry.
        retry_after: Duration,
    },
    /// All workers are loading, draining or gone.
    #[error("No worker is ready: {reason}.")]
    NoReadyWorker {
        /// State of the workers.
        reason: String,
        /// When to retry.
        retry_after: Duration,
    },
    /// The router is shutting down.
    #[error("The server is shutting down; retry elsewhere.")]
    Draining,
    /// The request's deadline passed.
    #[error("The deadline of {} ms passed before the request ended.", timeout.as_millis())]
    DeadlineExceeded {
        /// The request's time limit.
        timeout: Duration,
    },
    /// Even an idle worker would miss the client's deadline.
    #[error(
        "The first token would take {} ms and the deadline is in {} ms; allow more time.",
        needed.as_millis(), left.as_millis()
    )]
    DeadlineTooShort {
        /// Predicted time to the first token on an idle worker.
        needed: Duration,
        /// Until the client's deadline.
        left: Duration,
    },
    /// A stream of another server was cut, and no other can continue it.
    #[error("The worker was lost in the middle of the answer, and no other continues it: {0}.")]
    NotResumed(&'static str),
    /// The request failed on every worker tried.
    #[error(
        "The request could not be finished after {moves} attempts to move it to another worker: the workers failed."
    )]
    WorkersLost {
        /// Number of attempts to move it, whether or not another worker could be reached.
        moves: u32,
        /// The last fault, for the log only: a worker's error text is not for clients.
        reason: String,
    },
    /// There is no room for a file, a batch or a response.
    #[error(
        "The server has no room to store more; delete files or responses that are no longer needed, or retry later."
    )]
    NoRoom,
    /// A broken invariant of ours.
    #[error("Internal error; quote the request id when you report it.")]
    Internal,
}

/// What an HTTP client sees: the status, and the `type` and `code` of the OpenAI error object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpShape {
    /// HTTP status code.
    pub status: u16,
    /// `type` of the error object.
    pub kind: &'static str,
    /// `code` of the error object.
    pub code: Option<&'static str>,
}

impl From<TextRefused> for Refusal {
    fn from(refused: TextRefused) -> Self {
        match refused {
            TextRefused::Invalid { param, message } => Self::Invalid { param: Some(param), message },
            TextRefused::PromptTooLong(prompt) => Self::PromptTooLong(prompt),
            TextRefused::Internal => Self::Internal,
        }
    }
}

impl Refusal {
    /// An [`Refusal::Invalid`] for `param`.
    pub fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { param: Some(param), message: message.into() }
    }

    /// The refusal of a text that may have more tokens than the model's `context`.
    pub fn beyond(self, context: u32) -> Self {
        match self {
            Self::PromptTooLong(prompt) => Self::PromptTooLong(PromptTooLong { max: context, ..prompt }),
            other => other,
        }
    }

    /// Logs a request that was not started. The message is omitted, because it may quote the client.
    pub fn log(&self, request: &str) {
        let HttpShape { status, code, .. } = self.http();
        tracing::info!(target: REQUEST_LINES, request, status, code, param = self.param(), "request refused");
    }

    /// Marks `trace` as failed if the server is at fault. A request that the client must change is not an
    /// error here.
    pub fn trace(&self, trace: &trace::Request) {
        let HttpShape { status, code, .. } = self.http();
        if status >= 500 {
            trace.fail(code.unwrap_or("internal_error"));
        } else if let Some(code) = code {
            trace.set("error.type", code);
        }
    }

    /// The HTTP form.
    pub fn http(&self) -> HttpShape {
        let shape = |status, kind, code| HttpShape { status, kind, code };
        match self {
            Self::Invalid { .. } => shape(400, "invalid_request_error", None),
            Self::InvalidJson(_) => shape(400, "invalid_request_error", Some("invalid_json")),
            Self::ContextLength { .. } | Self::PromptTooLong(_) | Self::OutputLength { .. } => {
                shape(400, "invalid_request_error", Some("context_length_exceeded"))
            }
            Self::ModelNotFound { .. } => shape(404, "invalid_request_error", Some("model_not_found")),
            Self::NotFound(_) => shape(404, "invalid_request_error", Some("not_found")),
            Self::NoPreviousResponse(_) => {
                shape(400, "invalid_request_error", Some("previous_response_not_found"))
            }
            Self::MethodNotAllowed(_) => shape(405, "invalid_request_error", Some("method_not_allowed")),
            Self::UnsupportedMediaType(_) | Self::CompressedBody(_) => {
                shape(415, "invalid_request_error", Some("unsupported_media_type"))
            }
            Self::TooLarge { .. } => shape(413, "invalid_request_error", Some("request_too_large")),
            Self::MissingKey | Self::Unauthorized | Self::KeyExpired => {
                shape(401, "invalid_request_error", Some("invalid_api_key"))
            }
            Self::Forbidden(_) => shape(403, "permission_error", Some("admin_key_required")),
            Self::DuplicateId(_) => shape(409, "invalid_request_error", Some("duplicate_request_id")),
            Self::Conflict(_) => shape(409, "invalid_request_error", Some("conflict")),
            Self::NotContinued => shape(409, "invalid_request_error", Some("not_continued")),
            Self::VersionGone => shape(409, "invalid_request_error", Some("model_version_gone")),
            Self::RateLimited { kind, .. } => shape(429, kind, Some("rate_limit_exceeded")),
            Self::Overloaded { .. } => shape(429, "overloaded_error", Some("queue_full")),
            Self::NoReadyWorker { .. } => shape(503, "service_unavailable", Some("no_ready_worker")),
            Self::Draining => shape(503, "service_unavailable", Some("draining")),
            Self::DeadlineExceeded { .. } | Self::DeadlineTooShort { .. } => {
                shape(504, "timeout_error", Some("deadline_exceeded"))
            }
            Self::WorkersLost { .. } | Self::NotResumed(_) => {
                shape(500, "server_error", Some("engine_error"))
            }
            Self::NoRoom => shape(507, "server_error", Some("insufficient_storage")),
            Self::Internal => shape(500, "server_error", Some("internal_error")),
        }
    }

    /// The field at fault, if known.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { param, .. } => *param,
            Self::ContextLength { param, .. } | Self::PromptTooLong(PromptTooLong { param, .. }) => {
                Some(param)
            }
            Self::OutputLength { field, .. } => Some(field),
            Self::ModelNotFound { .. } => Some("model"),
            Self::NoPreviousResponse(_) => Some("previous_response_id"),
            _ => None,
        }
    }

    /// When to retry; `None` if retrying does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded { retry_after, .. }
            | Self::NoReadyWorker { retry_after, .. }
            | Self::RateLimited { retry_after, .. } => Some(*retry_after),
            Self::Draining => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// The gRPC form.
    pub fn grpc_code(&self) -> tonic::Code {
        match self {
            Self::Invalid { .. }
            | Self::InvalidJson(_)
            | Self::ContextLength { .. }
            | Self::PromptTooLong(_)
            | Self::OutputLength { .. }
            | Self::UnsupportedMediaType(_)
            | Self::CompressedBody(_)
            | Self::TooLarge { .. } => tonic::Code::InvalidArgument,
            Self::ModelNotFound { .. } | Self::NotFound(_) | Self::NoPreviousResponse(_) => {
                tonic::Code::NotFound
            }
            Self::MethodNotAllowed(_) => tonic::Code::Unimplemented,
            Self::MissingKey | Self::Unauthorized | Self::KeyExpired => tonic::Code::Unauthenticated,
            Self::Forbidden(_) => tonic::Code::PermissionDenied,
            Self::DuplicateId(_) => tonic::Code::AlreadyExists,
            Self::NotContinued | Self::VersionGone | Self::Conflict(_) => tonic::Code::FailedPrecondition,
            Self::Overloaded { .. } | Self::RateLimited { .. } | Self::NoRoom => {
                tonic::Code::ResourceExhausted
            }
            Self::NoReadyWorker { .. } | Self::Draining => tonic::Code::Unavailable,
            Self::DeadlineExceeded { .. } | Self::DeadlineTooShort { .. } => tonic::Code::DeadlineExceeded,
            Self::WorkersLost { .. } | Self::NotResumed(_) | Self::Internal => tonic::Code::Internal,
        }
    }
}
