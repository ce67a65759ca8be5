//! Watches over a wait on a worker: for the client's deadline, for samples not wanted any more, and for the worker
//! being lost.

use std::time::Duration;

use skein_node::clock;
use skein_node::signal::Listener;
use tokio::sync::mpsc;

use crate::fleet::{Fleet, Placement};
use crate::links::workers::Workers;

/// A silent stream asks this often whether its worker is lost, beside being told.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What ended a wait on a worker.
pub(super) enum Waited<T> {
    For(T),
    Abort(u32),
    Deadline,
    Stuck,
    /// The worker drains, and another one takes requests.
    Leave,
}

/// What to watch for.
pub(super) struct Watch<'a> {
    pub workers: &'a Workers,
    pub placement: Placement,
    pub deadline: Option<clock::Timestamp>,
    /// Changes when streams should ask about their worker.
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
                // Before the answer: a stream that always has more must not outrun its deadline.
                () = until(self.deadline) => return Waited::Deadline,
                answer = &mut answer => return Waited::For(answer),
                () = self.rechecks.changed() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
            if self.workers.with_fleet(stuck) {
                return Waited::Stuck;
            }
            // Only of a stream that is open: a call under way is answered soon.
            if aborts.is_some()
                && self.workers.with_fleet(|fleet| fleet.should_leave(clock::now(), self.placement))
            {
                return Waited::Leave;
            }
        }
    }
}

/// Waits until `deadline`; for ever without one.
pub(super) async fn until(deadline: Option<clock::Timestamp>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
