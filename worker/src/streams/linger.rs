//! Ended streams that are still readable, each until it expires or its room is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use skein_node::clock::Timestamp;

use super::run::Run;
use crate::scheduler::RequestKey;

/// Most kept streams; the ones that expire first are dropped first.
const MAX_KEPT: usize = 16 * 1024;

/// Ended streams by request and by expiry. Nothing here wakes by itself.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    runs: BTreeMap<RequestKey, (Timestamp, Run)>,
    by_expiry: BTreeSet<(Timestamp, RequestKey)>,
}

impl Lingering {
    /// Keeps an ended run until its linger expires; returns one that it displaces.
    pub fn insert(&mut self, key: RequestKey, run: Run, now: Timestamp) -> Option<(RequestKey, Run)> {
        let expiry = now + run.linger;
        self.by_expiry.insert((expiry, key));
        self.runs.insert(key, (expiry, run));
        if self.runs.len() > MAX_KEPT { self.pop() } else { None }
    }

    pub fn iter(&self) -> impl Iterator<Item = (RequestKey, &Run)> {
        self.runs.iter().map(|(&key, (_, run))| (key, run))
    }

    /// The stream that expires next, and when.
    pub fn next_expiry(&self) -> Option<(Timestamp, RequestKey)> {
        self.by_expiry.first().copied()
    }

    pub fn get_mut(&mut self, key: RequestKey) -> Option<&mut Run> {
        self.runs.get_mut(&key).map(|(_, run)| run)
    }

    /// For a new reader: keeps the stream for at least `linger` from now.
    pub fn prolong(&mut self, key: RequestKey, now: Timestamp, linger: Duration) {
        let Some((expiry, _)) = self.runs.get_mut(&key) else { return };
        let later = (*expiry).max(now + linger);
        self.by_expiry.remove(&(std::mem::replace(expiry, later), key));
        self.by_expiry.insert((later, key));
    }

    pub fn remove(&mut self, key: RequestKey) -> Option<Run> {
        let (expiry, run) = self.runs.remove(&key)?;
        self.by_expiry.remove(&(expiry, key));
        Some(run)
    }

    /// Removes a stream that has expired.
    pub fn pop_expired(&mut self, now: Timestamp) -> Option<(RequestKey, Run)> {
        self.next_expiry().filter(|(expiry, _)| *expiry <= now)?;
        self.pop()
    }

    /// Removes the stream that expires first.
    pub fn pop(&mut self) -> Option<(RequestKey, Run)> {
        let (_, key) = self.by_expiry.pop_first()?;
        self.runs.remove(&key).map(|(_, run)| (key, run))
    }
}
