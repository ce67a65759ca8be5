//! What engine and readers share of one request: its ring, and where each reader is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skein_proto::delta::Delta;
use tokio::sync::Notify;

use super::budget::Budget;
use super::delta::{MAX_UNREAD_BYTES, StreamFault};
use super::position::{Cursor, OutOfRange, SamplePosition};
use super::ring::Ring;
use crate::scheduler::RequestEvent;

/// Most bytes of one request's output that are kept beyond what its readers have still to read.
pub const RING_BYTES: usize = 4 * 1024 * 1024;

/// A full ring forgets so much at once, and one full of what is unread waits for so much more: looking costs.
const RING_STEP_BYTES: usize = RING_BYTES / 8;

/// Names one reader of a stream, for as long as the stream exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReaderNumber(u64);

/// How a stream ended whose samples did not.
#[derive(Debug, Clone)]
pub(super) enum Cut {
    Fault(StreamFault),
    HandBack,
}

#[derive(Debug)]
struct Reader {
    number: ReaderNumber,
    cursor: Cursor,
    /// What the ring had been given when it was read last.
    seen: u64,
    fault: Option<StreamFault>,
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    /// Those that hold their ends.
    readers: Vec<Reader>,
    last_reader: u64,
    cut: Option<Cut>,
    /// What was read stays for others.
    keeps: bool,
    /// Above so many bytes it looks for what may go.
    full: usize,
}

impl Inner {
    fn forget(&mut self, goal: usize) {
        self.ring.forget_read(goal, self.readers.iter().map(|reader| &reader.cursor));
    }

    /// What every reader has read, where nobody else may come.
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
    /// Tells all readers that something happened.
    ready: Notify,
    budget: Arc<Budget>,
}

/// What the engine learns of a stream when it looks after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Readers {
    /// How many follow it.
    pub live: usize,
    /// One was just ended for leaving too much unread.
    pub lost_a_slow_one: bool,
}

impl Stream {
    pub fn new(ring: Ring, keeps: bool, budget: Arc<Budget>) -> Self {
        budget.changed(0, ring.bytes());
        let inner = Inner { ring, readers: Vec::new(), last_reader: 0, cut: None, keeps, full: RING_BYTES };
        Self { inner: Mutex::new(inner), ready: Notify::new(), budget }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and the budget with it.
    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let before = inner.ring.bytes();
        let changed = change(&mut inner);
        self.budget.changed(before, inner.ring.bytes());
        changed
    }

    /// Adds what happened; true when all samples have ended.
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

    /// A reader that begins at these positions. `keep` says that what it reads stays for others.
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

    /// Whether the ring has these tokens of a sample, as far as it knows them.
    pub fn agrees(&self, index: u32, delivered: &[crate::TokenId]) -> bool {
        self.lock().ring.agrees(index, delivered)
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        self.lock().ring.bytes()
    }

    /// Whether that reader still holds its end.
    pub fn is_read_by(&self, number: ReaderNumber) -> bool {
        self.lock().readers.iter().any(|reader| reader.number == number)
    }

    /// Ends that reader, if it is still there: it gets nothing more. How many others follow.
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

    /// Ends readers that left too much unread, and counts the others.
    pub fn look_after(&self) -> Readers {
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

    /// Ends it for all readers, after what there is.
    pub fn cut(&self, cut: Cut) {
        self.lock().cut.get_or_insert(cut);
        self.ready.notify_waiters();
    }

    /// Forgets all that its readers have read.
    pub fn forget_read(&self) {
        self.change(|inner| inner.forget(0));
    }

    /// Everything new for a reader; `None` = nothing yet, `Some(None)` = nothing ever.
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

/// One reader's end of a request. Dropping it leaves the request to its other readers; without any, and if no reader
/// asked for it to linger, the request is cancelled.
#[derive(Debug)]
pub struct TokenStream {
    stream: Arc<Stream>,
    number: ReaderNumber,
    /// Counted by the outbox: how many streams readers hold.
    _open: Arc<()>,
}

impl TokenStream {
    /// Everything that waits, at least one delta; `None` after the last sample's end, an error if the engine
    /// ended first.
    pub async fn next(&mut self) -> Option<Result<Vec<Delta>, StreamFault>> {
        loop {
            // Hears of everything that happens from here on, so nothing slips between the look and the wait.
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
