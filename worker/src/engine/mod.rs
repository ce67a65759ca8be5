//! The step loop, and nothing else: commands in, steps through the backend, events out.
//!
//! One std thread owns scheduler and backend, so neither needs a lock. It talks to the rest by a bounded channel
//! of commands, one mailbox for each request ([`TokenStream`]), and the log of what routers should know
//! ([`StateLog`]). It never waits for a reader, and when there is nothing to compute it sleeps.
//!
//! Where the backend wants it ([`Backend::steps_in_flight`]), a step is planned and launched before the last one's
//! tokens are read, so that the device never waits for this thread: planning, accounting and streaming happen while
//! it computes. Each step is planned from what is known and foreseen then; see [`crate::scheduler`].

mod log;
mod outbox;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use skein_node::clock;
use tokio::sync::{mpsc, oneshot};

pub use log::{Admitted, Load, LogEntry, Placement, StateLog};
pub use outbox::{Delta, StreamFault, TokenStream};

use crate::backend::{Backend, BackendError, StepHandle};
use crate::kv_cache::RunStored;
use crate::scheduler::{NewRequest, Refusal, RequestKey, Scheduler, Step};
use outbox::Outbox;

/// Commands that wait for the step under way to end.
const COMMAND_QUEUE: usize = 256;

/// A checked request on its way into the engine.
#[derive(Debug)]
pub struct Submission {
    /// The client's name for it; unique among running requests.
    pub id: String,
    /// The request; the engine draws its key.
    pub request: NewRequest,
    /// Which dispatch of which router it is.
    pub placement: Option<Placement>,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// That id runs already.
    #[error("request_id {id:?} is running here; use another id or wait for its end")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// The scheduler's reason.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Clients do not read their streams.
    #[error("{open} streams are open, finished ones not read to their end included; the limit is {limit}")]
    TooManyStreams {
        /// Streams held by readers.
        open: u32,
        /// `max_num_queued_reqs + max_num_seqs`.
        limit: u32,
    },
    /// The engine has ended.
    #[error("the engine has stopped; another worker can take the request")]
    Stopped,
}

/// Everything cached, as of a point in the log.
#[derive(Debug)]
pub struct Snapshot {
    /// The number of the last log entry it includes.
    pub sequence: u64,
    /// Parents before their children.
    pub runs: Vec<RunStored>,
}

enum Command {
    Submit(Box<Submission>, oneshot::Sender<Result<TokenStream, SubmitError>>),
    Abort {
        id: String,
        sample: u32,
        reply: oneshot::Sender<bool>,
    },
    Snapshot(oneshot::Sender<Snapshot>),
    /// The backend has failed: only wakes the loop, which asks it.
    Failed,
    Stop,
}

/// Talks to a running engine; cheap to clone.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    log: Arc<StateLog>,
}

impl EngineHandle {
    /// Hands a request over; the stream's end, or dropping it, ends the request.
    pub async fn submit(&self, submission: Submission) -> Result<TokenStream, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit(Box::new(submission), reply);
        self.commands.send(command).await.map_err(|_| SubmitError::Stopped)?;
        answer.await.unwrap_or(Err(SubmitError::Stopped))
    }

    /// Ends one sample; false when it is not running (any more).
    pub async fn abort(&self, id: String, sample: u32) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Abort { id, sample, reply }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// What is cached; `None` when the engine has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Snapshot(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Ends the engine without waiting for the steps under way; running requests end with [`StreamFault::Stopped`].
    pub async fn stop(&self) {
        // An error means that it has ended, which is what was asked.
        let _ = self.commands.send(Command::Stop).await;
    }

    /// Waits for the engine's end.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// What routers should know.
    pub fn log(&self) -> &Arc<StateLog> {
        &self.log
    }
}

/// Scheduler, backend, and the loop over both.
pub struct Engine {
    scheduler: Scheduler,
    backend: Box<dyn Backend>,
    /// Launched and not collected, oldest first.
    under_way: VecDeque<(Step, StepHandle)>,
    commands: mpsc::Receiver<Command>,
    outbox: Outbox,
    log: Arc<StateLog>,
    /// Running requests by the client's name.
    ids: HashMap<String, RequestKey>,
    last_key: u64,
    steps: u64,
    max_streams: u32,
    stopped: bool,
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
        let log = Arc::new(StateLog::default());
        let handle = EngineHandle { commands: sender, log: log.clone() };
        let ids = HashMap::new();
        let outbox = Outbox::default();
        let under_way = VecDeque::new();
        let engine = Self {
            scheduler,
            backend,
            under_way,
            commands,
            outbox,
            log,
            ids,
            last_key: 0,
            steps: 0,
            max_streams,
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
            self.outbox.end_all(&StreamFault::Stopped);
            return Ok(Turn::Ended);
        }
        if let Err(error) = self.backend.health() {
            return self.failed(error);
        }
        if self.scheduler.is_idle() && self.under_way.is_empty() {
            self.publish();
            return Ok(Turn::Idle);
        }
        match self.step() {
            Ok(()) => Ok(Turn::Worked),
            Err(error) => self.failed(error),
        }
    }

    /// After [`Turn::Idle`]: waits for something to do.
    pub async fn wait(&mut self) {
        let command = self.commands.recv().await;
        self.take(command);
    }

    fn failed(&mut self, error: BackendError) -> Result<Turn, BackendError> {
        self.outbox.end_all(&StreamFault::Failed { reason: error.to_string() });
        Err(error)
    }

    /// One turn: the next step to the device, the last one's tokens to their readers, and the oldest step's result to
    /// the scheduler.
    fn step(&mut self) -> Result<(), BackendError> {
        let launched = self.launch_next()?; // the device has its next step before it ends the last one
        self.publish(); // meanwhile, stream the tokens known so far
        if launched && self.under_way.len() < self.backend.steps_in_flight() {
            return Ok(());
        }
        self.collect_oldest()
    }

    /// Plans a step and starts it; false when there is nothing to plan before more is known.
    fn launch_next(&mut self) -> Result<bool, BackendError> {
        let Some(plan) = self.scheduler.plan(clock::now()) else { return Ok(false) };
        let running = self.backend.launch(plan.batch)?;
        self.under_way.push_back((plan.step, running));
        Ok(true)
    }

    /// Waits for the oldest step under way, if there is one, and accounts for its result.
    fn collect_oldest(&mut self) -> Result<(), BackendError> {
        let Some((step, running)) = self.under_way.pop_front() else { return Ok(()) };
        let output = self.backend.collect(running)?;
        self.outbox.extend(self.scheduler.commit(step, &output, clock::now()));
        self.steps += 1;
        Ok(())
    }

    /// As many as the queue holds: a flood of commands must not keep the steps waiting.
    fn take_waiting_commands(&mut self) {
        self.cancel_abandoned();
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
            Command::Abort { id, sample, reply } => drop(reply.send(self.abort(&id, sample))),
            Command::Snapshot(reply) => drop(reply.send(self.snapshot())),
            Command::Failed => {}
            Command::Stop => self.stopped = true,
        }
    }

    fn submit(&mut self, submission: Submission) -> Result<TokenStream, SubmitError> {
        let Submission { id, mut request, placement } = submission;
        self.cancel_abandoned();
        self.outbox.flush();
        self.ids.retain(|_, key| self.outbox.is_open(*key));
        if self.ids.contains_key(&id) {
            return Err(SubmitError::Duplicate { id });
        }
        let open = self.outbox.readers();
        if open >= self.max_streams {
            return Err(SubmitError::TooManyStreams { open, limit: self.max_streams });
        }
        self.last_key += 1;
        request.key = RequestKey(self.last_key);
        let stream = TokenStream::open(&request);
        let key = request.key;
        let accepted = self.scheduler.submit(request)?;
        let stream = self.outbox.open(key, stream);
        self.ids.insert(id, key);
        self.outbox.extend(accepted.events);
        if let Some(placement) = placement {
            let (depth, hashes) = (accepted.cached_blocks, accepted.uncached_hashes);
            self.log.append(LogEntry::Admitted(Admitted { placement, depth, hashes }));
        }
        Ok(stream)
    }

    fn abort(&mut self, id: &str, sample: u32) -> bool {
        let event = self.ids.get(id).and_then(|&key| self.scheduler.abort(key, sample));
        let found = event.is_some();
        self.outbox.extend(event);
        self.outbox.flush();
        found
    }

    fn snapshot(&mut self) -> Snapshot {
        self.publish();
        Snapshot { sequence: self.log.last_sequence(), runs: self.scheduler.cache_snapshot() }
    }

    /// Frees what nobody reads any more.
    fn cancel_abandoned(&mut self) {
        for key in self.outbox.take_abandoned() {
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
        self.log.set_load(Load { scheduler: self.scheduler.load(), step: self.steps });
    }
}
