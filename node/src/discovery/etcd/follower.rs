//! Follows the cluster's workers in etcd: list, watch from the next revision, and list again whenever the
//! watch ends.
//!
//! Every watch starts from a new list, even after a mere disconnect: it is one small read, and correct after
//! anything that may have happened, such as a compaction, a new leader, a restored backup or an empty store.

use std::time::Duration;

use tokio::sync::mpsc;

use super::api::{EtcdApi, EtcdError, EtcdWatch};
use super::outage_log::OutageLog;
use super::record;
use super::roster::{GRACE, Roster, RosterConfig};
use crate::clock::{self, Timestamp};
use crate::discovery::Change;
use crate::discovery::backoff::{Backoff, LONGEST_PAUSE};

/// Default of [`FollowerConfig::resync`].
pub const RESYNC: Duration = Duration::from_secs(60);

/// Settings of a follower.
#[derive(Debug, Clone)]
pub struct FollowerConfig {
    /// The cluster whose workers to follow.
    pub cluster: String,
    /// How long a worker may be missing before it leaves; [`GRACE`].
    pub grace: Duration,
    /// How often a watch is restarted, because it can break without an error; default [`RESYNC`].
    pub resync: Duration,
    /// Seed of the jitter.
    pub seed: u64,
}

impl FollowerConfig {
    /// The defaults for `cluster`.
    pub fn new(cluster: &str, seed: u64) -> Self {
        Self { cluster: cluster.to_owned(), grace: GRACE, resync: RESYNC, seed }
    }
}

/// Sends membership changes until the receiver is dropped. An outage of etcd changes nothing; this waits
/// until it ends.
pub async fn follow<A: EtcdApi>(api: &A, config: FollowerConfig, changes: mpsc::Sender<Change>) {
    let prefix = record::prefix(&config.cluster);
    let roster_config = RosterConfig { prefix: prefix.clone(), grace: config.grace };
    let outage_log = OutageLog::new("known workers stay", &prefix);
    let mut follower = Follower {
        api,
        prefix,
        resync: config.resync,
        roster: Roster::new(roster_config),
        backoff: Backoff::new(config.seed),
        outage_log,
        changes,
        watching: None,
    };
    while !follower.changes.is_closed() {
        match follower.round().await {
            Ok(()) => {}
            Err(Ended::ReceiverDropped) => return,
            Err(Ended::Etcd(error)) => follower.pause(error).await,
        }
    }
}

struct Follower<'a, A> {
    api: &'a A,
    prefix: String,
    resync: Duration,
    roster: Roster,
    backoff: Backoff,
    outage_log: OutageLog,
    changes: mpsc::Sender<Change>,
    /// When the running watch started.
    watching: Option<Timestamp>,
}

/// Why a watch ended early.
enum Ended {
    /// The receiver of changes was dropped.
    ReceiverDropped,
    Etcd(EtcdError),
}

impl From<EtcdError> for Ended {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(error)
    }
}

impl<A: EtcdApi> Follower<'_, A> {
    /// Lists, then watches until the watch ends.
    async fn round(&mut self) -> Result<(), Ended> {
        let snapshot = self.api.list(&self.prefix).await?;
        let changes = self.roster.list(clock::now(), &snapshot);
        self.send(changes).await?;
        let mut watch = self.api.watch(&self.prefix, self.roster.next_revision()).await?;
        self.watching = Some(clock::now());
        self.outage_log.works(clock::now());
        let resync = self.backoff.jitter(self.resync);
        let mut resync = std::pin::pin!(tokio::time::sleep(resync));
        loop {
            let wait = self.roster.due().map(|due| due.since(clock::now()));
            let events = tokio::select! {
                // In fixed order, so that a simulator can replay it.
                biased;
                () = self.changes.closed() => return Err(Ended::ReceiverDropped),
                () = &mut resync => return Ok(()),
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Vec::new(),
                events = watch.next() => events?,
            };
            let now = clock::now();
            let mut changes: Vec<Change> =
                events.iter().filter_map(|event| self.roster.event(now, event)).collect();
            changes.extend(self.roster.expire(now));
            self.send(changes).await?;
        }
    }

    async fn pause(&mut self, error: EtcdError) {
        self.roster.lost();
        // Do not reset if the watch ended as soon as it began.
        if self.watching.take().is_some_and(|since| clock::now().since(since) >= LONGEST_PAUSE) {
            self.backoff.reset();
        }
        match error {
            EtcdError::Compacted { oldest } => {
                tracing::debug!(oldest, "the watch fell behind what etcd keeps; listing again");
            }
            error => self.outage_log.failed(clock::now(), error),
        }
        let pause = self.backoff.pause();
        tokio::select! {
            biased;
            () = self.changes.closed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    async fn send(&self, changes: Vec<Change>) -> Result<(), Ended> {
        for change in changes {
            tracing::info!(?change, "membership");
            self.changes.send(change).await.map_err(|_| Ended::ReceiverDropped)?;
        }
        Ok(())
    }
}
