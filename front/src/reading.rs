//! A response as its worker sends it, and when that worker counts as lost.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use skein_choice::breaker::Outcome;
use skein_node::clock::{self, Timestamp};
use skein_router::refusal::Refusal;
use tokio::time::{Instant, Sleep, sleep};

use super::continuation::Edit;
use super::exchange::{LOOK, fault, outcome};
use super::pool::Connection;
use super::routes::Call;
use super::shared::{Seat, Shared};

/// Most parts that are passed on at once.
const MAX_PARTS: usize = 64;
/// Parts are joined up to this many bytes, so that a client that does not read costs little memory.
const MAX_JOINED_BYTES: usize = 64 * 1024;

/// A response that a worker sends.
pub(super) struct Reading {
    body: Incoming,
    connection: Connection,
    /// How the body ended, if that was seen together with its last part.
    ended: Option<Read>,
    pub seat: Seat,
    heard: Timestamp,
    look: Option<Pin<Box<Sleep>>>,
    /// What the bytes of a continuation need.
    pub edit: Option<Edit>,
}

/// What reading has brought.
pub(super) enum Read {
    /// The next bytes.
    Data(Bytes),
    /// The response is complete.
    End,
    /// The worker failed.
    Fault(String),
    /// The request has to end.
    Over(Refusal),
}

impl Reading {
    /// Reads `body`, which arrives on `connection`.
    pub fn new(body: Incoming, connection: Connection, seat: Seat) -> Self {
        Self { body, connection, ended: None, seat, heard: clock::now(), look: None, edit: None }
    }

    /// Bytes that are left, if the worker's framing says so.
    pub fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The response is complete: keeps the connection.
    pub fn finish(self) {
        self.seat.link().pool.keep(self.connection);
        self.seat.end(Outcome::Success);
    }

    /// The next bytes, or why there are no more. `has_begun`: the client already has a part.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        shared: &Shared,
        call: &Call,
        has_begun: bool,
    ) -> Poll<Read> {
        loop {
            if let Poll::Ready(read) = self.read(context) {
                return Poll::Ready(read);
            }
            let look = self.look.get_or_insert_with(|| Box::pin(sleep(LOOK)));
            ready!(look.as_mut().poll(context));
            look.as_mut().reset(soon(LOOK));
            if let Err(refusal) = call.check() {
                return Poll::Ready(Read::Over(refusal));
            }
            let config = &shared.config;
            let limit = if has_begun { config.stall_timeout } else { config.first_byte_timeout };
            if let Some(fault) = fault(shared, &self.seat, self.heard, Some(limit)) {
                return Poll::Ready(Read::Fault(fault));
            }
        }
    }

    /// All that has arrived, up to [`MAX_PARTS`] parts or [`MAX_JOINED_BYTES`]: an engine's step or a slow
    /// client leaves several, and each write to the client costs more than copying them together.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Read> {
        if let Some(ended) = self.ended.take() {
            return Poll::Ready(ended);
        }
        let Read::Data(first) = ready!(self.part(context)) else {
            return Poll::Ready(self.ended.take().unwrap_or(Read::End));
        };
        self.heard = clock::now();
        let mut more = BytesMut::new();
        for _ in 1..MAX_PARTS {
            if first.len().max(more.len()) >= MAX_JOINED_BYTES {
                break;
            }
            match self.part(context) {
                Poll::Ready(Read::Data(part)) => {
                    if more.is_empty() {
                        more.extend_from_slice(&first);
                    }
                    more.extend_from_slice(&part);
                }
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        Poll::Ready(Read::Data(if more.is_empty() { first } else { more.freeze() }))
    }

    /// The next part; an end is kept in `ended`.
    fn part(&mut self, context: &mut Context<'_>) -> Poll<Read> {
        let Self { body, connection, ended, .. } = self;
        loop {
            let frame = connection.poll_with(context, |context| Pin::new(&mut *body).poll_frame(context));
            match ready!(frame) {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Poll::Ready(Read::Data(bytes));
                    }
                }
                Some(Err(error)) => *ended = Some(Read::Fault(error.to_string())),
                None => *ended = Some(Read::End),
            }
            if ended.is_some() {
                return Poll::Ready(Read::End);
            }
        }
    }

    /// Ends the attempt with what this status says about the worker.
    pub fn refuse(self, status: http::StatusCode) {
        self.seat.end(outcome(status));
    }

    /// The body and what its end needs.
    pub fn into_parts(self) -> (Incoming, Connection, Seat) {
        (self.body, self.connection, self.seat)
    }
}

fn soon(after: Duration) -> Instant {
    Instant::now() + after
}
