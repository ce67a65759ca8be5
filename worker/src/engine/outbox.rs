//! From the engine to the readers. Each request has a mailbox; the engine adds to it and never waits, the reader
//! takes all there is at once, so a slow one gets fewer and longer deltas. A mailbox is bounded: what a reader
//! leaves lying beyond [`MAX_UNREAD_BYTES`] ends its request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::TokenId;
use crate::sampling::TokenLogprobs;
use crate::scheduler::{Event, FinishReason, NewRequest, RequestKey};

/// Most bytes of output that wait for one reader: a million tokens, or some tens of thousands with log-probabilities.
pub const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// Most tokens or prompt scores in one delta: well below the limit of a message.
const MAX_DELTA_TOKENS: usize = 1024;

/// What a reader gets: consecutive tokens of one sample, or prompt scores, or an end, or several of these.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Which sample.
    pub sample: u32,
    /// Absolute position of the first token.
    pub from_position: u32,
    /// Its next tokens.
    pub tokens: Vec<TokenId>,
    /// One for each token when asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the sample's last delta.
    pub finish: Option<FinishReason>,
    /// Prompt tokens found in the cache; on the request's first delta only.
    pub cached_tokens: Option<u32>,
    /// Prompt position of the first of `prompt_scores`.
    pub from_prompt_position: u32,
    /// Scores of consecutive prompt tokens.
    pub prompt_scores: Vec<TokenLogprobs>,
}

/// Why a stream ended before its samples did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// The backend failed.
    #[error("the engine failed: {reason}; the request can be resumed on another worker")]
    Failed {
        /// What was seen.
        reason: String,
    },
    /// The engine was told to end.
    #[error("this worker has stopped; the request can be resumed on another worker")]
    Stopped,
    /// The reader left too much unread.
    #[error(
        "{bytes} bytes of output wait unread, the limit is {MAX_UNREAD_BYTES}; read faster or ask for less"
    )]
    SlowReader {
        /// Bytes that waited.
        bytes: usize,
    },
}

/// The reader's end of a request. Dropping it cancels the request.
#[derive(Debug)]
pub struct TokenStream {
    mailbox: Arc<Mailbox>,
    /// Counted by the outbox: how many streams readers hold.
    _open: Arc<()>,
}

impl TokenStream {
    pub(super) fn open(request: &NewRequest) -> Mailbox {
        let first = request.samples.iter().min_by_key(|sample| sample.index);
        let (sample, delivered) = first.map_or((0, 0), |sample| (sample.index, sample.delivered.len()));
        let inner = Inner {
            unfinished: request.samples.len(),
            first: (sample, (request.prompt.len() + delivered) as u32),
            ..Inner::default()
        };
        Mailbox { inner: Mutex::new(inner), ready: Notify::new(), abandoned: AtomicBool::new(false) }
    }

    /// Everything that waits, at least one delta; `None` after the last sample's end, an error if the engine
    /// ended first.
    pub async fn next(&mut self) -> Option<Result<Vec<Delta>, StreamFault>> {
        loop {
            let ready = self.mailbox.ready.notified();
            if let Some(taken) = self.mailbox.lock().take() {
                return taken;
            }
            ready.await;
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.mailbox.abandoned.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Mailbox {
    inner: Mutex<Inner>,
    ready: Notify,
    abandoned: AtomicBool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// At most one for each sample, plus one for each [`MAX_DELTA_TOKENS`] tokens.
    pending: Vec<Delta>,
    unread_bytes: usize,
    cached_tokens: Option<u32>,
    /// Set once the hit is on its way to the reader.
    started: bool,
    /// Samples that have not ended.
    unfinished: usize,
    /// Sample and position of a delta that carries prompt scores only.
    first: (u32, u32),
    fault: Option<StreamFault>,
}

impl Inner {
    fn take(&mut self) -> Option<Option<Result<Vec<Delta>, StreamFault>>> {
        if let Some(first) = self.pending.first_mut() {
            if !std::mem::replace(&mut self.started, true) {
                first.cached_tokens = Some(self.cached_tokens.unwrap_or(0));
            }
            self.unread_bytes = 0;
            return Some(Some(Ok(std::mem::take(&mut self.pending))));
        }
        if let Some(fault) = self.fault.take() {
            self.unfinished = 0;
            return Some(Some(Err(fault)));
        }
        (self.unfinished == 0).then_some(None)
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::Started { cached_tokens, .. } => drop(self.cached_tokens.get_or_insert(cached_tokens)),
            Event::PromptScored { from, scores, .. } => self.add_scores(from, scores),
            Event::Token { sample, position, token, logprobs, .. } => {
                self.unread_bytes += size_of::<TokenId>() + logprobs.as_ref().map_or(0, bytes_of);
                let delta = self.delta_of(sample, position);
                delta.tokens.push(token);
                delta.logprobs.extend(logprobs);
            }
            Event::Finished { sample, position, reason, .. } => {
                self.delta_of(sample, position).finish = Some(reason);
                self.unfinished -= 1;
            }
        }
    }

    fn add_scores(&mut self, from: u32, scores: Vec<TokenLogprobs>) {
        self.unread_bytes += scores.iter().map(bytes_of).sum::<usize>();
        let (sample, from_position) = self.first;
        for (chunk, scores) in scores.chunks(MAX_DELTA_TOKENS).enumerate() {
            self.pending.push(Delta {
                sample,
                from_position,
                from_prompt_position: from + (chunk * MAX_DELTA_TOKENS) as u32,
                prompt_scores: scores.to_vec(),
                ..Delta::default()
            });
        }
    }

    /// The pending delta of `sample` that `position` continues, or a new one.
    fn delta_of(&mut self, sample: u32, position: u32) -> &mut Delta {
        let continues = |delta: &Delta| {
            delta.sample == sample
                && delta.tokens.len() < MAX_DELTA_TOKENS
                && delta.from_position + delta.tokens.len() as u32 == position
        };
        match self.pending.iter().rposition(continues) {
            Some(index) => &mut self.pending[index],
            None => self.pending.push_mut(Delta { sample, from_position: position, ..Delta::default() }),
        }
    }
}

fn bytes_of(logprobs: &TokenLogprobs) -> usize {
    size_of::<TokenLogprobs>() + logprobs.top.len() * size_of::<(TokenId, f32)>()
}

/// The engine's end of all mailboxes.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    streams: BTreeMap<RequestKey, Arc<Mailbox>>,
    events: Vec<Event>,
    open: Arc<()>,
}

impl Outbox {
    pub fn open(&mut self, key: RequestKey, mailbox: Mailbox) -> TokenStream {
        let mailbox = Arc::new(mailbox);
        self.streams.insert(key, mailbox.clone());
        TokenStream { mailbox, _open: self.open.clone() }
    }

    /// Whether the request has samples that run.
    pub fn is_open(&self, key: RequestKey) -> bool {
        self.streams.contains_key(&key)
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
        for event in self.events.drain(..) {
            let key = event.request();
            // A request cancelled meanwhile has no mailbox any more.
            let Some(mailbox) = self.streams.get(&key) else { continue };
            let mut inner = mailbox.lock();
            inner.add(event);
            let ended = inner.unfinished == 0;
            drop(inner);
            mailbox.ready.notify_one();
            if ended {
                self.streams.remove(&key);
            }
        }
    }

    /// Closes the mailboxes without a reader, or whose reader is too slow, and names their requests.
    pub fn take_abandoned(&mut self) -> Vec<RequestKey> {
        let abandoned = |mailbox: &Mailbox| {
            let mut inner = mailbox.lock();
            if inner.unread_bytes > MAX_UNREAD_BYTES {
                inner.fault = Some(StreamFault::SlowReader { bytes: inner.unread_bytes });
                inner.pending.clear();
                mailbox.ready.notify_one();
                return true;
            }
            mailbox.abandoned.load(Ordering::Relaxed)
        };
        self.streams.extract_if(.., |_, mailbox| abandoned(mailbox)).map(|(key, _)| key).collect()
    }

    /// Ends every stream that has not ended, after what it was already given.
    pub fn end_all(&mut self, fault: &StreamFault) {
        self.flush();
        for mailbox in std::mem::take(&mut self.streams).into_values() {
            mailbox.lock().fault = Some(fault.clone());
            mailbox.ready.notify_one();
        }
    }
}

impl Drop for Outbox {
    /// Readers of an engine that panicked must not wait forever.
    fn drop(&mut self) {
        self.end_all(&StreamFault::Failed { reason: "the engine's thread is gone".into() });
    }
}
