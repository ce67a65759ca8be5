//! Samples constrained by a grammar: their matchers, and the thread that computes their masks while the
//! backend runs the forward pass.
//!
//! A matcher's state is a function of the sample's tokens. It advances here when a token is committed, which
//! takes microseconds. The mask for the next draw takes longer and is computed on the thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use skein_grammar::{Matcher, Stuck};
use skein_proto::finish::FinishReason;
use skein_proto::sampling::SamplingParams;

use crate::backend::{Allowed, MaskSlot};
use crate::scheduler::{NewRequest, RequestEvent, RequestKey, Scheduler};

/// Most masks queued for the thread. A running sample requests one at a time; if the queue is full, the
/// engine waits.
const MAX_JOBS: usize = 1024;

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

struct Job {
    matcher: Matcher,
    params: Arc<SamplingParams>,
    forbid_stop: bool,
    slot: MaskSlot,
}

impl Job {
    fn run(self) {
        let Self { mut matcher, params, forbid_stop, slot } = self;
        let allowed = Allowed::new(matcher.next_tokens(), &params, forbid_stop);
        slot.fill(allowed, matcher);
    }
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
        for event in events {
            match event {
                RequestEvent::Token { request, sample, position, token, .. } => {
                    let (key, index, len) = (*request, *sample, *position + 1);
                    let known = self.samples.get(&(key, index));
                    let Some(mut matcher) = known.and_then(|sample| sample.slot.take_matcher()) else {
                        continue;
                    };
                    match matcher.advance(*token) {
                        Err(stuck) => followed.push(Followed::Failed(key, stuck)),
                        Ok(()) if matcher.is_done() => followed.push(Followed::Done(key, index)),
                        Ok(()) => self.ask(key, index, matcher, len, scheduler),
                    }
                }
                RequestEvent::Finished { request, sample, reason, .. } => {
                    self.samples.remove(&(*request, *sample));
                    let done = Followed::Done(*request, *sample);
                    if *reason == FinishReason::Length && followed.contains(&done) {
                        *reason = FinishReason::Stop(None);
                    }
                }
                RequestEvent::Started { .. } | RequestEvent::PromptScored { .. } => {}
            }
        }
        followed
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
        let job = Job { matcher, params: sample.params.clone(), forbid_stop, slot: sample.slot.clone() };
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
