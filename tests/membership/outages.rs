//! An etcd that is down, stopped, killed, wiped, or without a leader: no member leaves, and joins work again
//! within seconds of its return.

use super::*;

#[test]
fn an_etcd_that_comes_later_is_waited_for() {
    with_etcd(async |program| {
        let mut etcd = Etcd::prepare(program, "http", &[]);
        let settings = etcd.settings();
        let worker = Worker::start(&settings, "a").await;
        let mut router = Router::start(&settings).await;
        router.hears_nothing(Duration::from_secs(2)).await;
        etcd.launch();
        etcd.wait_ready(&settings).await;
        router.hears_join("a", SECONDS).await;
        assert!(!worker.task.is_finished());
    });
}

#[test]
fn an_etcd_that_stands_still_for_longer_than_leases_live() {
    with_etcd(async |program| {
        let etcd = Etcd::start(program).await;
        let settings = etcd.settings();
        let (_a, mut router) = (Worker::start(&settings, "a").await, Router::start(&settings).await);
        router.hears_join("a", TIMEOUT).await;
        etcd.signal("STOP");
        let b = Worker::start(&settings, "b").await;
        router.hears_nothing(LEASE * 3).await;
        etcd.signal("CONT");
        router.hears_join("b", SECONDS).await;
        router.hears_nothing(PAST_GRACE).await;
        b.leave().await;
        router.hears_leave("b", TIMEOUT).await;
    });
}

#[test]
fn an_etcd_that_is_killed_and_comes_back_with_its_data_or_without() {
    with_etcd(async |program| {
        let mut etcd = Etcd::start(program).await;
        let settings = etcd.settings();
        let (_a, mut router) = (Worker::start(&settings, "a").await, Router::start(&settings).await);
        router.hears_join("a", TIMEOUT).await;
        for (id, forgets) in [("b", false), ("c", true)] {
            etcd.kill();
            if forgets {
                etcd.wipe();
            }
            let _never_awaited = Worker::start(&settings, id).await;
            router.hears_nothing(LEASE + Duration::from_secs(1)).await;
            etcd.launch();
            etcd.wait_ready(&settings).await;
            router.hears_join(id, SECONDS).await;
            router.hears_nothing(PAST_GRACE).await;
        }
        let mut admin = admin(&etcd).await;
        for id in ["a", "b", "c"] {
            let found = admin.get(key(id), None).await.expect("etcd answers");
            assert_eq!(found.kvs().len(), 1, "{id} is registered in the new store");
        }
    });
}

#[test]
fn a_worker_that_leaves_while_etcd_stands_still_does_not_wait_for_it() {
    with_etcd(async |program| {
        let etcd = Etcd::start(program).await;
        let settings = etcd.settings();
        let (a, mut router) = (Worker::start(&settings, "a").await, Router::start(&settings).await);
        router.hears_join("a", TIMEOUT).await;
        etcd.signal("STOP");
        let leaving = tokio::time::timeout(skein_node::discovery::etcd::LEAVE_WITHIN * 2, a.leave());
        leaving.await.expect("a drain does not wait for etcd");
        etcd.signal("CONT");
        router.hears_leave("a", TIMEOUT + GRACE).await;
    });
}

#[test]
fn three_servers_losing_their_leader() {
    with_etcd(async |program| {
        let mut cluster = EtcdCluster::start(program, 3, &FAST_TIMING).await;
        let settings = cluster.settings();
        for etcd in &cluster.servers {
            etcd.wait_ready(&etcd.settings()).await;
        }
        let (_a, mut router) = (Worker::start(&settings, "a").await, Router::start(&settings).await);
        router.hears_join("a", TIMEOUT).await;
        let leader = cluster.wait_leader(None).await;
        cluster.servers[leader].kill();
        let _b = Worker::start(&settings, "b").await;
        router.hears_join("b", SECONDS).await;
        router.hears_nothing(PAST_GRACE).await;
        // A second failure leaves no majority, until that server is back.
        let other = &mut cluster.servers[(leader + 1) % 3];
        other.kill();
        let _c = Worker::start(&settings, "c").await;
        router.hears_nothing(LEASE * 2).await;
        other.launch();
        other.wait_ready(&other.settings()).await;
        router.hears_join("c", SECONDS).await;
        router.hears_nothing(PAST_GRACE).await;
    });
}

#[test]
fn servers_of_which_one_is_away_from_the_start() {
    with_etcd(async |program| {
        let (etcd, away) = (Etcd::start(program).await, Etcd::prepare(program, "http", &[]));
        let endpoints = vec![away.endpoint.clone(), etcd.endpoint.clone()];
        let settings = EtcdSettings { endpoints, ..EtcdSettings::default() };
        let (_a, mut router) = (Worker::start(&settings, "a").await, Router::start(&settings).await);
        router.hears_join("a", SECONDS).await;
    });
}
