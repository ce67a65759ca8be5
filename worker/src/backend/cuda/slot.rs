//! Page-locked memory of a step: its message to the device, and its results.
//!
//! A slot belongs to the launching thread, then to the waiting thread, which returns it once the device is
//! done with it. So the host never writes what the device may still read.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use skein_kernels::cuda::ops::score::Scored;
use skein_kernels::cuda::stream::Waited;
use skein_kernels::cuda::{CudaError, CudaEvent, Device, PinnedBuffer, Stream};
use skein_proto::logprobs::TokenLogprobs;

use super::gaps::StepGaps;
use super::memory::{StepSizes, mask_words};
use super::threads::InFlight;
use super::{failed, failed_on, stopped};
use crate::backend::{Answer, BackendError, Batch, SampleRow, Sampled, ScoreRow, StepOutput, Want};

/// The pinned memory of one step.
pub(super) struct Slot {
    pub message: PinnedBuffer<u32>,
    /// Masks of a pass, consecutive.
    pub masks: PinnedBuffer<u32>,
    pub tokens: PinnedBuffer<u32>,
    pub status: PinnedBuffer<u32>,
    pub drawn_scores: PinnedBuffer<Scored>,
    pub scores: PinnedBuffer<Scored>,
    done: CudaEvent,
}

impl Slot {
    pub fn new(device: &Arc<Device>, sizes: &StepSizes, vocab: usize) -> Result<Self, CudaError> {
        let entries = sizes.entries();
        Ok(Self {
            message: PinnedBuffer::new(device, sizes.message_words())?,
            masks: PinnedBuffer::new(device, sizes.pass.rows * mask_words(vocab))?,
            tokens: PinnedBuffer::new(device, entries)?,
            status: PinnedBuffer::new(device, entries)?,
            drawn_scores: PinnedBuffer::new(device, entries)?,
            scores: PinnedBuffer::new(device, entries)?,
            done: CudaEvent::untimed(device)?,
        })
    }

    /// Records the end of the step in `stream`.
    pub fn mark_end(&self, stream: &Stream) -> Result<(), CudaError> {
        self.done.record(stream)
    }

    /// Waits up to `timeout` for the end. A stuck or faulted device is abandoned, because freeing this slot
    /// would wait for it.
    fn wait(&self, timeout: Duration, device: &Device) -> Result<(), BackendError> {
        match self.done.wait(timeout).map_err(|error| failed_on(device, &error))? {
            Waited::Done => Ok(()),
            Waited::TimedOut => {
                device.abandon();
                Err(stopped(&format!(
                    "the device did not end a step within {timeout:?} (--step-timeout): it is stuck"
                )))
            }
        }
    }
}

/// Index for a sample whose grammar allows no token: the token that the device draws for it is discarded.
pub(super) const UNDRAWN: u32 = u32::MAX;

/// Where to read the result for one want.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Index in the slot's results; [`UNDRAWN`] if there is none.
    place: usize,
    /// Row of the batch.
    row: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A drawn token, and whether its log-probabilities are wanted.
    Sample { has_logprobs: bool },
    /// The score of a given token.
    Score { target: u32 },
}

/// A launched step and how to read its results.
pub(super) struct LaunchedStep {
    slot: Slot,
    wanted: Vec<Wanted>,
    timeout: Duration,
    device: Arc<Device>,
    /// Channel that takes the slot back.
    free: SyncSender<Slot>,
    /// Where to store the gap before this step, and the step's number.
    gap: Option<(Arc<StepGaps>, usize)>,
}

impl LaunchedStep {
    /// `places`: index in the slot's results for each want of the batch.
    pub fn new(
        slot: Slot,
        batch: &Batch,
        places: &[u32],
        timeout: Duration,
        device: &Arc<Device>,
        free: &SyncSender<Slot>,
    ) -> Self {
        let wanted = batch.wants.iter().zip(places).filter_map(|(want, &place)| {
            let (row, kind) = match want {
                Want::Sample(SampleRow { row, params, .. }) => {
                    (*row, Kind::Sample { has_logprobs: params.logprobs.is_some() })
                }
                Want::Score(ScoreRow { row, target, .. }) => (*row, Kind::Score { target: *target }),
                Want::Verify(_) | Want::Pool(_) => return None,
            };
            Some(Wanted { place: place as usize, row, kind })
        });
        let wanted = wanted.collect();
        Self { slot, wanted, timeout, device: device.clone(), free: free.clone(), gap: None }
    }

    /// Also stores the gap before this step once it has ended.
    pub fn with_gap(self, gap: Option<(Arc<StepGaps>, usize)>) -> Self {
        Self { gap, ..self }
    }

    fn read(&self) -> Result<StepOutput, BackendError> {
        let answers = self.wanted.iter().map(|wanted| self.answer(wanted)).collect::<Result<_, _>>()?;
        Ok(StepOutput { answers })
    }

    fn answer(&self, wanted: &Wanted) -> Result<Answer, BackendError> {
        let Slot { tokens, status, drawn_scores, scores, .. } = &self.slot;
        let Wanted { place, row, kind } = *wanted;
        if place == UNDRAWN as usize {
            return Ok(Answer::Undrawn);
        }
        let failed = match kind {
            Kind::Sample { .. } => status[place] != 0,
            Kind::Score { .. } => scores[place].status != 0,
        };
        if failed {
            return Err(BackendError::NotFinite { row });
        }
        Ok(match kind {
            Kind::Sample { has_logprobs } => {
                let token = tokens[place];
                let logprobs = has_logprobs.then(|| logprobs(token, &drawn_scores[place]));
                Answer::Sampled(Sampled { token, logprobs })
            }
            Kind::Score { target } => Answer::Scored(logprobs(target, &scores[place])),
        })
    }
}

impl InFlight for LaunchedStep {
    fn bind(&self) -> Result<(), BackendError> {
        self.device.bind().map_err(|error| failed(&error))
    }

    fn finish(self) -> Result<StepOutput, BackendError> {
        self.slot.wait(self.timeout, &self.device)?;
        if let Some((gaps, step)) = &self.gap {
            gaps.note(*step).map_err(|error| failed_on(&self.device, &error))?;
        }
        let output = self.read();
        // If the launching thread is gone, nobody needs the slot.
        let _ = self.free.send(self.slot);
        output
    }
}

fn logprobs(token: u32, scored: &Scored) -> TokenLogprobs {
    let top = scored.top_tokens.iter().copied().zip(scored.top_logprobs).take(scored.top_len as usize);
    TokenLogprobs { token, logprob: scored.logprob, rank: scored.rank, top: top.collect() }
}
