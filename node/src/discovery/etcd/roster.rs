//! Interprets etcd's answers. Pure: answers and time go in, changes come out.
//!
//! A worker joins at once, and leaves at once if its record is marked as leaving. One that is merely no
//! longer listed has [`RosterConfig::grace`] to return: its lease may have ended while etcd was down, or etcd
//! may have lost its data. If the worker is dead, the router's own connection shows it sooner.

use std::collections::BTreeMap;
use std::time::Duration;

use super::api::{KeyEntry, Snapshot, WatchEvent};
use super::record::Record;
use crate::clock::Timestamp;
use crate::discovery::{Change, Member};

/// Most workers of a cluster; further ones are ignored.
pub const MAX_MEMBERS: usize = 1024;
/// Most invalid keys that are remembered and logged; further ones are ignored silently.
const MAX_REJECTED: usize = 64;
/// Default of [`RosterConfig::grace`]: time for several attempts of a worker to reach etcd again.
pub const GRACE: Duration = Duration::from_secs(15);

/// Settings of a roster.
#[derive(Debug, Clone)]
pub struct RosterConfig {
    /// Prefix of the workers' keys.
    pub prefix: String,
    /// How long a worker may be missing before it leaves.
    pub grace: Duration,
}

/// The cluster's members according to etcd.
#[derive(Debug)]
pub struct Roster {
    config: RosterConfig,
    members: BTreeMap<String, Member>,
    /// Members that are no longer listed, and when they leave.
    missing: BTreeMap<String, Timestamp>,
    /// Keys without a valid record, with the revision for which that was logged.
    rejected: BTreeMap<String, i64>,
    /// Revision of the last list; events up to it are already included.
    listed: i64,
}

impl Roster {
    /// A roster without members.
    pub fn new(config: RosterConfig) -> Self {
        let (members, missing, rejected) = Default::default();
        Self { config, members, missing, rejected, listed: 0 }
    }

    /// The revision from which to watch.
    pub fn next_revision(&self) -> i64 {
        self.listed + 1
    }

    /// Applies a full list; returns the differences.
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

    /// Applies an event of a watch.
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

    /// Handles the end of the watch: a missing member may return unseen, so the next list decides.
    pub fn lost(&mut self) {
        self.missing.clear();
    }

    /// When [`Roster::expire`] must be called next; `None` if no member is missing.
    pub fn due(&self) -> Option<Timestamp> {
        self.missing.values().min().copied()
    }

    /// Removes members that have been missing for too long.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Change> {
        let gone: Vec<String> =
            self.missing.iter().filter(|(_, until)| **until <= now).map(|(id, _)| id.clone()).collect();
        gone.iter().filter_map(|id| self.remove(id)).collect()
    }

    fn written(&mut self, entry: &KeyEntry) -> Option<Change> {
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

    /// Logs once per revision of a key, because a list arrives every minute.
    fn complain(&mut self, entry: &KeyEntry, reason: &str) {
        if self.rejected.len() >= MAX_REJECTED && !self.rejected.contains_key(&entry.key) {
            return;
        }
        if self.rejected.insert(entry.key.clone(), entry.revision) != Some(entry.revision) {
            tracing::warn!(key = entry.key, reason, "ignored a key in etcd that is not a valid worker");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Timestamp {
        Timestamp::ZERO + SECOND * seconds
    }

    fn entry(id: &str, value: &str, revision: i64) -> KeyEntry {
        KeyEntry { key: format!("p/{id}"), value: value.into(), revision }
    }

    fn worker(id: &str, address: &str, revision: i64) -> KeyEntry {
        entry(id, &format!(r#"{{"id":"{id}","address":"{address}"}}"#), revision)
    }

    fn leaving(id: &str, revision: i64) -> KeyEntry {
        entry(id, &format!(r#"{{"id":"{id}","address":"a:1","leaving":true}}"#), revision)
    }

    fn join(id: &str, address: &str) -> Change {
        Change::Join(Member { id: id.into(), address: address.into() })
    }

    fn leave(id: &str) -> Change {
        Change::Leave(id.into())
    }

    fn list(roster: &mut Roster, seconds: u32, revision: i64, entries: Vec<KeyEntry>, expected: &[Change]) {
        let changes = roster.list(at(seconds), &Snapshot { cluster: 1, revision, entries });
        assert_eq!(changes, expected, "list of revision {revision}");
    }

    fn put(roster: &mut Roster, entry: KeyEntry, expected: Option<Change>) {
        assert_eq!(roster.event(at(0), &WatchEvent::Put(entry.clone())), expected, "{entry:?}");
    }

    fn delete(roster: &mut Roster, seconds: u32, id: &str, revision: i64) {
        let event = WatchEvent::Delete { key: format!("p/{id}"), revision };
        assert_eq!(roster.event(at(seconds), &event), None, "a deleted key says nothing at once");
    }

    fn roster() -> Roster {
        Roster::new(RosterConfig { prefix: "p/".into(), grace: SECOND * 15 })
    }

    #[test]
    fn a_list_tells_only_the_differences() {
        let mut roster = roster();
        list(
            &mut roster,
            0,
            10,
            vec![worker("a", "a:1", 3), worker("b", "b:1", 4)],
            &[join("a", "a:1"), join("b", "b:1")],
        );
        assert_eq!(roster.next_revision(), 11);
        list(&mut roster, 0, 20, vec![worker("a", "a:1", 3), worker("b", "b:2", 15)], &[join("b", "b:2")]);
        list(&mut roster, 0, 20, vec![worker("a", "a:1", 3), worker("b", "b:2", 15)], &[]);
    }

    #[test]
    fn a_worker_marked_as_leaving_leaves_at_once_and_may_return() {
        let mut roster = roster();
        list(&mut roster, 0, 10, vec![worker("a", "a:1", 3)], &[join("a", "a:1")]);
        put(&mut roster, leaving("a", 11), Some(leave("a")));
        delete(&mut roster, 0, "a", 12);
        assert_eq!(roster.due(), None);
        put(&mut roster, worker("a", "a:1", 13), Some(join("a", "a:1")));
        put(&mut roster, leaving("stranger", 14), None);
    }

    #[test]
    fn a_worker_whose_lease_ended_leaves_after_the_grace() {
        let mut roster = roster();
        list(
            &mut roster,
            0,
            10,
            vec![worker("a", "a:1", 3), worker("b", "b:1", 3)],
            &[join("a", "a:1"), join("b", "b:1")],
        );
        delete(&mut roster, 2, "a", 11);
        delete(&mut roster, 2, "b", 11);
        put(&mut roster, worker("a", "a:1", 12), None);
        assert_eq!(roster.due(), Some(at(17)));
        assert_eq!(roster.expire(at(16)), []);
        assert_eq!(roster.expire(at(17)), [leave("b")]);
        assert_eq!((roster.due(), roster.expire(at(99))), (None, vec![]));
    }

    #[test]
    fn workers_that_return_after_the_store_was_lost_do_not_leave() {
        let mut roster = roster();
        list(
            &mut roster,
            0,
            1000,
            vec![worker("a", "a:1", 3), worker("b", "b:1", 3)],
            &[join("a", "a:1"), join("b", "b:1")],
        );
        list(&mut roster, 10, 2, vec![], &[]);
        assert_eq!(roster.next_revision(), 3, "the new store's revisions count");
        put(&mut roster, worker("a", "a:1", 3), None);
        list(&mut roster, 20, 4, vec![worker("a", "a:1", 3)], &[]);
        assert_eq!(roster.due(), Some(at(25)), "a second list does not prolong the grace");
        assert_eq!(roster.expire(at(25)), [leave("b")]);
    }

    #[test]
    fn no_worker_leaves_during_an_outage() {
        let mut roster = roster();
        list(&mut roster, 0, 10, vec![worker("a", "a:1", 3)], &[join("a", "a:1")]);
        delete(&mut roster, 0, "a", 11);
        roster.lost();
        assert_eq!((roster.due(), roster.expire(at(600))), (None, vec![]));
        list(&mut roster, 600, 12, vec![], &[]);
        assert_eq!(roster.due(), Some(at(615)));
    }

    #[test]
    fn events_already_included_in_a_list_are_ignored() {
        let mut roster = roster();
        list(&mut roster, 0, 10, vec![worker("a", "a:2", 9)], &[join("a", "a:2")]);
        put(&mut roster, worker("a", "a:1", 8), None);
        delete(&mut roster, 0, "a", 7);
        assert_eq!(roster.due(), None);
        // Several changes may share a revision.
        put(&mut roster, worker("b", "b:1", 11), Some(join("b", "b:1")));
        put(&mut roster, worker("c", "c:1", 11), Some(join("c", "c:1")));
    }

    #[test]
    fn invalid_records_are_ignored_and_remove_no_worker() {
        let mut roster = roster();
        list(&mut roster, 0, 10, vec![worker("a", "a:1", 3), entry("x", "junk", 4)], &[join("a", "a:1")]);
        put(&mut roster, entry("a", "junk", 11), None);
        put(&mut roster, KeyEntry { key: "elsewhere".into(), ..worker("a", "a:9", 12) }, None);
        put(&mut roster, worker("a", "a:2", 13), Some(join("a", "a:2")));
        for index in 0..MAX_REJECTED as i64 * 2 {
            put(&mut roster, entry(&format!("junk-{index}"), "", 20 + index), None);
        }
        assert_eq!(roster.rejected.len(), MAX_REJECTED);
    }

    #[test]
    fn a_cluster_has_a_maximum_size() {
        let mut roster = roster();
        for index in 0..MAX_MEMBERS {
            let (id, address) = (format!("w{index}"), format!("h{index}:1"));
            put(&mut roster, worker(&id, &address, 1), Some(join(&id, &address)));
        }
        put(&mut roster, worker("more", "m:1", 1), None);
        put(&mut roster, worker("w0", "moved:1", 2), Some(join("w0", "moved:1")));
    }
}
