//! Handle to a running engine for the rest of the worker.

use std::sync::Arc;
use std::time::Duration;

use skein_node::trace;
use skein_proto::placement::Placement;
use skein_proto::runs::{Gaps, RunStored};
use skein_proto::stream_key::StreamKey;
use tokio::sync::{mpsc, oneshot};

use super::constraints::Constraint;
use super::log::StateLog;
use crate::scheduler::{NewRequest, NotAdmitted};
use crate::streams::{AttachError, Attachment, Counts, TokenStream};

/// A validated request to submit to the engine.
#[derive(Debug)]
pub struct Submission {
    /// The request's id; unique among running requests.
    pub id: String,
    /// The request; the engine assigns its key.
    pub request: NewRequest,
    /// Router's dispatch that this request belongs to; `None` without a router.
    pub placement: Option<Placement>,
    /// Key under which other readers find the stream. If a stream with this key is running or kept here, the
    /// request reads it instead of being computed again.
    pub stream_key: Option<StreamKey>,
    /// How long the stream continues and stays readable without a reader: at most
    /// [`MAX_LINGER`](crate::streams::MAX_LINGER), and zero without a key.
    pub linger: Duration,
    /// Trace span of the request in this process.
    pub trace: trace::Request,
    /// Matchers of its grammar; `Some` if and only if its parameters have a grammar.
    pub constraint: Option<Constraint>,
}

impl Submission {
    /// A request without router, stream key or linger.
    pub fn alone(id: impl Into<String>, request: NewRequest) -> Self {
        Self {
            id: id.into(),
            request,
            placement: None,
            stream_key: None,
            linger: Duration::ZERO,
            trace: trace::Request::default(),
            constraint: None,
        }
    }
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A running request has this id.
    #[error("request_id {id:?} is running here; use another id or wait for its end")]
    Duplicate {
        /// The request's id.
        id: String,
    },
    /// Its Release arrived before it did.
    #[error("request_id {id:?} was released before it arrived; use another id")]
    Released {
        /// The request's id.
        id: String,
    },
    /// The scheduler refused it.
    #[error(transparent)]
    Refused(#[from] NotAdmitted),
    /// Too many streams are open because clients do not read theirs to the end.
    #[error("{open} streams are open, including finished ones not read to the end; the limit is {limit}")]
    TooManyStreams {
        /// Streams held by readers.
        open: u32,
        /// `max_num_queued_reqs + max_num_seqs`.
        limit: u32,
    },
    /// The worker is shutting down and has handed back its requests.
    #[error("this worker has handed its requests back; another worker can take the request")]
    HandedBack,
    /// The engine has ended.
    #[error("the engine has stopped; another worker can take the request")]
    Stopped,
}

/// Cache content and stream keys, as of a point in the log.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of the last log entry that it includes.
    pub sequence: u64,
    /// Cached runs, parents before children.
    pub runs: Vec<RunStored>,
    /// Cached blocks that cannot be shared, or those after which a prompt can resume.
    pub gaps: Gaps,
    /// Keys of readable streams, oldest first, limited to the newest.
    pub stream_keys: Vec<StreamKey>,
}

pub(super) enum Command {
    Submit(Box<Submission>, oneshot::Sender<Result<TokenStream, SubmitError>>),
    Abort {
        id: String,
        sample: u32,
        reply: oneshot::Sender<bool>,
    },
    Attach(Box<Attachment>, oneshot::Sender<Result<TokenStream, AttachError>>),
    Release {
        id: String,
        reply: oneshot::Sender<bool>,
    },
    Snapshot(oneshot::Sender<Snapshot>),
    HandBack,
    /// The backend failed. Only wakes the loop, which then checks the backend's health.
    Failed,
    Stop,
}

/// Sends commands to a running engine; cheap to clone.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    log: Arc<StateLog>,
}

impl EngineHandle {
    pub(super) fn new(commands: mpsc::Sender<Command>, log: Arc<StateLog>) -> Self {
        Self { commands, log }
    }

    /// Submits a request. Dropping the stream ends the request, unless it has other readers or a linger.
    pub async fn submit(&self, submission: Submission) -> Result<TokenStream, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit(Box::new(submission), reply);
        self.commands.send(command).await.map_err(|_| SubmitError::Stopped)?;
        answer.await.unwrap_or(Err(SubmitError::Stopped))
    }

    /// Adds a reader to an existing stream.
    pub async fn attach(&self, attachment: Attachment) -> Result<TokenStream, AttachError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Attach(Box::new(attachment), reply);
        self.commands.send(command).await.map_err(|_| AttachError::Stopped)?;
        answer.await.unwrap_or(Err(AttachError::Stopped))
    }

    /// Removes the reader called `id` for good. If it was the last reader, the request ends. False if there
    /// is no such reader.
    pub async fn release(&self, id: String) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Release { id, reply }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// Hands back every unfinished request after all output computed so far, and refuses new ones from then
    /// on.
    pub async fn hand_back(&self) {
        // An error means that the engine has ended, and every stream with it.
        let _ = self.commands.send(Command::HandBack).await;
    }

    /// Requests by outcome, as of the latest load.
    pub fn counts(&self) -> Counts {
        self.log.counts()
    }

    /// Ends one sample; false if it is not running.
    pub async fn abort(&self, id: String, sample: u32) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Abort { id, sample, reply }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// The cache and stream keys; `None` if the engine has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Snapshot(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Ends the engine without waiting for the steps in flight. Running requests end with
    /// [`Stopped`](crate::streams::StreamFault::Stopped).
    pub async fn stop(&self) {
        // An error means that the engine has already ended.
        let _ = self.commands.send(Command::Stop).await;
    }

    /// Waits for the engine's end.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// The log for routers.
    pub fn log(&self) -> &Arc<StateLog> {
        &self.log
    }
}
