//! Generation stands still on the operator's order, so that weights can be replaced. New requests wait; those
//! that run end with what they have, run to their end, or are kept.
//!
//! A kept request is at no worker: its stream is dropped, and once generation goes on, the rest of its answer
//! is asked for again with the tokens that its client has, as after the loss of a worker. So it continues
//! with the same bits, on the version of the model that it began on.

mod held;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use skein_proto::version::Version;
use tokio::sync::watch;

use self::held::Held;
use crate::drain::Drain;
use crate::generator::{Generator, TokenSource};
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

/// When a client may retry that found too many requests waiting.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What becomes of the requests that run when generation stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseMode {
    /// They end with what they have.
    Abort,
    /// They run to their end.
    Wait,
    /// They continue when generation goes on.
    Keep,
}

/// A generator that can stand still. Cheap to clone.
#[derive(Clone)]
pub struct Pauses(Arc<Shared>);

struct Shared {
    inner: Arc<dyn Generator>,
    drain: Drain,
    state: Mutex<State>,
    /// Changes with everything that somebody may wait for: an order, the end of a request.
    changes: watch::Sender<()>,
    most_waiting: usize,
}

#[derive(Default)]
struct State {
    is_paused: bool,
    /// Whether weights are being replaced in place: generation does not go on before that has ended.
    is_held: bool,
    /// The requests that run, stand still or wait, by number.
    streams: HashMap<u64, Arc<Held>>,
    next: u64,
}

/// Keeps generation from going on until dropped.
pub struct Hold(Pauses);

impl Pauses {
    /// Passes requests on to `inner`. While generation stands still, at most `most_waiting` new ones wait.
    /// When `drain` begins, generation goes on.
    pub fn new(inner: Arc<dyn Generator>, drain: Drain, most_waiting: u32) -> Self {
        let (changes, _) = watch::channel(());
        let most_waiting = usize::try_from(most_waiting).unwrap_or(usize::MAX);
        Self(Arc::new(Shared { inner, drain, state: Mutex::default(), changes, most_waiting }))
    }

    /// Whether generation stands still, or will once running requests have ended.
    pub fn is_paused(&self) -> bool {
        self.state().is_paused
    }

    /// Has generation stand still. With [`PauseMode::Wait`] it returns when the last running request has
    /// ended.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] if generation goes on again before that.
    pub async fn pause(&self, mode: PauseMode) -> Result<(), Refusal> {
        let mut changes = self.0.changes.subscribe();
        self.stand_still(mode);
        // Kept ones have not ended, and stay so.
        while mode == PauseMode::Wait && self.running() > 0 {
            // The sender is not dropped before `self`.
            let _ = changes.changed().await;
            if !self.is_paused() {
                let message = "generation was resumed before the running requests had ended.";
                return Err(Refusal::Conflict(message.to_owned()));
            }
        }
        Ok(())
    }

    fn stand_still(&self, mode: PauseMode) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.is_paused, true) {
            self.go_on_at_the_end();
        }
        // Under the lock, so that of two orders one comes after the other.
        for stream in state.streams.values() {
            match mode {
                PauseMode::Abort if !stream.is_waiting() => {
                    stream.abort();
                }
                PauseMode::Keep => stream.keep(),
                PauseMode::Abort | PauseMode::Wait => {}
            }
        }
        drop(state);
        self.changed();
    }

    /// Has generation go on when this process begins to end, so that requests end before it.
    fn go_on_at_the_end(&self) {
        let (pauses, mut changes) = (self.clone(), self.0.changes.subscribe());
        tokio::spawn(async move {
            let drain = pauses.0.drain.clone();
            loop {
                tokio::select! {
                    () = drain.began() => break,
                    _ = changes.changed() => {}
                }
                if !pauses.is_paused() {
                    return;
                }
            }
            tracing::info!("generation goes on, because this process ends");
            // Requests of weights that are being replaced are cut with the others at the drain's end.
            let _ = pauses.resume();
        });
    }

    /// Has generation go on.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] while weights are replaced in place.
    pub fn resume(&self) -> Result<(), Refusal> {
        let mut state = self.state();
        if state.is_held {
            let message = "the model's weights are being replaced in place; resume when that has ended.";
            return Err(Refusal::Conflict(message.to_owned()));
        }
        state.is_paused = false;
        state.streams.values().for_each(|stream| stream.go_on());
        drop(state);
        self.changed();
        Ok(())
    }

    /// Ends the running requests with these ids, or all of them without any, with what they have. Returns
    /// how many these are.
    pub fn abort(&self, ids: Option<&[String]>) -> usize {
        let is_meant = |stream: &Held| ids.is_none_or(|ids| ids.iter().any(|id| stream.is_named(id)));
        let streams = self.state().streams.clone();
        let aborted = streams.values().filter(|stream| is_meant(stream) && stream.abort()).count();
        self.changed();
        aborted
    }

    /// Keeps generation from going on while weights are replaced in place.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] if generation does not stand still, or another replacement is under way.
    pub fn hold(&self) -> Result<Hold, Refusal> {
        let mut state = self.state();
        let running = state.running();
        let conflict = |message: String| Err(Refusal::Conflict(message));
        match (state.is_paused, state.is_held, running) {
            (_, true, _) => conflict("the model's weights are being replaced in place already.".to_owned()),
            (false, ..) => conflict(
                "weights are replaced in place only while generation stands still; POST /pause first."
                    .to_owned(),
            ),
            (true, _, 1..) => conflict(format!(
                "{running} requests still run; wait until the pause has been answered, or POST /pause?mode=abort."
            )),
            (true, false, 0) => {
                state.is_held = true;
                Ok(Hold(self.clone()))
            }
        }
    }

    /// Requests that stand still and have begun on another version of the model than `version`.
    pub fn standing_on_others_than(&self, version: Version) -> usize {
        let is_on_other =
            |stream: &&Arc<Held>| stream.stands_on().is_some_and(|on| on.is_known() && on != version);
        self.state().streams.values().filter(is_on_other).count()
    }

    /// Requests that stand still, those that wait to begin among them.
    pub fn standing(&self) -> usize {
        self.state().streams.values().filter(|stream| stream.stands_on().is_some()).count()
    }

    /// Requests that run at workers.
    fn running(&self) -> usize {
        self.state().running()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.0.changes.send_replace(());
    }

    /// While generation stands still, a stream that begins when it goes on.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] if too many wait already.
    fn waiting(&self, request: &TokenRequest) -> Result<Option<Kept>, Refusal> {
        let mut state = self.state();
        if !state.is_paused {
            return Ok(None);
        }
        if state.streams.values().filter(|stream| stream.is_waiting()).count() >= self.0.most_waiting {
            let reason = format!("generation is paused, and {} requests wait", self.0.most_waiting);
            return Err(Refusal::Overloaded { reason, retry_after: RETRY_AFTER });
        }
        let held = Held::waiting(self.0.inner.clone(), request.clone());
        Ok(Some(self.kept(&mut state, held)))
    }

    /// Makes `source` one that can be kept; `None` if generation stands still by now.
    fn begun(&self, request: &TokenRequest, source: Box<dyn TokenSource>) -> Option<Kept> {
        let mut state = self.state();
        if state.is_paused {
            return None;
        }
        let held = Held::streaming(self.0.inner.clone(), request.clone(), source);
        Some(self.kept(&mut state, held))
    }

    fn kept(&self, state: &mut State, held: Held) -> Kept {
        let (number, held) = (state.next, Arc::new(held));
        state.next += 1;
        state.streams.insert(number, held.clone());
        Kept { held, number, pauses: self.clone() }
    }

    /// A request has ended, or its client has left.
    fn ended(&self, number: u64) {
        self.state().streams.remove(&number);
        self.changed();
    }
}

impl State {
    fn running(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_running()).count()
    }
}

impl Generator for Pauses {
    fn submit(&self, request: TokenRequest) -> BoxFuture<'_, Result<Box<dyn TokenSource>, Refusal>> {
        Box::pin(async move {
            loop {
                if let Some(waiting) = self.waiting(&request)? {
                    return Ok(Box::new(waiting) as Box<dyn TokenSource>);
                }
                let source = self.0.inner.submit(request.clone()).await?;
                if let Some(kept) = self.begun(&request, source) {
                    return Ok(Box::new(kept) as Box<dyn TokenSource>);
                }
            }
        })
    }

    fn leave(&self) {
        self.0.inner.leave();
    }
}

/// The stream of a request that can be kept.
struct Kept {
    held: Arc<Held>,
    number: u64,
    pauses: Pauses,
}

impl Stream for Kept {
    type Item = Result<TokenDelta, Refusal>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.held.poll(context)
    }
}

impl TokenSource for Kept {
    fn abort_sample(&mut self, sample_index: u32) {
        self.held.abort_sample(sample_index);
    }

    fn refuse(&mut self) {
        self.held.refuse();
    }

    fn worker(&self) -> Option<Arc<str>> {
        self.held.worker()
    }

    fn journey(&self) -> Journey {
        self.held.journey()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.held.leave();
        self.pauses.ended(self.number);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.state().is_held = false;
    }
}

impl Hold {
    /// Ends the kept requests of which something has been sent: the version of the model that they began on
    /// is no more.
    pub fn abort_begun(&self) {
        let streams = self.0.state().streams.clone();
        for stream in streams.values().filter(|stream| stream.has_begun()) {
            stream.abort();
        }
    }
}
