//! Small messages to workers that nobody waits for: a sample is not wanted any more, a reader has left for good.
//! One task carries them, many at a time; it ends with the cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::worker_client::{CallError, WorkerClient, WorkerDeltas};

/// Errands that wait to be run; more are not run at all, for a lingering stream ends by itself.
const MAX_WAITING: usize = 8192;
/// Errands under way.
const MAX_RUNNING: usize = 256;
/// Longest time for one: a worker that does not answer by then is in trouble of its own.
const RUN_WITHIN: Duration = Duration::from_secs(1);
/// A release may overtake its request, which goes by another connection: then it is told once more, after this time.
const TELL_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Takes errands. Cheap to share.
#[derive(Debug)]
pub(crate) struct Errands {
    sender: mpsc::Sender<Errand>,
    /// This process leaves: readers that end now leave their streams to others.
    leaving: AtomicBool,
}

/// Something to tell a worker.
pub(crate) struct Errand {
    pub client: WorkerClient,
    /// The reader it is about.
    pub reader: String,
    pub what: What,
}

/// What is to be told.
pub(crate) enum What {
    /// A sample is not wanted any more.
    Abort(u32),
    /// The reader leaves. Its stream stays open until the worker has heard of it, so that the worker sees the leave
    /// before the loss; `None` = no stream had come yet.
    Release(Option<WorkerDeltas>),
}

impl Errands {
    /// A place to leave errands, and what to give to [`run`].
    pub fn new() -> (Self, mpsc::Receiver<Errand>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { sender, leaving: AtomicBool::new(false) }, receiver)
    }

    /// From now on no reader is released.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Leaves an errand.
    pub fn send(&self, errand: Errand) {
        if matches!(errand.what, What::Release(_)) && self.leaving.load(Ordering::Relaxed) {
            return;
        }
        if self.sender.try_send(errand).is_err() {
            tracing::debug!("too many errands; the worker will find out by itself");
        }
    }
}

/// Runs errands until the cluster is dropped.
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
        tracing::debug!(reader, "an errand was not answered in time");
    }
}

async fn tell(Errand { client, reader, what }: Errand) {
    let told = match what {
        What::Abort(sample_index) => client.abort(reader.clone(), sample_index).await,
        What::Release(stream) => release(&client, &reader, stream.is_some()).await,
    };
    if let Err(error) = told {
        tracing::debug!(reader, %error, "an errand failed");
    }
}

async fn release(client: &WorkerClient, reader: &str, opened: bool) -> Result<(), CallError> {
    let found = client.release(reader.to_owned()).await?;
    if !found && !opened {
        tokio::time::sleep(TELL_AGAIN_AFTER).await;
        client.release(reader.to_owned()).await?;
    }
    Ok(())
}
