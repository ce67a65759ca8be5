//! The little of etcd that membership needs, in our own words: what the follower and the registrar are written
//! against. [`super::EtcdClient`] speaks to real servers; a simulator implements the same few calls.
//!
//! Contract of every call: it ends within [`CALL_TIMEOUT`], with [`EtcdError::Unavailable`] when nothing came by then.
//! Only [`EtcdWatch::next`] may wait for ever. All calls may be dropped at any await point.

use std::time::Duration;

/// Longest wait for the answer to one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// A key and its value, as they are since `revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The whole key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// Of the store when the key was last written (`mod_revision`).
    pub revision: i64,
}

/// All keys under a prefix at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Which etcd cluster answered. A change means another store, whose revisions say nothing about ours.
    pub cluster: u64,
    /// The store's revision: a watch goes on from the next one.
    pub revision: i64,
    /// In the order of their keys.
    pub entries: Vec<Entry>,
}

/// One change that a watch tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// Written, for the first time or again.
    Put(Entry),
    /// Deleted, by somebody or because its lease ended.
    Delete {
        /// The whole key.
        key: String,
        /// Of the store when it was deleted.
        revision: i64,
    },
}

/// Names a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// A lease as it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// Its time to live, which the server may have raised.
    pub ttl: Duration,
}

/// Why etcd did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// Nobody answers, or those who do have no leader. Passes by itself.
    #[error("etcd is away: {0}")]
    Unavailable(String),
    /// It answers and will not: user, role, certificate or address are wrong. Somebody has to change something.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// The lease has ended, and the keys under it are gone.
    #[error("the lease has ended")]
    LeaseGone,
    /// The changes asked for are no longer kept.
    #[error("changes before revision {oldest} are compacted")]
    Compacted {
        /// The oldest revision that is kept.
        oldest: i64,
    },
}

/// Calls to etcd.
pub trait EtcdApi: Send + Sync {
    /// A running watch; dropping it ends it.
    type Watch: EtcdWatch;

    /// All keys under `prefix`, as the cluster's majority has them (a linearizable read).
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Snapshot, EtcdError>> + Send;

    /// Starts to watch `prefix` from `revision` on, that one included. Returns once the server has it.
    ///
    /// A server whose store has not come as far as `revision - 1` answers [`EtcdError::Unavailable`]: it lags behind,
    /// or its data are gone, and a watch in the future would be silent for ever.
    fn watch(
        &self,
        prefix: &str,
        revision: i64,
    ) -> impl Future<Output = Result<Self::Watch, EtcdError>> + Send;

    /// A new lease of `ttl`, in whole seconds.
    fn grant(&self, ttl: Duration) -> impl Future<Output = Result<Lease, EtcdError>> + Send;

    /// Renews a lease. [`EtcdError::LeaseGone`] when it has ended.
    fn keep_alive(&self, lease: LeaseId) -> impl Future<Output = Result<(), EtcdError>> + Send;

    /// Writes `key`; it goes when `lease` ends. [`EtcdError::LeaseGone`] when that has ended already.
    fn put(
        &self,
        key: &str,
        value: &[u8],
        lease: LeaseId,
    ) -> impl Future<Output = Result<(), EtcdError>> + Send;

    /// Writes `key` if it stands under `lease` now, and says whether it did.
    fn put_if_held(
        &self,
        key: &str,
        value: &[u8],
        lease: LeaseId,
    ) -> impl Future<Output = Result<bool, EtcdError>> + Send;

    /// Ends a lease and deletes the keys under it. [`EtcdError::LeaseGone`] when it has ended already.
    fn revoke(&self, lease: LeaseId) -> impl Future<Output = Result<(), EtcdError>> + Send;
}

/// A running watch.
pub trait EtcdWatch: Send {
    /// The next changes, in the order of their revisions; an empty list is only a sign of life. After an error the
    /// watch is over. Dropping the future loses nothing: the next call gives what it would have.
    fn next(&mut self) -> impl Future<Output = Result<Vec<WatchEvent>, EtcdError>> + Send;
}
