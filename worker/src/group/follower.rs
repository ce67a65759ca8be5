//! The loop of a follower rank: executes the leader's frames until a stop frame.

use skein_kernels::collective::{Ranks, RingError};

use super::frame::{Disagreement, Frame, FrameError, Sequence, agree};
use super::memory::FrameReader;
use crate::backend::{Backend, BackendError};

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
    /// The loaded model failed its check.
    #[error("{0}")]
    Check(String),
}

/// Executes the frames of `epoch`. `check` checks the loaded model together with all ranks and returns the
/// backend. The ranks of the last stage compare their tokens over `reports`.
///
/// # Errors
/// If this rank fails or the group ends.
pub fn follow<B: Backend>(
    mut frames: FrameReader,
    mut reports: Option<Box<dyn Ranks>>,
    epoch: u64,
    check: impl FnOnce() -> Result<B, String>,
) -> Result<(), RankError> {
    let (mut sequence, mut words) = (Sequence { epoch, step: 0 }, Vec::new());
    let mut check = Some(check);
    let mut backend = None;
    loop {
        frames.read(&mut words)?;
        match (sequence.read(&words)?, &mut backend) {
            (Frame::Stop, _) => return Ok(()),
            (Frame::Check, backend) => {
                let check = check.take().ok_or(FrameError::Unknown(words.len()))?;
                *backend = Some(check().map_err(RankError::Check)?);
            }
            (Frame::Run(_), None) => return Err(RankError::Unchecked),
            (Frame::Run(batch), Some(backend)) => {
                let step = backend.launch(batch)?;
                let output = backend.collect(step)?;
                if let Some(reports) = &mut reports {
                    agree(&mut **reports, sequence.step, &output)?;
                }
            }
        }
    }
}
