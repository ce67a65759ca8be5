//! Follower and registrar over a store in memory that fails on command.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::*;
use crate::discovery::{Change, Member};

/// An etcd in memory, with one key space. Clones share it.
#[derive(Clone)]
struct Store(Arc<(Mutex<State>, watch::Sender<i64>)>);

#[derive(Default)]
struct State {
    keys: BTreeMap<String, (KeyEntry, LeaseId)>,
    history: Vec<WatchEvent>,
    revision: i64,
    compacted: i64,
    leases: Vec<LeaseId>,
    granted: i64,
    away: bool,
    lists: usize,
}

impl Store {
    fn new() -> Self {
        let state = State { revision: 1, ..State::default() };
        Self(Arc::new((Mutex::new(state), watch::Sender::new(1))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    /// Starts or ends an outage; its start ends running watches.
    fn set_away(&self, away: bool) {
        self.state().away = away;
        self.0.1.send_modify(|_| {});
    }

    fn reach(&self) -> Result<MutexGuard<'_, State>, EtcdError> {
        let state = self.state();
        if state.away { Err(EtcdError::Unavailable("told to be".into())) } else { Ok(state) }
    }

    fn end_lease(&self, lease: LeaseId) {
        let mut state = self.state();
        state.leases.retain(|held| *held != lease);
        let under: Vec<String> =
            state.keys.iter().filter(|(_, (_, held))| *held == lease).map(|(key, _)| key.clone()).collect();
        state.revision += 1;
        let revision = state.revision;
        for key in under {
            state.keys.remove(&key);
            state.history.push(WatchEvent::Delete { key, revision });
        }
        self.0.1.send_replace(revision);
    }

    fn write(&self, key: &str, value: &[u8], lease: LeaseId) {
        let mut state = self.state();
        state.revision += 1;
        let entry = KeyEntry { key: key.into(), value: value.into(), revision: state.revision };
        state.keys.insert(key.into(), (entry.clone(), lease));
        state.history.push(WatchEvent::Put(entry));
        let revision = state.revision;
        self.0.1.send_replace(revision);
    }

    fn lease_of(&self, id: &str) -> Option<LeaseId> {
        self.state().keys.get(&format!("{}{id}", prefix("c"))).map(|(_, lease)| *lease)
    }
}

struct StoreWatch {
    store: Store,
    next: i64,
    changed: watch::Receiver<i64>,
}

impl EtcdWatch for StoreWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, EtcdError> {
        loop {
            {
                self.changed.borrow_and_update();
                let state = self.store.reach()?;
                if self.next <= state.compacted {
                    return Err(EtcdError::Compacted { oldest: state.compacted + 1 });
                }
                let revision = |event: &WatchEvent| match event {
                    WatchEvent::Put(entry) => entry.revision,
                    WatchEvent::Delete { revision, .. } => *revision,
                };
                let events: Vec<_> =
                    state.history.iter().filter(|event| revision(event) >= self.next).cloned().collect();
                if let Some(last) = events.last() {
                    self.next = revision(last) + 1;
                    return Ok(events);
                }
            }
            let _ = self.changed.changed().await;
        }
    }
}

impl EtcdApi for Store {
    type Watch = StoreWatch;

    async fn list(&self, prefix: &str) -> Result<Snapshot, EtcdError> {
        let mut state = self.reach()?;
        state.lists += 1;
        let under = state.keys.iter().filter(|(key, _)| key.starts_with(prefix));
        let entries = under.map(|(_, (entry, _))| entry.clone()).collect();
        Ok(Snapshot { cluster: 1, revision: state.revision, entries })
    }

    async fn watch(&self, _: &str, revision: i64) -> Result<StoreWatch, EtcdError> {
        drop(self.reach()?);
        Ok(StoreWatch { store: self.clone(), next: revision, changed: self.0.1.subscribe() })
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, EtcdError> {
        let mut state = self.reach()?;
        state.granted += 1;
        let id = LeaseId(state.granted);
        state.leases.push(id);
        Ok(Lease { id, ttl })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), EtcdError> {
        if self.reach()?.leases.contains(&lease) { Ok(()) } else { Err(EtcdError::LeaseGone) }
    }

    async fn put(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<(), EtcdError> {
        self.keep_alive(lease).await?;
        self.write(key, value, lease);
        Ok(())
    }

    async fn put_if_held(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<bool, EtcdError> {
        self.keep_alive(lease).await?;
        let held = self.reach()?.keys.get(key).is_some_and(|(_, under)| *under == lease);
        if held {
            self.write(key, value, lease);
        }
        Ok(held)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.keep_alive(lease).await?;
        self.end_lease(lease);
        Ok(())
    }
}

fn registration(id: &str) -> Registration {
    let (model, version) = Default::default();
    let record =
        Record { id: id.into(), address: format!("{id}:1"), model, epoch: None, version, leaving: false };
    Registration { cluster: "c".into(), record, ttl: LEASE_TTL, seed: 7 }
}

/// Starts a registrar. Sending on the returned channel, or dropping it, stops the registrar.
fn start_worker(store: &Store, id: &str) -> (tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (store, registration) = (store.clone(), registration(id));
    let task = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        register(&store, registration, stopped).await;
    });
    (stop, task)
}

fn start_follower(store: &Store) -> mpsc::Receiver<Change> {
    let (sender, receiver) = mpsc::channel(8);
    let store = store.clone();
    tokio::spawn(async move { follow(&store, FollowerConfig::new("c", 3), sender).await });
    receiver
}

fn joined(id: &str) -> Option<Change> {
    Some(Change::Join(Member { id: id.into(), address: format!("{id}:1") }))
}

/// Lets everything run that can; time is paused, so a second costs nothing.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn workers_join_when_they_register_and_leave_when_they_stop() {
    let store = Store::new();
    let (stop, task) = start_worker(&store, "a");
    let mut changes = start_follower(&store);
    assert_eq!(changes.recv().await, joined("a"));
    let (_keep, _task) = start_worker(&store, "b");
    assert_eq!(changes.recv().await, joined("b"));
    drop(stop);
    task.await.expect("no panic");
    assert_eq!(changes.recv().await, Some(Change::Leave("a".into())));
    assert_eq!((store.lease_of("a"), store.state().leases.len()), (None, 1), "its lease is gone too");
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_is_down_at_start_is_waited_for() {
    let store = Store::new();
    store.set_away(true);
    let (_keep, _task) = start_worker(&store, "a");
    let mut changes = start_follower(&store);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(changes.try_recv().is_err());
    store.set_away(false);
    let join = tokio::time::timeout(Duration::from_secs(5), changes.recv()).await;
    assert_eq!(join.expect("within seconds"), joined("a"));
}

#[tokio::test(start_paused = true)]
async fn an_ended_lease_is_replaced_unnoticed() {
    let store = Store::new();
    let (_keep, _task) = start_worker(&store, "a");
    let mut changes = start_follower(&store);
    assert_eq!(changes.recv().await, joined("a"));
    let first = store.lease_of("a").expect("registered");
    store.end_lease(first);
    assert_eq!(store.lease_of("a"), None);
    settle().await;
    assert_ne!(store.lease_of("a").expect("registered again"), first);
    assert!(changes.try_recv().is_err(), "it came back within its grace");
}

#[tokio::test(start_paused = true)]
async fn a_watch_behind_a_compaction_lists_again() {
    let store = Store::new();
    let (_keep, _task) = start_worker(&store, "a");
    let mut changes = start_follower(&store);
    assert_eq!(changes.recv().await, joined("a"));
    let lists = store.state().lists;
    {
        // Both at once, as for a watcher that was too slow: the changes it missed are compacted.
        let lease = store.lease_of("a").expect("registered");
        store.write(
            &format!("{}b", prefix("c")),
            &Record { id: "b".into(), ..registration("b").record }.encode(),
            lease,
        );
        let mut state = store.state();
        state.compacted = state.revision;
        state.history.clear();
    }
    assert_eq!(changes.recv().await, joined("b"));
    assert_eq!(store.state().lists, lists + 1);
}

#[tokio::test(start_paused = true)]
async fn a_leaving_worker_does_not_remove_its_successor() {
    let store = Store::new();
    let (stop, task) = start_worker(&store, "a");
    settle().await;
    let old = store.lease_of("a").expect("registered");
    let (_keep, _task) = start_worker(&store, "a");
    settle().await;
    let new = store.lease_of("a").expect("registered");
    assert_ne!(new, old);
    drop(stop);
    task.await.expect("no panic");
    assert_eq!(store.lease_of("a"), Some(new));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_during_an_outage_does_not_wait() {
    let store = Store::new();
    let (stop, task) = start_worker(&store, "a");
    settle().await;
    store.set_away(true);
    drop(stop);
    tokio::time::timeout(LEAVE_WITHIN + Duration::from_secs(1), task)
        .await
        .expect("in time")
        .expect("no panic");
}
