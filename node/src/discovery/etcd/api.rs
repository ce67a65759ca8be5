//! The subset of etcd that membership needs, as a trait for the follower and the registrar.
//! [`super::EtcdClient`] implements it over real servers; a simulator implements it in memory.
//!
//! Every call ends within [`CALL_TIMEOUT`], with [`EtcdError::Unavailable`] if no answer arrived. Only
//! [`EtcdWatch::next`] may wait forever. All calls may be dropped at any await point.

use std::time::Duration;

/// Timeout of one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// The full key.
    pub key: String,
    /// Value of the key.
    pub value: Vec<u8>,
    /// Revision of the store at which the key was last written (`mod_revision`).
    pub revision: i64,
}

/// All keys under a prefix at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Id of the etcd cluster. If it changes, the store is another one with unrelated revisions.
    pub cluster: u64,
    /// Revision of the store; a watch continues from the next one.
    pub revision: i64,
    /// The keys in order, with their values.
    pub entries: Vec<KeyEntry>,
}

/// One change reported by a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The key was created or written again.
    Put(KeyEntry),
    /// The key was deleted, explicitly or because its lease ended.
    Delete {
        /// The full key.
        key: String,
        /// Revision of the store at which it was deleted.
        revision: i64,
    },
}

/// Number that etcd gave a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// A granted lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Id of the lease.
    pub id: LeaseId,
    /// Its time to live; the server may have raised it.
    pub ttl: Duration,
}

/// Why a call to etcd failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No server answers, or the servers have no leader. Temporary.
    #[error("etcd is unavailable: {0}")]
    Unavailable(String),
    /// The server refuses the call: user, role, certificate or address is wrong. The operator must act.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// The lease has ended and its keys are deleted.
    #[error("the lease has ended")]
    LeaseGone,
    /// The requested changes have been compacted away.
    #[error("changes before revision {oldest} are compacted")]
    Compacted {
        /// The oldest revision still kept.
        oldest: i64,
    },
}

/// The calls to etcd.
pub trait EtcdApi: Send + Sync {
    /// A running watch. Dropping it ends the watch.
    type Watch: EtcdWatch;

    /// Lists all keys under `prefix` with a linearizable read.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Snapshot, EtcdError>> + Send;

    /// Starts to watch `prefix` from `revision` on, inclusive. Returns once the server has created the watch.
    ///
    /// If the server's store has not reached `revision - 1`, this fails with [`EtcdError::Unavailable`]: the
    /// server lags behind or has lost its data, and a watch in the future would stay silent forever.
    fn watch(
        &self,
        prefix: &str,
        revision: i64,
    ) -> impl Future<Output = Result<Self::Watch, EtcdError>> + Send;

    /// Creates a lease of `ttl`, in whole seconds.
    fn grant(&self, ttl: Duration) -> impl Future<Output = Result<Lease, EtcdError>> + Send;

    /// Renews a lease. Fails with [`EtcdError::LeaseGone`] if it has ended.
    fn keep_alive(&self, lease: LeaseId) -> impl Future<Output = Result<(), EtcdError>> + Send;

    /// Writes `key`, which is deleted when `lease` ends. Fails with [`EtcdError::LeaseGone`] if it already
    /// has.
    fn put(
        &self,
        key: &str,
        value: &[u8],
        lease: LeaseId,
    ) -> impl Future<Output = Result<(), EtcdError>> + Send;

    /// Writes `key` if it is currently held by `lease`; returns whether it was.
    fn put_if_held(
        &self,
        key: &str,
        value: &[u8],
        lease: LeaseId,
    ) -> impl Future<Output = Result<bool, EtcdError>> + Send;

    /// Ends a lease and deletes its keys. Fails with [`EtcdError::LeaseGone`] if it has already ended.
    fn revoke(&self, lease: LeaseId) -> impl Future<Output = Result<(), EtcdError>> + Send;
}

/// A running watch.
pub trait EtcdWatch: Send {
    /// The next changes, in order of revision; an empty list only shows that the watch is alive. After an
    /// error the watch is over. Dropping the future loses nothing: the next call returns the same changes.
    fn next(&mut self) -> impl Future<Output = Result<Vec<WatchEvent>, EtcdError>> + Send;
}
