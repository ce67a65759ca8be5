//! The step loop, and nothing else: commands in, steps through the backend, events out.
//!
//! One std thread owns scheduler and backend, so neither needs a lock. The rest of the worker reaches it
//! through a bounded channel of commands ([`EngineHandle`]), a ring of output for each request
//! ([`TokenStream`](crate::streams::TokenStream)), and the log for routers ([`StateLog`]). The thread never
//! waits for a reader, and sleeps when there is nothing to compute.
//!
//! With [`Backend::steps_in_flight`] above 1, a step is planned and launched before the previous one's tokens
//! are read. Planning, accounting and streaming then happen while the device computes, and the device never
//! waits for this thread; see [`crate::scheduler`].

mod audit;
mod constraints;
mod handle;
mod log;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use skein_grammar::Stuck;
use skein_node::clock;
use skein_proto::finish::FinishReason;
use tokio::sync::mpsc;

pub use audit::Violation;
pub use constraints::Constraint;
pub use handle::{EngineHandle, Snapshot, Submission, SubmitError};
pub use log::{LogEntry, StateLog};

use crate::backend::{Backend, BackendError, StepHandle};
use crate::draft_model::DraftModel;
use crate::metrics::Observer;
use crate::scheduler::{RequestEvent, RequestKey, Scheduler, Step};
use crate::streams::{Outbox, StreamFault};
use constraints::{Constraints, Followed};
use handle::Command;

/// Commands that can wait for the current turn to end.
const COMMAND_QUEUE: usize = 256;

/// Most stream keys in a snapshot; the newest are kept.
const MAX_STREAM_KEYS: usize = 4096;

/// Scheduler, backend, and the loop over both.
pub struct Engine {
    scheduler: Scheduler,
    backend: Box<dyn Backend>,
    draft_model: Option<DraftModel>,
    /// Launched and not collected, oldest first.
    in_flight: VecDeque<(Step, StepHandle)>,
    commands: mpsc::Receiver<Command>,
    outbox: Outbox,
    constraints: Constraints,
    log: Arc<StateLog>,
    last_key: u64,
    steps: u64,
    max_streams: u32,
    hand_back: HandBack,
    stopped: bool,
    observer: Option<Observer>,
}

/// Whether running requests are handed back to their routers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandBack {
    No,
    Requested,
    Done,
}

/// Outcome of a turn of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It launched or collected a step; there may be more to do.
    Worked,
    /// There is nothing to compute until a command arrives: wait for one.
    Idle,
    /// A stop was requested, and every stream has ended.
    Ended,
}

impl Engine {
    /// A new engine and its handle; it works once [`run`](Self::run) is called. `max_streams` limits the
    /// streams that readers hold.
    pub fn new(
        scheduler: Scheduler,
        mut backend: Box<dyn Backend>,
        max_streams: u32,
    ) -> (Self, EngineHandle) {
        let (sender, commands) = mpsc::channel(COMMAND_QUEUE);
        // Weak, so that the channel closes when all handles are gone. If the queue is full the loop
        // is awake anyway.
        let wakes = sender.downgrade();
        backend.on_failure(Box::new(move || {
            wakes.upgrade().inspect(|commands| drop(commands.try_send(Command::Failed)));
        }));
        assert!(backend.verifies() || !scheduler.drafts(), "drafts are for a backend that verifies them");
        let log = Arc::new(StateLog::default());
        let handle = EngineHandle::new(sender, log.clone());
        let outbox = Outbox::default();
        let in_flight = VecDeque::new();
        let engine = Self {
            scheduler,
            backend,
            draft_model: None,
            in_flight,
            commands,
            outbox,
            constraints: Constraints::default(),
            log,
            last_key: 0,
            steps: 0,
            max_streams,
            hand_back: HandBack::No,
            stopped: false,
            observer: None,
        };
        (engine, handle)
    }

    /// Sets the observer of all further events.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// Adds a draft model, which the scheduler's guesser expects.
    pub fn draft_with(&mut self, mut model: DraftModel) {
        assert!(self.backend.steps_in_flight() == 1, "a draft follows a known token");
        for (rows, took) in model.take_times() {
            self.scheduler.model_took(rows, took);
        }
        self.draft_model = Some(model);
    }

    /// Runs until a stop or a backend failure; every stream has ended by then.
    pub fn run(mut self) -> Result<(), BackendError> {
        loop {
            match self.turn()? {
                Turn::Worked => {}
                Turn::Idle => {
                    let command = self.commands.blocking_recv();
                    self.handle(command);
                }
                Turn::Ended => return Ok(()),
            }
        }
    }

    /// One round of [`Engine::run`], for a caller that owns time and the thread, such as a simulator: handles
    /// pending commands, then runs one step if there is anything to compute. Waits only for the backend.
    ///
    /// # Errors
    /// The backend failed; the engine and every stream have ended.
    pub fn turn(&mut self) -> Result<Turn, BackendError> {
        self.take_waiting_commands();
        if self.stopped {
            self.end_all(&StreamFault::Stopped);
            return Ok(Turn::Ended);
        }
        if let Err(error) = self.backend.health() {
            return self.failed(error);
        }
        if self.hand_back == HandBack::Requested
            && let Err(error) = self.hand_back()
        {
            return self.failed(error);
        }
        match self.step() {
            Ok(true) => Ok(Turn::Worked),
            Ok(false) => Ok(Turn::Idle),
            Err(error) => self.failed(error),
        }
    }

    /// After [`Turn::Idle`]: waits for a command and handles it.
    pub async fn wait(&mut self) {
        let command = self.commands.recv().await;
        self.handle(command);
    }

    fn failed(&mut self, error: BackendError) -> Result<Turn, BackendError> {
        self.end_all(&StreamFault::Failed { reason: error.to_string() });
        Err(error)
    }

    fn end_all(&mut self, fault: &StreamFault) {
        self.outbox.end_all(fault);
        self.log.set_counts(self.outbox.counts());
    }

    /// Hands back every request that has not ended, after the output of the steps in flight.
    fn hand_back(&mut self) -> Result<(), BackendError> {
        while !self.in_flight.is_empty() {
            self.collect_oldest()?;
        }
        for key in self.outbox.hand_back() {
            self.cancel(key);
        }
        self.hand_back = HandBack::Done;
        self.publish();
        Ok(())
    }

    /// Launches the next step, publishes the tokens known so far, and collects the oldest step. False if
    /// there was nothing to do.
    fn step(&mut self) -> Result<bool, BackendError> {
        let launched = self.launch_next()?; // before the device finishes the previous step
        self.publish(); // meanwhile, stream the tokens known so far
        if launched && self.in_flight.len() < self.backend.steps_in_flight() {
            return Ok(true);
        }
        Ok(self.collect_oldest()? || launched)
    }

    /// Plans and launches a step; false if none can be planned now.
    fn launch_next(&mut self) -> Result<bool, BackendError> {
        self.constraints.offer_forced(&mut self.scheduler);
        self.draft();
        let Some(plan) = self.scheduler.plan(clock::now()) else { return Ok(false) };
        self.constraints.ask_for_drafts(&plan.batch);
        let running = self.backend.launch(plan.batch)?;
        self.in_flight.push_back((plan.step, running));
        Ok(true)
    }

    /// Runs the draft model for the next step.
    fn draft(&mut self) {
        let Some(model) = &mut self.draft_model else { return };
        if !model.is_idle() {
            model.keep(|request, sample| self.scheduler.model_text(request, sample).is_some());
        }
        let drafts = self.scheduler.model_drafts(|request, sample, text| model.behind(request, sample, text));
        if drafts.is_empty() {
            return;
        }
        // Readers do not wait for drafts.
        self.outbox.flush();
        match model.draft(&drafts, |draft| self.scheduler.model_text(draft.request, draft.sample)) {
            Ok(drafted) => {
                for (rows, took) in model.take_times() {
                    self.scheduler.model_took(rows, took);
                }
                for (draft, tokens) in drafts.into_iter().zip(drafted) {
                    self.scheduler.set_modelled(draft.request, draft.sample, tokens);
                }
            }
            Err(error) => {
                // Answers do not depend on it.
                tracing::error!(%error, "the draft model failed; tokens are generated without it");
                self.draft_model = None;
            }
        }
    }

    /// Waits for the oldest step in flight and commits its result; false if there is none.
    fn collect_oldest(&mut self) -> Result<bool, BackendError> {
        let Some((step, running)) = self.in_flight.pop_front() else { return Ok(false) };
        let output = self.backend.collect(running)?;
        let (rows, planned, now) = (step.rows(), step.started(), clock::now());
        let mut events = self.scheduler.commit(step, &output, now);
        let notes = self.scheduler.take_notes();
        let failed = self.follow_grammars(&mut events);
        if let Some(observer) = &mut self.observer {
            observer.step(rows, planned, now);
            observer.notes(&notes);
            observer.events(&events, planned, now);
        }
        self.outbox.extend(events);
        self.fail(failed);
        self.steps += 1;
        Ok(true)
    }

    /// Advances grammars by the tokens in `events`, ends samples whose answers are complete, and appends
    /// their last events. Returns the requests whose matchers cannot continue.
    fn follow_grammars(&mut self, events: &mut Vec<RequestEvent>) -> Vec<(RequestKey, Stuck)> {
        if self.constraints.is_empty() {
            return Vec::new();
        }
        let mut followed = self.constraints.follow(events, &mut self.scheduler);
        followed.extend(self.constraints.closed());
        self.end_followed(followed, events)
    }

    fn end_followed(
        &mut self,
        followed: Vec<Followed>,
        events: &mut Vec<RequestEvent>,
    ) -> Vec<(RequestKey, Stuck)> {
        let mut failed = Vec::new();
        let mut ends = Vec::new();
        for followed in followed {
            match followed {
                Followed::Done(key, sample) => {
                    ends.extend(self.scheduler.end(key, sample, FinishReason::Stop(None)));
                }
                Followed::Failed(key, stuck) => failed.push((key, stuck)),
            }
        }
        // These samples have ended; following them only drops their state.
        self.constraints.follow(&mut ends, &mut self.scheduler);
        events.extend(ends);
        failed
    }

    /// Ends requests whose matchers cannot continue, after their output.
    fn fail(&mut self, failed: Vec<(RequestKey, Stuck)>) {
        for (key, stuck) in failed {
            if self.outbox.fail(key, &StreamFault::Unfollowable { reason: stuck.to_string() }) {
                self.cancel(key);
            }
        }
    }

    /// Handles at most one queue's worth, so that a flood of commands cannot hold up the steps.
    fn take_waiting_commands(&mut self) {
        self.sweep_streams();
        for _ in 0..COMMAND_QUEUE {
            match self.commands.try_recv() {
                Ok(command) => self.handle(Some(command)),
                Err(mpsc::error::TryRecvError::Disconnected) => self.handle(None),
                Err(mpsc::error::TryRecvError::Empty) => break,
            }
        }
    }

    /// Handles a command. `None` means that no handle is left and so no reader, so the engine stops.
    fn handle(&mut self, command: Option<Command>) {
        self.handle_command(command.unwrap_or(Command::Stop));
    }

    fn handle_command(&mut self, command: Command) {
        // Replies that nobody waits for are dropped; a stream in one counts as abandoned.
        match command {
            Command::Submit(submission, reply) => {
                let placement = submission.placement;
                let taken = self.submit(*submission);
                // The load that includes the request goes out before the notice of its placement: a router
                // that sees the notice stops counting the request itself.
                self.publish_load();
                placement.inspect(|&placement| self.log.saw(placement));
                drop(reply.send(taken));
            }
            Command::Attach(attachment, reply) => drop(reply.send(self.attach(*attachment))),
            Command::Release { id, reply } => drop(reply.send(self.release(&id))),
            Command::Abort { id, sample, reply } => drop(reply.send(self.abort(&id, sample))),
            Command::Snapshot(reply) => drop(reply.send(self.snapshot())),
            Command::HandBack if self.hand_back == HandBack::No => self.hand_back = HandBack::Requested,
            Command::HandBack => {}
            Command::Failed => {}
            Command::Stop => self.stopped = true,
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        self.publish();
        Snapshot {
            sequence: self.log.last_sequence(),
            runs: self.scheduler.cache_snapshot(),
            gaps: self.scheduler.cache_gaps(),
            stream_keys: self.outbox.stream_keys(MAX_STREAM_KEYS),
        }
    }

    /// Cancels requests without readers, and drops expired streams.
    fn sweep_streams(&mut self) {
        for key in self.outbox.sweep(clock::now()) {
            self.cancel(key);
        }
    }

    fn cancel(&mut self, key: RequestKey) {
        self.scheduler.cancel(key);
        self.constraints.remove(key);
        if let Some(observer) = &mut self.observer {
            observer.gone(key, clock::now());
        }
    }

    /// Publishes tokens to readers, and cache changes and load to routers.
    fn publish(&mut self) {
        self.outbox.flush();
        for change in self.scheduler.take_cache_changes() {
            self.log.append(LogEntry::Cache(change));
        }
        self.publish_load();
    }

    fn publish_load(&self) {
        let (counts, load) = (self.outbox.counts(), self.scheduler.load());
        self.log.set_counts(counts);
        self.log.set_load(load, self.steps);
        if let Some(observer) = &self.observer {
            observer.state(load, self.scheduler.state_counts(), counts, self.scheduler.preemptions());
        }
    }
}
