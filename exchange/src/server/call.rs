//! One call at the worker, as a stream of its frames.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use skein_proto::worker::v1::worker_frame::Content;
use skein_proto::worker::v1::{Accepted, GenerateDelta, WorkerFrame};
use tonic::Status;

use crate::limits::cost;
use crate::metadata;

type Deltas = BoxStream<'static, Result<GenerateDelta, Status>>;

/// A call until its last frame.
pub(super) struct Call {
    number: u64,
    state: State,
    control: Control,
}

enum State {
    Opening(BoxFuture<'static, Result<Deltas, Status>>),
    Sending(Deltas),
    Over,
}

/// What the router says of a call while it runs.
#[derive(Debug, Clone)]
pub(super) struct Control(Arc<Mutex<Said>>);

#[derive(Debug)]
struct Said {
    /// Below 0 after a delta that cost more than was left.
    credit: i64,
    has_left: bool,
    waker: Option<Waker>,
}

impl Control {
    fn with(&self, change: impl FnOnce(&mut Said)) {
        let waker = {
            let said = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            change(said);
            said.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Adds to the credit.
    pub fn add(&self, credit: u32) {
        self.with(|said| said.credit = said.credit.saturating_add(credit.into()));
    }

    /// The router reads no more.
    pub fn leave(&self) {
        self.with(|said| said.has_left = true);
    }

    fn spend(&self, cost: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).credit -= i64::from(cost);
    }

    /// Whether there is credit; `None` if the router has left. Without credit `context` is woken by a change.
    fn has_credit(&self, context: &Context<'_>) -> Option<bool> {
        let said = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.has_left {
            return None;
        }
        said.waker = Some(context.waker().clone());
        Some(said.credit > 0)
    }
}

impl Call {
    /// A call that `opening` begins, and what is said of it later.
    pub fn new(
        number: u64,
        opening: BoxFuture<'static, Result<Deltas, Status>>,
        credit: u32,
    ) -> (Self, Control) {
        let said = Said { credit: credit.into(), has_left: false, waker: None };
        let control = Control(Arc::new(Mutex::new(said)));
        (Self { number, state: State::Opening(opening), control: control.clone() }, control)
    }

    fn frame(&self, content: Content) -> Poll<Option<WorkerFrame>> {
        Poll::Ready(Some(WorkerFrame { call: self.number, content: Some(content) }))
    }

    fn end(&mut self, failed: Option<&Status>) -> Poll<Option<WorkerFrame>> {
        self.state = State::Over;
        self.frame(Content::End(failed.map_or_else(metadata::complete, metadata::failed)))
    }
}

impl Stream for Call {
    type Item = WorkerFrame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WorkerFrame>> {
        let Some(has_credit) = self.control.has_credit(context) else {
            self.state = State::Over;
            return Poll::Ready(None);
        };
        match &mut self.state {
            State::Opening(opening) => match std::task::ready!(opening.poll_unpin(context)) {
                Ok(deltas) => {
                    self.state = State::Sending(deltas);
                    self.frame(Content::Accepted(Accepted {}))
                }
                Err(status) => self.end(Some(&status)),
            },
            State::Sending(_) if !has_credit => Poll::Pending,
            State::Sending(deltas) => match std::task::ready!(deltas.poll_next_unpin(context)) {
                Some(Ok(delta)) => {
                    self.control.spend(cost(&delta));
                    self.frame(Content::Delta(delta))
                }
                Some(Err(status)) => self.end(Some(&status)),
                None => self.end(None),
            },
            State::Over => Poll::Ready(None),
        }
    }
}
