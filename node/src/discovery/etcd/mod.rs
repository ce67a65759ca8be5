//! Membership by etcd: workers write themselves under a lease, routers watch.
//!
//! [`register`] and [`follow`] decide what to do and when; they are generic over [`EtcdApi`], so that a simulator can
//! be their etcd. [`Roster`] says what the answers mean and is pure. [`EtcdClient`] is the only file that names the
//! client's crate. Nothing here starts a task.

mod api;
mod client;
mod follower;
mod record;
mod registrar;
mod roster;
mod standing;
#[cfg(test)]
mod tests;

pub use api::{CALL_TIMEOUT, Entry, EtcdApi, EtcdError, EtcdWatch, Lease, LeaseId, Snapshot, WatchEvent};
pub use client::{ClientWatch, EtcdClient, EtcdSettings, Tls};
pub use follower::{FollowerConfig, RESYNC, follow};
pub use record::{MAX_NAME_BYTES, Record, check_name, prefix};
pub use registrar::{LEASE_TTL, LEAVE_WITHIN, Registration, register};
pub use roster::{GRACE, MAX_MEMBERS, Roster, RosterConfig};
