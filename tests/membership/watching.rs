//! Joins, leaves, leases and compaction with a healthy etcd.

use std::sync::Arc;

use etcd_client::Compare;
use skein_node::discovery::etcd::{
    EtcdApi, EtcdClient, EtcdError, EtcdWatch, FollowerConfig, Lease, LeaseId, Snapshot, follow,
};
use tokio::sync::{Notify, mpsc};

use super::*;

#[test]
fn workers_join_leave_and_die() {
    with_etcd(async |program| {
        let etcd = Etcd::start(program).await;
        let settings = etcd.settings();
        let first = Worker::start(&settings, "a").await;
        let mut router = Router::start(&settings).await;
        router.hears_join("a", TIMEOUT).await;
        let second = Worker::start(&settings, "b").await;
        router.hears_join("b", TIMEOUT).await;
        first.leave().await;
        // Long before any lease or grace expires.
        router.hears_leave("a", LEASE / 2).await;
        let gone = admin(&etcd).await.get(key("a"), None).await.expect("etcd answers");
        assert!(gone.kvs().is_empty(), "its entry went with it");
        second.die();
        router.hears_leave("b", TIMEOUT + GRACE).await;
    });
}

#[test]
fn a_lease_that_is_revoked_is_taken_again_before_anybody_leaves() {
    with_etcd(async |program| {
        let etcd = Etcd::start(program).await;
        let settings = etcd.settings();
        let worker = Worker::start(&settings, "a").await;
        let mut router = Router::start(&settings).await;
        router.hears_join("a", TIMEOUT).await;
        let mut admin = admin(&etcd).await;
        let lease = lease_of(&mut admin, "a").await.expect("registered");
        // So it looks to a worker that was stopped for longer than its lease.
        admin.lease_revoke(lease).await.expect("etcd answers");
        assert_eq!(lease_of(&mut admin, "a").await, None);
        eventually("registered again", async || {
            lease_of(&mut admin.clone(), "a").await.is_some_and(|again| again != lease)
        })
        .await;
        router.hears_nothing(PAST_GRACE).await;
        worker.leave().await;
        router.hears_leave("a", TIMEOUT).await;
    });
}

#[test]
fn a_worker_takes_only_its_own_entry_with_it() {
    with_etcd(async |program| {
        let etcd = Etcd::start(program).await;
        let (settings, mut admin) = (etcd.settings(), admin(&etcd).await);
        let old = Worker::start(&settings, "a").await;
        eventually("registered", async || lease_of(&mut admin.clone(), "a").await.is_some()).await;
        let first = lease_of(&mut admin, "a").await;
        let _new = Worker::start(&settings, "a").await;
        eventually("taken over", async || lease_of(&mut admin.clone(), "a").await != first).await;
        let second = lease_of(&mut admin, "a").await;
        old.leave().await;
        assert_eq!(lease_of(&mut admin, "a").await, second);
        // The server compares leases as our code assumes.
        let held = Compare::lease(key("a"), etcd_client::CompareOp::Equal, second.expect("held"));
        let answer = admin.txn(etcd_client::Txn::new().when([held])).await.expect("etcd answers");
        assert!(answer.succeeded());
    });
}

async fn lease_of(admin: &mut etcd_client::Client, id: &str) -> Option<i64> {
    let answer = admin.get(key(id), None).await.expect("etcd answers");
    answer.kvs().first().map(|kv| kv.lease())
}

/// Lets lists through and delays watches.
struct Slow {
    etcd: EtcdClient,
    listed: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl EtcdApi for Slow {
    type Watch = <EtcdClient as EtcdApi>::Watch;

    async fn list(&self, prefix: &str) -> Result<Snapshot, EtcdError> {
        let answer = self.etcd.list(prefix).await;
        self.listed.notify_one();
        answer
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, EtcdError> {
        self.go_on.notified().await;
        self.etcd.watch(prefix, revision).await
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, EtcdError> {
        self.etcd.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.etcd.keep_alive(lease).await
    }

    async fn put(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<(), EtcdError> {
        self.etcd.put(key, value, lease).await
    }

    async fn put_if_held(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<bool, EtcdError> {
        self.etcd.put_if_held(key, value, lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.etcd.revoke(lease).await
    }
}

#[test]
fn a_router_whose_changes_were_compacted_lists_again() {
    with_etcd(async |program| {
        let etcd = Etcd::start(program).await;
        let settings = etcd.settings();
        let (listed, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let inner = EtcdClient::new(settings.clone(), 0).await.expect("good settings");
        let slow = Slow { etcd: inner, listed: listed.clone(), go_on: go_on.clone() };
        let first = Worker::start(&settings, "a").await;
        let mut admin = admin(&etcd).await;
        eventually("a registered", async || lease_of(&mut admin.clone(), "a").await.is_some()).await;
        let (sender, receiver) = mpsc::channel(16);
        let config = FollowerConfig { grace: GRACE, ..FollowerConfig::new("test", 2) };
        tokio::spawn(async move { follow(&slow, config, sender).await });
        let mut router = Router(receiver);
        router.hears_join("a", TIMEOUT).await;
        listed.notified().await;
        // While the router is not watching, one worker joins, one leaves, and etcd compacts both changes
        // away.
        let _second = Worker::start(&settings, "b").await;
        first.leave().await;
        eventually("b registered", async || lease_of(&mut admin.clone(), "b").await.is_some()).await;
        let now = admin.put("unrelated", "", None).await.expect("etcd answers");
        let now = now.header().expect("a header").revision();
        admin.compact(now, None).await.expect("etcd answers");
        let probe = EtcdClient::new(settings, 0).await.expect("good settings");
        let mut late = probe.watch("/", 2).await.expect("a watch starts");
        assert_eq!(late.next().await, Err(EtcdError::Compacted { oldest: now }));
        go_on.notify_one();
        listed.notified().await;
        router.hears_join("b", TIMEOUT).await;
        go_on.notify_one();
        router.hears_leave("a", GRACE + TIMEOUT).await;
        router.hears_nothing(LEASE).await;
    });
}
