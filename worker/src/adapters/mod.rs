//! Adapters that a worker serves beside its model: which there are, and which are in memory. Requests wait
//! here, off the engine's thread, until theirs is.
//!
//! An adapter stays in memory while a request has it, and afterwards until its place is needed: then the one
//! unused for longest goes. If all places are in use, requests wait in order of arrival, those for adapters
//! in memory as well, so that every place becomes free in time and none waits for ever.

mod adapter_use;
mod table;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use skein_node::signal::{Listener, Signal};
use skein_proto::adapter::{AdapterId, AdapterInfo, AdapterRecord};
use tokio::sync::{Notify, OnceCell, Semaphore};
use tokio::time::{Instant, timeout_at};

pub use self::adapter_use::AdapterUse;
use self::table::{Loading, Place, Table};
use crate::backend::LoadedAdapter;
use crate::config::{AdapterConfig, AdaptersConfig};
use crate::group::RankAdapters;
use skein_model::LoadError;
use skein_model::adapter::Adapter;
use skein_model::adapter_changes;
use skein_model::served_adapter::{AdapterModel, HeldAdapter};
use skein_model::spec::Spec;

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
    #[error("{0}; give all workers equal copies")]
    Differs(Unequal),
    /// Another rank of the worker has not the same.
    #[error("{0}")]
    OnRank(String),
}

/// A directory with another adapter than expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} has an adapter of the hash {:016x}, and {:016x} is expected", .directory.display(), .found.0, .expected.0)]
pub struct Unequal {
    /// The directory.
    directory: PathBuf,
    /// Hash of its files.
    found: AdapterId,
    /// The hash that it should have.
    expected: AdapterId,
}

/// The adapters of a worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Adapters(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Structure of the model, and how its backend keeps adapters; `None` = a backend without a model, whose
    /// adapters have no weights.
    model: Option<AdapterModel>,
    config: AdaptersConfig,
    table: Mutex<Table>,
    /// Held by the first request that waits for a place, so that others queue behind it.
    door: tokio::sync::Mutex<()>,
    /// A place may have become free.
    freed: Arc<Notify>,
    loads: Semaphore,
    changes: Signal,
    /// The other ranks of the worker.
    ranks: OnceLock<RankAdapters>,
}

impl Adapters {
    /// Adapters of a model, whose backend keeps them in a form, with those of `config` loaded. `None`: of a
    /// backend without a model.
    ///
    /// # Errors
    /// If one of them cannot be served.
    pub fn new(config: &AdaptersConfig, model: Option<AdapterModel>) -> Result<Self, NotChanged> {
        let adapters = Self(Arc::new(Shared {
            model,
            config: config.clone(),
            table: Mutex::new(Table::new(config.max_loras, config.max_cpu_loras)),
            door: tokio::sync::Mutex::new(()),
            freed: Arc::default(),
            loads: Semaphore::new(LOADS_AT_ONCE),
            changes: Signal::default(),
            ranks: OnceLock::new(),
        }));
        for AdapterConfig { name, directory } in &config.modules {
            let (id, directory) = adapters.find(name, directory, None)?;
            adapters.name(name, directory, id, 0)?;
        }
        Ok(adapters)
    }

    /// Has the other ranks of the worker serve the same adapters from now on.
    ///
    /// # Errors
    /// If a rank's machine does not have one of them.
    pub fn follow_on(&self, ranks: RankAdapters) -> Result<(), NotChanged> {
        for (id, directory) in self.table().directories() {
            ranks.examine(id, &directory).map_err(NotChanged::OnRank)?;
        }
        // Only the first call counts, and there is one.
        let _ = self.0.ranks.set(ranks);
        Ok(())
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

    /// All changes at run time, for routers.
    pub fn records(&self) -> Vec<AdapterRecord> {
        self.table().records()
    }

    /// Serves the adapter in `directory` as `name`; with an empty name only requests that began elsewhere.
    /// `id` is the identity that it must have. `stamp` orders the changes of a name, whose latest one counts;
    /// without one, a name that another adapter has is refused.
    ///
    /// # Errors
    /// If it cannot be served, or this worker allows no changes. Nothing has changed then.
    pub fn load(
        &self,
        name: &str,
        directory: &Path,
        id: Option<AdapterId>,
        stamp: u64,
    ) -> Result<AdapterId, NotChanged> {
        let (found, directory) = self.could_load(name, directory, id)?;
        self.name(name, directory, found, stamp)
    }

    /// The identity of the adapter in `directory` and its absolute path, if it can be served. `id` is the
    /// identity that it must have.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn could_load(
        &self,
        name: &str,
        directory: &Path,
        id: Option<AdapterId>,
    ) -> Result<(AdapterId, PathBuf), NotChanged> {
        if !self.0.config.may_change {
            return Err(NotChanged::Fixed);
        }
        self.find(name, directory, id)
    }

    fn find(
        &self,
        name: &str,
        directory: &Path,
        id: Option<AdapterId>,
    ) -> Result<(AdapterId, PathBuf), NotChanged> {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let found = self.check(name, &directory)?;
        if let Some(expected) = id.filter(|expected| *expected != found) {
            return Err(NotChanged::Differs(Unequal { directory, found, expected }));
        }
        if let Some(ranks) = self.0.ranks.get() {
            ranks.examine(found, &directory).map_err(NotChanged::OnRank)?;
        }
        Ok((found, directory))
    }

    fn name(
        &self,
        name: &str,
        directory: PathBuf,
        id: AdapterId,
        stamp: u64,
    ) -> Result<AdapterId, NotChanged> {
        if !self.table().add(name, directory, id, stamp) {
            return Err(NotChanged::Taken(name.to_owned()));
        }
        self.0.changes.send();
        Ok(id)
    }

    /// Takes no more requests by `name`; false if there is no such adapter. Requests that began go on. The
    /// change is remembered under its `stamp`, if it has one and there was such an adapter or the change
    /// `is_repeated`.
    ///
    /// # Errors
    /// If this worker allows no changes.
    pub fn unload(&self, name: &str, stamp: u64, is_repeated: bool) -> Result<bool, NotChanged> {
        if !self.0.config.may_change {
            return Err(NotChanged::Fixed);
        }
        let found = self.table().retire(name, stamp, is_repeated);
        if found && is_repeated {
            tracing::info!(name, "the adapter was unloaded before on another worker");
        }
        self.0.changes.send();
        Ok(found)
    }

    /// Identity of the adapter in `directory`, if it can be served.
    fn check(&self, name: &str, directory: &Path) -> Result<AdapterId, LoadError> {
        let Some(AdapterModel { spec, dir, .. }) = &self.0.model else {
            // No weights, so the path is the identity.
            let path = directory.as_os_str().as_encoded_bytes();
            return Ok(AdapterId(xxhash_rust::xxh3::xxh3_64(path).max(1)));
        };
        let adapter = Adapter::open(directory)?;
        adapter_changes::check(&adapter, spec, self.0.config.max_lora_rank)?;
        adapter.check_copies_in(dir)?;
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
        let made = LoadedAdapter::new(id, weights, self.0.freed.clone());
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
        let (name, directory) = known;
        let adapters = self.clone();
        let read = tokio::task::spawn_blocking(move || adapters.read_on_all_ranks(&directory, id, &model));
        let read = read.await.unwrap_or_else(|_| Err("reading it panicked".to_owned()));
        let weights = read.map_err(|reason| NotServed::Unusable { name, reason })?;
        self.table().count_load();
        Ok(Some(Arc::new(weights)))
    }

    /// Reads this rank's part of an adapter, while the other ranks read theirs.
    fn read_on_all_ranks(
        &self,
        directory: &Path,
        id: AdapterId,
        model: &AdapterModel,
    ) -> Result<HeldAdapter, String> {
        let max_rank = self.0.config.max_lora_rank;
        let Some(ranks) = self.0.ranks.get() else { return read(directory, id, model, max_rank) };
        std::thread::scope(|scope| {
            let keeps = |held| held == id || self.table().has_place(held);
            let others = scope.spawn(move || ranks.load(id, directory, keeps));
            let own = read(directory, id, model, max_rank);
            let others = others.join().unwrap_or_else(|_| Err("waiting for the ranks panicked".to_owned()));
            others.and(own)
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the adapter in `directory`, which must be the one of `id`; otherwise the error ends with `advice`.
fn open(directory: &Path, id: AdapterId, advice: &str) -> Result<Adapter, String> {
    let adapter = Adapter::open(directory).map_err(|error| error.to_string())?;
    let found = adapter.id().map_err(|error| error.to_string())?;
    if found != id {
        let unequal = Unequal { directory: directory.to_owned(), found, expected: id };
        return Err(format!("{unequal}; {advice}"));
    }
    Ok(adapter)
}

/// Reads an adapter again, which must still be the same.
fn read(
    directory: &Path,
    id: AdapterId,
    model: &AdapterModel,
    max_rank: usize,
) -> Result<HeldAdapter, String> {
    let advice = "it has changed since it was loaded: unload the adapter and load it again";
    let adapter = open(directory, id, advice)?;
    model.read(&adapter, max_rank).map_err(|error| error.to_string())
}

/// What to do if ranks find different files.
const EQUAL_COPIES: &str = "give all machines of the group equal copies";

/// Reads a rank's part of the adapter that the leader has as `id`.
pub(crate) fn read_on_rank(
    directory: &Path,
    id: AdapterId,
    model: &AdapterModel,
    max_rank: usize,
) -> Result<HeldAdapter, String> {
    let adapter = open(directory, id, EQUAL_COPIES)?;
    model.read(&adapter, max_rank).map_err(|error| error.to_string())
}

/// Checks that a rank could read the adapter that the leader has as `id`.
pub(crate) fn check_on_rank(
    directory: &Path,
    id: AdapterId,
    spec: &Spec,
    max_rank: usize,
) -> Result<(), String> {
    let adapter = open(directory, id, EQUAL_COPIES)?;
    adapter_changes::check(&adapter, spec, max_rank).map_err(|error| error.to_string())
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
