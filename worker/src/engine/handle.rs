//! How the rest of the worker talks to a running engine.

use std::sync::Arc;
use std::time::Duration;

use skein_proto::placement::Placement;
use skein_proto::runs::RunStored;
use skein_proto::stream_key::StreamKey;
use tokio::sync::{mpsc, oneshot};

use super::log::StateLog;
use crate::scheduler::{NewRequest, Refusal};
use crate::streams::{AttachError, Attachment, Counts, TokenStream};

/// A checked request on its way into the engine.
#[derive(Debug)]
pub struct Submission {
    /// The client's name for it; unique among running requests.
    pub id: String,
    /// The request; the engine draws its key.
    pub request: NewRequest,
    /// Which dispatch of which router it is.
    pub placement: Option<Placement>,
    /// Under which other readers find it. What runs, or is kept, under it already is read and not computed again.
    pub stream_key: Option<StreamKey>,
    /// How long it goes on, and stays readable, without a reader; at most [`MAX_LINGER`](crate::streams::MAX_LINGER), and not at
    /// all without a key.
    pub linger: Duration,
}

impl Submission {
    /// A request that no router placed and only its own reader reads.
    pub fn alone(id: impl Into<String>, request: NewRequest) -> Self {
        Self { id: id.into(), request, placement: None, stream_key: None, linger: Duration::ZERO }
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// That id runs already.
    #[error("request_id {id:?} is running here; use another id or wait for its end")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// Its Release came first.
    #[error("request_id {id:?} was released before it came; use another id")]
    Released {
        /// The id.
        id: String,
    },
    /// The scheduler's reason.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Clients do not read their streams.
    #[error("{open} streams are open, finished ones not read to their end included; the limit is {limit}")]
    TooManyStreams {
        /// Streams held by readers.
        open: u32,
        /// `max_num_queued_reqs + max_num_seqs`.
        limit: u32,
    },
    /// The worker is about to end.
    #[error("this worker has given its requests back; another worker can take the request")]
    HandedBack,
    /// The engine has ended.
    #[error("the engine has stopped; another worker can take the request")]
    Stopped,
}

/// Everything cached, as of a point in the log.
#[derive(Debug)]
pub struct Snapshot {
    /// The number of the last log entry it includes.
    pub sequence: u64,
    /// Parents before their children.
    pub runs: Vec<RunStored>,
    /// Under which something can be read, oldest first: the newest ones.
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
    /// The backend has failed: only wakes the loop, which asks it.
    Failed,
    Stop,
}

/// Talks to a running engine; cheap to clone.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    log: Arc<StateLog>,
}

impl EngineHandle {
    pub(super) fn new(commands: mpsc::Sender<Command>, log: Arc<StateLog>) -> Self {
        Self { commands, log }
    }

    /// Hands a request over. Dropping the stream ends the request, or leaves it to its other readers and its linger.
    pub async fn submit(&self, submission: Submission) -> Result<TokenStream, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit(Box::new(submission), reply);
        self.commands.send(command).await.map_err(|_| SubmitError::Stopped)?;
        answer.await.unwrap_or(Err(SubmitError::Stopped))
    }

    /// Reads what another reader began.
    pub async fn attach(&self, attachment: Attachment) -> Result<TokenStream, AttachError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Attach(Box::new(attachment), reply);
        self.commands.send(command).await.map_err(|_| AttachError::Stopped)?;
        answer.await.unwrap_or(Err(AttachError::Stopped))
    }

    /// The reader of that name leaves for good, and without another one the request ends; false when there is no such
    /// reader.
    pub async fn release(&self, id: String) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Release { id, reply }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// Every stream that has not ended is given back, after all that was computed for it; nothing new is taken from then
    /// on.
    pub async fn hand_back(&self) {
        // An error means that the engine has ended, and every stream with it.
        let _ = self.commands.send(Command::HandBack).await;
    }

    /// What became of the requests, as of the latest load.
    pub fn counts(&self) -> Counts {
        self.log.counts()
    }

    /// Ends one sample; false when it is not running (any more).
    pub async fn abort(&self, id: String, sample: u32) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Abort { id, sample, reply }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// What is cached; `None` when the engine has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Snapshot(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Ends the engine without waiting for the steps under way; running requests end with [`StreamFault::Stopped`].
    pub async fn stop(&self) {
        // An error means that it has ended, which is what was asked.
        let _ = self.commands.send(Command::Stop).await;
    }

    /// Waits for the engine's end.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// What routers should know.
    pub fn log(&self) -> &Arc<StateLog> {
        &self.log
    }
}
