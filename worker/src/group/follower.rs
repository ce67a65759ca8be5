//! The loop of a follower rank: executes the leader's frames until a stop frame.

use std::collections::VecDeque;
use std::time::Duration;

use skein_kernels::collective::{Ranks, RingError};

use super::adapters::Followed;
use super::frame::{Disagreement, Frame, FrameError, Sequence, agree};
use super::memory::FrameReader;
use crate::backend::{Backend, BackendError, StepHandle};

/// Interval between two checks of a step in flight while no frame arrives.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Why a follower ended before its stop frame.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// A wait was aborted because the group ended.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A frame cannot be used.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The leader sent a step before the model's check.
    #[error("the leader sent a step before the model's check")]
    Unchecked,
    /// A step failed on this rank.
    #[error(transparent)]
    Step(#[from] BackendError),
    /// A rank did not report, or drew different tokens.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// An adapter cannot be used on this rank.
    #[error("{0}")]
    Adapter(String),
    /// The loaded model failed its check.
    #[error("{0}")]
    Check(String),
}

/// Executes the frames of `epoch`. `check` checks the loaded model together with all ranks and returns the
/// backend. `adapters` reads the adapters that frames name. The ranks of the last stage compare their tokens
/// over `reports`.
///
/// # Errors
/// If this rank fails or the group ends.
pub fn follow<B: Backend>(
    mut frames: FrameReader,
    mut reports: Option<Box<dyn Ranks>>,
    (epoch, mut adapters): (u64, Followed),
    check: impl FnOnce() -> Result<B, String>,
) -> Result<(), RankError> {
    let (mut sequence, mut words) = (Sequence { epoch, step: 0 }, Vec::new());
    let mut check = Some(check);
    let mut backend = None;
    let mut in_flight = VecDeque::new();
    loop {
        if let Some(backend) = &mut backend {
            collect_due(&mut in_flight, backend, &frames, &mut reports)?;
        }
        frames.read(&mut words)?;
        match (sequence.read(&words)?, &mut backend) {
            (Frame::Stop, _) => return Ok(()),
            (Frame::Check, backend) => {
                let check = check.take().ok_or(FrameError::Unknown(words.len()))?;
                *backend = Some(check().map_err(RankError::Check)?);
            }
            (Frame::Examine(id, directory), _) => {
                adapters.examine(sequence.step, id, directory).map_err(RankError::Adapter)?;
            }
            (Frame::Load(id, directory), _) => {
                adapters.load(sequence.step, id, directory).map_err(RankError::Adapter)?;
            }
            (Frame::Unload(id), _) => adapters.unload(id),
            (Frame::Run(_), None) => return Err(RankError::Unchecked),
            (Frame::Run(mut batch), Some(backend)) => {
                adapters.fill(&mut batch).map_err(RankError::Adapter)?;
                in_flight.push_back((sequence.step, backend.launch(batch)?));
            }
        }
    }
}

/// Collects steps until the next frame should be read: either one has arrived and the backend takes another
/// step, or no step is left.
fn collect_due<B: Backend>(
    in_flight: &mut VecDeque<(u64, StepHandle)>,
    backend: &mut B,
    frames: &FrameReader,
    reports: &mut Option<Box<dyn Ranks>>,
) -> Result<(), RankError> {
    while !in_flight.is_empty() {
        let has_room = in_flight.len() < backend.steps_in_flight();
        if has_room && frame_comes_first(backend, frames)? {
            return Ok(());
        }
        let Some((number, step)) = in_flight.pop_front() else { return Ok(()) };
        let output = backend.collect(step)?;
        if let Some(reports) = reports {
            agree(&mut **reports, number, &output)?;
        }
    }
    Ok(())
}

/// Whether a frame arrives before the oldest step in flight has ended.
fn frame_comes_first<B: Backend>(backend: &mut B, frames: &FrameReader) -> Result<bool, RingError> {
    while backend.has_ended() == Some(false) {
        if frames.comes_within(LOOK_AGAIN)? {
            return Ok(true);
        }
    }
    Ok(false)
}
