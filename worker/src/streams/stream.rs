//! One request's output as engine and readers share it: its ring and the position of each reader.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skein_node::trace::Link;
use skein_proto::delta::Delta;
use tokio::sync::Notify;

use super::budget::Budget;
use super::delta::{MAX_UNREAD_BYTES, StreamFault};
use super::position::{Cursor, OutOfRange, SamplePosition};
use super::ring::Ring;
use crate::scheduler::RequestEvent;

/// Most bytes kept of one request's output, in addition to what its readers have not read yet.
pub const RING_BYTES: usize = 4 * 1024 * 1024;

/// A full ring drops this much at once; one full of unread output grows by this much before it is checked
/// again, because checking costs time.
const RING_STEP_BYTES: usize = RING_BYTES / 8;

/// Identifies a reader of a stream for as long as the stream exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReaderNumber(u64);

/// Why a stream ended before its samples did.
#[derive(Debug, Clone)]
pub(super) enum Cut {
    Fault(StreamFault),
    HandBack,
}

#[derive(Debug)]
struct Reader {
    number: ReaderNumber,
    cursor: Cursor,
    /// Bytes ever written to the ring, as of the last read.
    seen: u64,
    fault: Option<StreamFault>,
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    /// Readers that still hold their [`TokenStream`].
    readers: Vec<Reader>,
    last_reader: u64,
    cut: Option<Cut>,
    /// Whether output stays after it was read, for readers to come.
    keeps: bool,
    /// Bytes above which the ring is checked for output to drop.
    full: usize,
}

impl Inner {
    fn forget(&mut self, goal: usize) {
        self.ring.forget_read(goal, self.readers.iter().map(|reader| &reader.cursor));
    }

    /// Drops what every reader has read, unless it is kept for readers to come.
    fn forget_unless_kept(&mut self) {
        if !self.keeps {
            self.forget(0);
        }
    }
}

/// One request's output and its readers.
#[derive(Debug)]
pub(super) struct Stream {
    inner: Mutex<Inner>,
    /// Wakes all readers when something happened.
    ready: Notify,
    budget: Arc<Budget>,
    /// Span of the generating request, if traced.
    origin: Option<Link>,
}

/// Result of a sweep over a stream's readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Readers {
    /// Readers that still follow the stream.
    pub live: usize,
    /// A reader was just ended for leaving too much unread.
    pub lost_a_slow_one: bool,
}

impl Stream {
    pub fn new(ring: Ring, keeps: bool, budget: Arc<Budget>, origin: Option<Link>) -> Self {
        budget.changed(0, ring.bytes());
        let inner = Inner { ring, readers: Vec::new(), last_reader: 0, cut: None, keeps, full: RING_BYTES };
        Self { inner: Mutex::new(inner), ready: Notify::new(), budget, origin }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `change` and updates the budget.
    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let before = inner.ring.bytes();
        let changed = change(&mut inner);
        self.budget.changed(before, inner.ring.bytes());
        changed
    }

    /// Adds an event; true if all samples have ended.
    pub fn add(&self, event: RequestEvent) -> bool {
        let ended = self.change(|inner| {
            inner.ring.add(event);
            if inner.keeps && inner.ring.bytes() > inner.full {
                inner.forget(RING_BYTES - RING_STEP_BYTES);
                inner.full = RING_BYTES.max(inner.ring.bytes() + RING_STEP_BYTES);
            }
            inner.ring.has_ended()
        });
        self.ready.notify_waiters();
        ended
    }

    /// Adds a reader at these positions. With `keep`, output stays after it was read.
    pub fn read_from(
        self: &Arc<Self>,
        samples: &[SamplePosition],
        from_score: u32,
        keep: bool,
        open: &Arc<()>,
    ) -> Result<(ReaderNumber, TokenStream), OutOfRange> {
        let number = self.change(|inner| {
            let cursor = inner.ring.cursor(samples, from_score)?;
            inner.last_reader += 1;
            let number = ReaderNumber(inner.last_reader);
            let seen = inner.ring.written();
            inner.readers.push(Reader { number, cursor, seen, fault: None });
            inner.keeps |= keep;
            inner.forget_unless_kept();
            Ok(number)
        })?;
        Ok((number, TokenStream { stream: self.clone(), number, _open: open.clone() }))
    }

    /// Whether a sample begins with these tokens, as far as the ring still has it.
    pub fn agrees(&self, index: u32, delivered: &[crate::TokenId]) -> bool {
        self.lock().ring.agrees(index, delivered)
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.lock().ring.bytes()
    }

    /// Whether that reader still holds its stream.
    pub fn is_read_by(&self, number: ReaderNumber) -> bool {
        self.lock().readers.iter().any(|reader| reader.number == number)
    }

    /// Ends that reader, if it is still there, and returns how many others follow.
    pub fn release(&self, number: ReaderNumber) -> usize {
        self.leave(number);
        self.ready.notify_waiters();
        self.lock().readers.iter().filter(|reader| reader.fault.is_none()).count()
    }

    fn leave(&self, number: ReaderNumber) {
        self.change(|inner| {
            inner.readers.retain(|reader| reader.number != number);
            inner.forget_unless_kept();
        });
    }

    /// Ends readers that left too much unread and counts the others.
    pub fn sweep(&self) -> Readers {
        let found = self.change(|inner| {
            let written = inner.ring.written();
            let mut found = Readers { live: 0, lost_a_slow_one: false };
            for reader in inner.readers.iter_mut().filter(|reader| reader.fault.is_none()) {
                let bytes = (written - reader.seen) as usize;
                if bytes <= MAX_UNREAD_BYTES {
                    found.live += 1;
                    continue;
                }
                reader.fault = Some(StreamFault::SlowReader { bytes });
                reader.cursor.end();
                found.lost_a_slow_one = true;
            }
            if found.lost_a_slow_one {
                inner.forget_unless_kept();
            }
            found
        });
        if found.lost_a_slow_one {
            self.ready.notify_waiters();
        }
        found
    }

    /// Ends it for all readers, after the output it already has.
    pub fn cut(&self, cut: Cut) {
        self.lock().cut.get_or_insert(cut);
        self.ready.notify_waiters();
    }

    /// Drops everything that all its readers have read.
    pub fn forget_read(&self) {
        self.change(|inner| inner.forget(0));
    }

    /// Everything new for a reader. `None` = nothing yet, `Some(None)` = the stream has ended.
    fn take(&self, number: ReaderNumber) -> Option<Option<Result<Vec<Delta>, StreamFault>>> {
        self.change(|inner| {
            let Inner { ring, readers, cut, .. } = inner;
            let Some(reader) = readers.iter_mut().find(|reader| reader.number == number) else {
                return Some(None);
            };
            if let Some(fault) = reader.fault.take() {
                readers.retain(|reader| reader.number != number);
                return Some(Some(Err(fault)));
            }
            let deltas = ring.read(&mut reader.cursor);
            reader.seen = ring.written();
            if !deltas.is_empty() {
                inner.forget_unless_kept();
                return Some(Some(Ok(deltas)));
            }
            if reader.cursor.is_done() {
                return Some(None);
            }
            let (sample_index, from_position) = reader.cursor.place();
            let taken = match cut.clone()? {
                Cut::Fault(fault) => Err(fault),
                Cut::HandBack => {
                    Ok(vec![Delta { sample_index, from_position, hand_back: true, ..Delta::default() }])
                }
            };
            reader.cursor.end();
            Some(Some(taken))
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let bytes = self.lock().ring.bytes();
        self.budget.changed(bytes, 0);
    }
}

/// One reader's end of a request. Dropping it leaves the request to its other readers; if it was the last and
/// no reader asked for a linger, the request is cancelled.
#[derive(Debug)]
pub struct TokenStream {
    stream: Arc<Stream>,
    number: ReaderNumber,
    /// The outbox counts these to know how many streams readers hold.
    _open: Arc<()>,
}

impl TokenStream {
    /// Span of the generating request, if traced.
    pub fn origin(&self) -> Option<Link> {
        self.stream.origin
    }

    /// Waits for at least one delta and returns all there are. `None` after the end of the last sample, an
    /// error if the engine ended first.
    pub async fn next(&mut self) -> Option<Result<Vec<Delta>, StreamFault>> {
        loop {
            // Registers before looking, so that no event is missed between the look and the wait.
            let ready = self.stream.ready.notified();
            if let Some(taken) = self.stream.take(self.number) {
                return taken;
            }
            ready.await;
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.stream.leave(self.number);
    }
}
