//! Adapters that a worker serves beside its model: which there are, and which are in memory. Requests wait
//! here, off the engine's thread, until theirs is.
//!
//! An adapter stays in memory while a request has it, and afterwards until its place is needed: then the one
//! unused for longest goes. If all places are in use, requests wait in order of arrival, those for adapters
//! in memory as well, so that every place becomes free in time and none waits for ever.

mod table;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skein_node::signal::{Listener, Signal};
use skein_proto::adapter::{AdapterId, AdapterInfo};
use tokio::sync::{Notify, OnceCell, Semaphore};
use tokio::time::{Instant, timeout_at};

use self::table::{Loading, Place, Table};
use crate::backend::LoadedAdapter;
use crate::config::{AdapterConfig, AdaptersConfig};
use crate::model::LoadError;
use crate::model::adapter::Adapter;
use crate::model::served_adapter::{self, AdapterForm, HeldAdapter};
use crate::model::spec::Spec;

/// Longest wait for a place in memory, and for the load.
const MOST_WAIT: Duration = Duration::from_secs(60);
/// Adapters that are read from disk at once.
const LOADS_AT_ONCE: usize = 2;

/// Why a request cannot have its adapter.
#[derive(Debug, thiserror::Error)]
pub enum NotServed {
    /// The worker does not have it.
    #[error("this worker has no adapter {:016x}; it was unloaded, or never loaded here", .0.0)]
    Unknown(AdapterId),
    /// All places are in use.
    #[error(
        "{} adapters are in use and none became free within {} s; raise --max-loras, or retry later", .0, MOST_WAIT.as_secs()
    )]
    Busy(usize),
    /// Its files cannot be used any more.
    #[error("adapter {name}: {reason}")]
    Unusable {
        /// Name for clients.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// Why an adapter is not loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    /// The worker was started without permission.
    #[error("this worker's adapters are fixed at its start; start it with --allow-runtime-lora-updating")]
    Fixed,
    /// The name is taken.
    #[error("an adapter named {0} is loaded already; unload it first, or choose another name")]
    Taken(String),
    /// It cannot be served.
    #[error(transparent)]
    Unsuitable(#[from] LoadError),
    /// It is not the expected one.
    #[error("the adapter in {} is not the expected one; give all workers equal copies", .0.display())]
    Differs(PathBuf),
}

/// What a worker's adapters are used for now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterUse {
    /// Adapters that requests can name.
    pub known: usize,
    /// Those in memory.
    pub in_memory: usize,
    /// Names of those that running requests have, in order. The name of an unloaded one is its identity.
    pub running: Vec<String>,
    /// Names of those that requests wait for.
    pub waiting: Vec<String>,
    /// Most different adapters in use at once.
    pub max_in_use: usize,
    /// Reads of an adapter from its files since the start.
    pub loads: u64,
}

/// The adapters of a worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Adapters(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Structure of the model, and how its backend keeps adapters; `None` = a backend without a model, whose
    /// adapters have no weights.
    model: Option<(Spec, AdapterForm)>,
    config: AdaptersConfig,
    table: Mutex<Table>,
    /// Held by the first request that waits for a place, so that others queue behind it.
    door: tokio::sync::Mutex<()>,
    /// A place may have become free.
    freed: Arc<Notify>,
    loads: Semaphore,
    changes: Signal,
}

impl Adapters {
    /// Adapters of a model, whose backend keeps them in a form, with those of `config` loaded. `None`: of a
    /// backend without a model.
    ///
    /// # Errors
    /// If one of them cannot be served.
    pub fn new(config: &AdaptersConfig, model: Option<(&Spec, AdapterForm)>) -> Result<Self, NotChanged> {
        let adapters = Self(Arc::new(Shared {
            model: model.map(|(spec, form)| (spec.clone(), form)),
            config: config.clone(),
            table: Mutex::new(Table::new(config.max_loras, config.max_cpu_loras)),
            door: tokio::sync::Mutex::new(()),
            freed: Arc::default(),
            loads: Semaphore::new(LOADS_AT_ONCE),
            changes: Signal::default(),
        }));
        for AdapterConfig { name, directory } in &config.modules {
            adapters.add(name, directory, None)?;
        }
        Ok(adapters)
    }

    /// All adapters, for routers.
    pub fn list(&self) -> Vec<AdapterInfo> {
        self.table().list()
    }

    /// What they are used for now.
    pub fn usage(&self) -> AdapterUse {
        self.table().usage()
    }

    /// Notified when [`list`](Self::list) changes.
    pub fn subscribe(&self) -> Listener {
        self.0.changes.subscribe()
    }

    /// Serves the adapter in `directory` as `name`; with an empty name only requests that began elsewhere.
    /// `id` is the identity that it must have.
    ///
    /// # Errors
    /// If it cannot be served, or this worker allows no changes. Nothing has changed then.
    pub fn load(&self, name: &str, directory: &Path, id: Option<AdapterId>) -> Result<AdapterId, NotChanged> {
        if !self.0.config.may_change {
            return Err(NotChanged::Fixed);
        }
        self.add(name, directory, id)
    }

    fn add(&self, name: &str, directory: &Path, id: Option<AdapterId>) -> Result<AdapterId, NotChanged> {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let found = self.check(name, &directory)?;
        if id.is_some_and(|id| id != found) {
            return Err(NotChanged::Differs(directory));
        }
        if !self.table().add(name, directory, found) {
            return Err(NotChanged::Taken(name.to_owned()));
        }
        self.0.changes.send();
        Ok(found)
    }

    /// Takes no more requests by `name`; false if there is no such adapter. Requests that began go on.
    ///
    /// # Errors
    /// If this worker allows no changes.
    pub fn unload(&self, name: &str) -> Result<bool, NotChanged> {
        if !self.0.config.may_change {
            return Err(NotChanged::Fixed);
        }
        let found = self.table().retire(name);
        self.0.changes.send();
        Ok(found)
    }

    /// Identity of the adapter in `directory`, if it can be served.
    fn check(&self, name: &str, directory: &Path) -> Result<AdapterId, LoadError> {
        let Some((spec, _)) = &self.0.model else {
            // No weights, so the path is the identity.
            let path = directory.as_os_str().as_encoded_bytes();
            return Ok(AdapterId(xxhash_rust::xxh3::xxh3_64(path).max(1)));
        };
        let adapter = Adapter::open(directory)?;
        served_adapter::check(&adapter, spec, self.0.config.max_lora_rank)?;
        let id = adapter.id()?;
        tracing::info!(name, id = format!("{:016x}", id.0), "adapter can be served");
        Ok(id)
    }

    /// The adapter `id`, in memory until the last holder drops it. Waits for a place and for the load.
    ///
    /// # Errors
    /// If it is not here, its files have changed, or no place becomes free in time.
    pub async fn acquire(&self, id: AdapterId) -> Result<Arc<LoadedAdapter>, NotServed> {
        let deadline = Instant::now() + MOST_WAIT;
        let busy = |_| NotServed::Busy(self.0.config.max_loras);
        self.table().begin_waiting(id);
        let _waiting = Waiting { adapters: self, id };
        let turn = timeout_at(deadline, self.0.door.lock()).await.map_err(busy)?;
        let place = loop {
            let freed = self.0.freed.notified();
            if let Some(place) = self.table().reserve(id).ok_or(NotServed::Unknown(id))? {
                break place;
            }
            timeout_at(deadline, freed).await.map_err(busy)?;
        };
        drop(turn);
        let mut loading = match place {
            Place::Ready(adapter) => return Ok(adapter),
            Place::Loading(cell) => Reserved { adapters: self, id, cell },
        };
        let weights = timeout_at(deadline, self.weights(&mut loading)).await.map_err(busy)??;
        let directory = self.table().directory(id).map(|(_, directory)| directory).unwrap_or_default();
        let made = LoadedAdapter::new(id, weights, self.0.freed.clone()).in_directory(directory);
        let adapter = self.table().loaded(id, made);
        self.0.changes.send();
        Ok(adapter)
    }

    /// Weights of an adapter with a place, read from disk unless another request has read them.
    async fn weights(&self, loading: &mut Reserved<'_>) -> Result<Option<Arc<HeldAdapter>>, NotServed> {
        let cell: Arc<OnceCell<_>> = loading.cell.clone();
        let weights = cell.get_or_try_init(|| self.read(loading.id)).await?;
        Ok(weights.clone())
    }

    async fn read(&self, id: AdapterId) -> Result<Option<Arc<HeldAdapter>>, NotServed> {
        let Some(model) = self.0.model.clone() else { return Ok(None) };
        let _turn = self.0.loads.acquire().await;
        let known = self.table().directory(id).ok_or(NotServed::Unknown(id))?;
        let (name, max_rank) = (known.0.clone(), self.0.config.max_lora_rank);
        let read = tokio::task::spawn_blocking(move || read(&known.1, id, &model, max_rank));
        let read = read.await.unwrap_or_else(|_| Err("reading it panicked".to_owned()));
        let weights = read.map_err(|reason| NotServed::Unusable { name, reason })?;
        self.table().count_load();
        Ok(Some(Arc::new(weights)))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads an adapter again, which must still be the same.
pub(crate) fn read(
    directory: &Path,
    id: AdapterId,
    (spec, form): &(Spec, AdapterForm),
    max_rank: usize,
) -> Result<HeldAdapter, String> {
    let adapter = Adapter::open(directory).map_err(|error| error.to_string())?;
    if adapter.id().map_err(|error| error.to_string())? != id {
        let directory = directory.display();
        return Err(format!(
            "{directory} has changed since it was loaded; unload the adapter and load it again"
        ));
    }
    form.read(&adapter, spec, max_rank).map_err(|error| error.to_string())
}

/// A request that waits for an adapter.
struct Waiting<'a> {
    adapters: &'a Adapters,
    id: AdapterId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.adapters.table().end_waiting(self.id);
    }
}

/// A place whose adapter is being read, given up on drop.
struct Reserved<'a> {
    adapters: &'a Adapters,
    id: AdapterId,
    cell: Loading,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.adapters.table().end_loading(self.id);
        self.adapters.0.freed.notify_one();
    }
}
