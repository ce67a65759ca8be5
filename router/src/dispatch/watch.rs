//! Watches a wait on a worker for the client's deadline, aborted samples, and the loss of the worker.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use skein_choice::fleet::{Fleet, WorkerPlacement};
use skein_node::clock;
use skein_node::signal::Listener;
use skein_proto::version::Version;
use tokio::sync::mpsc;
use tokio::time::Sleep;

use crate::links::workers::Workers;

/// How often a silent stream checks whether its worker is lost, beside being notified.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What ended a wait on a worker.
pub(super) enum Waited<T> {
    Answer(T),
    Abort(u32),
    Deadline,
    Stuck,
    /// The worker drains, and another one of its version accepts requests.
    Leave,
}

/// What to watch for.
pub(super) struct Watch<'a> {
    pub workers: &'a Workers,
    pub placement: WorkerPlacement,
    /// Version of the model that the request must go on with; unknown = any.
    pub version: Version,
    pub deadline: Option<clock::Timestamp>,
    /// Notifies streams to check their worker.
    pub rechecks: &'a mut Listener,
    /// Timer of the request.
    pub timer: &'a mut Timer,
}

/// The only timer of a request. It is not reset between tokens: it fires at the deadline or after the check
/// interval, whichever comes first, and is set again if it fired too early.
pub(super) struct Timer(Pin<Box<Sleep>>);

impl Timer {
    pub fn new(deadline: Option<clock::Timestamp>) -> Self {
        Self(Box::pin(tokio::time::sleep(Self::span(deadline))))
    }

    fn span(deadline: Option<clock::Timestamp>) -> Duration {
        deadline.map_or(CHECK_INTERVAL, |deadline| deadline.since(clock::now()).min(CHECK_INTERVAL))
    }

    async fn fired(&mut self, deadline: Option<clock::Timestamp>) {
        self.0.as_mut().await;
        self.0.set(tokio::time::sleep(Self::span(deadline)));
    }
}

impl Watch<'_> {
    pub async fn wait<T>(
        self,
        mut answer: impl Future<Output = T> + Unpin,
        mut aborts: Option<&mut mpsc::Receiver<u32>>,
    ) -> Waited<T> {
        if let Some(Ok(sample_index)) = aborts.as_mut().map(|aborts| aborts.try_recv()) {
            return Waited::Abort(sample_index);
        }
        // Checked before the answer, so that a stream that always has more cannot run past its deadline.
        if self.deadline.is_some_and(|deadline| clock::now() >= deadline) {
            return Waited::Deadline;
        }
        // An answer that is already here needs no timer.
        if let Poll::Ready(answer) = futures::poll!(&mut answer) {
            return Waited::Answer(answer);
        }
        let silent_since = clock::now();
        let stuck = |fleet: &mut Fleet| fleet.is_stuck(clock::now(), self.placement, silent_since);
        loop {
            let aborted = async {
                match &mut aborts {
                    Some(aborts) => aborts.recv().await,
                    None => None,
                }
            };
            tokio::select! {
                biased;
                Some(sample_index) = aborted => return Waited::Abort(sample_index),
                answer = &mut answer => return Waited::Answer(answer),
                () = self.rechecks.changed() => {}
                () = self.timer.fired(self.deadline) => {}
            }
            if self.deadline.is_some_and(|deadline| clock::now() >= deadline) {
                return Waited::Deadline;
            }
            if self.workers.with_fleet(stuck) {
                return Waited::Stuck;
            }
            // Only for an open stream: a call in progress is answered soon.
            if aborts.is_some()
                && self
                    .workers
                    .with_fleet(|fleet| fleet.should_leave(clock::now(), self.placement, self.version))
            {
                return Waited::Leave;
            }
        }
    }
}

/// Waits until `deadline`; forever if there is none.
pub(crate) async fn until(deadline: Option<clock::Timestamp>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
