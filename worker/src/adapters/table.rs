//! The table of adapters: which are known, which have a place in memory, and which may lose it. Pure.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use skein_proto::adapter::{AdapterId, AdapterInfo};
use tokio::sync::OnceCell;

use super::AdapterUse;
use crate::backend::LoadedAdapter;
use crate::model::served_adapter::HeldAdapter;

/// Most unloaded adapters that are kept for requests that had begun; then the oldest is forgotten.
const MOST_RETIRED: usize = 1024;

/// Weights that are being read; shared by all requests that wait for them. `None` = no weights.
pub(super) type Loading = Arc<OnceCell<Option<Arc<HeldAdapter>>>>;

/// Known adapters, and places in memory.
#[derive(Debug)]
pub(super) struct Table {
    /// In the order of their loading, oldest first.
    known: Vec<Known>,
    places: HashMap<AdapterId, Slot>,
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
        let (known, places, waiting) = (Vec::new(), HashMap::new(), BTreeMap::new());
        Self { known, places, waiting, max_in_use, max_places, reserved: 0, loads: 0 }
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

    /// Adds an adapter; false if the name belongs to another one.
    pub fn add(&mut self, name: &str, directory: PathBuf, id: AdapterId) -> bool {
        let of_name = self.known.iter().find(|known| !name.is_empty() && known.name == name);
        if let Some(known) = of_name {
            return known.id == id;
        }
        self.known.retain(|known| known.id != id || !known.name.is_empty());
        if !name.is_empty() || !self.known.iter().any(|known| known.id == id) {
            self.known.push(Known { name: name.to_owned(), directory, id });
        }
        self.forget_retired();
        true
    }

    /// Takes the name off an adapter; false if there is none.
    pub fn retire(&mut self, name: &str) -> bool {
        let at = self.known.iter().position(|known| !name.is_empty() && known.name == name);
        let Some(at) = at else { return false };
        let mut known = self.known.remove(at);
        if !self.known.iter().any(|other| other.id == known.id) {
            known.name.clear();
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
