//! A simulated etcd: one store with revisions, leases and watches, behind the product's own trait. It can be away,
//! compact its history, lose its data, and go deaf to those who watch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skein_node::discovery::etcd::{
    CALL_TIMEOUT, Entry, EtcdApi, EtcdError, EtcdWatch, Lease, LeaseId, Snapshot, WatchEvent,
};
use skein_node::signal::Signal;
use tokio::time::Instant;

use crate::names::ETCD;
use crate::network::{Host, Network};
use crate::report::Log;

/// How often leases are looked at.
const LEASE_TICK: Duration = Duration::from_millis(500);
/// A watch whose pings get no answer for this long is over at its client.
const WATCH_KEEPALIVE: Duration = Duration::from_secs(12);

/// See the module's description.
pub struct Etcd {
    network: Arc<Network>,
    log: Arc<Log>,
    store: Mutex<Store>,
    changed: Signal,
}

struct Store {
    cluster: u64,
    revision: i64,
    keys: BTreeMap<String, (Entry, LeaseId)>,
    leases: BTreeMap<LeaseId, (Duration, Instant)>,
    last_lease: i64,
    history: Vec<(i64, WatchEvent)>,
    /// The oldest revision whose changes are kept.
    oldest: i64,
    away: bool,
    /// Watches opened so far, and those of them, from the first on, that hear nothing any more.
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
        let entry = Entry { key: key.to_owned(), value: value.to_vec(), revision: self.revision };
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

    /// Begins to end leases.
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

    /// How a process at `host` reaches it.
    pub fn link(self: &Arc<Self>, host: Host) -> Link {
        Link { etcd: self.clone(), host }
    }

    /// It does not answer, or answers again. `kept`: leases begin anew when it is back, as a new leader does it.
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

    /// The watches that run hear nothing any more; nobody is told.
    pub fn deafen(&self) {
        let mut store = self.lock();
        store.deaf = store.watches;
    }

    /// Forgets the history.
    pub fn compact(&self) {
        let mut store = self.lock();
        store.oldest = store.revision + 1;
        store.history.clear();
        drop(store);
        self.changed.send();
    }

    /// Loses everything, and is another store from now on.
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

/// A process's way to etcd.
#[derive(Clone)]
pub struct Link {
    etcd: Arc<Etcd>,
    host: Host,
}

impl Link {
    async fn call<T>(&self, act: impl FnOnce(&mut Store) -> Result<T, EtcdError>) -> Result<T, EtcdError> {
        let network = &self.etcd.network;
        let work = async {
            network.arrive(self.host, ETCD, network.arrival()).await;
            let done = self.act(act);
            network.arrive(ETCD, self.host, network.arrival()).await;
            done
        };
        let timed_out = |_| Err(EtcdError::Unavailable("no answer".to_owned()));
        tokio::time::timeout(CALL_TIMEOUT, work).await.unwrap_or_else(timed_out)
    }

    fn act<T>(&self, act: impl FnOnce(&mut Store) -> Result<T, EtcdError>) -> Result<T, EtcdError> {
        let mut store = self.etcd.lock();
        if store.away {
            return Err(EtcdError::Unavailable("it is away".to_owned()));
        }
        store.end_old_leases();
        let before = store.revision;
        let done = act(&mut store);
        let changed = store.revision != before;
        drop(store);
        if changed {
            self.etcd.changed.send();
        }
        done
    }
}

impl EtcdApi for Link {
    type Watch = Watch;

    async fn list(&self, prefix: &str) -> Result<Snapshot, EtcdError> {
        let list = |store: &mut Store| {
            let entries =
                store.keys.values().map(|(entry, _)| entry).filter(|entry| entry.key.starts_with(prefix));
            Ok(Snapshot {
                cluster: store.cluster,
                revision: store.revision,
                entries: entries.cloned().collect(),
            })
        };
        self.call(list).await
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Watch, EtcdError> {
        let open = |store: &mut Store| match () {
            () if store.revision + 1 < revision => Err(EtcdError::Unavailable("it lags behind".to_owned())),
            () if revision < store.oldest => Err(EtcdError::Compacted { oldest: store.oldest }),
            () => {
                store.watches += 1;
                Ok((store.cluster, store.watches))
            }
        };
        let (cluster, number) = self.call(open).await?;
        Ok(Watch { link: self.clone(), prefix: prefix.to_owned(), cluster, number, next: revision })
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, EtcdError> {
        let grant = |store: &mut Store| {
            store.last_lease += 1;
            let id = LeaseId(store.last_lease);
            store.leases.insert(id, (ttl, Instant::now() + ttl));
            Ok(Lease { id, ttl })
        };
        self.call(grant).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), EtcdError> {
        let renew = |store: &mut Store| {
            let (ttl, ends) = store.leases.get_mut(&lease).ok_or(EtcdError::LeaseGone)?;
            *ends = Instant::now() + *ttl;
            Ok(())
        };
        self.call(renew).await
    }

    async fn put(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<(), EtcdError> {
        let put = |store: &mut Store| {
            store.leases.get(&lease).ok_or(EtcdError::LeaseGone)?;
            store.put(key, value, lease);
            Ok(())
        };
        self.call(put).await
    }

    async fn put_if_held(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<bool, EtcdError> {
        let put = |store: &mut Store| {
            let held = store.keys.get(key).is_some_and(|(_, held)| *held == lease);
            if held {
                store.put(key, value, lease);
            }
            Ok(held)
        };
        self.call(put).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.call(|store| store.end_lease(lease)).await
    }
}

/// A running watch.
pub struct Watch {
    link: Link,
    prefix: String,
    cluster: u64,
    number: u64,
    next: i64,
}

impl EtcdWatch for Watch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, EtcdError> {
        loop {
            let mut changes = self.link.etcd.changed.subscribe();
            let (events, next) = self.look()?;
            if !events.is_empty() {
                let network = &self.link.etcd.network;
                let way = network.arrive(ETCD, self.link.host, network.arrival());
                if tokio::time::timeout(WATCH_KEEPALIVE, way).await.is_err() {
                    return Err(EtcdError::Unavailable("no answer to pings".to_owned()));
                }
                // Only now: who drops this future while events are on their way gets them again.
                self.next = next;
                return Ok(events);
            }
            changes.changed().await;
        }
    }
}

impl Watch {
    /// The changes from the next revision on, and the one after them.
    fn look(&self) -> Result<(Vec<WatchEvent>, i64), EtcdError> {
        let store = self.link.etcd.lock();
        match () {
            () if store.away || store.cluster != self.cluster => {
                Err(EtcdError::Unavailable("the server ended the watch".to_owned()))
            }
            () if self.number <= store.deaf => Ok((Vec::new(), self.next)),
            () if self.next < store.oldest => Err(EtcdError::Compacted { oldest: store.oldest }),
            () => {
                let news = store.history.iter().filter(|(revision, event)| {
                    let (WatchEvent::Put(Entry { key, .. }) | WatchEvent::Delete { key, .. }) = event;
                    *revision >= self.next && key.starts_with(&self.prefix)
                });
                Ok((news.map(|(_, event)| event.clone()).collect(), store.revision + 1))
            }
        }
    }
}
