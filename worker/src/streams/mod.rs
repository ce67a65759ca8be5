//! From the engine to the readers. The output of each request lies in a ring; the engine adds to it and never waits,
//! and each of any number of readers takes all that is new to it at once, so a slow one gets fewer and longer deltas.
//! What a reader leaves lying beyond [`MAX_UNREAD_BYTES`] ends that reader.
//!
//! A request whose last reader is gone, but did not say that it left for good, goes on for its linger time; and for as
//! long its output stays readable after its end. Without linger nothing is kept that was read, and the request is
//! cancelled at once. Here is no clock and no timer: what is over is noticed when the engine next looks.

mod audit;
mod budget;
mod counts;
mod delta;
mod early;
mod kept;
mod position;
mod readers;
mod ring;
mod run;
mod stream;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use skein_node::clock::{self, Timestamp};

pub use audit::Broken;
pub use budget::OUTPUT_BYTES;
pub use counts::Counts;
pub use delta::{MAX_UNREAD_BYTES, StreamFault};
pub use position::{OutOfRange, SamplePosition};
pub use run::{AttachError, Attachment, MAX_LINGER};
pub use stream::{RING_BYTES, TokenStream};

pub(crate) use readers::{Join, Opening};

use crate::scheduler::{RequestEvent, RequestKey};
use budget::Budget;
use early::EarlyReleases;
use kept::Kept;
use run::Run;
use skein_proto::stream_key::StreamKey;
use stream::{Cut, ReaderNumber};

/// The engine's end of all streams.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    running: BTreeMap<RequestKey, Run>,
    kept: Kept,
    by_key: HashMap<StreamKey, RequestKey>,
    by_name: HashMap<String, (RequestKey, ReaderNumber)>,
    events: Vec<RequestEvent>,
    open: Arc<()>,
    budget: Arc<Budget>,
    early: EarlyReleases,
    counts: Counts,
    /// When it was looked after last.
    looked_at: Timestamp,
}

impl Outbox {
    /// Remembers what happened until the next flush.
    pub fn extend(&mut self, events: impl IntoIterator<Item = RequestEvent>) {
        self.events.extend(events);
    }

    /// Hands what happened to the readers.
    pub fn flush(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let key = event.request();
            // A request cancelled meanwhile has no stream any more.
            let Some(run) = self.running.get(&key) else { continue };
            if run.stream.add(event) {
                self.counts.completed += 1;
                self.ended(key);
            }
        }
        self.events = events; // its room is used again
        if self.budget.is_over() {
            self.make_room();
        }
    }

    /// An ended request stays readable, if it was to.
    fn ended(&mut self, key: RequestKey) {
        let Some(run) = self.running.remove(&key) else { return };
        let over = if run.key.is_some() && !run.linger.is_zero() {
            self.kept.insert(key, run, clock::now())
        } else {
            Some((key, run))
        };
        over.into_iter().for_each(|(key, run)| self.forget(key, run));
    }

    /// Ended streams go, then what was read of those that run.
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

    /// The name may read something else by now.
    fn forget_name(&mut self, name: &str, key: RequestKey) {
        if self.by_name.get(name).is_some_and(|(of, _)| *of == key) {
            self.by_name.remove(name);
        }
    }

    /// Forgets streams whose time is over, ends readers that are too slow, and names the requests that nobody follows
    /// any more: they are over here.
    pub fn look_after(&mut self, now: Timestamp) -> Vec<RequestKey> {
        self.looked_at = now;
        while let Some((key, run)) = self.kept.pop_expired(now) {
            self.forget(key, run);
        }
        let mut over = Vec::new();
        for (&key, run) in &mut self.running {
            let readers = run.stream.look_after();
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
            *if was_slow { &mut self.counts.errored } else { &mut self.counts.cancelled } += 1;
            let run = self.running.remove(&key);
            run.into_iter().for_each(|run| self.forget(key, run));
        }
        over.into_iter().map(|(key, _)| key).collect()
    }

    /// Gives back every request that has not ended, after what it was already given, and names them: they are over
    /// here.
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

    /// Ends every stream that has not ended, after what it was already given.
    pub fn end_all(&mut self, fault: &StreamFault) {
        self.flush();
        while let Some((key, run)) = self.running.pop_first() {
            run.stream.cut(Cut::Fault(fault.clone()));
            self.counts.errored += 1;
            self.forget(key, run);
        }
    }

    /// What became of the requests so far.
    pub fn counts(&self) -> Counts {
        Counts { running: self.running.len() as u64, ..self.counts }
    }

    /// The newest `most` keys under which something can be read, oldest first.
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
