//! The loop of every rank but the leader: does what each frame says, until a frame says stop.

use skein_kernels::collective::{Ranks, RingError};

use super::frame::{Disagreement, Frame, FrameError, Sequence, agree};
use super::memory::FrameReader;
use crate::backend::{Backend, BackendError};

/// Why a rank ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The group ended.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A frame is unusable.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The leader ran a step before the check of the model.
    #[error("the leader began with a step")]
    Unchecked,
    /// A step failed here.
    #[error(transparent)]
    Step(#[from] BackendError),
    /// A rank did not report, or drew different tokens.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// The model does not pass its check.
    #[error("{0}")]
    Check(String),
}

/// Follows the frames of `epoch`. `check` checks the loaded model together with all ranks, and returns what
/// runs steps. The ranks of the last stage compare their tokens over `reports`.
///
/// # Errors
/// If this rank cannot go on, or the group ends.
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
