//! One reader of one stream at one worker. Dropped, it leaves for good: the worker is told, and frees what nobody else
//! reads.

use std::sync::Arc;

use futures::StreamExt;
use skein_node::clock;
use skein_proto::delta::WorkerDelta;

use crate::fleet::Placement;
use crate::links::errands::{Errand, What};
use crate::links::worker_client::{CallError, WorkerClient, WorkerDeltas};
use crate::links::workers::Workers;

/// A reader, from before its call to the end of its stream.
pub(super) struct Reader {
    workers: Arc<Workers>,
    pub placement: Placement,
    client: WorkerClient,
    pub id: String,
    deltas: Option<WorkerDeltas>,
    /// The worker knows that it is over, or never knew the reader.
    forgotten: bool,
}

impl Reader {
    /// A reader whose call is about to be made.
    pub fn new(workers: Arc<Workers>, placement: Placement, client: WorkerClient, id: String) -> Self {
        Self { workers, placement, client, id, deltas: None, forgotten: false }
    }

    pub fn client(&self) -> WorkerClient {
        self.client.clone()
    }

    /// The call was answered with a stream.
    pub fn opened(&mut self, deltas: WorkerDeltas) {
        self.deltas = Some(deltas);
    }

    /// What the worker sends next; `None` at the stream's end.
    pub async fn next(&mut self) -> Option<Result<WorkerDelta, CallError>> {
        self.deltas.as_mut()?.next().await
    }

    /// The worker need not be told when this reader leaves.
    pub fn forget(&mut self) {
        self.forgotten = true;
    }

    pub fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Tells the worker that a sample is not wanted any more.
    pub fn abort(&self, sample_index: u32) {
        self.tell(What::Abort(sample_index));
    }

    fn tell(&self, what: What) {
        let errand = Errand { client: self.client.clone(), reader: self.id.clone(), what };
        self.workers.errands.send(errand);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Without linger a stream ends when it is dropped. A worker out of reach hears nothing, and would only keep
        // others waiting; what it still runs ends when it has lingered.
        if self.forgotten || self.workers.linger.is_zero() {
            return;
        }
        let at = self.placement.at;
        if self.workers.with_fleet(|fleet| fleet.is_reachable(clock::now(), at)) {
            let deltas = self.deltas.take();
            self.tell(What::Release(deltas));
        }
    }
}
