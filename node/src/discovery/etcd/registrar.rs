//! Keeps one worker written in etcd: a lease, the worker's record under it, and a sign of life every third of the
//! lease's time. What etcd does meanwhile never ends or restarts the process.

use std::time::Duration;

use super::api::{Entry, EtcdApi, EtcdError, LeaseId};
use super::record::{self, Record};
use super::standing::Standing;
use crate::clock::{self, Timestamp};
use crate::discovery::backoff::Backoff;

/// Default of [`Registration::ttl`].
pub const LEASE_TTL: Duration = Duration::from_secs(10);
/// Signs of life within the time of a lease.
const RENEWALS: u32 = 3;
/// How often the record is looked at: somebody may have deleted it, or written another one over it.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Longest time that saying goodbye may take; a drain waits behind it.
pub const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What a registrar is told at its start.
#[derive(Debug, Clone)]
pub struct Registration {
    /// To which cluster the worker belongs.
    pub cluster: String,
    /// What is written.
    pub record: Record,
    /// How long the record outlives the worker's last sign of life; whole seconds. [`LEASE_TTL`].
    pub ttl: Duration,
    /// Of the jitter.
    pub seed: u64,
}

/// Keeps the record in etcd until `stop`, then takes it out: marked as leaving, so that routers let go at once, and
/// with its lease. Returns within [`LEAVE_WITHIN`] of `stop`; what etcd has not heard by then its lease ends.
pub async fn register<A: EtcdApi>(api: &A, registration: Registration, stop: impl Future<Output = ()>) {
    let prefix = record::prefix(&registration.cluster);
    let key = format!("{prefix}{}", registration.record.id);
    let rival = Rival::new(prefix);
    let backoff = Backoff::new(registration.seed);
    let standing = Standing::new("this worker serves whoever knows it");
    let mut registrar =
        Registrar { api, registration, key, rival, lease: None, written: None, backoff, standing };
    tokio::select! {
        biased;
        () = stop => {}
        never = registrar.keep() => match never {},
    }
    if tokio::time::timeout(LEAVE_WITHIN, registrar.leave()).await.is_err() {
        tracing::warn!(
            ttl_s = registrar.registration.ttl.as_secs(),
            "etcd did not hear the goodbye in time; the lease ends it"
        );
    }
}

struct Registrar<'a, A> {
    api: &'a A,
    registration: Registration,
    key: String,
    rival: Rival,
    lease: Option<Held>,
    /// When the record was last known to stand under the lease.
    written: Option<Timestamp>,
    backoff: Backoff,
    standing: Standing,
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
                    self.standing.works(clock::now());
                    held.renew_every
                }
                Err(error) => self.failed(error),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// One sign of life, and whatever is missing for the record to stand.
    async fn renew(&mut self) -> Result<Held, EtcdError> {
        let held = match self.lease {
            Some(held) => {
                self.api.keep_alive(held.id).await?;
                held
            }
            None => self.take_lease().await?,
        };
        match self.written {
            Some(looked) if clock::now().since(looked) < LOOK_EVERY => return Ok(held),
            Some(_) => self.look(held).await?,
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

    /// The record may have been deleted while its lease lives on. One of another worker is left alone: two that write
    /// over each other would be worse than one that is not found.
    async fn look(&mut self, held: Held) -> Result<(), EtcdError> {
        let snapshot = self.api.list(&self.key).await?;
        let found = snapshot.entries.iter().find(|entry| entry.key == self.key);
        let ours = &self.registration.record;
        if let Some(other) = self.rival.look(ours, found) {
            let (name, address) = (&ours.id, &ours.address);
            tracing::warn!(
                "another worker took the name {name}: {other}; routers do not find this one, {address}, until each \
                 has its own --worker-id"
            );
        }
        match found {
            None => self.write(held).await,
            Some(_) => Ok(()),
        }
    }

    /// What to wait before the next try.
    fn failed(&mut self, error: EtcdError) -> Duration {
        match error {
            EtcdError::LeaseGone => {
                tracing::info!(key = self.key, "the lease has ended; registering again");
                (self.lease, self.written) = (None, None);
            }
            error => self.standing.failed(clock::now(), error),
        }
        self.backoff.pause()
    }

    /// The record goes with its lease, and only if it is ours: a successor under the same id has its own lease.
    async fn leave(&mut self) {
        let Some(held) = self.lease.take() else { return };
        let leaving = Record { leaving: true, ..self.registration.record.clone() };
        let marked = match self.written {
            Some(_) => self.api.put_if_held(&self.key, &leaving.encode(), held.id).await.map(drop),
            None => Ok(()),
        };
        match marked.and(self.api.revoke(held.id).await) {
            Ok(()) | Err(EtcdError::LeaseGone) => tracing::info!(key = self.key, "left etcd"),
            Err(error) => tracing::warn!(%error, "could not leave etcd; the lease ends the entry"),
        }
    }
}

/// Who else stands in etcd under a worker's name.
#[derive(Debug)]
struct Rival {
    prefix: String,
    /// As said last.
    address: Option<String>,
}

impl Rival {
    fn new(prefix: String) -> Self {
        Self { prefix, address: None }
    }

    /// Takes in what stands under the name; returns the other worker's address when there is a new one.
    fn look(&mut self, ours: &Record, found: Option<&Entry>) -> Option<String> {
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
    fn another_worker_under_our_name_is_said_once() {
        let record = |address: &str| Record {
            id: "w".into(),
            address: address.into(),
            model: "m".into(),
            epoch: None,
            version: "1".into(),
            leaving: false,
        };
        let entry = |value: Vec<u8>| Entry { key: "/skein/c/workers/w".into(), value, revision: 1 };
        let ours = record("a:1");
        let mut rival = Rival::new(record::prefix("c"));
        let mut look = |found: Option<Vec<u8>>| rival.look(&ours, found.map(&entry).as_ref());
        assert_eq!(look(Some(ours.encode())), None);
        assert_eq!(look(Some(Record { version: "2".into(), ..ours.clone() }.encode())), None);
        assert_eq!(look(Some(record("b:1").encode())).as_deref(), Some("b:1"));
        assert_eq!(look(Some(record("b:1").encode())), None, "said before");
        assert_eq!(look(Some(record("c:1").encode())).as_deref(), Some("c:1"));
        assert_eq!(look(None), None);
        assert_eq!(look(Some(record("c:1").encode())).as_deref(), Some("c:1"), "it came back");
        assert!(look(Some(b"rubbish".to_vec())).is_some_and(|other| other.contains("unreadable")));
    }
}
