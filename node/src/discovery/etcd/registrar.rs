//! Keeps one worker registered in etcd: holds a lease, stores the worker's record under it, and renews it
//! three times per TTL. No failure of etcd ends or restarts the process.

use std::time::Duration;

use super::api::{EtcdApi, EtcdError, KeyEntry, LeaseId};
use super::outage_log::OutageLog;
use super::record::{self, Record};
use crate::clock::{self, Timestamp};
use crate::discovery::backoff::Backoff;

/// Default of [`Registration::ttl`].
pub const LEASE_TTL: Duration = Duration::from_secs(10);
/// Renewals within one TTL of the lease.
const RENEWALS: u32 = 3;
/// How often the stored record is checked: it may have been deleted or overwritten.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// Longest time to unregister; a drain waits for it.
pub const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Settings of a registrar.
#[derive(Debug, Clone)]
pub struct Registration {
    /// The worker's cluster.
    pub cluster: String,
    /// The record to store.
    pub record: Record,
    /// How long the record survives without a renewal, in whole seconds; [`LEASE_TTL`].
    pub ttl: Duration,
    /// Seed of the jitter.
    pub seed: u64,
}

/// Keeps the record in etcd until `stop`, then marks it as leaving, so that routers remove the worker at
/// once, and revokes the lease. Returns within [`LEAVE_WITHIN`] of `stop`; if etcd does not answer by then,
/// the lease is left to expire.
pub async fn register<A: EtcdApi>(api: &A, registration: Registration, stop: impl Future<Output = ()>) {
    let prefix = record::prefix(&registration.cluster);
    let key = format!("{prefix}{}", registration.record.id);
    let rival = Rival::new(prefix);
    let backoff = Backoff::new(registration.seed);
    let outage_log = OutageLog::new("this worker keeps serving", &key);
    let mut registrar =
        Registrar { api, registration, key, rival, lease: None, written: None, backoff, outage_log };
    tokio::select! {
        biased;
        () = stop => {}
        never = registrar.keep() => match never {},
    }
    if tokio::time::timeout(LEAVE_WITHIN, registrar.leave()).await.is_err() {
        tracing::warn!(
            ttl_s = registrar.registration.ttl.as_secs(),
            "etcd did not confirm the removal in time; the lease will expire"
        );
    }
}

struct Registrar<'a, A> {
    api: &'a A,
    registration: Registration,
    key: String,
    rival: Rival,
    lease: Option<Held>,
    /// When the record was last known to be stored under the lease.
    written: Option<Timestamp>,
    backoff: Backoff,
    outage_log: OutageLog,
}

#[derive(Clone, Copy)]
struct Held {
    id: LeaseId,
    renew_every: Duration,
}

impl<A: EtcdApi> Registrar<'_, A> {
    async fn keep(&mut self) -> std::convert::Infallible {
        loop {
            let pause = match self.renew().await {
                Ok(held) => {
                    self.backoff.reset();
                    self.outage_log.works(clock::now());
                    held.renew_every
                }
                Err(error) => self.failed(error),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Renews the lease. If the lease or the record is missing, restores it.
    async fn renew(&mut self) -> Result<Held, EtcdError> {
        let held = match self.lease {
            Some(held) => {
                self.api.keep_alive(held.id).await?;
                held
            }
            None => self.take_lease().await?,
        };
        match self.written {
            Some(checked) if clock::now().since(checked) < CHECK_EVERY => return Ok(held),
            Some(_) => self.check(held).await?,
            None => self.write(held).await?,
        }
        self.written = Some(clock::now());
        Ok(held)
    }

    async fn take_lease(&mut self) -> Result<Held, EtcdError> {
        let lease = self.api.grant(self.registration.ttl).await?;
        let held = Held { id: lease.id, renew_every: lease.ttl / RENEWALS };
        (self.lease, self.written) = (Some(held), None);
        Ok(held)
    }

    async fn write(&mut self, held: Held) -> Result<(), EtcdError> {
        self.api.put(&self.key, &self.registration.record.encode(), held.id).await?;
        tracing::info!(key = self.key, address = self.registration.record.address, "registered in etcd");
        Ok(())
    }

    /// Checks the stored record, which may have been deleted while its lease lives on. Another worker's
    /// record is left alone: two workers that overwrite each other would be worse than one that is not found.
    async fn check(&mut self, held: Held) -> Result<(), EtcdError> {
        let snapshot = self.api.list(&self.key).await?;
        let found = snapshot.entries.iter().find(|entry| entry.key == self.key);
        let ours = &self.registration.record;
        if let Some(other) = self.rival.check(ours, found) {
            let (name, address) = (&ours.id, &ours.address);
            tracing::warn!(
                "another worker registered as {name}: {other}; routers cannot find this one, {address}, until each \
                 has its own --worker-id"
            );
        }
        if found.is_none() { self.write(held).await } else { Ok(()) }
    }

    /// Handles a failure; returns the pause before the next attempt.
    fn failed(&mut self, error: EtcdError) -> Duration {
        match error {
            EtcdError::LeaseGone => {
                tracing::info!(key = self.key, "the lease has ended; registering again");
                (self.lease, self.written) = (None, None);
            }
            error => self.outage_log.failed(clock::now(), error),
        }
        self.backoff.pause()
    }

    /// Removes the record with its lease, and only if it is ours: a successor under the same id has its own
    /// lease.
    async fn leave(&mut self) {
        let Some(held) = self.lease.take() else { return };
        let leaving = Record { leaving: true, ..self.registration.record.clone() };
        let marked = match self.written {
            Some(_) => self.api.put_if_held(&self.key, &leaving.encode(), held.id).await.map(drop),
            None => Ok(()),
        };
        match marked.and(self.api.revoke(held.id).await) {
            Ok(()) | Err(EtcdError::LeaseGone) => tracing::info!(key = self.key, "left etcd"),
            Err(error) => tracing::warn!(%error, "could not unregister from etcd; the lease will expire"),
        }
    }
}

/// Another worker registered under the same name.
#[derive(Debug)]
struct Rival {
    prefix: String,
    /// Its address when last checked.
    address: Option<String>,
}

impl Rival {
    fn new(prefix: String) -> Self {
        Self { prefix, address: None }
    }

    /// Checks the record found under our name; returns the other worker's address if it is new.
    fn check(&mut self, ours: &Record, found: Option<&KeyEntry>) -> Option<String> {
        let before = self.address.take();
        self.address = found.and_then(|entry| match Record::decode(&self.prefix, entry) {
            Ok(other) => (other.address != ours.address).then_some(other.address),
            Err(error) => Some(format!("unreadable, {error}")),
        });
        self.address.clone().filter(|_| self.address != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_worker_under_our_name_is_reported_once() {
        let record = |address: &str| Record {
            id: "w".into(),
            address: address.into(),
            model: "m".into(),
            epoch: None,
            version: "1".into(),
            leaving: false,
        };
        let entry = |value: Vec<u8>| KeyEntry { key: "/skein/c/workers/w".into(), value, revision: 1 };
        let ours = record("a:1");
        let mut rival = Rival::new(record::prefix("c"));
        let mut check = |found: Option<Vec<u8>>| rival.check(&ours, found.map(&entry).as_ref());
        assert_eq!(check(Some(ours.encode())), None);
        assert_eq!(check(Some(Record { version: "2".into(), ..ours.clone() }.encode())), None);
        assert_eq!(check(Some(record("b:1").encode())).as_deref(), Some("b:1"));
        assert_eq!(check(Some(record("b:1").encode())), None, "said before");
        assert_eq!(check(Some(record("c:1").encode())).as_deref(), Some("c:1"));
        assert_eq!(check(None), None);
        assert_eq!(check(Some(record("c:1").encode())).as_deref(), Some("c:1"), "it came back");
        assert!(check(Some(b"rubbish".to_vec())).is_some_and(|other| other.contains("unreadable")));
    }
}
