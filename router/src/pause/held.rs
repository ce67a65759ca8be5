//! A running request that can be taken from its worker, and asked for again.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream as _};
use skein_proto::TokenId;
use skein_proto::finish::FinishReason;
use skein_proto::version::Version;

use crate::dispatch::until;
use crate::generator::{Generator, TokenSource};
use crate::refusal::Refusal;
use crate::request::{Journey, Resume, ResumeSample, TokenDelta, TokenRequest};

/// Longest pause before a request asks again that found the cluster full.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// A running request, for those who order pauses.
pub(super) struct Held {
    generator: Arc<dyn Generator>,
    request: TokenRequest,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Whether it ever was at a worker, or on its way to one.
    was_asked: bool,
    samples: Vec<Sample>,
    /// Log-probabilities of the prompt that the client has.
    prompt_logprobs: usize,
    /// How many of those that come again it has.
    repeated_logprobs: usize,
    cached_tokens_sent: bool,
    /// Of the streams that were dropped.
    journey: Journey,
    worker: Option<Arc<str>>,
    /// Polls the stream.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Sample {
    delivered: Vec<TokenId>,
    ended: bool,
}

enum Phase {
    Streaming(Box<dyn TokenSource>),
    /// At no worker; ends at the request's deadline.
    Standing(BoxFuture<'static, ()>),
    /// Asks for the rest.
    Asking(BoxFuture<'static, Result<Box<dyn TokenSource>, Refusal>>),
    /// Found the cluster full; asks again after this.
    Retrying(BoxFuture<'static, ()>),
    /// The operator has ended it.
    Aborted,
    Over,
}

impl Held {
    /// A request at a worker.
    pub(super) fn streaming(
        generator: Arc<dyn Generator>,
        request: TokenRequest,
        source: Box<dyn TokenSource>,
    ) -> Self {
        Self::new(generator, request, Phase::Streaming(source))
    }

    /// A request that came while generation stands still.
    pub(super) fn waiting(generator: Arc<dyn Generator>, request: TokenRequest) -> Self {
        let standing = Phase::Standing(until(request.deadline).boxed());
        Self::new(generator, request, standing)
    }

    fn new(generator: Arc<dyn Generator>, request: TokenRequest, phase: Phase) -> Self {
        let samples = match &request.resume {
            None => (0..request.n).map(|_| Sample::default()).collect(),
            Some(resume) => {
                let mut samples: Vec<_> =
                    (0..request.n).map(|_| Sample { delivered: Vec::new(), ended: true }).collect();
                for ResumeSample { index, delivered } in &resume.samples {
                    if let Some(sample) = samples.get_mut(*index as usize) {
                        *sample = Sample { delivered: delivered.clone(), ended: false };
                    }
                }
                samples
            }
        };
        let state = State {
            was_asked: matches!(phase, Phase::Streaming(_)),
            phase,
            samples,
            prompt_logprobs: 0,
            repeated_logprobs: 0,
            cached_tokens_sent: false,
            journey: Journey { version: request.version, ..Journey::default() },
            worker: None,
            waker: None,
        };
        Self { generator, request, state: Mutex::new(state) }
    }

    /// Whether `id` is that of the request, or of the call of which it is a prompt.
    pub(super) fn is_named(&self, id: &str) -> bool {
        let TokenRequest { id: own, part, .. } = &self.request;
        **own == *id || own.strip_suffix(&format!("-{part}")) == Some(id)
    }

    /// Whether it is at a worker, or on its way to one.
    pub(super) fn is_running(&self) -> bool {
        self.state().is_running()
    }

    /// Whether it came while generation stands still.
    pub(super) fn is_waiting(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Standing(_)) && !state.was_asked
    }

    /// The version that it began on, if it stands still; unknown if it has not begun.
    pub(super) fn stands_on(&self) -> Option<Version> {
        let state = self.state();
        matches!(state.phase, Phase::Standing(_)).then_some(state.journey.version)
    }

    /// Whether its client has a part of the answer.
    pub(super) fn has_begun(&self) -> bool {
        self.state().has_begun()
    }

    /// Takes the request from its worker.
    pub(super) fn keep(&self) {
        self.enter(State::is_running, |_| Phase::Standing(until(self.request.deadline).boxed()));
    }

    /// Asks for the rest of a kept request.
    pub(super) fn go_on(&self) {
        self.enter(|state| matches!(state.phase, Phase::Standing(_)), |state| self.ask(state));
    }

    /// Ends it with what it has. False if it has ended already.
    pub(super) fn abort(&self) -> bool {
        let may = |state: &State| state.is_running() || matches!(state.phase, Phase::Standing(_));
        self.enter(may, |_| Phase::Aborted)
    }

    /// If it `may`, enters another phase and has the stream look.
    fn enter(&self, may: impl Fn(&State) -> bool, to: impl FnOnce(&mut State) -> Phase) -> bool {
        let mut state = self.state();
        if !may(&state) {
            return false;
        }
        let phase = to(&mut state);
        let (left, waker) = (state.enter(phase), state.waker.take());
        // Not under the lock: dropping a stream tells its worker.
        drop(state);
        drop(left);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn ask(&self, state: &mut State) -> Phase {
        state.was_asked = true;
        let (generator, request) = (self.generator.clone(), state.rest(&self.request));
        Phase::Asking(async move { generator.submit(request).await }.boxed())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next delta.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<TokenDelta, Refusal>>> {
        let mut state = self.state();
        loop {
            let next = match &mut state.phase {
                Phase::Over => return Poll::Ready(None),
                Phase::Streaming(source) => match Pin::new(source).poll_next(context) {
                    Poll::Pending => None,
                    Poll::Ready(Some(Ok(delta))) => return Poll::Ready(Some(Ok(state.take(delta)))),
                    Poll::Ready(end) => {
                        drop(state.enter(Phase::Over));
                        return Poll::Ready(end);
                    }
                },
                Phase::Standing(until_deadline) => match until_deadline.poll_unpin(context) {
                    Poll::Pending => None,
                    Poll::Ready(()) => {
                        state.phase = Phase::Over;
                        return Poll::Ready(Some(Err(self.too_late())));
                    }
                },
                Phase::Asking(asking) => match asking.poll_unpin(context) {
                    Poll::Pending => None,
                    Poll::Ready(Ok(source)) => Some(Phase::Streaming(source)),
                    // It was accepted once, so it is not refused for want of room.
                    Poll::Ready(Err(
                        Refusal::Overloaded { retry_after, .. } | Refusal::NoReadyWorker { retry_after, .. },
                    )) => {
                        let pause = retry_after.min(LONGEST_RETRY);
                        Some(Phase::Retrying(tokio::time::sleep(pause).boxed()))
                    }
                    Poll::Ready(Err(refusal)) => {
                        state.phase = Phase::Over;
                        return Poll::Ready(Some(Err(refusal)));
                    }
                },
                Phase::Retrying(pause) => match pause.poll_unpin(context) {
                    Poll::Pending => None,
                    Poll::Ready(()) => Some(self.ask(&mut state)),
                },
                Phase::Aborted => return Poll::Ready(state.aborted(self.request.prompt.len())),
            };
            match next {
                Some(phase) => state.phase = phase,
                None => {
                    if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                        state.waker = Some(context.waker().clone());
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// See [`TokenSource::abort_sample`].
    pub(super) fn abort_sample(&self, sample_index: u32) {
        let mut state = self.state();
        if let Some(sample) = state.samples.get_mut(sample_index as usize) {
            sample.ended = true;
        }
        if let Phase::Streaming(source) = &mut state.phase {
            source.abort_sample(sample_index);
        }
    }

    /// See [`TokenSource::refuse`].
    pub(super) fn refuse(&self) {
        if let Phase::Streaming(source) = &mut self.state().phase {
            source.refuse();
        }
    }

    /// Worker that generates now or generated last.
    pub(super) fn worker(&self) -> Option<Arc<str>> {
        let state = self.state();
        let now = if let Phase::Streaming(source) = &state.phase { source.worker() } else { None };
        now.or_else(|| state.worker.clone())
    }

    /// Moves of all its streams.
    pub(super) fn journey(&self) -> Journey {
        let state = self.state();
        match &state.phase {
            Phase::Streaming(source) => state.journey_with(source.journey()),
            _ => state.journey,
        }
    }

    /// Its client has left, or has all.
    pub(super) fn leave(&self) {
        let left = std::mem::replace(&mut self.state().phase, Phase::Over);
        // Not under the lock: it tells the worker.
        drop(left);
    }

    fn too_late(&self) -> Refusal {
        let from = self.request.arrived.unwrap_or_default();
        let timeout = self.request.deadline.map_or(Duration::ZERO, |deadline| deadline.since(from));
        Refusal::DeadlineExceeded { timeout }
    }
}

impl State {
    fn is_running(&self) -> bool {
        let has_ended = self.samples.iter().all(|sample| sample.ended);
        matches!(self.phase, Phase::Streaming(_) | Phase::Asking(_) | Phase::Retrying(_)) && !has_ended
    }

    fn enter(&mut self, phase: Phase) -> Phase {
        if let Phase::Streaming(source) = &self.phase {
            self.journey = self.journey_with(source.journey());
            self.worker = source.worker().or(self.worker.take());
        }
        std::mem::replace(&mut self.phase, phase)
    }

    fn journey_with(&self, now: Journey) -> Journey {
        Journey {
            moves: self.journey.moves + now.moves,
            resume_exact: self.journey.resume_exact && now.resume_exact,
            version: now.version.or(self.journey.version),
        }
    }

    fn has_begun(&self) -> bool {
        let has = |sample: &Sample| sample.ended || !sample.delivered.is_empty();
        self.prompt_logprobs > 0 || self.samples.iter().any(has)
    }

    /// Notes what the client gets; returns it without what it has.
    fn take(&mut self, mut delta: TokenDelta) -> TokenDelta {
        if let Some(sample) = self.samples.get_mut(delta.sample_index as usize) {
            sample.delivered.extend_from_slice(&delta.tokens);
            sample.ended |= delta.finish.is_some();
        }
        let repeated = self.repeated_logprobs.min(delta.prompt_logprobs.len());
        self.repeated_logprobs -= repeated;
        delta.prompt_logprobs.drain(..repeated);
        self.prompt_logprobs += delta.prompt_logprobs.len();
        delta.cached_tokens = delta.cached_tokens.filter(|_| !self.cached_tokens_sent);
        self.cached_tokens_sent |= delta.cached_tokens.is_some();
        delta
    }

    /// The request for what the client does not have.
    fn rest(&mut self, request: &TokenRequest) -> TokenRequest {
        if !self.has_begun() {
            return request.clone();
        }
        let prompt_logprobs_done = self.has_prompt_logprobs(request);
        self.repeated_logprobs = if prompt_logprobs_done { 0 } else { self.prompt_logprobs };
        let unfinished = self.samples.iter().zip(0..).filter(|(sample, _)| !sample.ended);
        let samples = unfinished
            .map(|(sample, index)| ResumeSample { index, delivered: sample.delivered.clone() })
            .collect();
        let resume = Resume { samples, prompt_logprobs_done };
        TokenRequest { resume: Some(Arc::new(resume)), version: self.journey.version, ..request.clone() }
    }

    fn has_prompt_logprobs(&self, request: &TokenRequest) -> bool {
        let had = request.resume.as_ref().is_some_and(|resume| resume.prompt_logprobs_done);
        let owed = request.prompt.len().saturating_sub(1);
        had || request.sampling.prompt_logprobs.is_none() || self.prompt_logprobs >= owed
    }

    /// The end of the next sample that has not ended.
    fn aborted(&mut self, prompt_tokens: usize) -> Option<Result<TokenDelta, Refusal>> {
        let next = self.samples.iter_mut().zip(0..).find(|(sample, _)| !sample.ended);
        let Some((sample, sample_index)) = next else {
            self.phase = Phase::Over;
            return None;
        };
        sample.ended = true;
        let from_position = u32::try_from(prompt_tokens + sample.delivered.len()).unwrap_or(u32::MAX);
        let finish = Some(FinishReason::Abort);
        Some(Ok(TokenDelta { sample_index, from_position, finish, ..TokenDelta::default() }))
    }
}
