//! Holds one request's stream and does what its [`Delivery`] says. Everything here is waiting; a dropped driver
//! drops its stream, which cancels the request at the worker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use skein_node::signal::Listener;
use skein_node::{clock, task};
use tokio::sync::mpsc;

use super::delivery::{Action, Delivery, Event, Wait};
use crate::admission::Permit;
use crate::breaker::Outcome;
use crate::fleet::{self, Job, Placement};
use crate::refusal::Refusal;
use crate::request::{TokenDelta, TokenRequest};
use crate::shared::{Claim, Shared, until};
use crate::worker_client::{Attempt, CallError, WorkerClient, WorkerDelta};

/// How often a request that waits for a worker looks by itself; breakers open again without an event.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Bytes of a request's id on the wire.
const MAX_ID_BYTES: usize = 128;

/// One request under way.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    request: TokenRequest,
    delivery: Delivery,
    state: State,
    outbox: VecDeque<Result<TokenDelta, Refusal>>,
    aborts: mpsc::Receiver<u32>,
    fleet_changes: Listener,
    _permit: Permit,
    _claim: Claim,
}

enum State {
    Opening(Wait),
    Streaming(Box<Source>),
    Over,
}

/// An open stream.
struct Source {
    placed: Placed,
    attempt_id: String,
    client: WorkerClient,
    deltas: Box<dyn Stream<Item = Result<WorkerDelta, CallError>> + Send + Unpin>,
    gave_tokens: bool,
}

/// A placement's entry in the worker's account, struck out when dropped.
struct Placed {
    shared: Arc<Shared>,
    placement: Placement,
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.shared.with_fleet(|fleet| fleet.ended(self.placement));
    }
}

/// What ended a wait on a worker.
enum Waited<T> {
    For(T),
    Abort(u32),
    Deadline,
    Stuck,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        request: TokenRequest,
        aborts: mpsc::Receiver<u32>,
        permit: Permit,
        claim: Claim,
    ) -> Self {
        let delivery = Delivery::new(&request, shared.migration_limit, clock::now());
        let (state, outbox) = (State::Opening(Wait::No), VecDeque::new());
        let fleet_changes = shared.fleet_changes();
        Self {
            shared,
            request,
            delivery,
            state,
            outbox,
            aborts,
            fleet_changes,
            _permit: permit,
            _claim: claim,
        }
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
        let lost = match &event {
            Event::Ended(Some(error)) | Event::NotOpened(_, error) => error.to_string(),
            _ => String::new(),
        };
        for action in self.delivery.handle(clock::now(), event) {
            self.perform(action);
        }
        if self.delivery.moves() > moves {
            tracing::info!(request = self.request.id, moves = moves + 1, lost, "request goes on elsewhere");
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Emit(delta) => {
                self.report_progress(&delta);
                self.outbox.push_back(Ok(delta));
            }
            Action::Open(wait) => self.state = State::Opening(wait),
            Action::AbortSample(sample_index) => self.abort_at_worker(sample_index),
            Action::Fail(refusal) => {
                if let Refusal::WorkersLost { moves, reason } = &refusal {
                    tracing::error!(request = self.request.id, moves, reason, "request is given up");
                }
                self.state = State::Over;
                self.outbox.push_back(Err(refusal));
            }
            Action::Done => {
                self.report(Outcome::Neutral);
                self.state = State::Over;
            }
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

    async fn open(&mut self) -> Event {
        // From here on a change counts as new: one that comes after a vain look must not be slept through.
        self.fleet_changes.mark_unchanged();
        let job = self.job();
        let Some((placed, client)) = self.place(&job) else { return Event::NobodyReady };
        let attempt_id = attempt_id(&self.request.id, self.shared.router_id, self.shared.next_attempt());
        let attempt = Attempt {
            id: attempt_id.clone(),
            samples: self.delivery.remaining().map(|(index, tokens)| (index, tokens.to_vec())).collect(),
            prompt_logprobs: self.delivery.owes_prompt_logprobs(),
            placement: (self.shared.router_id, placed.placement.sequence),
            time_left: self.request.deadline.map(|deadline| deadline.since(clock::now())),
        };
        let Placement { worker, epoch, .. } = placed.placement;
        let opened = {
            let call = client.generate(&self.request, attempt);
            let wait =
                Watch { shared: &self.shared, placement: placed.placement, deadline: self.request.deadline };
            wait.wait(std::pin::pin!(call), None).await
        };
        match opened {
            Waited::For(Ok(deltas)) => {
                let deltas = Box::new(deltas);
                let source = Source { placed, attempt_id, client, deltas, gave_tokens: false };
                self.state = State::Streaming(Box::new(source));
                Event::Opened(worker, epoch)
            }
            Waited::For(Err(error)) => {
                self.shared.handle(fleet::Event::Dispatched(worker, epoch, outcome_of(&error)));
                Event::NotOpened(worker, error)
            }
            Waited::Stuck => {
                self.shared.handle(fleet::Event::Dispatched(worker, epoch, Outcome::Fault));
                Event::NotOpened(worker, CallError::Fault("the worker stands still".into()))
            }
            Waited::Deadline | Waited::Abort(_) => Event::Deadline,
        }
    }

    async fn read(&mut self, mut source: Box<Source>) -> Event {
        let waited = {
            let watch = Watch {
                shared: &self.shared,
                placement: source.placed.placement,
                deadline: self.request.deadline,
            };
            watch.wait(source.deltas.next(), Some(&mut self.aborts)).await
        };
        let event = match waited {
            Waited::For(Some(Ok(delta))) => Event::Delta(delta),
            Waited::For(Some(Err(error))) => Event::Ended(Some(error)),
            Waited::For(None) => Event::Ended(None),
            Waited::Abort(sample_index) => Event::Abort(sample_index),
            Waited::Deadline => Event::Deadline,
            Waited::Stuck => Event::Ended(Some(CallError::Fault("the worker stands still".into()))),
        };
        if let Event::Ended(error) = &event {
            let outcome = error.as_ref().map_or(Outcome::Fault, outcome_of);
            let Placement { worker, epoch, .. } = source.placed.placement;
            self.shared.handle(fleet::Event::Dispatched(worker, epoch, outcome));
        } else {
            self.state = State::Streaming(source);
        }
        event
    }

    fn place(&self, job: &Job) -> Option<(Placed, WorkerClient)> {
        let (placement, client) = self.shared.place(job, self.delivery.full_workers())?;
        Some((Placed { shared: self.shared.clone(), placement }, client))
    }

    /// What is left of the request, as the fleet sees it. A resume prefills what was delivered, too.
    fn job(&self) -> Job {
        let longest = self.delivery.remaining().map(|(_, tokens)| tokens).max_by_key(|tokens| tokens.len());
        let tokens = [&self.request.prompt[..], longest.unwrap_or_default()].concat();
        let left = self.request.sampling.max_tokens.saturating_sub(longest.map_or(0, <[_]>::len) as u32);
        let sequences = self.delivery.remaining().count() as u32;
        self.shared.job(&self.request, &tokens, left, sequences, self.delivery.owes_prompt_logprobs())
    }

    fn report_progress(&mut self, delta: &TokenDelta) {
        if let State::Streaming(source) = &mut self.state
            && !delta.tokens.is_empty()
            && !std::mem::replace(&mut source.gave_tokens, true)
        {
            let placement = source.placed.placement;
            self.shared.with_fleet(|fleet| fleet.prefilled(placement));
            self.report(Outcome::Success);
        }
    }

    fn report(&self, outcome: Outcome) {
        if let State::Streaming(source) = &self.state {
            let Placement { worker, epoch, .. } = source.placed.placement;
            self.shared.handle(fleet::Event::Dispatched(worker, epoch, outcome));
        }
    }

    /// Nobody waits for the answer: the sample's tokens are dropped from now on in any case.
    fn abort_at_worker(&self, sample_index: u32) {
        if let State::Streaming(source) = &self.state {
            let (client, id) = (source.client.clone(), source.attempt_id.clone());
            task::spawn(async move {
                if let Err(error) = client.abort(id, sample_index).await {
                    tracing::debug!(%error, "a sample could not be aborted");
                }
            });
        }
    }
}

/// Watches over a wait on a worker.
struct Watch<'a> {
    shared: &'a Shared,
    placement: Placement,
    deadline: Option<clock::Timestamp>,
}

impl Watch<'_> {
    async fn wait<T>(
        &self,
        mut answer: impl Future<Output = T> + Unpin,
        mut aborts: Option<&mut mpsc::Receiver<u32>>,
    ) -> Waited<T> {
        let silent_since = clock::now();
        loop {
            let aborted = async {
                match &mut aborts {
                    Some(aborts) => aborts.recv().await,
                    None => None,
                }
            };
            tokio::select! {
                biased;
                Some(sample_index) = aborted => return Waited::Abort(sample_index),
                // Before the answer: a stream that always has more must not outrun its deadline.
                () = until(self.deadline) => return Waited::Deadline,
                answer = &mut answer => return Waited::For(answer),
                () = tokio::time::sleep(self.shared.tuning.wedge_after) => {
                    let stuck = |fleet: &mut fleet::Fleet| fleet.is_stuck(clock::now(), self.placement, silent_since);
                    if self.shared.with_fleet(stuck) {
                        return Waited::Stuck;
                    }
                }
            }
        }
    }
}

fn outcome_of(error: &CallError) -> Outcome {
    match error {
        CallError::Fault(_) => Outcome::Fault,
        CallError::Backpressure { .. } => Outcome::Backpressure,
        CallError::Rejected(_) => Outcome::Neutral,
    }
}

/// An id that no other try of any request has, also not one that lives on at a worker after its router gave it up.
fn attempt_id(request_id: &str, router_id: u64, number: u64) -> String {
    let suffix = format!("#{router_id:x}.{number}");
    let mut room = MAX_ID_BYTES - suffix.len();
    while !request_id.is_char_boundary(room.min(request_id.len())) {
        room -= 1;
    }
    format!("{}{suffix}", &request_id[..room.min(request_id.len())])
}
