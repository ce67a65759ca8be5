//! Watches a wait on a worker for the client's deadline, aborted samples, and the loss of the worker.

use std::time::Duration;

use skein_node::clock;
use skein_node::signal::Listener;
use tokio::sync::mpsc;

use crate::fleet::{Fleet, WorkerPlacement};
use crate::links::workers::Workers;

/// How often a silent stream checks whether its worker is lost, beside being notified.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What ended a wait on a worker.
pub(super) enum Waited<T> {
    Answer(T),
    Abort(u32),
    Deadline,
    Stuck,
    /// The worker drains, and another one accepts requests.
    Leave,
}

/// What to watch for.
pub(super) struct Watch<'a> {
    pub workers: &'a Workers,
    pub placement: WorkerPlacement,
    pub deadline: Option<clock::Timestamp>,
    /// Notifies streams to check their worker.
    pub rechecks: &'a mut Listener,
}

impl Watch<'_> {
    pub async fn wait<T>(
        self,
        mut answer: impl Future<Output = T> + Unpin,
        mut aborts: Option<&mut mpsc::Receiver<u32>>,
    ) -> Waited<T> {
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
                // Before the answer, so that a stream which always has more cannot run past its deadline.
                () = until(self.deadline) => return Waited::Deadline,
                answer = &mut answer => return Waited::Answer(answer),
                () = self.rechecks.changed() => {}
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            if self.workers.with_fleet(stuck) {
                return Waited::Stuck;
            }
            // Only for an open stream: a call in progress is answered soon.
            if aborts.is_some()
                && self.workers.with_fleet(|fleet| fleet.should_leave(clock::now(), self.placement))
            {
                return Waited::Leave;
            }
        }
    }
}

/// Waits until `deadline`; forever if there is none.
pub(super) async fn until(deadline: Option<clock::Timestamp>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
