//! The step loop, and nothing else: commands in, steps through the backend, events out.
//!
//! One std thread owns scheduler and backend, so neither needs a lock. It talks to the rest by a bounded channel
//! of commands ([`EngineHandle`]), one ring of output for each request, which readers follow ([`TokenStream`]), and the
//! log of what routers should know ([`StateLog`]). It never waits for a reader, and when there is nothing to compute it sleeps.
//!
//! Where the backend wants it ([`Backend::steps_in_flight`]), a step is planned and launched before the last one's
//! tokens are read, so that the device never waits for this thread: planning, accounting and streaming happen while
//! it computes. Each step is planned from what is known and foreseen then; see [`crate::scheduler`].

mod audit;
mod handle;
mod log;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use skein_node::clock;
use tokio::sync::mpsc;

pub use audit::Broken;
pub use handle::{EngineHandle, Snapshot, Submission, SubmitError};
pub use log::{LogEntry, StateLog};

use crate::backend::{Backend, BackendError, StepHandle};
use crate::scheduler::{Scheduler, Step};
use crate::streams::{Outbox, StreamFault};
use handle::Command;

/// Commands that wait for the step under way to end.
const COMMAND_QUEUE: usize = 256;

/// Keys in a snapshot: the newest ones.
const MAX_STREAM_KEYS: usize = 4096;

/// Scheduler, backend, and the loop over both.
pub struct Engine {
    scheduler: Scheduler,
    backend: Box<dyn Backend>,
    /// Launched and not collected, oldest first.
    under_way: VecDeque<(Step, StepHandle)>,
    commands: mpsc::Receiver<Command>,
    outbox: Outbox,
    log: Arc<StateLog>,
    last_key: u64,
    steps: u64,
    max_streams: u32,
    hand_back: HandBack,
    stopped: bool,
}

/// Whether what has not ended goes back to the routers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandBack {
    No,
    Asked,
    Done,
}

/// What a turn of the engine did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It computed; there may be more.
    Worked,
    /// There is nothing to compute until a command comes: wait for it.
    Idle,
    /// It was told to stop; every stream has ended.
    Ended,
}

impl Engine {
    /// An engine that waits to be [`run`](Self::run). `max_streams` bounds the streams that readers hold.
    pub fn new(
        scheduler: Scheduler,
        mut backend: Box<dyn Backend>,
        max_streams: u32,
    ) -> (Self, EngineHandle) {
        let (sender, commands) = mpsc::channel(COMMAND_QUEUE);
        // Weak: the channel closes when all handles are gone. A full queue wakes the loop as well.
        let wakes = sender.downgrade();
        backend.on_failure(Box::new(move || {
            wakes.upgrade().inspect(|commands| drop(commands.try_send(Command::Failed)));
        }));
        assert!(backend.verifies() || !scheduler.drafts(), "drafts are for a backend that verifies them");
        let log = Arc::new(StateLog::default());
        let handle = EngineHandle::new(sender, log.clone());
        let outbox = Outbox::default();
        let under_way = VecDeque::new();
        let engine = Self {
            scheduler,
            backend,
            under_way,
            commands,
            outbox,
            log,
            last_key: 0,
            steps: 0,
            max_streams,
            hand_back: HandBack::No,
            stopped: false,
        };
        (engine, handle)
    }

    /// Runs until told to stop, or until the backend fails; then every stream has ended.
    pub fn run(mut self) -> Result<(), BackendError> {
        loop {
            match self.turn()? {
                Turn::Worked => {}
                Turn::Idle => {
                    let command = self.commands.blocking_recv();
                    self.take(command);
                }
                Turn::Ended => return Ok(()),
            }
        }
    }

    /// One round of [`Engine::run`], for who owns time and the thread (a simulator): obeys what has come, then computes
    /// one step if there is anything to compute. Waits for nothing but the backend.
    ///
    /// # Errors
    /// The backend failed; every stream has ended, and so has the engine.
    pub fn turn(&mut self) -> Result<Turn, BackendError> {
        self.take_waiting_commands();
        if self.stopped {
            self.end_all(&StreamFault::Stopped);
            return Ok(Turn::Ended);
        }
        if let Err(error) = self.backend.health() {
            return self.failed(error);
        }
        if self.hand_back == HandBack::Asked
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

    /// After [`Turn::Idle`]: waits for something to do.
    pub async fn wait(&mut self) {
        let command = self.commands.recv().await;
        self.take(command);
    }

    fn failed(&mut self, error: BackendError) -> Result<Turn, BackendError> {
        self.end_all(&StreamFault::Failed { reason: error.to_string() });
        Err(error)
    }

    fn end_all(&mut self, fault: &StreamFault) {
        self.outbox.end_all(fault);
        self.log.set_counts(self.outbox.counts());
    }

    /// Gives back what has not ended, with all that was computed for it: the steps under way are waited for.
    fn hand_back(&mut self) -> Result<(), BackendError> {
        while !self.under_way.is_empty() {
            self.collect_oldest()?;
        }
        for key in self.outbox.hand_back() {
            self.scheduler.cancel(key);
        }
        self.hand_back = HandBack::Done;
        self.publish();
        Ok(())
    }

    /// One turn: the next step to the device, the last one's tokens to their readers, and the oldest step's result to
    /// the scheduler. False when there was nothing to do.
    fn step(&mut self) -> Result<bool, BackendError> {
        let launched = self.launch_next()?; // the device has its next step before it ends the last one
        self.publish(); // meanwhile, stream the tokens known so far
        if launched && self.under_way.len() < self.backend.steps_in_flight() {
            return Ok(true);
        }
        Ok(self.collect_oldest()? || launched)
    }

    /// Plans a step and starts it; false when there is nothing to plan before more is known.
    fn launch_next(&mut self) -> Result<bool, BackendError> {
        let Some(plan) = self.scheduler.plan(clock::now()) else { return Ok(false) };
        let running = self.backend.launch(plan.batch)?;
        self.under_way.push_back((plan.step, running));
        Ok(true)
    }

    /// Waits for the oldest step under way, and accounts for its result; false when there is none.
    fn collect_oldest(&mut self) -> Result<bool, BackendError> {
        let Some((step, running)) = self.under_way.pop_front() else { return Ok(false) };
        let output = self.backend.collect(running)?;
        self.outbox.extend(self.scheduler.commit(step, &output, clock::now()));
        self.steps += 1;
        Ok(true)
    }

    /// As many as the queue holds: a flood of commands must not keep the steps waiting.
    fn take_waiting_commands(&mut self) {
        self.look_after_streams();
        for _ in 0..COMMAND_QUEUE {
            match self.commands.try_recv() {
                Ok(command) => self.take(Some(command)),
                Err(mpsc::error::TryRecvError::Disconnected) => self.take(None),
                Err(mpsc::error::TryRecvError::Empty) => break,
            }
        }
    }

    /// Without senders there is nobody left to read either.
    fn take(&mut self, command: Option<Command>) {
        self.obey(command.unwrap_or(Command::Stop));
    }

    fn obey(&mut self, command: Command) {
        // An answer nobody waits for any more is dropped; a stream in it counts as abandoned.
        match command {
            Command::Submit(submission, reply) => {
                let placement = submission.placement;
                let taken = self.submit(*submission);
                // First the load that includes it, then the word that it came: a router that hears the word
                // stops counting the request on its own account.
                self.publish_load();
                placement.inspect(|&placement| self.log.saw(placement));
                drop(reply.send(taken));
            }
            Command::Attach(attachment, reply) => drop(reply.send(self.attach(*attachment))),
            Command::Release { id, reply } => drop(reply.send(self.release(&id))),
            Command::Abort { id, sample, reply } => drop(reply.send(self.abort(&id, sample))),
            Command::Snapshot(reply) => drop(reply.send(self.snapshot())),
            Command::HandBack if self.hand_back == HandBack::No => self.hand_back = HandBack::Asked,
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
            stream_keys: self.outbox.stream_keys(MAX_STREAM_KEYS),
        }
    }

    /// Frees what nobody reads any more, and forgets what nobody came for.
    fn look_after_streams(&mut self) {
        for key in self.outbox.look_after(clock::now()) {
            self.scheduler.cancel(key);
        }
    }

    /// Hands on what happened: tokens to their readers, cache changes and load to the routers.
    fn publish(&mut self) {
        self.outbox.flush();
        for change in self.scheduler.take_cache_changes() {
            self.log.append(LogEntry::Cache(change));
        }
        self.publish_load();
    }

    fn publish_load(&self) {
        self.log.set_counts(self.outbox.counts());
        self.log.set_load(self.scheduler.load(), self.steps);
    }
}
