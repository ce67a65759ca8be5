//! Passes a response on as it arrives. If its worker is lost, another one continues it: with the same request
//! while the client has nothing yet, else by text if that is allowed. Otherwise the stream ends with an
//! error.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use skein_choice::breaker::Outcome;
use skein_router::api::openai::error::error_object;
use skein_router::refusal::Refusal;

use super::attempt::attempt;
use super::continuation::{self, Edit, Rest};
use super::events::Events;
use super::exchange::Failure;
use super::headers::is_event_stream;
use super::moves::Moves;
use super::reading::{Read, Reading};
use super::routes::Call;
use super::running::Running;
use super::shared::Shared;
use super::transcript::Transcript;

/// A response on its way.
pub(super) struct Stream {
    shared: Arc<Shared>,
    call: Arc<Call>,
    running: Running,
    state: State,
    /// Whole events; `None` = the response is not a stream of events.
    events: Option<Events>,
    /// The answer so far, if the stream may continue by text.
    transcript: Option<Transcript>,
    /// The client has a part of it.
    has_sent: bool,
    moves: Moves,
}

/// A body that cannot be completed: its connection is closed, so that no client takes it for whole.
#[derive(Debug, thiserror::Error)]
#[error("the worker was lost in the middle of its response")]
pub(super) struct Cut;

enum State {
    Reading(Box<Reading>),
    Moving(BoxFuture<'static, Result<(Reading, Moves), Refusal>>),
    Ended,
}

impl Stream {
    /// Passes on what `reading` brings; `is_events` says whether that is a stream of events.
    pub fn new(
        shared: Arc<Shared>,
        call: Arc<Call>,
        running: Running,
        reading: Reading,
        is_events: bool,
    ) -> Self {
        let continues = is_events && call.resumes && call.route.continues.is_some();
        Self {
            transcript: continues.then(Transcript::default),
            events: is_events.then(Events::default),
            state: State::Reading(Box::new(reading)),
            has_sent: false,
            moves: Moves::new(shared.config.router.migration_limit),
            shared,
            call,
            running,
        }
    }

    /// Bytes that are left, if they are the worker's own and it said how many.
    pub fn length(&self) -> Option<u64> {
        match &self.state {
            State::Reading(reading) if self.events.is_none() => reading.length(),
            _ => None,
        }
    }

    /// The next bytes for the client.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            let sent = match &mut self.state {
                State::Ended => return Poll::Ready(None),
                State::Moving(moving) => match ready!(moving.as_mut().poll(context)) {
                    Ok((reading, moves)) => self.moved(reading, moves),
                    Err(refusal) => Some(self.failed(&refusal)),
                },
                State::Reading(reading) => {
                    match ready!(reading.poll(context, &self.shared, &self.call, self.has_sent)) {
                        Read::Data(bytes) => self.data(bytes),
                        Read::End => self.end(),
                        Read::Fault(why) => self.lost(&why),
                        Read::Over(refusal) => Some(self.failed(&refusal)),
                    }
                }
            };
            if let Some(sent) = sent.filter(|sent| !matches!(sent, Ok(bytes) if bytes.is_empty())) {
                return Poll::Ready(Some(sent));
            }
        }
    }

    fn data(&mut self, bytes: Bytes) -> Option<Result<Bytes, Cut>> {
        let said_before = self.said();
        let State::Reading(reading) = &mut self.state else { return None };
        if reading.seat.begin() {
            self.running.began();
        }
        let mut whole = match &mut self.events {
            Some(events) => events.push(bytes),
            None => bytes,
        };
        let failed = self.transcript.as_mut().and_then(|transcript| transcript.read(&whole));
        if let Some(at) = failed {
            whole.truncate(at);
        }
        let is_events = self.events.is_some();
        self.running.tally(|tally| if is_events { tally.events(&whole) } else { tally.part(&whole) });
        if let Some(edit) = &reading.edit {
            whole = edit.apply(&whole);
        }
        self.has_sent |= !whole.is_empty();
        // A comment or a role is no progress: a server that says only that would be asked for ever.
        if self.said() > said_before {
            self.moves.progressed();
        }
        if failed.is_none() {
            return Some(Ok(whole));
        }
        let lost = self.lost("its engine failed");
        // An error that ends the stream follows what came before it.
        match lost {
            Some(Ok(error)) => Some(Ok([whole, error].concat().into())),
            _ => Some(Ok(whole)),
        }
    }

    /// Events with text that the client has.
    fn said(&self) -> u32 {
        self.transcript.as_ref().map_or(0, |transcript| transcript.events)
    }

    /// The worker closed the response properly.
    fn end(&mut self) -> Option<Result<Bytes, Cut>> {
        // An engine that dies may leave a server that ends its stream as if it were complete.
        if self
            .transcript
            .as_ref()
            .is_some_and(|transcript| !transcript.ended && transcript.not_resumable.is_none())
        {
            return self.lost("it ended its stream without an end");
        }
        if let State::Reading(reading) = std::mem::replace(&mut self.state, State::Ended) {
            reading.finish();
        }
        let rest = self.events.as_mut().map(Events::rest);
        self.running.tally(|tally| match &rest {
            Some(rest) => tally.events(rest),
            None => tally.whole(b""),
        });
        self.running.completed();
        rest.map(Ok)
    }

    /// The worker was lost: another one continues, or the stream ends.
    fn lost(&mut self, why: &str) -> Option<Result<Bytes, Cut>> {
        let State::Reading(reading) = std::mem::replace(&mut self.state, State::Ended) else { return None };
        let tried = vec![reading.seat.worker()];
        tracing::warn!(worker = &*reading.seat.link().name(), reason = why, "a stream was cut");
        reading.seat.end(Outcome::Fault);
        let Some(events) = &mut self.events else {
            // Not even an error can follow a part of something else.
            self.running.failed();
            return Some(Err(Cut));
        };
        events.drop_rest();
        if self.transcript.as_ref().is_some_and(|transcript| transcript.ended) {
            // Only the formal end is missing.
            self.running.completed();
            return Some(Ok(Bytes::from_static(b"data: [DONE]\n\n")));
        }
        let body = match self.rest() {
            Ok(Rest::Request(body)) => body,
            Ok(Rest::Nothing(end)) => {
                self.running.completed();
                return Some(Ok(end));
            }
            Err(why) => return Some(self.failed(&Refusal::NotResumed(why))),
        };
        let Some(pause) = self.moves.again() else {
            let moves = self.moves.total();
            return Some(self.failed(&Refusal::WorkersLost { moves, reason: why.to_owned() }));
        };
        self.running.moved();
        let moves = std::mem::replace(&mut self.moves, Moves::new(0));
        let recovery = Recovery { shared: self.shared.clone(), call: self.call.clone(), body, tried, moves };
        self.state = State::Moving(Box::pin(recovery.run(pause)));
        None
    }

    /// What the client does not have yet.
    fn rest(&self) -> Result<Rest, &'static str> {
        if !self.has_sent {
            return Ok(Rest::Request(self.call.body.clone()));
        }
        let Some(kind) = self.call.route.continues else {
            return Err("streams of this path cannot be continued");
        };
        let Some(transcript) = &self.transcript else {
            return Err(
                "continuing by text is not allowed; send the header x-skein-resume: text to allow it",
            );
        };
        continuation::rest(kind, &self.call.body, transcript)
    }

    fn moved(&mut self, mut reading: Reading, moves: Moves) -> Option<Result<Bytes, Cut>> {
        self.moves = moves;
        if self.has_sent {
            reading.edit =
                Some(Edit::new(self.transcript.as_ref().and_then(|transcript| transcript.id.clone())));
        }
        self.state = State::Reading(Box::new(reading));
        if !self.has_sent {
            return None;
        }
        self.running.continued();
        Some(Ok(Bytes::from_static(continuation::MARK.as_bytes())))
    }

    fn failed(&mut self, refusal: &Refusal) -> Result<Bytes, Cut> {
        self.state = State::Ended;
        self.running.failed();
        if self.events.is_none() {
            return Err(Cut);
        }
        Ok(format!("data: {}\n\n", error_object(refusal)).into())
    }
}

/// Looks for a worker that continues a stream.
struct Recovery {
    shared: Arc<Shared>,
    call: Arc<Call>,
    body: Bytes,
    tried: Vec<u32>,
    moves: Moves,
}

impl Recovery {
    /// After `pause`, sends `body` to other workers until one answers with a stream.
    async fn run(mut self, mut pause: Duration) -> Result<(Reading, Moves), Refusal> {
        loop {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let reason = match self.attempt().await? {
                Ok(reading) => return Ok((reading, self.moves)),
                Err(reason) => reason,
            };
            pause = self
                .moves
                .again()
                .ok_or_else(|| Refusal::WorkersLost { moves: self.moves.total(), reason })?;
        }
    }

    /// The stream of one worker, or why it gives none.
    async fn attempt(&mut self) -> Result<Result<Reading, String>, Refusal> {
        let seat = self.shared.place(&self.call, &self.tried, self.shared.give_up_at()).await?;
        self.tried.push(seat.worker());
        match attempt(&self.shared, &self.call, &self.body, seat).await {
            Ok((head, reading)) if head.status.is_success() && is_event_stream(&head.headers) => {
                Ok(Ok(reading))
            }
            Ok((head, reading)) => {
                reading.refuse(head.status);
                Ok(Err(format!("status {}", head.status)))
            }
            Err(Failure::Over(refusal)) => Err(refusal),
            Err(Failure::Fault(reason)) => Ok(Err(reason)),
        }
    }
}
