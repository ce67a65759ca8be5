//! Changes of adapters at run time that count, and what each worker knows of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use skein_choice::fleet::AdapterRecords;
use skein_choice::worker_id::WorkerId;
use skein_proto::adapter::AdapterRecord;
use tokio::sync::Notify;

use super::worker_client::WorkerClient;

/// All changes that count, and a bell for the task that repeats them.
#[derive(Debug, Default)]
pub(crate) struct AdapterChanges {
    records: Mutex<AdapterRecords>,
    pub(super) lacking: Notify,
}

impl AdapterChanges {
    pub(crate) fn lock(&self) -> MutexGuard<'_, AdapterRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker reports its changes. What others lack is sent to them.
    pub(crate) fn reported(&self, worker: WorkerId, reported: &[AdapterRecord]) {
        let mut records = self.lock();
        records.saw(worker, reported);
        if records.merge(reported) || !records.lacking(worker).is_empty() {
            self.lacking.notify_one();
        }
    }

    /// Makes all changes on a worker that has just connected.
    pub(crate) async fn repeat(&self, worker: WorkerId, client: &WorkerClient) {
        let all = {
            let mut records = self.lock();
            records.connected(worker);
            let all = records.all();
            records.saw(worker, &all);
            all
        };
        for record in &all {
            send(client, record).await;
        }
    }
}

/// Makes a change on a worker that lacks it.
pub(super) async fn send(client: &WorkerClient, record: &AdapterRecord) {
    if let Err(error) = client.change_adapter(record, true).await {
        tracing::warn!(?record, %error, "a worker has not the adapters of the others");
    }
}
