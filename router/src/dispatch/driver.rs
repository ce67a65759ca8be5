//! Holds one request's stream and carries out what its [`Delivery`] decides. Everything here waits. Dropping
//! a driver drops its reader, which ends the request at the worker unless something else reads the stream.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_choice::breaker::Outcome;
use skein_choice::fleet::{self, Job};
use skein_choice::worker_id::WorkerEpoch;
use skein_node::clock::{self, Timestamp};
use skein_node::signal::Listener;
use skein_node::trace::Part;
use skein_proto::delta::WorkerDelta;
use skein_proto::stream_key::StreamKey;
use skein_proto::version::Version;
use tokio::sync::mpsc;

use super::attempts::{Attempts, Ended};
use super::claims::Claim;
use super::delivery::{Action, Delivery, Limits, RequestEvent, Wait};
use super::reader::Reader;
use super::watch::{Timer, Waited, Watch, until};
use crate::admission::{Admission, Permit};
use crate::links::moves::Move;
use crate::links::requests_by_version::Begun;
use crate::links::seats::Ticket;
use crate::links::worker_client::CallError;
use crate::links::workers::{Arrival, Place, Placed, Workers};
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

/// How often a waiting request retries without an event; a breaker lets requests through again without one.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// A running request.
pub(crate) struct Driver {
    pub(super) workers: Arc<Workers>,
    pub(super) request: TokenRequest,
    pub(super) stream_key: StreamKey,
    pub(super) delivery: Delivery,
    pub(super) state: State,
    /// The place it was admitted for, until a stream is opened there.
    pub(super) place: Option<Place>,
    /// The reader whose stream broke, kept until it is decided whether to attach to the stream again.
    pub(super) left: Option<Reader>,
    /// Some sample was aborted, so the worker may not know that the request is over.
    aborted: bool,
    /// Whether the last worker that generated promises exact resumes.
    pub(super) exact_so_far: bool,
    journey: Arc<Mutex<Journey>>,
    /// Counts the request among those of its version, once that is known.
    begun: Begun,
    /// A move that no worker has taken up yet.
    moving: Option<Moving>,
    /// Name of the worker that generates now.
    worker: Arc<Mutex<Option<Arc<str>>>>,
    outbox: VecDeque<Result<TokenDelta, Refusal>>,
    aborts: mpsc::Receiver<u32>,
    pub(super) fleet_changes: Listener,
    pub(super) rechecks: Listener,
    pub(super) timer: Timer,
    /// Place in the queue for a free seat.
    pub(super) ticket: Ticket,
    pub(super) attempts: Attempts,
    _permit: Permit,
    _claim: Claim,
}

pub(super) enum State {
    Opening(Wait),
    Streaming(Box<OpenStream>),
    Over,
}

pub(super) struct OpenStream {
    pub(super) reader: Reader,
    /// Version of the worker's model; unknown if the worker says it with each delta.
    version: Version,
    /// Keeps the placement in the worker's ledger.
    _placed: Placed,
    gave_tokens: bool,
}

/// A move that has begun.
struct Moving {
    since: Timestamp,
    from: Option<Arc<str>>,
    reason: String,
    tokens: u64,
}

impl OpenStream {
    pub(super) fn new(reader: Reader, version: Version, placed: Placed) -> Box<Self> {
        Box::new(Self { reader, version, _placed: placed, gave_tokens: false })
    }
}

/// A request before admission, with what it holds while it runs.
pub(crate) struct NewRequest {
    pub request: TokenRequest,
    pub stream_key: StreamKey,
    pub claim: Claim,
    /// Samples to abort.
    pub aborts: mpsc::Receiver<u32>,
}

impl Driver {
    /// Admits a request or refuses it. Its first stream opens at the place that admission counted on.
    pub(crate) fn admit(
        workers: &Arc<Workers>,
        admission: &Admission,
        limits: Limits,
        new: NewRequest,
    ) -> Result<Self, Refusal> {
        let NewRequest { request, stream_key, claim, aborts } = new;
        let now = clock::now();
        let attempts = Attempts::new(request.trace.clone());
        let delivery = Delivery::new(&request, limits, now);
        // Subscribe before placing, so that the loss of a worker from here on is noticed.
        let (fleet_changes, rechecks) = (workers.fleet_changes(), workers.rechecks());
        let job = job(workers, &request, &delivery);
        let cost = u64::from(job.demand.prompt_tokens) + u64::from(job.demand.expected_output_tokens);
        let ticket = Ticket::new(request.tenant.clone(), cost);
        let arrival = Arrival {
            job: &job,
            stream_key,
            resumes: request.resume.is_some(),
            waits: request.waits_for_worker,
            time_left: request.deadline.map(|deadline| deadline.since(now)),
            without: &[],
            ticket: Some(&ticket),
        };
        let admitted = workers.admit(&arrival, admission);
        let refusal = admitted.as_ref().err();
        request.trace.add(|| admit_span(now, arrival.job.demand.prompt_tokens, refusal));
        let (permit, place) = admitted?;
        route_span(&attempts, &request, now, place.as_ref());
        let timer = Timer::new(request.deadline);
        let mut begun = workers.requests_by_version.counted();
        begun.on(delivery.version());
        let state = if delivery.is_over() { State::Over } else { State::Opening(Wait::No) };
        let journey = Journey { version: delivery.version(), ..Journey::default() };
        Ok(Self {
            workers: workers.clone(),
            request,
            stream_key,
            delivery,
            state,
            place,
            left: None,
            aborted: false,
            exact_so_far: true,
            journey: Arc::new(Mutex::new(journey)),
            begun,
            worker: Arc::default(),
            moving: None,
            outbox: VecDeque::new(),
            aborts,
            fleet_changes,
            rechecks,
            timer,
            ticket,
            attempts,
            _permit: permit,
            _claim: claim,
        })
    }

    /// The request's moves, updated as they happen.
    pub(crate) fn journey(&self) -> Arc<Mutex<Journey>> {
        self.journey.clone()
    }

    /// Gets a worker to accept the request; a refusal means that none did.
    pub(crate) async fn start(&mut self) -> Result<(), Refusal> {
        while self.outbox.is_empty() && matches!(self.state, State::Opening(_)) {
            self.advance().await;
        }
        match self.outbox.pop_front_if(|first| first.is_err()) {
            Some(Err(refusal)) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// The next delta, or the refusal that ends the request; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Result<TokenDelta, Refusal>> {
        while self.outbox.is_empty() && !matches!(self.state, State::Over) {
            self.advance().await;
        }
        self.outbox.pop_front()
    }

    /// Waits for one event and acts on it.
    async fn advance(&mut self) {
        let event = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => return,
            // In a box of its own, because a stream keeps room for the state of what it may wait for.
            State::Opening(wait) => Box::pin(self.open_after(wait)).await,
            State::Streaming(source) => self.read(source).await,
        };
        let moves = self.delivery.moves();
        self.aborted |= matches!(event, RequestEvent::Abort(_));
        let lost = match &event {
            RequestEvent::Ended(Some(error)) | RequestEvent::NotOpened(_, error) => error.to_string(),
            RequestEvent::Delta(sent) if sent.delta.hand_back => {
                self.handed_back();
                "handed back".into()
            }
            RequestEvent::HandedBack => "its worker drains".into(),
            _ => String::new(),
        };
        let ended = Ended::of(&event);
        let is_fault = matches!(event, RequestEvent::Ended(_) | RequestEvent::NotOpened(..));
        for action in self.delivery.handle(clock::now(), event) {
            self.perform(action);
        }
        self.end_attempt(ended);
        if self.delivery.moves() > moves {
            self.attempts.moved();
            self.with_journey(|journey| journey.moves = moves + 1);
            self.begin_move(lost.clone());
            let (request, moves) = (&*self.request.id, moves + 1);
            if is_fault {
                tracing::warn!(request, moves, lost, "request continues on another worker");
            } else {
                tracing::info!(request, moves, lost, "request continues on another worker");
            }
        }
    }

    /// Remembers where the request was, until another worker continues it.
    fn begin_move(&mut self, reason: String) {
        // After a move that did not open, the first one counts.
        if self.moving.is_none() {
            let from = self.worker.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let tokens = self.delivery.output_tokens();
            self.moving = Some(Moving { since: clock::now(), from, reason, tokens });
        }
    }

    /// Ends the span of the finished call, with the given reason or the one that follows from the state.
    fn end_attempt(&mut self, ended: Option<Ended>) {
        let by_state = match (&self.state, self.delivery.is_over()) {
            (State::Streaming(_), _) => None,
            (_, true) => Some(Ended::Completed),
            (_, false) => Some(Ended::Fault),
        };
        if let Some(ended) = ended.or(by_state) {
            self.attempts.end(ended);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Emit(delta) => {
                self.report_progress(&delta);
                self.outbox.push_back(Ok(delta));
            }
            Action::Open(wait) => {
                self.leave_stream();
                self.state = State::Opening(wait);
            }
            Action::AbortSample(sample_index) => {
                if let State::Streaming(source) = &self.state {
                    source.reader.abort(sample_index);
                }
            }
            Action::Fail(refusal) => {
                if let Refusal::WorkersLost { moves, reason } = &refusal {
                    tracing::error!(
                        request = &*self.request.id,
                        moves,
                        reason,
                        "request failed on every worker tried"
                    );
                }
                if matches!(refusal, Refusal::VersionGone) {
                    let version = self.delivery.version();
                    tracing::error!(
                        request = &*self.request.id,
                        %version,
                        "request failed: no worker serves the version of the model that it began on"
                    );
                }
                self.end();
                self.outbox.push_back(Err(refusal));
            }
            Action::Done => {
                self.report(Outcome::Neutral);
                if let State::Streaming(source) = &mut self.state
                    && !self.aborted
                {
                    source.reader.forget();
                }
                self.end();
            }
        }
    }

    /// Drops the readers that are left.
    fn end(&mut self) {
        self.state = State::Over;
        self.place = None;
        self.left = None;
    }

    /// Closes a stream that is still open, because it was faulty or handed back.
    fn leave_stream(&mut self) {
        if let State::Streaming(source) = std::mem::replace(&mut self.state, State::Over) {
            let at = source.reader.placement.at;
            self.workers.with_fleet(|fleet| fleet.stream_gone(self.stream_key, at.worker));
            if !source.reader.is_forgotten() {
                self.report_for(at, Outcome::Fault);
            }
        }
    }

    /// The worker drains and has handed the request back; it needs no release.
    fn handed_back(&mut self) {
        if let State::Streaming(source) = &mut self.state {
            let at = source.reader.placement.at;
            source.reader.forget();
            self.workers.handle(fleet::Event::HandedBack(at));
            self.report_for(at, Outcome::Neutral);
        }
    }

    async fn open_after(&mut self, wait: Wait) -> RequestEvent {
        match self.pause(wait).await {
            Some(event) => event,
            None => self.open().await,
        }
    }

    /// Waits before opening. Returns early for an aborted sample or at the deadline.
    async fn pause(&mut self, wait: Wait) -> Option<RequestEvent> {
        if let Ok(sample_index) = self.aborts.try_recv() {
            self.state = State::Opening(wait);
            return Some(RequestEvent::Abort(sample_index));
        }
        let changes = &mut self.fleet_changes;
        let waiting = async {
            match wait {
                Wait::No => {}
                Wait::For(time) => tokio::time::sleep(time).await,
                // Changed or not, the next step is to try again.
                Wait::FleetChange => drop(tokio::time::timeout(RETRY_INTERVAL, changes.changed()).await),
                Wait::Seat => self.workers.seats.wait(&mut self.ticket).await,
            }
        };
        tokio::select! {
            biased;
            () = until(self.request.deadline) => Some(RequestEvent::Deadline),
            () = waiting => None,
        }
    }

    async fn read(&mut self, mut source: Box<OpenStream>) -> RequestEvent {
        let placement = source.reader.placement;
        let waited = {
            let (deadline, rechecks, timer) = (self.request.deadline, &mut self.rechecks, &mut self.timer);
            let version = self.delivery.version();
            let watch = Watch { workers: &self.workers, placement, version, deadline, rechecks, timer };
            let next = std::pin::pin!(source.reader.next());
            watch.wait(next, Some(&mut self.aborts)).await
        };
        let event = match waited {
            Waited::Answer(Some(Ok(delta))) => {
                RequestEvent::Delta(WorkerDelta { version: delta.version.or(source.version), ..delta })
            }
            Waited::Answer(Some(Err(error))) => RequestEvent::Ended(Some(error)),
            Waited::Answer(None) => RequestEvent::Ended(None),
            Waited::Abort(sample_index) => RequestEvent::Abort(sample_index),
            Waited::Deadline => RequestEvent::Deadline,
            Waited::Stuck => RequestEvent::Ended(Some(CallError::fault("the worker makes no progress"))),
            Waited::Leave => {
                self.report_for(placement.at, Outcome::Neutral);
                self.workers.with_fleet(|fleet| fleet.stream_gone(self.stream_key, placement.at.worker));
                // The reader is dropped, which releases the stream at the worker.
                return RequestEvent::HandedBack;
            }
        };
        if let RequestEvent::Ended(error) = &event {
            let outcome = error.as_ref().map_or(Outcome::Fault, outcome_of);
            self.report_for(placement.at, outcome);
            self.left = Some(source.reader);
        } else {
            self.state = State::Streaming(source);
        }
        event
    }

    fn report_progress(&mut self, delta: &TokenDelta) {
        self.attempts.tokens(delta.tokens.len());
        let version = self.delivery.version();
        if self.begun.on(version) {
            self.with_journey(|journey| journey.version = version);
        }
        if let State::Streaming(source) = &mut self.state
            && !delta.tokens.is_empty()
            && !std::mem::replace(&mut source.gave_tokens, true)
        {
            self.workers.handle(fleet::Event::FirstToken(source.reader.placement));
        }
    }

    fn report(&self, outcome: Outcome) {
        if let State::Streaming(source) = &self.state {
            self.report_for(source.reader.placement.at, outcome);
        }
    }

    pub(super) fn report_for(&self, at: WorkerEpoch, outcome: Outcome) {
        self.workers.handle(fleet::Event::Dispatched(at, outcome));
    }

    /// Shared name of the worker that generates.
    pub(crate) fn worker(&self) -> Arc<Mutex<Option<Arc<str>>>> {
        self.worker.clone()
    }

    /// Records the name of the worker whose stream is read.
    pub(super) fn set_worker(&mut self, name: Option<Arc<str>>) {
        if let Some(Moving { since, from, reason, tokens }) = self.moving.take() {
            self.workers.moves.add(Move {
                at: clock::unix_time(),
                gap: clock::now().since(since),
                request: self.request.id.to_string(),
                tenant: self.request.tenant.clone(),
                from,
                to: name.clone(),
                reason,
                tokens,
            });
        }
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    pub(super) fn with_journey(&self, change: impl FnOnce(&mut Journey)) {
        change(&mut self.journey.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Span of admission since `from`, failed if it refused the request.
fn admit_span(from: clock::Timestamp, prompt_tokens: u32, refusal: Option<&Refusal>) -> Part {
    let part = Part::new("admit", from, clock::now()).count("skein.prompt_tokens", prompt_tokens);
    match refusal {
        None => part,
        Some(refusal) => part.failed(refusal.http().code.unwrap_or("invalid_request")),
    }
}

/// Records the choice of a worker, which began at `from`.
pub(super) fn route_span(
    attempts: &Attempts,
    request: &TokenRequest,
    from: clock::Timestamp,
    place: Option<&Place>,
) {
    let pick = place.and_then(|place| place.pick.as_ref());
    let receipt = place.and_then(|place| place.receipt.as_ref());
    if let (Some(receipts), Some(receipt)) = (&request.receipts, receipt) {
        receipts.add(receipt.clone());
    }
    attempts.routed(from, pick, receipt, pick.and_then(|_| place?.name.clone()));
}

/// The rest of a request, as the fleet sees it. A resume also prefills the delivered tokens.
pub(super) fn job(workers: &Workers, request: &TokenRequest, delivery: &Delivery) -> Job {
    let longest = delivery.remaining().map(|(_, tokens)| tokens).max_by_key(|tokens| tokens.len());
    let sequences = delivery.remaining().count() as u32;
    let job = workers.job(request, longest.unwrap_or_default(), sequences);
    Job { cacheable: !delivery.owes_prompt_logprobs(), version: delivery.version(), ..job }
}

pub(super) fn outcome_of(error: &CallError) -> Outcome {
    match error {
        CallError::Fault(_) => Outcome::Fault,
        CallError::Backpressure { .. } => Outcome::Backpressure,
        CallError::Rejected(_) | CallError::VersionGone => Outcome::Neutral,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<T>(_: impl FnOnce(&'static mut Driver) -> T) -> usize {
        size_of::<T>()
    }

    /// Each open stream keeps them.
    #[test]
    fn a_waiting_stream_is_small() {
        let sizes = (size_of::<Driver>(), size_of::<OpenStream>(), size_of_future(Driver::next));
        assert!(sizes.0 + sizes.1 + sizes.2 <= 2304, "{sizes:?}");
    }
}
