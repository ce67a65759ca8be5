//! Samples constrained by a grammar: their matchers, and the thread that computes their masks while the
//! backend runs the forward pass.
//!
//! A matcher's state is a function of the sample's tokens. It advances here when a token is committed, which
//! takes microseconds. The mask for the next draw takes longer and is computed on the thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use skein_grammar::{Matcher, Next, Stuck};
use skein_proto::finish::FinishReason;
use skein_proto::sampling::SamplingParams;

use crate::TokenId;
use crate::backend::{Allowed, Batch, MaskSlot, Want};
use crate::scheduler::{NewRequest, RequestEvent, RequestKey, Scheduler};

/// Most masks queued for the thread. A running sample requests one at a time; if the queue is full, the
/// engine waits.
const MAX_JOBS: usize = 1024;

/// If a text is forced, at most this many tokens may come next: the first tokens of its tokenizations.
const MOST_SPELLINGS: u32 = 32;

/// Longest wait for forced tokens, and most samples to wait for in a step. A mask takes about 50 µs, a step
/// of a small model a few milliseconds.
const FORCED_WAIT: Duration = Duration::from_micros(100);
const MOST_WAITED_FOR: usize = 4;

/// Matchers of a request's samples, advanced past the tokens delivered earlier.
#[derive(Debug)]
pub struct Constraint {
    /// Sample index and matcher, one pair per sample.
    pub matchers: Vec<(u32, Matcher)>,
}

/// All samples constrained by a grammar.
#[derive(Debug, Default)]
pub(super) struct Constraints {
    samples: BTreeMap<(RequestKey, u32), Sample>,
    /// Queue of the mask thread, which starts with the first job.
    jobs: Option<SyncSender<Job>>,
}

#[derive(Debug)]
struct Sample {
    params: Arc<SamplingParams>,
    prompt_len: u32,
    /// Mask for the next draw; the thread returns the matcher in it.
    slot: MaskSlot,
}

enum Job {
    /// Compute the mask of a sample's next draw.
    Next {
        matcher: Box<Matcher>,
        params: Arc<SamplingParams>,
        forbid_stop: bool,
        slot: MaskSlot,
        /// Whether to compute forced tokens as well.
        forces: bool,
    },
    /// Compute the masks of the draws after each token of `draft`. The first of `slots` has the matcher
    /// before the draft.
    Draft {
        draft: Vec<TokenId>,
        slots: Vec<MaskSlot>,
        params: Arc<SamplingParams>,
        /// Position of the first draw, and where stop tokens may be drawn from.
        position: u32,
        stop_from: u32,
    },
}

impl Job {
    fn run(self) {
        match self {
            Self::Next { mut matcher, params, forbid_stop, slot, forces } => {
                let allowed = Allowed::new(matcher.next_tokens(), &params, forbid_stop);
                let may_force = forces && allowed.count() <= MOST_SPELLINGS;
                slot.fill(allowed, Some(*matcher));
                let copy = may_force.then(|| slot.fork_matcher()).flatten();
                slot.set_forced(copy.map_or(Vec::new(), Matcher::into_forced));
            }
            Self::Draft { draft, slots, params, position, stop_from } => {
                let Some((first, rest)) = slots.split_first() else { return };
                let masks = masks_after(first, &draft, |at, next| {
                    Allowed::new(next, &params, position + 1 + at < stop_from)
                });
                // Draws after a forbidden token are discarded.
                let masks = masks.chain(std::iter::repeat(Allowed::End));
                rest.iter().zip(masks).for_each(|(slot, allowed)| slot.fill(allowed, None));
            }
        }
    }
}

/// Allowed tokens after each token of `draft`, up to the first forbidden one. Uses a copy of the matcher: a
/// limit exceeded along a draft is not an error of the answer, which may continue differently.
fn masks_after<'a>(
    first: &MaskSlot,
    draft: &'a [TokenId],
    allowed: impl Fn(u32, Result<Next, Stuck>) -> Allowed + 'a,
) -> impl Iterator<Item = Allowed> + 'a {
    let mut before = first.wait();
    let mut matcher = None;
    let may_start = draft.first().is_some_and(|token| before.allows(*token));
    if may_start {
        matcher = first.fork_matcher();
    }
    draft.iter().zip(0..).map_while(move |(token, at)| {
        let matcher = matcher.as_mut().filter(|_| before.allows(*token))?;
        let next = matcher.advance(*token).and_then(|()| matcher.next_tokens());
        before = Arc::new(allowed(at, next));
        Some((*before).clone())
    })
}

/// How a constrained sample ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// The answer is complete.
    Done(RequestKey, u32),
    /// The matcher cannot continue.
    Failed(RequestKey, Stuck),
}

impl Constraints {
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Adds the samples of `request`, which the scheduler already has. Returns those whose delivered tokens
    /// are already a complete answer as done.
    pub fn open(
        &mut self,
        request: &NewRequest,
        constraint: Constraint,
        scheduler: &mut Scheduler,
    ) -> Vec<Followed> {
        let (key, prompt_len) = (request.key, request.prompt.len() as u32);
        let mut followed = Vec::new();
        for (index, matcher) in constraint.matchers {
            if matcher.is_done() {
                followed.push(Followed::Done(key, index));
                continue;
            }
            let delivered = request.samples.iter().find(|sample| sample.index == index);
            let len = prompt_len + delivered.map_or(0, |sample| sample.delivered.len() as u32);
            let slot = MaskSlot::default();
            let sample = Sample { params: request.params.clone(), prompt_len, slot };
            self.samples.insert((key, index), sample);
            self.ask(key, index, matcher, len, scheduler);
        }
        followed
    }

    /// Advances matchers by the tokens in `events`. A sample whose last token completes its answer counts as
    /// stopped, even at `max_tokens`.
    pub fn follow(&mut self, events: &mut [RequestEvent], scheduler: &mut Scheduler) -> Vec<Followed> {
        let mut followed = Vec::new();
        // A step may have drawn several tokens of a sample; only the mask after the last one is needed.
        let mut moved: BTreeMap<(RequestKey, u32), (Matcher, u32)> = BTreeMap::new();
        for event in events {
            match event {
                RequestEvent::Token { request, sample, position, token, .. } => {
                    let (key, index, len) = (*request, *sample, *position + 1);
                    let of_slot = || self.samples.get(&(key, index))?.slot.take_matcher();
                    let before = moved.remove(&(key, index)).map(|(matcher, _)| matcher);
                    let Some(mut matcher) = before.or_else(of_slot) else { continue };
                    match matcher.advance(*token) {
                        Err(stuck) => followed.push(Followed::Failed(key, stuck)),
                        Ok(()) if matcher.is_done() => followed.push(Followed::Done(key, index)),
                        Ok(()) => drop(moved.insert((key, index), (matcher, len))),
                    }
                }
                RequestEvent::Finished { request, sample, reason, .. } => {
                    self.samples.remove(&(*request, *sample));
                    let done = Followed::Done(*request, *sample);
                    if *reason == FinishReason::Length && followed.contains(&done) {
                        *reason = FinishReason::Stop(None);
                    }
                }
                RequestEvent::Started { .. }
                | RequestEvent::PromptScored { .. }
                | RequestEvent::StopScored { .. }
                | RequestEvent::Pooled { .. } => {}
            }
        }
        for ((key, index), (matcher, len)) in moved {
            self.ask(key, index, matcher, len, scheduler);
        }
        followed
    }

    /// Passes the scheduler the tokens that grammars force next, if they are known in time.
    pub fn offer_forced(&self, scheduler: &mut Scheduler) {
        if !scheduler.drafts() {
            return;
        }
        for (at, (&(key, index), sample)) in self.samples.iter().enumerate() {
            let wait = if at < MOST_WAITED_FOR { FORCED_WAIT } else { Duration::ZERO };
            let forced = sample.slot.forced_within(wait).unwrap_or_default();
            scheduler.set_forced(key, index, forced);
        }
    }

    /// Queues the masks for the drafts of `batch`, after those for its other draws.
    pub fn ask_for_drafts(&mut self, batch: &Batch) {
        for want in &batch.wants {
            let Want::Verify(verify) = want else { continue };
            if verify.masks.len() > 1 {
                self.send(Job::Draft {
                    draft: batch.draft(verify).to_vec(),
                    slots: verify.masks.clone(),
                    params: verify.params.clone(),
                    position: verify.position,
                    stop_from: verify.stop_from,
                });
            }
        }
    }

    /// Samples whose mask allows no further token. Draws already planned for them were not made.
    pub fn closed(&self) -> Vec<Followed> {
        let closed = |(&(key, index), sample): (&(RequestKey, u32), &Sample)| match &*sample.slot.peek()? {
            Allowed::Tokens(_) => None,
            Allowed::End => Some(Followed::Done(key, index)),
            Allowed::Stuck(stuck) => Some(Followed::Failed(key, stuck.clone())),
        };
        self.samples.iter().filter_map(closed).collect()
    }

    /// Removes the samples of a request that ended for another reason.
    pub fn remove(&mut self, key: RequestKey) {
        self.samples.retain(|(request, _), _| *request != key);
    }

    /// Requests the mask for the draw at position `len`.
    fn ask(&mut self, key: RequestKey, index: u32, matcher: Matcher, len: u32, scheduler: &mut Scheduler) {
        let Some(sample) = self.samples.get_mut(&(key, index)) else { return };
        sample.slot = MaskSlot::default();
        if !scheduler.set_mask(key, index, sample.slot.clone()) {
            self.samples.remove(&(key, index));
            return;
        }
        let forbid_stop = len - sample.prompt_len < sample.params.min_tokens;
        let (params, slot) = (sample.params.clone(), sample.slot.clone());
        let forces = scheduler.drafts();
        let matcher = Box::new(matcher);
        self.send(Job::Next { matcher, params, forbid_stop, slot, forces });
    }

    fn send(&mut self, job: Job) {
        let jobs = self.jobs.get_or_insert_with(start);
        // Without the thread, compute the mask here.
        if let Err(job) = jobs.send(job) {
            job.0.run();
        }
    }
}

/// Starts the mask thread, which ends when the engine drops the sender.
fn start() -> SyncSender<Job> {
    let (jobs, inbox) = sync_channel::<Job>(MAX_JOBS);
    let spawned = std::thread::Builder::new().name("skein-masks".into()).spawn(move || {
        while let Ok(job) = inbox.recv() {
            job.run();
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot start the mask thread; masks are computed between steps");
    }
    jobs
}
