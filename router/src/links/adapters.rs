//! Adapters loaded and unloaded at run time: on all workers, and again on workers that connect later.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use skein_proto::adapter::AdapterId;

use super::worker_client::{CallError, WorkerClient};
use super::workers::Workers;
use crate::refusal::Refusal;

/// Most changes that are kept for workers that connect later; then the oldest unloaded adapter is forgotten.
const MOST_CHANGES: usize = 4096;

/// A change of the workers' adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// Serves an adapter; without a name only requests that had begun.
    Load { name: String, path: PathBuf, id: AdapterId },
    /// Takes no more requests by this name.
    Unload { name: String },
}

/// All changes so far that still count.
#[derive(Debug, Default)]
pub(crate) struct AdapterChanges(Mutex<Vec<Change>>);

impl AdapterChanges {
    fn loaded(&self, name: &str, path: PathBuf, id: AdapterId) {
        let mut changes = self.lock();
        changes.retain(|change| match change {
            Change::Load { name: of, id: other, .. } => of != name && !(of.is_empty() && *other == id),
            Change::Unload { .. } => true,
        });
        changes.push(Change::Load { name: name.to_owned(), path, id });
    }

    /// A stream of the adapter may continue on a worker that starts after this.
    fn unloaded(&self, name: &str) {
        let mut changes = self.lock();
        let mut was_loaded_here = false;
        for change in changes.iter_mut() {
            if let Change::Load { name: of, .. } = change
                && of == name
            {
                of.clear();
                was_loaded_here = true;
            }
        }
        // A name that comes from a worker's own flags comes back when it restarts.
        let unload = Change::Unload { name: name.to_owned() };
        if !was_loaded_here && !changes.contains(&unload) {
            changes.insert(0, unload);
        }
        let is_retired = |change: &Change| matches!(change, Change::Load { name, .. } if name.is_empty());
        while changes.len() > MOST_CHANGES {
            let Some(oldest) = changes.iter().position(is_retired) else { break };
            changes.remove(oldest);
        }
    }

    /// No worker has an adapter of this name, so its unloading need not be repeated.
    fn unknown(&self, name: &str) {
        self.lock().retain(|change| !matches!(change, Change::Unload { name: of } if of == name));
    }

    /// Makes all changes on a worker that has just connected.
    pub(crate) async fn repeat(&self, client: &WorkerClient) {
        let changes = self.lock().clone();
        for change in changes {
            let done = match &change {
                Change::Load { name, path, id } => {
                    client.load_adapter(name, &path.to_string_lossy(), Some(*id)).await.map(drop)
                }
                Change::Unload { name } => client.unload_adapter(name).await.map(drop),
            };
            if let Err(error) = done {
                tracing::warn!(?change, %error, "a worker that connected has not the adapters of the others");
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Change>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads an adapter on all connected workers.
///
/// # Errors
/// If one of them cannot serve it, or they find different adapters. Then no worker takes requests for it.
pub(crate) async fn load(workers: &Arc<Workers>, name: &str, path: &str) -> Result<AdapterId, Refusal> {
    let clients = workers.clients();
    if clients.is_empty() {
        return Err(workers.none_ready());
    }
    let loaded = join_all(clients.iter().map(|client| client.load_adapter(name, path, None))).await;
    let found: Result<Vec<AdapterId>, CallError> = loaded.iter().cloned().collect();
    let refusal = match found.as_deref() {
        Ok([first, others @ ..]) if others.iter().all(|other| other == first) => {
            workers.adapter_changes.loaded(name, path.into(), *first);
            return Ok(*first);
        }
        Ok(_) => "the workers have different adapters in this directory".to_owned(),
        Err(error) => error.to_string(),
    };
    for (client, _) in clients.iter().zip(&loaded).filter(|(_, loaded)| loaded.is_ok()) {
        if let Err(error) = client.unload_adapter(name).await {
            tracing::warn!(name, %error, "an adapter that not all workers have stays loaded on one");
        }
    }
    Err(Refusal::invalid("lora_path", format!("The adapter cannot be loaded: {refusal}")))
}

/// Unloads an adapter on all connected workers. Streams that have begun go on.
///
/// # Errors
/// If no worker has it, or one cannot be reached.
pub(crate) async fn unload(workers: &Arc<Workers>, name: &str) -> Result<(), Refusal> {
    let clients = workers.clients();
    if clients.is_empty() {
        return Err(workers.none_ready());
    }
    workers.adapter_changes.unloaded(name);
    let unloaded = join_all(clients.iter().map(|client| client.unload_adapter(name))).await;
    let found: Result<Vec<bool>, CallError> = unloaded.into_iter().collect();
    match found {
        Ok(found) if found.iter().any(|found| *found) => Ok(()),
        Ok(_) => {
            workers.adapter_changes.unknown(name);
            Err(Refusal::NotFound(format!("No adapter named `{name}` is loaded.")))
        }
        Err(error) => Err(Refusal::invalid("lora_name", format!("The adapter cannot be unloaded: {error}."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_workers_get_the_changes_that_still_count() {
        let changes = AdapterChanges::default();
        let load = |name: &str, id: u64| Change::Load {
            name: name.to_owned(),
            path: format!("/{id}").into(),
            id: AdapterId(id),
        };
        changes.loaded("a", "/1".into(), AdapterId(1));
        changes.loaded("b", "/2".into(), AdapterId(2));
        changes.unloaded("a");
        assert_eq!(*changes.lock(), [load("", 1), load("b", 2)], "streams of a may still move");
        changes.loaded("a", "/1".into(), AdapterId(1));
        assert_eq!(*changes.lock(), [load("b", 2), load("a", 1)]);
        changes.unloaded("of-flags");
        changes.unloaded("of-flags");
        changes.loaded("of-flags", "/3".into(), AdapterId(3));
        changes.unloaded("nowhere");
        changes.unknown("nowhere");
        let unload = Change::Unload { name: "of-flags".to_owned() };
        assert_eq!(*changes.lock(), [unload, load("b", 2), load("a", 1), load("of-flags", 3)]);
    }
}
