//! The reader of one stream at one worker. Dropping it releases the stream: the worker is told, and frees it
//! if nothing else reads it.

use std::sync::Arc;

use futures::StreamExt;
use skein_choice::fleet::WorkerPlacement;
use skein_node::clock;
use skein_proto::delta::WorkerDelta;

use crate::links::errands::{Errand, ErrandKind};
use crate::links::worker_client::{CallError, WorkerClient, WorkerDeltas};
use crate::links::workers::Workers;

/// A reader, from before its call until the end of its stream.
pub(super) struct Reader {
    workers: Arc<Workers>,
    pub placement: WorkerPlacement,
    client: WorkerClient,
    pub id: String,
    deltas: Option<WorkerDeltas>,
    /// The worker has ended the stream or never had it, so it need not be told.
    forgotten: bool,
}

impl Reader {
    /// A reader before its call.
    pub fn new(workers: Arc<Workers>, placement: WorkerPlacement, client: WorkerClient, id: String) -> Self {
        Self { workers, placement, client, id, deltas: None, forgotten: false }
    }

    pub fn client(&self) -> WorkerClient {
        self.client.clone()
    }

    /// The call was answered with a stream.
    pub fn opened(&mut self, deltas: WorkerDeltas) {
        self.deltas = Some(deltas);
    }

    /// The next message from the worker; `None` at the stream's end.
    pub async fn next(&mut self) -> Option<Result<WorkerDelta, CallError>> {
        self.deltas.as_mut()?.next().await
    }

    /// Marks that the worker need not be told when this reader is dropped.
    pub fn forget(&mut self) {
        self.forgotten = true;
    }

    pub fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Tells the worker to abort a sample.
    pub fn abort(&self, sample_index: u32) {
        self.tell(ErrandKind::Abort(sample_index));
    }

    fn tell(&self, kind: ErrandKind) {
        let errand = Errand { client: self.client.clone(), reader: self.id.clone(), kind };
        self.workers.errands.send(errand);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Without a linger time the worker needs no message: it ends the stream at the disconnect. An
        // unreachable worker gets none either: the message would only delay others, and its streams end after
        // their linger time.
        if self.forgotten || self.workers.linger.is_zero() {
            return;
        }
        let at = self.placement.at;
        if self.workers.with_fleet(|fleet| fleet.is_reachable(clock::now(), at)) {
            let deltas = self.deltas.take();
            self.tell(ErrandKind::Release(deltas));
        }
    }
}
