//! Output on its way from the engine to the readers. Each request's output lies in a ring. The engine appends
//! without ever waiting, and each reader takes everything new at once, so a slow reader gets fewer and longer
//! deltas. A reader with more than [`MAX_UNREAD_BYTES`] unread is ended.
//!
//! If the last reader of a request disappears without a release, the request continues for its linger time,
//! and its output stays readable equally long after its end. Without a linger, output is dropped once read
//! and the request is cancelled as soon as its last reader is gone. This module has no clock and no timer:
//! the engine's next sweep detects expiry.

mod audit;
mod budget;
mod counts;
mod delta;
mod early_releases;
mod linger;
mod position;
mod readers;
mod ring;
mod run;
mod stream;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use skein_node::clock::{self, Timestamp};

pub use audit::Violation;
pub use budget::OUTPUT_BYTES;
pub use counts::Counts;
pub use delta::{MAX_UNREAD_BYTES, StreamFault};
pub use position::{OutOfRange, SamplePosition};
pub use run::{AttachError, Attachment, MAX_LINGER};
pub use stream::{RING_BYTES, TokenStream};

pub(crate) use readers::{Join, Opening};

use crate::scheduler::{RequestEvent, RequestKey};
use budget::Budget;
use early_releases::EarlyReleases;
use linger::Lingering;
use run::Run;
use skein_proto::stream_key::StreamKey;
use stream::{Cut, ReaderNumber};

/// All streams, as the engine sees them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    running: BTreeMap<RequestKey, Run>,
    kept: Lingering,
    by_key: HashMap<StreamKey, RequestKey>,
    by_name: HashMap<String, (RequestKey, ReaderNumber)>,
    events: Vec<RequestEvent>,
    open: Arc<()>,
    budget: Arc<Budget>,
    early: EarlyReleases,
    counts: Counts,
    /// Time of the last sweep.
    last_sweep: Timestamp,
}

impl Outbox {
    /// Queues events for the next flush.
    pub fn extend(&mut self, events: impl IntoIterator<Item = RequestEvent>) {
        self.events.extend(events);
    }

    /// Delivers the queued events to the readers.
    pub fn flush(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let key = event.request();
            // A cancelled request no longer has a stream.
            let Some(run) = self.running.get(&key) else { continue };
            if run.stream.add(event) {
                self.counts.completed += 1;
                self.ended(key);
            }
        }
        self.events = events; // reuses the allocation
        if self.budget.is_over() {
            self.make_room();
        }
    }

    /// Keeps an ended request readable if it has a key and a linger.
    fn ended(&mut self, key: RequestKey) {
        let Some(run) = self.running.remove(&key) else { return };
        let over = if run.key.is_some() && !run.linger.is_zero() {
            self.kept.insert(key, run, clock::now())
        } else {
            Some((key, run))
        };
        over.into_iter().for_each(|(key, run)| self.forget(key, run));
    }

    /// Drops ended streams, then output of running ones that all their readers have read.
    fn make_room(&mut self) {
        while self.budget.is_over()
            && let Some((key, run)) = self.kept.pop()
        {
            self.forget(key, run);
        }
        for run in self.running.values() {
            if !self.budget.is_over() {
                return;
            }
            run.stream.forget_read();
        }
    }

    fn forget(&mut self, key: RequestKey, run: Run) {
        for (name, _) in &run.names {
            self.forget_name(name, key);
        }
        if let Some((stream_key, _)) = run.key
            && self.by_key.get(&stream_key) == Some(&key)
        {
            self.by_key.remove(&stream_key);
        }
    }

    /// Frees the name, unless another request now uses it.
    fn forget_name(&mut self, name: &str, key: RequestKey) {
        if self.by_name.get(name).is_some_and(|(of, _)| *of == key) {
            self.by_name.remove(name);
        }
    }

    /// Drops expired streams, ends readers that are too slow, and removes requests that have had no reader
    /// for their linger time. Returns those for the scheduler to cancel.
    pub fn sweep(&mut self, now: Timestamp) -> Vec<RequestKey> {
        self.last_sweep = now;
        while let Some((key, run)) = self.kept.pop_expired(now) {
            self.forget(key, run);
        }
        let mut over = Vec::new();
        for (&key, run) in &mut self.running {
            let readers = run.stream.sweep();
            if readers.live > 0 {
                run.orphaned = None;
                continue;
            }
            let since = *run.orphaned.get_or_insert(now);
            if now.since(since) >= run.linger {
                over.push((key, readers.lost_a_slow_one));
            }
        }
        for &(key, was_slow) in &over {
            let count = if was_slow { &mut self.counts.errored } else { &mut self.counts.cancelled };
            *count += 1;
            let run = self.running.remove(&key);
            run.into_iter().for_each(|run| self.forget(key, run));
        }
        over.into_iter().map(|(key, _)| key).collect()
    }

    /// Hands back every unfinished request, after the output it already has, and returns their keys for the
    /// scheduler to cancel.
    pub fn hand_back(&mut self) -> Vec<RequestKey> {
        self.flush();
        let keys: Vec<RequestKey> = self.running.keys().copied().collect();
        for &key in &keys {
            self.running[&key].stream.cut(Cut::HandBack);
            self.counts.handed_back += 1;
            self.ended(key);
        }
        keys
    }

    /// Ends a stream after the output that it already has; false if it ended before.
    pub fn fail(&mut self, key: RequestKey, fault: &StreamFault) -> bool {
        self.flush();
        let Some(run) = self.running.remove(&key) else { return false };
        run.stream.cut(Cut::Fault(fault.clone()));
        self.counts.errored += 1;
        self.forget(key, run);
        true
    }

    /// Ends every unfinished stream, after the output it already has.
    pub fn end_all(&mut self, fault: &StreamFault) {
        self.flush();
        while let Some((key, run)) = self.running.pop_first() {
            run.stream.cut(Cut::Fault(fault.clone()));
            self.counts.errored += 1;
            self.forget(key, run);
        }
    }

    /// Requests by outcome.
    pub fn counts(&self) -> Counts {
        Counts { running: self.running.len() as u64, ..self.counts }
    }

    /// Keys of the newest `most` readable streams, oldest first.
    pub fn stream_keys(&self, most: usize) -> Vec<StreamKey> {
        let mut keys: Vec<(RequestKey, StreamKey)> =
            self.by_key.iter().map(|(&stream_key, &key)| (key, stream_key)).collect();
        keys.sort_unstable();
        let skip = keys.len().saturating_sub(most);
        keys.into_iter().skip(skip).map(|(_, stream_key)| stream_key).collect()
    }
}

impl Drop for Outbox {
    /// Readers of an engine that panicked must not wait forever.
    fn drop(&mut self) {
        self.end_all(&StreamFault::Failed { reason: "the engine's thread is gone".into() });
    }
}
