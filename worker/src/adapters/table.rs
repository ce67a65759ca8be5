//! The table of adapters: which are known, which have a place in memory, and which may lose it. Pure.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use skein_model::served_adapter::HeldAdapter;
use skein_proto::adapter::{AdapterChange, AdapterId, AdapterInfo, AdapterRecord};
use tokio::sync::OnceCell;

use super::AdapterUse;
use crate::backend::LoadedAdapter;

/// Most unloaded adapters that are kept for requests that had begun, and most unloaded names; then the oldest
/// is forgotten.
const MOST_RETIRED: usize = 1024;

/// Weights that are being read; shared by all requests that wait for them. `None` = no weights.
pub(super) type Loading = Arc<OnceCell<Option<Arc<HeldAdapter>>>>;

/// Known adapters, and places in memory.
#[derive(Debug)]
pub(super) struct Table {
    /// In the order of their loading, oldest first.
    known: Vec<Known>,
    places: HashMap<AdapterId, Slot>,
    /// Names taken away at run time, with the stamps of that.
    unloaded: BTreeMap<String, u64>,
    /// Requests that have no adapter yet.
    waiting: BTreeMap<AdapterId, usize>,
    max_in_use: usize,
    max_places: usize,
    /// Counts reservations, as a clock for the order of use.
    reserved: u64,
    /// Reads of an adapter from its files.
    loads: u64,
}

#[derive(Debug)]
struct Known {
    /// Empty if it is retired.
    name: String,
    directory: PathBuf,
    id: AdapterId,
    /// Of the change that gave it the name; 0 = at the start, or without a name.
    stamp: u64,
}

/// A place in memory.
#[derive(Debug)]
struct Slot {
    cell: Loading,
    /// Requests that wait for the weights.
    waiting: usize,
    /// The requests that have it.
    users: Weak<LoadedAdapter>,
    last_used: u64,
}

impl Slot {
    fn is_in_use(&self) -> bool {
        self.waiting > 0 || self.users.strong_count() > 0
    }
}

/// A place that a request got.
#[derive(Debug)]
pub(super) enum Place {
    /// The adapter is in memory.
    Ready(Arc<LoadedAdapter>),
    /// It has to be read, or made from what was read.
    Loading(Loading),
}

impl Table {
    pub fn new(max_in_use: usize, max_places: usize) -> Self {
        let max_places = max_places.max(max_in_use).max(1);
        let max_in_use = max_in_use.clamp(1, max_places);
        let (known, unloaded) = (Vec::new(), BTreeMap::new());
        let (places, waiting) = (HashMap::new(), BTreeMap::new());
        Self { known, unloaded, places, waiting, max_in_use, max_places, reserved: 0, loads: 0 }
    }

    pub fn list(&self) -> Vec<AdapterInfo> {
        let info = |known: &Known| AdapterInfo {
            name: known.name.clone(),
            id: known.id,
            is_resident: self.places.get(&known.id).is_some_and(|slot| slot.cell.initialized()),
        };
        self.known.iter().map(info).collect()
    }

    /// What the adapters are used for now.
    pub fn usage(&self) -> AdapterUse {
        let name = |id: &AdapterId| match self.directory(*id) {
            Some((name, _)) if !name.is_empty() => name,
            _ => format!("{:016x}", id.0),
        };
        let running = self.places.iter().filter(|(_, slot)| slot.users.strong_count() > 0);
        let mut running: Vec<String> = running.map(|(id, _)| name(id)).collect();
        running.sort_unstable();
        AdapterUse {
            known: self.known.iter().filter(|known| !known.name.is_empty()).count(),
            in_memory: self.places.values().filter(|slot| slot.cell.initialized()).count(),
            running,
            waiting: self.waiting.keys().map(name).collect(),
            max_in_use: self.max_in_use,
            loads: self.loads,
        }
    }

    /// Counts a read of an adapter from its files.
    pub fn count_load(&mut self) {
        self.loads += 1;
    }

    /// A request begins to wait for the adapter `id`.
    pub fn begin_waiting(&mut self, id: AdapterId) {
        *self.waiting.entry(id).or_default() += 1;
    }

    /// A request has its adapter, or has given up.
    pub fn end_waiting(&mut self, id: AdapterId) {
        if let Some(count) = self.waiting.get_mut(&id) {
            *count -= 1;
            self.waiting.retain(|_, count| *count > 0);
        }
    }

    /// All changes at run time.
    pub fn records(&self) -> Vec<AdapterRecord> {
        let of_run_time = self.known.iter().filter(|known| known.name.is_empty() || known.stamp > 0);
        let loaded = of_run_time.map(|Known { name, directory, id, stamp }| {
            let path = directory.to_string_lossy().into_owned();
            let change = AdapterChange::Loaded { path, id: *id, stamp: *stamp };
            AdapterRecord { name: name.clone(), change }
        });
        let unloaded = self.unloaded.iter().map(|(name, stamp)| AdapterRecord {
            name: name.clone(),
            change: AdapterChange::Unloaded { stamp: *stamp },
        });
        loaded.chain(unloaded).collect()
    }

    /// The change of a name that counts here.
    fn record(&self, name: &str) -> Option<AdapterRecord> {
        self.records().into_iter().filter(|record| record.name == name).max_by_key(AdapterRecord::order)
    }

    /// Adds an adapter by a change with `stamp`. Without one, it is false if the name belongs to another one.
    /// An earlier change than the one that counts has no effect.
    pub fn add(&mut self, name: &str, directory: PathBuf, id: AdapterId, stamp: u64) -> bool {
        if !name.is_empty() {
            if stamp > 0 {
                let path = directory.to_string_lossy().into_owned();
                let change = AdapterChange::Loaded { path, id, stamp };
                let new = AdapterRecord { name: name.to_owned(), change };
                if self.record(name).is_some_and(|old| old.order() >= new.order()) {
                    return true;
                }
            }
            if let Some(known) = self.known.iter_mut().find(|known| known.name == name) {
                if known.id == id {
                    known.stamp = known.stamp.max(stamp);
                    return true;
                }
                if stamp == 0 {
                    return false;
                }
                self.take_name(name);
            }
            self.unloaded.remove(name);
        }
        self.known.retain(|known| known.id != id || !known.name.is_empty());
        if !name.is_empty() || !self.known.iter().any(|known| known.id == id) {
            self.known.push(Known { name: name.to_owned(), directory, id, stamp });
        }
        self.forget_retired();
        true
    }

    /// Takes the name off an adapter by a change with `stamp`; false if there is none. With a stamp, that is
    /// remembered if there was one or `is_repeated`.
    pub fn retire(&mut self, name: &str, stamp: u64, is_repeated: bool) -> bool {
        if name.is_empty() {
            return false;
        }
        let (name, change) = (name.to_owned(), AdapterChange::Unloaded { stamp });
        let new = AdapterRecord { name: name.clone(), change };
        if stamp > 0 && self.record(&name).is_some_and(|old| old.order() >= new.order()) {
            return false;
        }
        let found = self.take_name(&name);
        if stamp > 0 && (found || is_repeated) {
            self.unloaded.insert(name, stamp);
            while self.unloaded.len() > MOST_RETIRED {
                let oldest = self.unloaded.iter().min_by_key(|(_, stamp)| **stamp);
                let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
                self.unloaded.remove(&oldest);
            }
        }
        found
    }

    fn take_name(&mut self, name: &str) -> bool {
        let Some(at) = self.known.iter().position(|known| known.name == name) else { return false };
        let mut known = self.known.remove(at);
        if !self.known.iter().any(|other| other.id == known.id) {
            known.name.clear();
            known.stamp = 0;
            self.known.push(known);
        }
        self.forget_retired();
        true
    }

    fn forget_retired(&mut self) {
        let retired = |known: &Known| known.name.is_empty();
        let mut surplus = self.known.iter().filter(|it| retired(it)).count().saturating_sub(MOST_RETIRED);
        self.known.retain(|known| {
            let goes = retired(known) && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// Name and directory of an adapter.
    pub fn directory(&self, id: AdapterId) -> Option<(String, PathBuf)> {
        let known = self.known.iter().find(|known| known.id == id)?;
        Some((known.name.clone(), known.directory.clone()))
    }

    /// Identities and directories of all adapters.
    pub fn directories(&self) -> Vec<(AdapterId, PathBuf)> {
        self.known.iter().map(|known| (known.id, known.directory.clone())).collect()
    }

    /// Whether an adapter has a place in memory.
    pub fn has_place(&self, id: AdapterId) -> bool {
        self.places.contains_key(&id)
    }

    /// A place for the adapter `id`; `Some(None)` while all are in use, `None` if it is unknown.
    pub fn reserve(&mut self, id: AdapterId) -> Option<Option<Place>> {
        if !self.known.iter().any(|known| known.id == id) {
            return None;
        }
        self.reserved += 1;
        let in_use = self.places.values().filter(|slot| slot.is_in_use()).count();
        match self.places.get_mut(&id) {
            Some(slot) if slot.is_in_use() || in_use < self.max_in_use => {
                slot.last_used = self.reserved;
                return Some(Some(match slot.users.upgrade() {
                    Some(adapter) => Place::Ready(adapter),
                    None => {
                        slot.waiting += 1;
                        Place::Loading(slot.cell.clone())
                    }
                }));
            }
            Some(_) => return Some(None),
            None if in_use >= self.max_in_use => return Some(None),
            None => {}
        }
        while self.places.len() >= self.max_places {
            let idle = self.places.iter().filter(|(_, slot)| !slot.is_in_use());
            let oldest = idle.min_by_key(|(_, slot)| slot.last_used).map(|(id, _)| *id)?;
            self.places.remove(&oldest);
        }
        let cell = Loading::default();
        let slot = Slot { cell: cell.clone(), waiting: 1, users: Weak::new(), last_used: self.reserved };
        self.places.insert(id, slot);
        Some(Some(Place::Loading(cell)))
    }

    /// The adapter in use, or `made` if no request has it yet.
    pub fn loaded(&mut self, id: AdapterId, made: LoadedAdapter) -> Arc<LoadedAdapter> {
        let Some(slot) = self.places.get_mut(&id) else { return Arc::new(made) };
        slot.users.upgrade().unwrap_or_else(|| {
            let made = Arc::new(made);
            slot.users = Arc::downgrade(&made);
            made
        })
    }

    /// A request no longer waits for the weights. If they could not be read, the last one frees the place.
    pub fn end_loading(&mut self, id: AdapterId) {
        let Some(slot) = self.places.get_mut(&id) else { return };
        slot.waiting = slot.waiting.saturating_sub(1);
        if slot.waiting == 0 && !slot.cell.initialized() {
            self.places.remove(&id);
        }
    }
}
