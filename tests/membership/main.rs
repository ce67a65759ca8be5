//! Membership with real etcd servers: which changes a router sees while etcd is stopped, killed, wiped or
//! without a leader. Without an etcd the tests print that they are skipped.

mod access;
mod outages;
mod watching;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skein_node::discovery::etcd::{
    EtcdClient, EtcdSettings, FollowerConfig, Record, Registration, follow, prefix, register,
};
use skein_node::discovery::{Change, Member};
use skein_node::shutdown::Shutdown;
use skein_tests::etcd::{self, Etcd, EtcdCluster, FAST_TIMING};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Limit for waits that usually take far less.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a router to see a join after etcd is back, on a busy machine.
const SECONDS: Duration = Duration::from_secs(8);
/// About the shortest lease that etcd grants with the tests' timing.
const LEASE: Duration = Duration::from_secs(2);
/// Grace for a member whose entry is missing: long for a busy machine, short enough to wait for.
const GRACE: Duration = Duration::from_secs(5);
/// After this time every member whose entry was missing before has left.
const PAST_GRACE: Duration = Duration::from_secs(6);

fn block_on<F: Future>(future: F) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime starts")
        .block_on(async { tokio::time::timeout(Duration::from_secs(120), future).await })
        .expect("the test ends in time");
}

/// Runs `test` with the path of the etcd program, if there is one.
fn with_etcd(test: impl AsyncFnOnce(&Path)) {
    if let Some(program) = etcd::binary() {
        block_on(test(&program));
    }
}

async fn client(settings: &EtcdSettings) -> Arc<EtcdClient> {
    Arc::new(EtcdClient::new(settings.clone(), 0).await.expect("good settings"))
}

/// A client of the server that is not our own code.
async fn admin(etcd: &Etcd) -> etcd_client::Client {
    etcd_client::Client::connect([format!("http://{}", etcd.endpoint)], None).await.expect("etcd answers")
}

/// A worker that does nothing but register.
struct Worker {
    stop: Shutdown,
    task: JoinHandle<()>,
}

impl Worker {
    async fn start(settings: &EtcdSettings, id: &str) -> Self {
        let (client, stop) = (client(settings).await, Shutdown::default());
        let (model, version) = Default::default();
        let record =
            Record { id: id.into(), address: address(id), model, epoch: None, version, leaving: false };
        let registration = Registration { cluster: "test".into(), record, ttl: LEASE, seed: 1 };
        let stopped = stop.requested();
        let task = tokio::spawn(async move { register(&*client, registration, stopped).await });
        Self { stop, task }
    }

    /// Shuts down as a drain does.
    async fn leave(self) {
        self.stop.request();
        self.task.await.expect("no panic");
    }

    /// Ends without cleanup, as after `kill -9`.
    fn die(self) {
        self.task.abort();
    }
}

fn address(id: &str) -> String {
    format!("{id}:9000")
}

fn key(id: &str) -> String {
    format!("{}{id}", prefix("test"))
}

/// The router's side: the changes that it receives.
struct Router(mpsc::Receiver<Change>);

impl Router {
    async fn start(settings: &EtcdSettings) -> Self {
        let (sender, receiver) = mpsc::channel(16);
        let client = client(settings).await;
        let config = FollowerConfig { grace: GRACE, ..FollowerConfig::new("test", 2) };
        tokio::spawn(async move { follow(&*client, config, sender).await });
        Self(receiver)
    }

    async fn hears(&mut self, expected: Change, within: Duration) {
        let change = tokio::time::timeout(within, self.0.recv()).await;
        assert_eq!(change.unwrap_or_else(|_| panic!("no {expected:?} within {within:?}")), Some(expected));
    }

    async fn hears_join(&mut self, id: &str, within: Duration) {
        self.hears(Change::Join(Member { id: id.into(), address: address(id) }), within).await;
    }

    async fn hears_leave(&mut self, id: &str, within: Duration) {
        self.hears(Change::Leave(id.into()), within).await;
    }

    async fn hears_nothing(&mut self, within: Duration) {
        if let Ok(change) = tokio::time::timeout(within, self.0.recv()).await {
            panic!("expected silence, heard {change:?}");
        }
    }
}

/// Polls until `holds`.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{what}: not within {TIMEOUT:?}"));
}
