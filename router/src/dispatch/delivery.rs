//! How much of a request its client has received, and the reaction to every fault. Pure.
//!
//! A token is a function of the tokens before it, so any worker can continue a request from the delivered
//! tokens. Exactly-once delivery then needs three rules: drop what lies below the delivered position, treat a
//! gap as a fault, and on every fault reopen the unfinished samples with their delivered tokens.
//!
//! All that a client gets is from one version of the model: the one that its first part is from.

use std::time::Duration;

use skein_choice::worker_id::{WorkerEpoch, WorkerId};
use skein_node::clock::Timestamp;
use skein_proto::TokenId;
use skein_proto::delta::{Delta, WorkerDelta};
use skein_proto::finish::FinishReason;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::version::Version;
use smallvec::{SmallVec, smallvec};

use crate::links::worker_client::CallError;
use crate::refusal::Refusal;
use crate::request::{Resume, TokenDelta, TokenRequest};

/// Most moves of one request in all. The configured limit counts consecutive moves without progress, so that
/// a long answer survives any number of restarts; this one stops a request that itself crashes worker after
/// worker, a token at a time.
pub const MAX_MOVES: u32 = 64;
/// Pause before the second consecutive move; doubles with each further one. The first move is immediate.
const MOVE_PAUSE: Duration = Duration::from_millis(100);
/// Pause before an accepted request retries full workers that gave no `retry_after`.
const FULL_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Retry delay for a refused client if no worker has estimated when it will have room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Something that happened to a request.
#[derive(Debug)]
pub enum RequestEvent {
    /// A worker accepted the request.
    Opened(WorkerEpoch),
    /// A worker continues a stream of the request that it already had.
    Attached(WorkerEpoch),
    /// A worker did not accept the request.
    NotOpened(WorkerId, CallError),
    /// No worker accepts requests, apart from the excluded ones.
    NobodyReady,
    /// Workers accept requests, but none of the version that the request began on.
    NoneOfVersion,
    /// All workers that accept requests are full, or others already wait for them.
    AllFull,
    /// The worker sent a delta.
    Delta(WorkerDelta),
    /// The worker's stream ended, possibly with an error.
    Ended(Option<CallError>),
    /// The worker drains, and the driver has closed the stream.
    HandedBack,
    /// The router needs no more of a sample.
    Abort(u32),
    /// The client's deadline has passed.
    Deadline,
}

/// What the driver must do next, in order. Most events need one or two.
pub type Actions = SmallVec<[Action; 2]>;

/// One thing that the driver must do.
#[derive(Debug)]
pub enum Action {
    /// Close the open stream, wait, and open [`Delivery::remaining`] on another worker.
    Open(Wait),
    /// Send this to the client.
    Emit(TokenDelta),
    /// Tell the worker to abort a sample.
    AbortSample(u32),
    /// End the request with this refusal.
    Fail(Refusal),
    /// End the request: every sample has ended.
    Done,
}

/// What to wait for before opening a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Open at once.
    No,
    /// Wait for this long.
    For(Duration),
    /// Wait until the fleet changes; the driver looks again after `RETRY_INTERVAL` at the latest.
    FleetChange,
    /// Wait for a free seat at any worker.
    Seat,
}

/// State of one request's delivery.
#[derive(Debug)]
pub struct Delivery {
    prompt_len: u32,
    max_tokens: u32,
    wants_logprobs: bool,
    /// Whether its answer is a vector.
    is_pooled: bool,
    timeout: Duration,
    migration_limit: u32,
    queue_timeout: Duration,
    samples: Vec<Sample>,
    /// Version of the model that everything delivered is from; unknown before the first part.
    version: Version,
    cached_tokens_sent: bool,
    /// Next prompt position whose log-probabilities are owed; `None` = none requested.
    next_prompt_position: Option<u32>,
    source: Option<OpenedStream>,
    /// The worker whose stream broke, until another stream is opened: it may still have the stream.
    broken: Option<WorkerEpoch>,
    /// The last attached stream broke without progress, so generate instead.
    attach_failed: bool,
    /// Whether anything new has arrived since the last move.
    progressed: bool,
    /// A worker accepted the request once, or failed while trying, so the client has been promised an answer.
    accepted: bool,
    /// Whether it waits for a worker before it is accepted.
    waits_for_worker: bool,
    moves: u32,
    moves_in_a_row: u32,
    /// Workers that reported being full since one last accepted the request.
    full: Vec<WorkerId>,
    retry_after: Option<Duration>,
    waiting_since: Option<Timestamp>,
    last_fault: String,
    over: bool,
}

#[derive(Debug, Default)]
struct Sample {
    delivered: Vec<TokenId>,
    ended: bool,
}

#[derive(Debug, Clone, Copy)]
struct OpenedStream {
    at: WorkerEpoch,
    attached: bool,
}

/// Bounds on the effort for one request.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most consecutive moves without progress.
    pub migration_limit: u32,
    /// How long a request waits for a worker.
    pub queue_timeout: Duration,
}

impl Delivery {
    /// A request of which nothing has been delivered yet, or as much as its
    /// [`Resume`](crate::request::Resume) says. The deadline counts from `now`.
    pub fn new(request: &TokenRequest, limits: Limits, now: Timestamp) -> Self {
        let prompt_len = request.prompt.len() as u32;
        let resume = request.resume.as_deref();
        let first_owed =
            if resume.is_some_and(|resume| resume.prompt_logprobs_done) { prompt_len } else { 1 };
        let samples = match resume {
            None => (0..request.n).map(|_| Sample::default()).collect(),
            Some(resume) => resumed_samples(request.n, resume),
        };
        Self {
            prompt_len,
            max_tokens: request.sampling.max_tokens,
            wants_logprobs: request.sampling.logprobs.is_some(),
            is_pooled: request.sampling.pooling.is_some(),
            timeout: request.deadline.map_or(Duration::ZERO, |deadline| deadline.since(now)),
            migration_limit: limits.migration_limit,
            queue_timeout: limits.queue_timeout,
            over: samples.iter().all(|sample| sample.ended),
            samples,
            version: request.version,
            cached_tokens_sent: false,
            next_prompt_position: request.sampling.prompt_logprobs.map(|_| first_owed),
            source: None,
            broken: None,
            attach_failed: false,
            progressed: false,
            // A resumed client was promised an answer before.
            accepted: resume.is_some(),
            waits_for_worker: request.waits_for_worker,
            moves: 0,
            moves_in_a_row: 0,
            full: Vec::new(),
            retry_after: None,
            waiting_since: None,
            last_fault: String::new(),
        }
    }

    /// Updates the state with `event`; returns what to do, in order.
    pub fn handle(&mut self, now: Timestamp, event: RequestEvent) -> Actions {
        if self.over {
            return Actions::new();
        }
        match event {
            RequestEvent::Opened(at) => self.opened(OpenedStream { at, attached: false }),
            RequestEvent::Attached(at) => self.opened(OpenedStream { at, attached: true }),
            RequestEvent::NotOpened(worker, error) => self.failed(now, Some(worker), error),
            RequestEvent::NobodyReady => self.nobody_ready(now),
            RequestEvent::NoneOfVersion => self.none_of_version(now),
            RequestEvent::AllFull => self.all_full(now),
            RequestEvent::Delta(delta) => self.delta(delta),
            RequestEvent::Ended(error) => {
                let unfinished = CallError::fault("the stream ended early");
                self.failed(now, None, error.unwrap_or(unfinished))
            }
            RequestEvent::HandedBack => self.handed_back(),
            RequestEvent::Abort(sample_index) => self.abort(sample_index),
            RequestEvent::Deadline => self.fail(Refusal::DeadlineExceeded { timeout: self.timeout }),
        }
    }

    /// The unfinished samples, each with the tokens that its client has.
    pub fn remaining(&self) -> impl Iterator<Item = (u32, &[TokenId])> {
        let samples = self.samples.iter().enumerate().filter(|(_, sample)| !sample.ended);
        samples.map(|(index, sample)| (index as u32, sample.delivered.as_slice()))
    }

    /// Whether prompt log-probabilities are still owed. Once delivered, a resume does not request them, so
    /// that the worker can use its prefix cache.
    pub fn owes_prompt_logprobs(&self) -> bool {
        self.next_prompt_position.is_some_and(|next| next < self.prompt_len)
    }

    /// Workers to exclude from the next choice.
    pub fn full_workers(&self) -> &[WorkerId] {
        &self.full
    }

    /// Output tokens that the client has, of all samples.
    pub fn output_tokens(&self) -> u64 {
        self.samples.iter().map(|sample| sample.delivered.len() as u64).sum()
    }

    /// Number of moves so far, including those back to the same worker.
    pub fn moves(&self) -> u32 {
        self.moves
    }

    /// The worker whose stream just broke. Perhaps only the connection did.
    pub fn broken(&self) -> Option<WorkerEpoch> {
        self.broken
    }

    /// Whether to attach to a running stream before generating the rest.
    pub fn may_attach(&self) -> bool {
        !self.attach_failed
    }

    /// Where an attached stream must start: for each unfinished sample, the absolute position of its next
    /// token.
    pub fn positions(&self) -> impl Iterator<Item = (u32, u32)> {
        self.remaining().map(|(index, tokens)| (index, self.prompt_len + tokens.len() as u32))
    }

    /// First prompt position whose log-probabilities are needed; 0 = none requested.
    pub fn next_prompt_position(&self) -> u32 {
        self.next_prompt_position.unwrap_or(0)
    }

    /// Whether the client has received tokens, or the end of a sample.
    pub fn has_delivered(&self) -> bool {
        self.samples.iter().any(|sample| !sample.delivered.is_empty() || sample.ended)
    }

    /// Version of the model that must continue; unknown = any.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the request has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }

    fn opened(&mut self, source: OpenedStream) -> Actions {
        self.source = Some(source);
        self.broken = None;
        self.attach_failed = false;
        self.progressed = false;
        self.accepted = true;
        self.full.clear();
        Actions::new()
    }

    fn delta(&mut self, sent: WorkerDelta) -> Actions {
        let hand_back = sent.delta.hand_back;
        let mut actions = match self.take(sent) {
            Ok(news) => self.emit(news),
            Err(fault) => return self.fault(fault),
        };
        if hand_back && !self.over {
            actions.extend(self.handed_back());
        }
        actions
    }

    /// The worker drains and hands the rest back. Nothing failed, so only `MAX_MOVES` applies.
    fn handed_back(&mut self) -> Actions {
        self.source = None;
        self.full.clear();
        self.last_fault = "its workers drained".into();
        if self.moves >= MAX_MOVES {
            return self.lost();
        }
        self.moves += 1;
        smallvec![Action::Open(Wait::No)]
    }

    /// Trims a delta to its new part, or reports a fault, which changes nothing.
    fn take(&mut self, WorkerDelta { epoch, version, mut delta }: WorkerDelta) -> Result<TokenDelta, String> {
        if self.source.is_none_or(|source| source.at.epoch != epoch) {
            return Err("tokens from another epoch of the worker".into());
        }
        if !self.version.fits(version) {
            return Err(format!("output of version {version} of the model in an answer of {}", self.version));
        }
        let prompt_logprobs = self.new_prompt_logprobs(&delta)?.to_vec();
        let next_prompt_position = self.next_prompt_position.map(|next| next + prompt_logprobs.len() as u32);
        if next_prompt_position.is_some_and(|next| next < self.prompt_len)
            && (!delta.tokens.is_empty() || delta.finish.is_some())
        {
            return Err("output before the prompt's last log-probabilities".into());
        }
        let cached_tokens = delta.cached_tokens.filter(|_| !self.cached_tokens_sent);
        let pooled = self.new_vector(&mut delta)?;
        let stop_logprobs = delta.stop_logprobs.take().filter(|_| self.wants_logprobs);
        let Some(sample) = self.samples.get_mut(delta.sample_index as usize) else {
            return Err(format!("tokens of sample {}, which does not exist", delta.sample_index));
        };
        let sample_index = delta.sample_index;
        let have = self.prompt_len + sample.delivered.len() as u32;
        let (tokens, logprobs, finish) = if sample.ended {
            Default::default()
        } else {
            let left = (self.max_tokens as usize).saturating_sub(sample.delivered.len());
            new_tokens(delta, have, left, self.wants_logprobs)?
        };
        sample.delivered.extend_from_slice(&tokens);
        sample.ended |= finish.is_some();
        self.cached_tokens_sent |= cached_tokens.is_some();
        self.next_prompt_position = next_prompt_position;
        if !tokens.is_empty() || finish.is_some() || !prompt_logprobs.is_empty() {
            self.version = self.version.or(version);
        }
        Ok(TokenDelta {
            sample_index,
            from_position: have,
            tokens,
            logprobs,
            finish,
            cached_tokens,
            prompt_logprobs,
            pooled,
            stop_logprobs: stop_logprobs.filter(|_| matches!(finish, Some(FinishReason::Stop(_)))),
        })
    }

    /// The vector with which a pooled request ends; empty for others.
    fn new_vector(&self, delta: &mut Delta) -> Result<Vec<f32>, String> {
        let vector = std::mem::take(&mut delta.pooled);
        match (self.is_pooled, delta.finish.is_some()) {
            (true, true) if vector.is_empty() => Err("an end without its vector".into()),
            (true, true) if vector.iter().any(|value| !value.is_finite()) => {
                Err("a vector with a value that is no finite number".into())
            }
            (true, true) => Ok(vector),
            _ => Ok(Vec::new()),
        }
    }

    fn new_prompt_logprobs<'a>(&self, delta: &'a Delta) -> Result<&'a [TokenLogprobs], String> {
        let entries = delta.prompt_logprobs.as_slice();
        let Some(next) = self.next_prompt_position.filter(|_| !entries.is_empty()) else { return Ok(&[]) };
        let from = delta.from_prompt_position;
        if from > next {
            return Err(format!("a gap in the prompt's log-probabilities: position {from} after {next}"));
        }
        if u64::from(from) + entries.len() as u64 > u64::from(self.prompt_len) {
            return Err(format!("log-probabilities beyond the prompt's {} positions", self.prompt_len));
        }
        Ok(entries.get((next - from) as usize..).unwrap_or_default())
    }

    fn emit(&mut self, news: TokenDelta) -> Actions {
        let moved_on = !news.tokens.is_empty() || news.finish.is_some() || !news.prompt_logprobs.is_empty();
        if moved_on {
            self.progressed = true;
            self.moves_in_a_row = 0;
            self.waiting_since = None;
        }
        let mut actions = Actions::new();
        if moved_on || news.cached_tokens.is_some() {
            actions.push(Action::Emit(news));
        }
        self.done_if_all_ended(&mut actions);
        actions
    }

    fn abort(&mut self, sample_index: u32) -> Actions {
        let Some(sample) = self.samples.get_mut(sample_index as usize) else { return Actions::new() };
        let mut actions = Actions::new();
        if !std::mem::replace(&mut sample.ended, true) {
            self.done_if_all_ended(&mut actions);
            // The end of the last sample closes the stream, which also tells the worker.
            if !self.over && self.source.is_some() {
                actions.push(Action::AbortSample(sample_index));
            }
        }
        actions
    }

    fn done_if_all_ended(&mut self, actions: &mut Actions) {
        if self.samples.iter().all(|sample| sample.ended) {
            self.over = true;
            actions.push(Action::Done);
        }
    }

    fn failed(&mut self, now: Timestamp, worker: Option<WorkerId>, error: CallError) -> Actions {
        match error {
            CallError::Fault(fault) => {
                let source = self.source.filter(|_| worker.is_none());
                let progressed = self.progressed;
                let actions = self.fault(fault.to_string());
                self.attach_failed = source.is_some_and(|source| source.attached && !progressed);
                self.broken = source.map(|source| source.at);
                actions
            }
            CallError::Backpressure { retry_after } => self.backpressure(now, worker, retry_after),
            // The router there has waited for such a worker, and others see the same workers.
            CallError::VersionGone => self.fail(Refusal::VersionGone),
            // Our validator accepted the request and the client has tokens of it, so the client is not at
            // fault.
            CallError::Rejected(message) if worker.is_some() && self.has_delivered() => {
                tracing::error!(
                    message,
                    "a worker rejected the resume of a request that another worker accepted"
                );
                self.fail(Refusal::Internal)
            }
            // The fault may also be the request's own: a grammar can exceed a limit mid-answer, on any
            // worker.
            CallError::Rejected(message) => self.fail(Refusal::Invalid { param: None, message }),
        }
    }

    /// This worker is lost to the request: move.
    fn fault(&mut self, reason: String) -> Actions {
        self.source = None;
        self.accepted = true;
        self.full.clear();
        self.last_fault = reason;
        self.broken = None;
        if self.moves_in_a_row >= self.migration_limit || self.moves >= MAX_MOVES {
            return self.lost();
        }
        self.moves += 1;
        self.moves_in_a_row += 1;
        let wait = match self.moves_in_a_row {
            1 => Wait::No,
            moves => Wait::For((MOVE_PAUSE * 2u32.saturating_pow(moves - 2)).min(LONGEST_PAUSE)),
        };
        smallvec![Action::Open(wait)]
    }

    /// The worker is full, others may not be. An accepted request waits; a new one is refused.
    fn backpressure(
        &mut self,
        now: Timestamp,
        worker: Option<WorkerId>,
        retry_after: Option<Duration>,
    ) -> Actions {
        let worker = worker.or(self.source.take().map(|source| source.at.worker));
        self.retry_after = self.retry_after.max(retry_after);
        self.full.extend(worker);
        self.source = None;
        if !self.has_delivered() && self.moves == 0 {
            // Accepted and then shed before its first token counts as not accepted.
            self.accepted = false;
            return smallvec![Action::Open(Wait::No)];
        }
        self.full.clear();
        self.last_fault = "every worker is full".into();
        self.wait(now, Wait::For(retry_after.unwrap_or(FULL_PAUSE).min(LONGEST_PAUSE)))
    }

    fn nobody_ready(&mut self, now: Timestamp) -> Actions {
        if self.accepted {
            return self.wait(now, Wait::FleetChange);
        }
        if !self.full.is_empty() {
            return self.all_full(now);
        }
        let retry_after = self.retry_after.unwrap_or(RETRY_AFTER);
        if self.waits_for_worker && self.may_wait(now) {
            return smallvec![Action::Open(Wait::FleetChange)];
        }
        let reason = if self.waits_for_worker {
            format!("none accepted requests for {} s", self.queue_timeout.as_secs_f32())
        } else {
            "none accepts requests".into()
        };
        self.fail(Refusal::NoReadyWorker { reason, retry_after })
    }

    /// Waits for a worker of the version that the request began on: it may be restarting.
    fn none_of_version(&mut self, now: Timestamp) -> Actions {
        self.full.clear();
        if self.may_wait(now) {
            return smallvec![Action::Open(Wait::FleetChange)];
        }
        self.fail(Refusal::VersionGone)
    }

    /// Waits in the queue for a free seat instead of trying each worker repeatedly.
    fn all_full(&mut self, now: Timestamp) -> Actions {
        self.full.clear();
        if self.accepted {
            self.last_fault = "every worker is full".into();
            return self.wait(now, Wait::Seat);
        }
        if self.waits_for_worker && self.may_wait(now) {
            return smallvec![Action::Open(Wait::Seat)];
        }
        let retry_after = self.retry_after.unwrap_or(RETRY_AFTER);
        self.fail(Refusal::Overloaded { reason: "every worker is full".into(), retry_after })
    }

    fn wait(&mut self, now: Timestamp, wait: Wait) -> Actions {
        if self.may_wait(now) { smallvec![Action::Open(wait)] } else { self.lost() }
    }

    /// Whether it may wait longer. The timeout counts from the first wait since the last progress.
    fn may_wait(&mut self, now: Timestamp) -> bool {
        let since = *self.waiting_since.get_or_insert(now);
        now.since(since) < self.queue_timeout
    }

    fn lost(&mut self) -> Actions {
        let refusal = Refusal::WorkersLost { moves: self.moves, reason: self.last_fault.clone() };
        self.fail(refusal)
    }

    fn fail(&mut self, refusal: Refusal) -> Actions {
        self.over = true;
        smallvec![Action::Fail(refusal)]
    }
}

/// Samples not named by the resume have ended.
fn resumed_samples(n: u32, resume: &Resume) -> Vec<Sample> {
    let mut samples: Vec<Sample> = (0..n).map(|_| Sample { delivered: Vec::new(), ended: true }).collect();
    for resumed in &resume.samples {
        if let Some(sample) = samples.get_mut(resumed.index as usize) {
            *sample = Sample { delivered: resumed.delivered.clone(), ended: false };
        }
    }
    samples
}

/// New tokens, their log-probabilities, and the sample's finish.
type NewTokens = (Vec<TokenId>, Vec<TokenLogprobs>, Option<FinishReason>);

/// The part of a delta from position `have` on; a fault if that is more than `left` tokens.
fn new_tokens(delta: Delta, have: u32, left: usize, wants_logprobs: bool) -> Result<NewTokens, String> {
    let Delta { from_position, mut tokens, mut logprobs, finish, .. } = delta;
    if from_position > have {
        return Err(format!("a gap: position {from_position} after {have}"));
    }
    if wants_logprobs && logprobs.len() != tokens.len() {
        return Err(format!("{} log-probabilities for {} tokens", logprobs.len(), tokens.len()));
    }
    let repeated = (have - from_position) as usize;
    if repeated > tokens.len() && finish.is_some() {
        return Err(format!("a finish before position {have}"));
    }
    if finish == Some(FinishReason::Abort) {
        return Err("the worker aborted a sample".into());
    }
    tokens.drain(..repeated.min(tokens.len()));
    logprobs.drain(..repeated.min(logprobs.len()));
    if tokens.len() > left {
        return Err(format!("{} tokens more than requested", tokens.len() - left));
    }
    Ok((tokens, logprobs, finish))
}
