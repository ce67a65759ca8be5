//! Fire-and-forget messages to workers: abort a sample, release a reader. One task sends them, many at a
//! time; it ends with the cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::worker_client::{CallError, WorkerClient, WorkerDeltas};

/// Most queued messages. Further ones are dropped: an unreleased stream ends after its linger time.
const MAX_WAITING: usize = 8192;
/// Most messages in flight.
const MAX_RUNNING: usize = 256;
/// Longest time for one message; a worker that does not answer by then is probably failing.
const RUN_WITHIN: Duration = Duration::from_secs(1);
/// A release may overtake its request, which uses another connection. If the worker does not know the reader
/// yet, the release is sent again after this time.
const RESEND_AFTER: Duration = Duration::from_millis(100);

/// The queue of messages.
#[derive(Debug)]
pub(crate) struct Errands {
    sender: mpsc::Sender<Errand>,
    /// This process is exiting: readers that end now leave their streams for others to resume.
    leaving: AtomicBool,
}

/// A message to a worker.
pub(crate) struct Errand {
    pub client: WorkerClient,
    /// Id of the reader it concerns.
    pub reader: String,
    pub kind: ErrandKind,
}

/// Content of a message.
pub(crate) enum ErrandKind {
    /// The sample is no longer needed.
    Abort(u32),
    /// The reader leaves. Its stream stays open until the worker has confirmed, so that the worker sees the
    /// release before the disconnect; `None` = no stream had arrived yet.
    Release(Option<WorkerDeltas>),
}

impl Errands {
    /// The queue, and its receiving end for [`run`].
    pub fn new() -> (Self, mpsc::Receiver<Errand>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { sender, leaving: AtomicBool::new(false) }, receiver)
    }

    /// From now on, releases are not sent.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Queues a message.
    pub fn send(&self, errand: Errand) {
        if matches!(errand.kind, ErrandKind::Release(_)) && self.leaving.load(Ordering::Relaxed) {
            return;
        }
        if self.sender.try_send(errand).is_err() {
            tracing::debug!("too many messages to workers; dropped one");
        }
    }
}

/// Sends messages until the cluster is dropped.
pub(crate) async fn run(mut errands: mpsc::Receiver<Errand>) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = running.next() => {}
            errand = errands.recv(), if running.len() < MAX_RUNNING => match errand {
                Some(errand) => running.push(run_one(errand)),
                None => return,
            },
        }
    }
}

async fn run_one(errand: Errand) {
    let reader = errand.reader.clone();
    if tokio::time::timeout(RUN_WITHIN, tell(errand)).await.is_err() {
        tracing::debug!(reader, "a message to a worker timed out");
    }
}

async fn tell(Errand { client, reader, kind }: Errand) {
    let sent = match kind {
        ErrandKind::Abort(sample_index) => client.abort(reader.clone(), sample_index).await,
        ErrandKind::Release(stream) => release(&client, &reader, stream.is_some()).await,
    };
    if let Err(error) = sent {
        tracing::debug!(reader, %error, "a message to a worker failed");
    }
}

async fn release(client: &WorkerClient, reader: &str, opened: bool) -> Result<(), CallError> {
    let found = client.release(reader.to_owned()).await?;
    if !found && !opened {
        tokio::time::sleep(RESEND_AFTER).await;
        client.release(reader.to_owned()).await?;
    }
    Ok(())
}
