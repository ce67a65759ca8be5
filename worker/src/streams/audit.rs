//! Invariants of the streams between any two calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Counts, Outbox};
use crate::scheduler::{RequestEvent, RequestKey};

/// A broken invariant: a bug in this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A request is scheduled without a stream, or has a stream without being scheduled.
    #[error("the scheduler has requests {scheduled:?}, the outbox has {streamed:?}")]
    Requests {
        /// Requests in the scheduler.
        scheduled: Vec<u64>,
        /// Running requests in the outbox.
        streamed: Vec<u64>,
    },
    /// A reader's name or a stream's key outlived its stream.
    #[error("request {request} is gone, but a name or a key still leads to it")]
    Forgotten {
        /// The request's key.
        request: u64,
    },
    /// A request was counted twice or not at all.
    #[error("{0:?} do not add up")]
    Counts(Counts),
    /// The budget differs from the bytes held.
    #[error("streams hold {held} bytes, {counted} are counted")]
    OutputBytes {
        /// Bytes in the rings.
        held: usize,
        /// Bytes in the budget.
        counted: usize,
    },
    /// A stream outlived its linger.
    #[error("request {request} has no reader, its linger is over, and it is still here")]
    Orphan {
        /// The request's key.
        request: u64,
    },
}

impl Outbox {
    /// Checks the streams against the scheduler's requests.
    pub fn audit(&self, scheduled: &BTreeSet<RequestKey>) -> Result<(), Violation> {
        self.audit_requests(scheduled)?;
        self.audit_names()?;
        self.audit_bytes()?;
        self.audit_lingers()?;
        match self.counts() {
            counts if counts.is_conserved() => Ok(()),
            counts => Err(Violation::Counts(counts)),
        }
    }

    /// Every scheduled request has a stream, and every stream is scheduled or about to report its end.
    fn audit_requests(&self, scheduled: &BTreeSet<RequestKey>) -> Result<(), Violation> {
        let ends = |event: &&RequestEvent| matches!(event, RequestEvent::Finished { .. });
        let ending: BTreeSet<RequestKey> =
            self.events.iter().filter(ends).map(RequestEvent::request).collect();
        let known = |key: &RequestKey| self.running.contains_key(key);
        let needed = |key: &RequestKey| scheduled.contains(key) || ending.contains(key);
        if scheduled.iter().all(known) && self.running.keys().all(needed) {
            return Ok(());
        }
        let scheduled = scheduled.iter().map(|key| key.0).collect();
        Err(Violation::Requests { scheduled, streamed: self.running.keys().map(|key| key.0).collect() })
    }

    /// Names and keys lead to streams that exist.
    fn audit_names(&self) -> Result<(), Violation> {
        let kept: BTreeSet<RequestKey> = self.kept.iter().map(|(key, _)| key).collect();
        let named = self.by_key.values().copied().chain(self.by_name.values().map(|(key, _)| *key));
        let lost = |key: &RequestKey| !kept.contains(key) && !self.running.contains_key(key);
        named.filter(lost).min().map_or(Ok(()), |key| Err(Violation::Forgotten { request: key.0 }))
    }

    fn audit_bytes(&self) -> Result<(), Violation> {
        let runs = self.running.values().chain(self.kept.iter().map(|(_, run)| run));
        let held: usize = runs.map(|run| run.stream.bytes()).sum();
        let counted = self.budget.bytes();
        // Readers may hold streams that the outbox no longer has.
        let exact = Arc::strong_count(&self.open) == 1;
        let ok = if exact { held == counted } else { held <= counted };
        if ok { Ok(()) } else { Err(Violation::OutputBytes { held, counted }) }
    }

    /// Everything that had expired at the last sweep is gone.
    fn audit_lingers(&self) -> Result<(), Violation> {
        let over = self.running.iter().find_map(|(&key, run)| {
            run.orphaned.filter(|&since| self.last_sweep.since(since) >= run.linger).map(|_| key)
        });
        let expired = self.kept.next_expiry().filter(|(expiry, _)| *expiry <= self.last_sweep);
        over.or(expired.map(|(_, key)| key)).map_or(Ok(()), |key| Err(Violation::Orphan { request: key.0 }))
    }

    /// Bytes held by all streams.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.budget.bytes()
    }

    /// Limits the bytes of all streams opened from now on.
    #[cfg(test)]
    pub fn set_limit(&mut self, bytes: usize) {
        self.budget = Arc::new(super::budget::Budget::of(bytes));
    }

    /// Reader names that lead to streams.
    #[cfg(test)]
    pub fn names(&self) -> usize {
        self.by_name.len()
    }

    /// Nothing runs, nothing is kept, and nothing is read.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
            && self.kept.iter().next().is_none()
            && self.by_key.is_empty()
            && self.by_name.is_empty()
            && self.events.is_empty()
            && self.budget.bytes() == 0
    }
}
