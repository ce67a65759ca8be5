//! A simulated etcd: one store with revisions, leases and watches, behind the product's own trait. It can be
//! down, compact its history, lose its data, and stop sending events to watches.

mod link;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use link::{Link, Watch};
use skein_node::discovery::etcd::{EtcdError, KeyEntry, LeaseId, WatchEvent};
use skein_node::signal::Signal;
use tokio::time::Instant;

use crate::names::ETCD;
use crate::network::{Host, Network};
use crate::report::Log;

/// Interval at which leases are checked.
const LEASE_TICK: Duration = Duration::from_millis(500);

/// The simulated server and its store.
pub struct Etcd {
    network: Arc<Network>,
    log: Arc<Log>,
    store: Mutex<Store>,
    changed: Signal,
}

struct Store {
    cluster: u64,
    revision: i64,
    keys: BTreeMap<String, (KeyEntry, LeaseId)>,
    leases: BTreeMap<LeaseId, (Duration, Instant)>,
    last_lease: i64,
    history: Vec<(i64, WatchEvent)>,
    /// The oldest revision whose changes are kept.
    oldest: i64,
    away: bool,
    /// Watches opened so far. The first `deaf` of them receive no more events.
    watches: u64,
    deaf: u64,
}

impl Store {
    fn empty(cluster: u64) -> Self {
        Self {
            cluster,
            revision: 1,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            last_lease: cluster as i64 * 1000,
            history: Vec::new(),
            oldest: 1,
            away: false,
            watches: 0,
            deaf: 0,
        }
    }

    fn put(&mut self, key: &str, value: &[u8], lease: LeaseId) {
        self.revision += 1;
        let entry = KeyEntry { key: key.to_owned(), value: value.to_vec(), revision: self.revision };
        self.keys.insert(key.to_owned(), (entry.clone(), lease));
        self.history.push((self.revision, WatchEvent::Put(entry)));
    }

    fn end_lease(&mut self, lease: LeaseId) -> Result<(), EtcdError> {
        self.leases.remove(&lease).ok_or(EtcdError::LeaseGone)?;
        let keys: Vec<String> =
            self.keys.extract_if(.., |_, (_, held)| *held == lease).map(|(key, _)| key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        self.revision += 1;
        let revision = self.revision;
        self.history.extend(keys.into_iter().map(|key| (revision, WatchEvent::Delete { key, revision })));
        Ok(())
    }

    fn end_old_leases(&mut self) -> Vec<LeaseId> {
        let now = Instant::now();
        let ended = self.leases.iter().filter(|(_, (_, ends))| *ends <= now).map(|(&lease, _)| lease);
        let ended: Vec<LeaseId> = ended.collect();
        for &lease in &ended {
            let _ = self.end_lease(lease);
        }
        ended
    }
}

impl Etcd {
    /// An empty store.
    pub fn new(network: Arc<Network>, log: Arc<Log>) -> Arc<Self> {
        let store = Mutex::new(Store::empty(1));
        Arc::new(Self { network, log, store, changed: Signal::default() })
    }

    /// Starts the expiry of leases.
    pub fn start(self: &Arc<Self>) {
        let etcd = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LEASE_TICK).await;
                etcd.tick();
            }
        });
    }

    fn tick(&self) {
        let ended = {
            let mut store = self.lock();
            if store.away { Vec::new() } else { store.end_old_leases() }
        };
        for lease in ended {
            self.log.say(ETCD, format_args!("lease {} has ended", lease.0));
            self.changed.send();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of a process at `host`.
    pub fn link(self: &Arc<Self>, host: Host) -> Link {
        Link { etcd: self.clone(), host }
    }

    /// Takes the server down or up again. `kept`: leases restart on its return, as after the election of a
    /// new leader.
    pub fn set_away(&self, away: bool, kept: bool) {
        let mut store = self.lock();
        if store.away && !away && kept {
            let now = Instant::now();
            store.leases.values_mut().for_each(|(ttl, ends)| *ends = now + *ttl);
        }
        store.away = away;
        drop(store);
        self.changed.send();
    }

    /// Silently stops sending events to the current watches.
    pub fn deafen(&self) {
        let mut store = self.lock();
        store.deaf = store.watches;
    }

    /// Discards the history.
    pub fn compact(&self) {
        let mut store = self.lock();
        store.oldest = store.revision + 1;
        store.history.clear();
        drop(store);
        self.changed.send();
    }

    /// Loses all data and becomes a new store.
    pub fn wipe(&self) {
        let mut store = self.lock();
        let Store { away, watches, deaf, .. } = *store;
        *store = Store { away, watches, deaf, ..Store::empty(store.cluster + 1) };
        drop(store);
        self.changed.send();
    }

    /// Ends every lease at once.
    pub fn end_leases(&self) {
        let mut store = self.lock();
        let leases: Vec<LeaseId> = store.leases.keys().copied().collect();
        for lease in leases {
            let _ = store.end_lease(lease);
        }
        drop(store);
        self.changed.send();
    }
}
