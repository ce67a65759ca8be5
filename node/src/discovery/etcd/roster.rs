//! What the answers of etcd mean for the cluster. Pure: answers and time go in, changes come out.
//!
//! A worker joins at once. It leaves at once when it said that it goes; one that is merely no longer listed has
//! [`RosterConfig::grace`] to come back, for its lease may have ended while etcd stood still, or etcd may have lost
//! its data. That a worker is dead the router sees sooner and better on its own connection to it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::api::{Entry, Snapshot, WatchEvent};
use super::record::Record;
use crate::clock::Timestamp;
use crate::discovery::{Change, Member};

/// Workers that one cluster may have; more are left out.
pub const MAX_MEMBERS: usize = 1024;
/// Keys without a record that are complained about; beyond that they are left out in silence.
const MAX_REJECTED: usize = 64;
/// Default of [`RosterConfig::grace`]: several tries of a worker that has to find etcd again.
pub const GRACE: Duration = Duration::from_secs(15);

/// What a roster is told at its start.
#[derive(Debug, Clone)]
pub struct RosterConfig {
    /// Keys of workers begin with it.
    pub prefix: String,
    /// How long a worker may be missing before it counts as gone.
    pub grace: Duration,
}

/// Who belongs to the cluster, as far as etcd has said.
#[derive(Debug)]
pub struct Roster {
    config: RosterConfig,
    members: BTreeMap<String, Member>,
    /// Members that are no longer listed, and when they leave.
    missing: BTreeMap<String, Timestamp>,
    /// Keys that hold no record, with the revision that was complained about.
    rejected: BTreeMap<String, i64>,
    /// Of the last list: what a watch says of it or of earlier ones is known.
    listed: i64,
}

impl Roster {
    /// Nobody, so far.
    pub fn new(config: RosterConfig) -> Self {
        let (members, missing, rejected) = Default::default();
        Self { config, members, missing, rejected, listed: 0 }
    }

    /// From where a watch goes on.
    pub fn next_revision(&self) -> i64 {
        self.listed + 1
    }

    /// Takes in a full list. Says only what differs from what was known.
    pub fn list(&mut self, now: Timestamp, snapshot: &Snapshot) -> Vec<Change> {
        self.listed = snapshot.revision;
        let keys: std::collections::BTreeSet<&str> =
            snapshot.entries.iter().filter_map(|entry| self.id_of(&entry.key)).collect();
        for id in self.members.keys().filter(|id| !keys.contains(id.as_str())) {
            self.missing.entry(id.clone()).or_insert(now + self.config.grace);
        }
        self.rejected.retain(|key, _| snapshot.entries.iter().any(|entry| entry.key == *key));
        snapshot.entries.iter().filter_map(|entry| self.written(entry)).collect()
    }

    /// Takes in what a watch told.
    pub fn event(&mut self, now: Timestamp, event: &WatchEvent) -> Option<Change> {
        match event {
            WatchEvent::Put(entry) if entry.revision > self.listed => self.written(entry),
            WatchEvent::Delete { key, revision } if *revision > self.listed => {
                self.rejected.remove(key);
                let id = self.id_of(key)?.to_owned();
                if self.members.contains_key(&id) {
                    self.missing.insert(id, now + self.config.grace);
                }
                None
            }
            WatchEvent::Put(_) | WatchEvent::Delete { .. } => None,
        }
    }

    /// The watch is over: whoever is missing now may come back unseen, so the next list decides anew.
    pub fn lost(&mut self) {
        self.missing.clear();
    }

    /// When [`Roster::expire`] has something to say.
    pub fn due(&self) -> Option<Timestamp> {
        self.missing.values().min().copied()
    }

    /// Lets go of those who were missing for too long.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Change> {
        let gone: Vec<String> =
            self.missing.iter().filter(|(_, until)| **until <= now).map(|(id, _)| id.clone()).collect();
        gone.iter().filter_map(|id| self.remove(id)).collect()
    }

    fn written(&mut self, entry: &Entry) -> Option<Change> {
        let record = match Record::decode(&self.config.prefix, entry) {
            Ok(record) => record,
            Err(reason) => {
                self.complain(entry, &reason);
                return None;
            }
        };
        if record.leaving {
            return self.remove(&record.id);
        }
        self.missing.remove(&record.id);
        let member = record.member();
        if self.members.get(&record.id) == Some(&member) {
            return None;
        }
        if self.members.len() >= MAX_MEMBERS && !self.members.contains_key(&record.id) {
            self.complain(entry, &format!("the cluster has {MAX_MEMBERS} workers already"));
            return None;
        }
        self.members.insert(record.id, member.clone());
        Some(Change::Join(member))
    }

    fn remove(&mut self, id: &str) -> Option<Change> {
        self.missing.remove(id);
        self.members.remove(id).map(|member| Change::Leave(member.id))
    }

    fn id_of<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(self.config.prefix.as_str())
    }

    /// Once for each version of a key: a list comes every minute.
    fn complain(&mut self, entry: &Entry, reason: &str) {
        if self.rejected.len() >= MAX_REJECTED && !self.rejected.contains_key(&entry.key) {
            return;
        }
        if self.rejected.insert(entry.key.clone(), entry.revision) != Some(entry.revision) {
            tracing::warn!(key = entry.key, reason, "left out: this key of etcd is no worker of ours");
        }
    }
}
