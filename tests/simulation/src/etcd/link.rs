//! A process's connection to etcd: the product's own trait over the simulated network.

use std::sync::Arc;
use std::time::Duration;

use skein_node::discovery::etcd::{
    CALL_TIMEOUT, EtcdApi, EtcdError, EtcdWatch, KeyEntry, Lease, LeaseId, Snapshot, WatchEvent,
};
use tokio::time::Instant;

use super::{Etcd, Store};
use crate::names::ETCD;
use crate::network::Host;

/// A client ends a watch whose pings are unanswered for this long.
const WATCH_KEEPALIVE: Duration = Duration::from_secs(12);

/// A process's connection to etcd.
#[derive(Clone)]
pub struct Link {
    pub(super) etcd: Arc<Etcd>,
    pub(super) host: Host,
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
            return Err(EtcdError::Unavailable("it is down".to_owned()));
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
        let open = |store: &mut Store| {
            if store.revision + 1 < revision {
                return Err(EtcdError::Unavailable("it lags behind".to_owned()));
            }
            if revision < store.oldest {
                return Err(EtcdError::Compacted { oldest: store.oldest });
            }
            store.watches += 1;
            Ok((store.cluster, store.watches))
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
                // Only now: if this future is dropped while events are in flight, they are delivered again.
                self.next = next;
                return Ok(events);
            }
            changes.changed().await;
        }
    }
}

impl Watch {
    /// The changes from the next revision on, and the revision after them.
    fn look(&self) -> Result<(Vec<WatchEvent>, i64), EtcdError> {
        let store = self.link.etcd.lock();
        if store.away || store.cluster != self.cluster {
            return Err(EtcdError::Unavailable("the server ended the watch".to_owned()));
        }
        if self.number <= store.deaf {
            return Ok((Vec::new(), self.next));
        }
        if self.next < store.oldest {
            return Err(EtcdError::Compacted { oldest: store.oldest });
        }
        let news = store.history.iter().filter(|(revision, event)| {
            let (WatchEvent::Put(KeyEntry { key, .. }) | WatchEvent::Delete { key, .. }) = event;
            *revision >= self.next && key.starts_with(&self.prefix)
        });
        Ok((news.map(|(_, event)| event.clone()).collect(), store.revision + 1))
    }
}
