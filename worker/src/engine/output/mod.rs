//! From the engine to the readers. The output of each request lies in a ring; the engine adds to it and never waits,
//! and each of any number of readers takes all that is new to it at once, so a slow one gets fewer and longer deltas.
//! What a reader leaves lying beyond [`MAX_UNREAD_BYTES`] ends that reader.
//!
//! A request whose last reader is gone, but did not say that it left for good, goes on for its linger time; and for as
//! long its output stays readable after its end. Without linger nothing is kept that was read, and the request is
//! cancelled at once. Here is no clock and no timer: what is over is noticed when the engine next looks.

mod audit;
mod delta;
mod early;
mod kept;
mod ring;
mod run;
mod stream;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::{self, Timestamp};

pub use delta::{Delta, MAX_UNREAD_BYTES, StreamFault};
pub use ring::{OutOfRange, SamplePosition};
pub use run::{AttachError, Attachment, MAX_LINGER, StreamKey};
pub use stream::{OUTPUT_BYTES, RING_BYTES, TokenStream};

use crate::scheduler::{Event, NewRequest, NewSample, RequestKey};
use early::EarlyReleases;
use kept::Kept;
use ring::Ring;
use run::{Question, Run, first_score, positions};
use stream::{Budget, Cut, ReaderNumber, Stream};

/// What became of the requests that were taken, joins not counted. Each is in exactly one of the places after
/// `accepted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests taken.
    pub accepted: u64,
    /// All their samples ended.
    pub completed: u64,
    /// Cut off by a failure, by the engine's end, or because their last reader was too slow.
    pub errored: u64,
    /// Given up by their readers.
    pub cancelled: u64,
    /// Given back to their routers.
    pub handed_back: u64,
    /// Under way.
    pub running: u64,
}

impl Counts {
    /// No request is counted twice or forgotten.
    pub fn is_conserved(&self) -> bool {
        self.accepted == self.completed + self.errored + self.cancelled + self.handed_back + self.running
    }
}

/// How a request comes into the outbox.
#[derive(Debug)]
pub(super) struct Opening {
    ring: Ring,
    run_key: Option<(StreamKey, Question)>,
    samples: Vec<SamplePosition>,
    first_score: u32,
    linger: Duration,
}

impl Opening {
    /// Without a key nobody can find it, so it does not linger.
    pub fn of(request: &NewRequest, key: Option<StreamKey>, linger: Duration) -> Self {
        Self {
            ring: Ring::new(request),
            run_key: key.map(|key| (key, Question::of(request))),
            samples: positions(request),
            first_score: first_score(request),
            linger: if key.is_some() { linger.min(MAX_LINGER) } else { Duration::ZERO },
        }
    }
}

/// What a request with the key of another one gets.
#[derive(Debug)]
pub(super) enum Join {
    /// It reads the other one's output.
    Joined(TokenStream),
    /// There is none that reaches back far enough.
    Absent,
    /// There is one, but of other tokens: one of both keys is wrong.
    Differs,
}

/// The engine's end of all streams.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    running: BTreeMap<RequestKey, Run>,
    kept: Kept,
    by_key: HashMap<StreamKey, RequestKey>,
    by_name: HashMap<String, (RequestKey, ReaderNumber)>,
    events: Vec<Event>,
    open: Arc<()>,
    budget: Arc<Budget>,
    early: EarlyReleases,
    counts: Counts,
    /// When it was looked after last.
    looked_at: Timestamp,
}

impl Outbox {
    /// Takes a new request and its first reader.
    pub fn open(&mut self, key: RequestKey, name: String, opening: Opening) -> TokenStream {
        let Opening { ring, run_key, samples, first_score, linger } = opening;
        let keeps = !linger.is_zero();
        let stream = Arc::new(Stream::new(ring, keeps, self.budget.clone()));
        let opened = stream.read_from(&samples, first_score, keeps, &self.open);
        let (number, reader) = opened.expect("a new ring reaches back to what was delivered");
        if let Some((stream_key, _)) = &run_key {
            self.by_key.insert(*stream_key, key);
        }
        let names = vec![(name.clone(), number)];
        self.running.insert(key, Run { stream, key: run_key, linger, orphaned: None, names });
        self.by_name.insert(name, (key, number));
        self.counts.accepted += 1;
        reader
    }

    /// Reads what runs, or is kept, under the request's key, if it is what the request asks for.
    pub fn join(
        &mut self,
        name: &str,
        request: &NewRequest,
        stream_key: StreamKey,
        linger: Duration,
    ) -> Join {
        let Some((_, run)) = self.find(stream_key) else { return Join::Absent };
        let Some((_, question)) = &run.key else { return Join::Absent };
        let agrees = |sample: &NewSample| run.stream.agrees(sample.index, &sample.delivered);
        if !question.is_of(request) || !request.samples.iter().all(agrees) {
            return Join::Differs;
        }
        if !question.scores_for(request) {
            return Join::Absent;
        }
        let attachment = Attachment {
            id: name.to_owned(),
            key: stream_key,
            samples: positions(request),
            from_score: first_score(request),
            linger,
        };
        self.attach(attachment).map_or(Join::Absent, Join::Joined)
    }

    /// Another reader for what runs, or is kept, under that key.
    pub fn attach(&mut self, attachment: Attachment) -> Result<TokenStream, AttachError> {
        let Attachment { id, key: stream_key, samples, from_score, linger } = attachment;
        let (now, linger, open) = (clock::now(), linger.min(MAX_LINGER), self.open.clone());
        let (key, run) = self.find(stream_key).ok_or(AttachError::NotFound)?;
        let (number, reader) = run.stream.read_from(&samples, from_score, !linger.is_zero(), &open)?;
        run.linger = run.linger.max(linger);
        run.orphaned = None;
        let forgotten = run.named(id.clone(), number);
        self.kept.prolong(key, now, linger);
        for name in forgotten {
            self.forget_name(&name, key);
        }
        self.by_name.insert(id, (key, number));
        Ok(reader)
    }

    fn find(&mut self, stream_key: StreamKey) -> Option<(RequestKey, &mut Run)> {
        let key = *self.by_key.get(&stream_key)?;
        let run = self.running.get_mut(&key).or_else(|| self.kept.get_mut(key))?;
        Some((key, run))
    }

    /// Whether a reader of that name, which comes now, has left for good already: its word was faster than its request.
    pub fn has_left(&mut self, name: &str) -> bool {
        self.early.take(name, clock::now())
    }

    /// Whether a reader of that name reads something that has not ended.
    pub fn is_reading(&self, name: &str) -> bool {
        let Some((key, number)) = self.by_name.get(name) else { return false };
        self.running.get(key).is_some_and(|run| run.stream.is_read_by(*number))
    }

    /// What runs and is, or was, read under that name.
    pub fn running(&self, name: &str) -> Option<RequestKey> {
        self.by_name.get(name).map(|(key, _)| *key).filter(|key| self.running.contains_key(key))
    }

    /// A reader leaves for good. `None` = no such reader; `Some(Some(key))` = nobody follows that request any more:
    /// it is over here.
    pub fn release(&mut self, name: &str) -> Option<Option<RequestKey>> {
        let Some((key, number)) = self.by_name.remove(name) else {
            self.early.note(name, clock::now());
            return None;
        };
        let run = self.running.get(&key).or_else(|| self.kept.get_mut(key).map(|run| &*run))?;
        if run.stream.release(number) > 0 {
            return Some(None);
        }
        if let Some(run) = self.kept.remove(key) {
            self.forget(key, run);
            return Some(None);
        }
        let run = self.running.remove(&key)?;
        self.counts.cancelled += 1;
        self.forget(key, run);
        Some(Some(key))
    }

    /// Streams that readers hold, ended ones included.
    pub fn readers(&self) -> u32 {
        Arc::strong_count(&self.open) as u32 - 1
    }

    /// Remembers what happened until the next flush.
    pub fn extend(&mut self, events: impl IntoIterator<Item = Event>) {
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
