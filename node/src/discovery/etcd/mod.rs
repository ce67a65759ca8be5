//! Membership by etcd: workers write themselves under a lease, routers watch.

mod api;

pub use api::{CALL_TIMEOUT, Entry, EtcdApi, EtcdError, EtcdWatch, Lease, LeaseId, Snapshot, WatchEvent};
