//! Holds one request's stream and does what its [`Delivery`] says. Everything here is waiting; a dropped driver
//! drops its reader, which ends the request at the worker unless somebody else reads it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_node::clock;
use skein_node::signal::Listener;
use skein_proto::stream_key::StreamKey;
use tokio::sync::mpsc;

use super::delivery::{Action, Delivery, Event, Limits, Wait};
use super::reader::Reader;
use super::watch::{Waited, Watch, until};
use crate::admission::{Admission, Permit};
use crate::claims::Claim;
use crate::fleet::breaker::Outcome;
use crate::fleet::{self, Job, WorkerEpoch};
use crate::links::worker_client::CallError;
use crate::links::workers::{Arrival, Place, Placed, Workers};
use crate::refusal::Refusal;
use crate::request::{Journey, TokenDelta, TokenRequest};

/// How often a request that waits for a worker looks by itself; breakers open again without an event.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// One request under way.
pub(crate) struct Driver {
    pub(super) workers: Arc<Workers>,
    pub(super) request: TokenRequest,
    pub(super) stream_key: StreamKey,
    pub(super) delivery: Delivery,
    pub(super) state: State,
    /// The place that it was admitted for, until it is opened there.
    pub(super) place: Option<Place>,
    /// The reader whose stream broke. It leaves once it is decided whether to attach to its stream again.
    pub(super) left: Option<Reader>,
    /// Some sample was aborted: the worker may not know that the request is over.
    aborted: bool,
    /// What the last worker that computed promises of resumes.
    pub(super) exact_so_far: bool,
    journey: Arc<Mutex<Journey>>,
    outbox: VecDeque<Result<TokenDelta, Refusal>>,
    aborts: mpsc::Receiver<u32>,
    pub(super) fleet_changes: Listener,
    pub(super) rechecks: Listener,
    _permit: Permit,
    _claim: Claim,
}

pub(super) enum State {
    Opening(Wait),
    Streaming(Box<Source>),
    Over,
}

/// An open stream.
pub(super) struct Source {
    pub(super) reader: Reader,
    /// Keeps the entry in the worker's account.
    _placed: Placed,
    gave_tokens: bool,
}

impl Source {
    pub(super) fn new(reader: Reader, placed: Placed) -> Box<Self> {
        Box::new(Self { reader, _placed: placed, gave_tokens: false })
    }
}

/// A request that is not let in yet, with what it holds while it runs.
pub(crate) struct Asked {
    pub request: TokenRequest,
    pub stream_key: StreamKey,
    pub claim: Claim,
    /// Samples that are not wanted any more.
    pub aborts: mpsc::Receiver<u32>,
}

impl Driver {
    /// Lets a request in, or refuses it. What admission counts on, its place at a worker, is where it begins.
    pub(crate) fn admit(
        workers: &Arc<Workers>,
        admission: &Admission,
        limits: Limits,
        asked: Asked,
    ) -> Result<Self, Refusal> {
        let Asked { request, stream_key, claim, aborts } = asked;
        let now = clock::now();
        let delivery = Delivery::new(&request, limits, now);
        // A worker lost from here on is noticed.
        let (fleet_changes, rechecks) = (workers.fleet_changes(), workers.rechecks());
        let arrival = Arrival {
            job: &job(workers, &request, &delivery),
            stream_key,
            resumes: request.resume.is_some(),
            time_left: request.deadline.map(|deadline| deadline.since(now)),
        };
        let (permit, place) = workers.admit(&arrival, admission)?;
        let state = if delivery.is_over() { State::Over } else { State::Opening(Wait::No) };
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
            journey: Arc::default(),
            outbox: VecDeque::new(),
            aborts,
            fleet_changes,
            rechecks,
            _permit: permit,
            _claim: claim,
        })
    }

    /// What the request goes through, as it happens.
    pub(crate) fn journey(&self) -> Arc<Mutex<Journey>> {
        self.journey.clone()
    }

    /// Gets the request taken by a worker; a refusal means that none did.
    pub(crate) async fn start(&mut self) -> Result<(), Refusal> {
        while self.outbox.is_empty() && matches!(self.state, State::Opening(_)) {
            self.advance().await;
        }
        match self.outbox.pop_front_if(|first| first.is_err()) {
            Some(Err(refusal)) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// The next delta, or the refusal that ends the request.
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
            State::Opening(wait) => match self.pause(wait).await {
                Some(event) => event,
                None => self.open().await,
            },
            State::Streaming(source) => self.read(source).await,
        };
        let moves = self.delivery.moves();
        self.aborted |= matches!(event, Event::Abort(_));
        let lost = match &event {
            Event::Ended(Some(error)) | Event::NotOpened(_, error) => error.to_string(),
            Event::Delta(sent) if sent.delta.hand_back => {
                self.handed_back();
                "handed back".into()
            }
            Event::HandedBack => "its worker drains".into(),
            _ => String::new(),
        };
        for action in self.delivery.handle(clock::now(), event) {
            self.perform(action);
        }
        if self.delivery.moves() > moves {
            self.with_journey(|journey| journey.moves = moves + 1);
            tracing::info!(request = self.request.id, moves = moves + 1, lost, "request goes on elsewhere");
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
                    tracing::error!(request = self.request.id, moves, reason, "request is given up");
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

    /// Whoever still reads anything leaves.
    fn end(&mut self) {
        self.state = State::Over;
        self.place = None;
        self.left = None;
    }

    /// A stream that is still open is given up: what it sent was wrong, or it was handed back.
    fn leave_stream(&mut self) {
        if let State::Streaming(source) = std::mem::replace(&mut self.state, State::Over) {
            let at = source.reader.placement.at;
            self.workers.with_fleet(|fleet| fleet.stream_gone(self.stream_key, at.worker));
            if !source.reader.is_forgotten() {
                self.report_for(at, Outcome::Fault);
            }
        }
    }

    /// The worker gives the request back: it drains, and needs no good-bye.
    fn handed_back(&mut self) {
        if let State::Streaming(source) = &mut self.state {
            let at = source.reader.placement.at;
            source.reader.forget();
            self.workers.handle(fleet::Event::HandedBack(at));
            self.report_for(at, Outcome::Neutral);
        }
    }

    /// Waits as told before opening. Samples may be aborted meanwhile, and the deadline may pass.
    async fn pause(&mut self, wait: Wait) -> Option<Event> {
        if let Ok(sample_index) = self.aborts.try_recv() {
            self.state = State::Opening(wait);
            return Some(Event::Abort(sample_index));
        }
        let changes = &mut self.fleet_changes;
        let waiting = async {
            match wait {
                Wait::No => {}
                Wait::For(time) => tokio::time::sleep(time).await,
                // Whether something changed or not, looking again is all there is to do.
                Wait::FleetChange => drop(tokio::time::timeout(LOOK_AGAIN, changes.changed()).await),
            }
        };
        tokio::select! {
            biased;
            () = until(self.request.deadline) => Some(Event::Deadline),
            () = waiting => None,
        }
    }

    async fn read(&mut self, mut source: Box<Source>) -> Event {
        let placement = source.reader.placement;
        let waited = {
            let (deadline, rechecks) = (self.request.deadline, &mut self.rechecks);
            let watch = Watch { workers: &self.workers, placement, deadline, rechecks };
            let next = std::pin::pin!(source.reader.next());
            watch.wait(next, Some(&mut self.aborts)).await
        };
        let event = match waited {
            Waited::For(Some(Ok(delta))) => Event::Delta(delta),
            Waited::For(Some(Err(error))) => Event::Ended(Some(error)),
            Waited::For(None) => Event::Ended(None),
            Waited::Abort(sample_index) => Event::Abort(sample_index),
            Waited::Deadline => Event::Deadline,
            Waited::Stuck => Event::Ended(Some(CallError::fault("the worker stands still"))),
            Waited::Leave => {
                self.report_for(placement.at, Outcome::Neutral);
                self.workers.with_fleet(|fleet| fleet.stream_gone(self.stream_key, placement.at.worker));
                // Its reader leaves, and the worker is rid of it.
                return Event::HandedBack;
            }
        };
        if let Event::Ended(error) = &event {
            let outcome = error.as_ref().map_or(Outcome::Fault, outcome_of);
            self.report_for(placement.at, outcome);
            self.left = Some(source.reader);
        } else {
            self.state = State::Streaming(source);
        }
        event
    }

    fn report_progress(&mut self, delta: &TokenDelta) {
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

    pub(super) fn with_journey(&self, change: impl FnOnce(&mut Journey)) {
        change(&mut self.journey.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// What is left of a request, as the fleet sees it. A resume prefills what was delivered, too.
pub(super) fn job(workers: &Workers, request: &TokenRequest, delivery: &Delivery) -> Job {
    let longest = delivery.remaining().map(|(_, tokens)| tokens).max_by_key(|tokens| tokens.len());
    let sequences = delivery.remaining().count() as u32;
    let job = workers.job(request, longest.unwrap_or_default(), sequences);
    Job { cacheable: !delivery.owes_prompt_logprobs(), ..job }
}

pub(super) fn outcome_of(error: &CallError) -> Outcome {
    match error {
        CallError::Fault(_) => Outcome::Fault,
        CallError::Backpressure { .. } => Outcome::Backpressure,
        CallError::Rejected(_) => Outcome::Neutral,
    }
}
