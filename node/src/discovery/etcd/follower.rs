//! Follows the cluster's workers in etcd: list, watch from the next revision, and list again whenever the watch ends.
//!
//! Each new watch starts from a list, also after a mere disconnect: a list is one small read, and it is right whatever
//! happened meanwhile: compaction, another leader, a restored backup, a store that began anew.

use std::time::Duration;

use tokio::sync::mpsc;

use super::api::{EtcdApi, EtcdError, EtcdWatch};
use super::record;
use super::roster::{GRACE, Roster, RosterConfig};
use super::standing::Standing;
use crate::clock::{self, Timestamp};
use crate::discovery::Change;
use crate::discovery::backoff::{Backoff, LONGEST_PAUSE};

/// Default of [`FollowerConfig::resync`].
pub const RESYNC: Duration = Duration::from_secs(60);

/// What a follower is told at its start.
#[derive(Debug, Clone)]
pub struct FollowerConfig {
    /// Whose workers.
    pub cluster: String,
    /// How long a worker may be missing before it counts as gone; [`GRACE`].
    pub grace: Duration,
    /// A watch is begun anew at least this often, so that one that went deaf unnoticed is deaf no longer than this;
    /// [`RESYNC`].
    pub resync: Duration,
    /// Of the jitter.
    pub seed: u64,
}

impl FollowerConfig {
    /// The defaults, for `cluster`.
    pub fn new(cluster: &str, seed: u64) -> Self {
        Self { cluster: cluster.to_owned(), grace: GRACE, resync: RESYNC, seed }
    }
}

/// Sends the changes of the cluster's membership until nobody takes them any more. An etcd that is away changes
/// nothing: this waits for it, for as long as it takes.
pub async fn follow<A: EtcdApi>(api: &A, config: FollowerConfig, changes: mpsc::Sender<Change>) {
    let prefix = record::prefix(&config.cluster);
    let roster_config = RosterConfig { prefix: prefix.clone(), grace: config.grace };
    let mut follower = Follower {
        api,
        prefix,
        resync: config.resync,
        roster: Roster::new(roster_config),
        backoff: Backoff::new(config.seed),
        standing: Standing::new("the workers known so far stay"),
        changes,
        watching: None,
    };
    while !follower.changes.is_closed() {
        match follower.round().await {
            Ok(()) => {}
            Err(Ended::Unheard) => return,
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
    standing: Standing,
    changes: mpsc::Sender<Change>,
    /// Since when the running watch runs.
    watching: Option<Timestamp>,
}

/// Why a watch is over before its time.
enum Ended {
    /// Nobody takes the changes.
    Unheard,
    Etcd(EtcdError),
}

impl From<EtcdError> for Ended {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(error)
    }
}

impl<A: EtcdApi> Follower<'_, A> {
    /// From a list to the end of its watch.
    async fn round(&mut self) -> Result<(), Ended> {
        let snapshot = self.api.list(&self.prefix).await?;
        let changes = self.roster.list(clock::now(), &snapshot);
        self.tell(changes).await?;
        let mut watch = self.api.watch(&self.prefix, self.roster.next_revision()).await?;
        self.watching = Some(clock::now());
        self.standing.works(clock::now());
        let resync = self.backoff.jitter(self.resync);
        let mut resync = std::pin::pin!(tokio::time::sleep(resync));
        loop {
            let wait = self.roster.due().map(|due| due.since(clock::now()));
            let events = tokio::select! {
                // In this order, always: a simulator replays it.
                biased;
                () = self.changes.closed() => return Err(Ended::Unheard),
                () = &mut resync => return Ok(()),
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Vec::new(),
                events = watch.next() => events?,
            };
            let now = clock::now();
            let mut changes: Vec<Change> =
                events.iter().filter_map(|event| self.roster.event(now, event)).collect();
            changes.extend(self.roster.expire(now));
            self.tell(changes).await?;
        }
    }

    async fn pause(&mut self, error: EtcdError) {
        self.roster.lost();
        // A watch that ends as soon as it began is no reason to hurry.
        if self.watching.take().is_some_and(|since| clock::now().since(since) >= LONGEST_PAUSE) {
            self.backoff.reset();
        }
        match error {
            EtcdError::Compacted { oldest } => {
                tracing::debug!(oldest, "the watch fell behind what etcd keeps; listing again");
            }
            error => self.standing.failed(clock::now(), error),
        }
        let pause = self.backoff.pause();
        tokio::select! {
            biased;
            () = self.changes.closed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    async fn tell(&self, changes: Vec<Change>) -> Result<(), Ended> {
        for change in changes {
            tracing::info!(?change, "membership");
            self.changes.send(change).await.map_err(|_| Ended::Unheard)?;
        }
        Ok(())
    }
}
