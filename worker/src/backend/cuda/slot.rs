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

use super::error::{failed, failed_on, stopped};
use super::gaps::StepGaps;
use super::memory::StepSizes;
use super::pack::Drawn;
use super::pack::mask_words;
use super::stage::Onward;
use super::threads::InFlight;
use crate::TokenId;
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
    /// `[rows, hidden]`: the residual stream from the previous stage; empty in the first stage.
    pub arriving: PinnedBuffer<f32>,
    /// `[rows, hidden]`: the residual stream for the next stage; empty in the last stage.
    pub leaving: PinnedBuffer<f32>,
    done: CudaEvent,
}

impl Slot {
    /// Memory for steps of `sizes` that draw from `vocab` tokens, and for the values of the residual stream
    /// that arrive and leave.
    pub fn new(
        device: &Arc<Device>,
        sizes: &StepSizes,
        vocab: usize,
        [arriving, leaving]: [usize; 2],
    ) -> Result<Self, CudaError> {
        let entries = sizes.entries();
        Ok(Self {
            message: PinnedBuffer::new(device, sizes.message_words())?,
            masks: PinnedBuffer::new(device, sizes.pass.rows * mask_words(vocab))?,
            tokens: PinnedBuffer::new(device, entries)?,
            status: PinnedBuffer::new(device, entries)?,
            drawn_scores: PinnedBuffer::new(device, entries)?,
            scores: PinnedBuffer::new(device, entries)?,
            arriving: PinnedBuffer::new(device, arriving)?,
            leaving: PinnedBuffer::new(device, leaving)?,
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

/// Where the results of a step's wants are; empty before the last stage.
#[derive(Default)]
pub(super) struct Outputs {
    /// Index in the slot's results for each want: of its first draw, or of its score.
    pub places: Vec<u32>,
    /// Draws whose grammar allows no token: what the device draws there is discarded.
    pub closed: Vec<Drawn>,
}

/// How to read the answer to one want.
#[derive(Debug, Clone)]
struct Wanted {
    /// Index in the slot's results.
    place: usize,
    /// Row of the batch.
    row: u32,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// A drawn token, and whether its log-probabilities are wanted. Nothing if its grammar allows no token.
    Sample { is_closed: bool, has_logprobs: bool },
    /// A draft, the number of draws up to one whose grammar allows no token, and whether their
    /// log-probabilities are wanted.
    Verify { draft: Vec<TokenId>, draws: usize, has_logprobs: bool },
    /// The score of a given token.
    Score { target: u32 },
}

impl Kind {
    fn of(want: &Want, index: usize, batch: &Batch, closed: &[Drawn]) -> Option<(u32, Self)> {
        let mut closed = closed.iter().filter(|drawn| drawn.want == index);
        Some(match want {
            Want::Sample(SampleRow { row, params, .. }) => {
                let has_logprobs = params.logprobs.is_some();
                (*row, Self::Sample { is_closed: closed.next().is_some(), has_logprobs })
            }
            Want::Verify(verify) => {
                let draws = closed.map(|drawn| drawn.nth as usize).min().unwrap_or(verify.rows.len());
                let (draft, has_logprobs) = (batch.draft(verify).to_vec(), verify.params.logprobs.is_some());
                (verify.rows.start, Self::Verify { draft, draws, has_logprobs })
            }
            Want::Score(ScoreRow { row, target, .. }) => (*row, Self::Score { target: *target }),
            Want::Pool(_) => return None,
        })
    }
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
    /// Where to send how many values of the residual stream once the step has ended.
    onward: Option<(Onward, usize)>,
}

impl LaunchedStep {
    /// A launched step over `batch`, whose results arrive in `slot`.
    pub fn new(
        slot: Slot,
        batch: &Batch,
        outputs: &Outputs,
        timeout: Duration,
        device: &Arc<Device>,
        free: &SyncSender<Slot>,
    ) -> Self {
        let wants = batch.wants.iter().zip(&outputs.places).enumerate();
        let wanted = wants.filter_map(|(index, (want, &place))| {
            let (row, kind) = Kind::of(want, index, batch, &outputs.closed)?;
            Some(Wanted { place: place as usize, row, kind })
        });
        let wanted = wanted.collect();
        Self { slot, wanted, timeout, device: device.clone(), free: free.clone(), gap: None, onward: None }
    }

    /// Also stores the gap before this step once it has ended.
    pub fn with_gap(self, gap: Option<(Arc<StepGaps>, usize)>) -> Self {
        Self { gap, ..self }
    }

    /// Also sends the residual stream to the next stage once this step has ended.
    pub fn with_onward(self, onward: Option<(Onward, usize)>) -> Self {
        Self { onward, ..self }
    }

    fn read(&self) -> Result<StepOutput, BackendError> {
        let answers = self.wanted.iter().map(|wanted| self.answer(wanted)).collect::<Result<_, _>>()?;
        Ok(StepOutput { answers })
    }

    fn answer(&self, wanted: &Wanted) -> Result<Answer, BackendError> {
        let &Wanted { place, row, ref kind } = wanted;
        Ok(match kind {
            Kind::Sample { is_closed: true, .. } => Answer::Undrawn,
            Kind::Sample { has_logprobs, .. } => Answer::Sampled(self.sampled(place, row, *has_logprobs)?),
            Kind::Verify { draft, draws, has_logprobs } => {
                let sampled = |nth| self.sampled(place + nth, row + nth as u32, *has_logprobs);
                Answer::verified(draft, (0..*draws).map(sampled).collect::<Result<_, _>>()?)
            }
            Kind::Score { target } => {
                let scored = &self.slot.scores[place];
                if scored.status != 0 {
                    return Err(BackendError::NotFinite { row });
                }
                Answer::Scored(logprobs(*target, scored))
            }
        })
    }

    fn sampled(&self, place: usize, row: u32, has_logprobs: bool) -> Result<Sampled, BackendError> {
        let Slot { tokens, status, drawn_scores, .. } = &self.slot;
        if status[place] != 0 {
            return Err(BackendError::NotFinite { row });
        }
        let token = tokens[place];
        let logprobs = has_logprobs.then(|| logprobs(token, &drawn_scores[place]));
        Ok(Sampled { token, logprobs })
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
        if let Some((onward, values)) = &self.onward {
            onward.send(&self.slot.leaving[..*values])?;
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
