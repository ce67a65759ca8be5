//! Membership by etcd: workers register under a lease, routers watch.
//!
//! [`register`] and [`follow`] decide what to do and when; they are generic over [`EtcdApi`], so that a
//! simulator can replace etcd. [`Roster`] interprets the answers and is pure. Only [`EtcdClient`]'s file uses
//! the etcd client crate. Nothing here spawns a task.

mod api;
mod client;
mod follower;
mod outage_log;
mod record;
mod registrar;
mod roster;
#[cfg(test)]
mod tests;

pub use api::{CALL_TIMEOUT, EtcdApi, EtcdError, EtcdWatch, KeyEntry, Lease, LeaseId, Snapshot, WatchEvent};
pub use client::{ClientWatch, EtcdClient, EtcdSettings, Tls};
pub use follower::{FollowerConfig, RESYNC, follow};
pub use record::{MAX_NAME_BYTES, Record, check_name, prefix};
pub use registrar::{LEASE_TTL, LEAVE_WITHIN, Registration, register};
pub use roster::{GRACE, MAX_MEMBERS, Roster, RosterConfig};
