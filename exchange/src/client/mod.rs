//! The router's end of an exchange.

mod calls;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::{Stream, StreamExt};
use skein_proto::worker::v1::router_frame::Content;
use skein_proto::worker::v1::{
    AttachRequest, GenerateDelta, GenerateRequest, RouterFrame, RouterFrames, WorkerFrames,
};
use tonic::{Request, Status};

use crate::limits::MAX_PROMPT_TOKENS;
use crate::{metadata, prompt};
use calls::Calls;

/// Makes calls. Dropping it lets the running ones end, and then the exchange.
#[derive(Debug)]
pub struct Exchange(Arc<Shared>);

#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Debug)]
struct State {
    calls: Calls,
    /// Wakes the sender of frames.
    sender: Option<Waker>,
    /// No further calls are made.
    is_closing: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the calls, then wakes the sender if it has something to do.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let (done, waker) = {
            let state = &mut *self.lock();
            let done = work(state);
            let has_work = state.calls.has_frames() || state.is_over();
            (done, has_work.then(|| state.sender.take()).flatten())
        };
        waker.into_iter().for_each(Waker::wake);
        done
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.calls.broken().is_some() || self.is_closing && self.calls.is_empty()
    }
}

/// Whether a request can be a call of an exchange; others need a call of their own.
#[must_use]
pub fn fits(request: &GenerateRequest) -> bool {
    request.prompt_token_ids.len() <= MAX_PROMPT_TOKENS
}

/// A new exchange: what makes calls, the frames to send, and what reads the frames that come back. Each call
/// begins with `credit` bytes, usually [`CREDIT`](crate::limits::CREDIT).
#[must_use]
pub fn exchange(credit: u32) -> (Exchange, Frames, Answers) {
    let calls = Calls::new(credit);
    let shared = Arc::new(Shared(Mutex::new(State { calls, sender: None, is_closing: false })));
    (Exchange(shared.clone()), Frames(shared.clone()), Answers(shared))
}

impl Exchange {
    /// Whether it takes calls.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.lock().calls.broken().is_none()
    }

    /// `Worker.Generate`. The call is made at once; the result is there when the worker has accepted it.
    #[must_use]
    pub fn generate(&self, request: Request<GenerateRequest>) -> Opening {
        let metadata = metadata::headers(request.metadata());
        let mut request = request.into_inner();
        let prompt = prompt::to_bytes(std::mem::take(&mut request.prompt_token_ids));
        let content = Some(Content::Generate(request));
        self.call(RouterFrame { content, prompt, metadata, ..RouterFrame::default() })
    }

    /// `Worker.Attach`, likewise.
    #[must_use]
    pub fn attach(&self, request: Request<AttachRequest>) -> Opening {
        let metadata = metadata::headers(request.metadata());
        let content = Some(Content::Attach(request.into_inner()));
        self.call(RouterFrame { content, metadata, ..RouterFrame::default() })
    }

    fn call(&self, first: RouterFrame) -> Opening {
        let number = self.0.with(|state| state.calls.open(first));
        Opening(Some(Deltas { shared: self.0.clone(), number, has_ended: false }))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.with(|state| state.is_closing = true);
    }
}

/// A call that waits for the worker to accept it. Dropping it leaves the call.
#[derive(Debug)]
pub struct Opening(Option<Deltas>);

impl Future for Opening {
    type Output = Result<Deltas, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(deltas) = &mut self.0 else { return Poll::Pending };
        let number = deltas.number;
        let accepted = deltas.shared.lock().calls.poll_accepted(number, context.waker());
        match accepted {
            None => Poll::Pending,
            Some(accepted) => {
                deltas.has_ended = accepted.is_err();
                let deltas = self.0.take();
                Poll::Ready(accepted.map(|()| deltas.expect("a call that is accepted once")))
            }
        }
    }
}

/// The deltas of a call. Dropping it leaves the call.
#[derive(Debug)]
pub struct Deltas {
    shared: Arc<Shared>,
    number: u64,
    has_ended: bool,
}

impl Stream for Deltas {
    type Item = Result<GenerateDelta, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let number = self.number;
        let next = self.shared.with(|state| state.calls.poll_delta(number, context.waker()));
        self.has_ended = matches!(next, Poll::Ready(None | Some(Err(_))));
        next
    }
}

impl Drop for Deltas {
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.with(|state| state.calls.leave(self.number));
        }
    }
}

/// The frames to send to the worker. It ends when the exchange is over.
#[derive(Debug)]
pub struct Frames(Arc<Shared>);

impl Stream for Frames {
    type Item = RouterFrames;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<RouterFrames>> {
        let state = &mut *self.0.lock();
        if let Some(frames) = state.calls.take_frames() {
            return Poll::Ready(Some(frames));
        }
        if state.is_over() {
            return Poll::Ready(None);
        }
        state.sender.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
        Poll::Pending
    }
}

/// Reads what the worker sends.
#[derive(Debug)]
pub struct Answers(Arc<Shared>);

impl Answers {
    /// Gives the frames of `messages` to their calls until the exchange ends; then calls that still run fail.
    /// Returns why it ended; `None` = the worker ended it in order.
    pub async fn read(
        self,
        mut messages: impl Stream<Item = Result<WorkerFrames, Status>> + Unpin,
    ) -> Option<Status> {
        let mut woken = Vec::new();
        let why = loop {
            match messages.next().await {
                None => break None,
                Some(Err(status)) => break Some(status),
                Some(Ok(message)) => {
                    let wrong = self.0.with(|state| state.calls.receive(message, &mut woken)).err();
                    woken.drain(..).for_each(Waker::wake);
                    if wrong.is_some() {
                        break wrong;
                    }
                }
            }
        };
        let status = why.as_ref().map_or_else(cut, metadata::of_call);
        self.0.with(|state| state.calls.fail(&status)).into_iter().for_each(Waker::wake);
        why
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.0.with(|state| state.calls.fail(&cut())).into_iter().for_each(Waker::wake);
    }
}

fn cut() -> Status {
    Status::unavailable("the worker ended the exchange")
}
