//! Frames: the leader's commands, which make all ranks run the same steps. Also compares the ranks' results.

use std::path::{Path, PathBuf};

use skein_kernels::collective::{Lost, Ranks};
use skein_proto::adapter::AdapterId;
use xxhash_rust::xxh3::xxh3_64;

use super::memory::REPORT_BYTES;
use super::words::{self, Malformed};
use crate::backend::{Batch, StepOutput};

/// Header words: kind, epoch, step, and digest of the content. All but the kind take two words.
const HEADER: usize = 7;
/// Kinds of frames: the first header word.
const CHECK: u32 = 1;
const RUN: u32 = 2;
const STOP: u32 = 3;
const LOAD: u32 = 4;
const UNLOAD: u32 = 5;
const EXAMINE: u32 = 6;

/// The next command for all ranks.
// Not boxed: a rank holds one frame at a time.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone)]
pub enum Frame {
    /// Check the loaded model.
    Check,
    /// Run a step. Where frames are read, its adapters are identities without weights.
    Run(Batch),
    /// Check that an adapter is in a directory, and answer.
    Examine(AdapterId, PathBuf),
    /// Read the adapter in a directory, and answer.
    Load(AdapterId, PathBuf),
    /// Forget an adapter.
    Unload(AdapterId),
    /// End the process.
    Stop,
}

/// Why a frame cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than the header, or of an unknown kind.
    #[error("a frame of {0} words is not from this version of Skein")]
    Unknown(usize),
    /// Sent by an earlier start of the group.
    #[error("a frame of epoch {got:016x} in epoch {own:016x}")]
    Epoch {
        /// Epoch in the frame.
        got: u64,
        /// Epoch of this group.
        own: u64,
    },
    /// A frame was lost or repeated.
    #[error("frame {got} came instead of frame {expected}")]
    Step {
        /// Number in the frame.
        got: u64,
        /// Number that was due.
        expected: u64,
    },
    /// The content does not match its digest.
    #[error("frame {0} was corrupted in transit")]
    Digest(u64),
    /// The content is not a valid step.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Position in the group's sequence of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Random per start of the group.
    pub epoch: u64,
    /// Frames so far.
    pub step: u64,
}

impl Sequence {
    /// Encodes the next frame into `words`, replacing their content.
    pub fn write(&mut self, frame: &Frame, words: &mut Vec<u32>) {
        self.step += 1;
        words.clear();
        let kind = match frame {
            Frame::Check => CHECK,
            Frame::Run(_) => RUN,
            Frame::Examine(..) => EXAMINE,
            Frame::Load(..) => LOAD,
            Frame::Unload(_) => UNLOAD,
            Frame::Stop => STOP,
        };
        words.extend([kind, low(self.epoch), high(self.epoch), low(self.step), high(self.step), 0, 0]);
        match frame {
            Frame::Run(batch) => words::write(batch, words),
            Frame::Examine(id, directory) | Frame::Load(id, directory) => {
                words::write_adapter(*id, directory, words);
            }
            Frame::Unload(id) => words::write_adapter(*id, Path::new(""), words),
            Frame::Check | Frame::Stop => {}
        }
        let digest = digest(&words[HEADER..]);
        words[5..HEADER].copy_from_slice(&[low(digest), high(digest)]);
    }

    /// Decodes the next frame.
    ///
    /// # Errors
    /// If the frame is not the next one of this epoch, or is corrupted.
    pub fn read(&mut self, words: &[u32]) -> Result<Frame, FrameError> {
        let unknown = FrameError::Unknown(words.len());
        let (header, content) = words.split_first_chunk::<HEADER>().ok_or(unknown)?;
        let &[kind, epoch, epoch_high, step, step_high, sum, sum_high] = header;
        let (got, own) = (long(epoch, epoch_high), self.epoch);
        if got != own {
            return Err(FrameError::Epoch { got, own });
        }
        let (got, expected) = (long(step, step_high), self.step + 1);
        if got != expected {
            return Err(FrameError::Step { got, expected });
        }
        if digest(content) != long(sum, sum_high) {
            return Err(FrameError::Digest(got));
        }
        self.step = got;
        match kind {
            CHECK => Ok(Frame::Check),
            RUN => Ok(Frame::Run(words::read(content)?)),
            EXAMINE | LOAD => {
                let (id, directory) = words::read_adapter(content)?;
                Ok(if kind == LOAD { Frame::Load(id, directory) } else { Frame::Examine(id, directory) })
            }
            UNLOAD => Ok(Frame::Unload(words::read_adapter(content)?.0)),
            STOP => Ok(Frame::Stop),
            _ => Err(unknown),
        }
    }
}

/// Whether the words encode a stop frame.
pub fn is_stop(words: &[u32]) -> bool {
    words.first() == Some(&STOP)
}

fn low(value: u64) -> u32 {
    value as u32
}

fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

fn long(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Checksum that changes with any flipped bit, of the words' bytes in memory: ranks have the same byte order.
fn digest(words: &[u32]) -> u64 {
    xxh3_64(bytemuck::cast_slice(words))
}

/// Why ranks must stop after comparing their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    /// A rank did not report.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Ranks drew different tokens.
    #[error(
        "rank {rank} drew different tokens than rank 0 in step {step} (its step {its_step}): memory or a device is broken"
    )]
    Tokens {
        /// The rank that differs from rank 0.
        rank: usize,
        /// Step of the comparing rank.
        step: u64,
        /// Step in the other rank's report.
        its_step: u64,
    },
}

/// Compares the tokens that the ranks drew in `step`.
///
/// # Errors
/// If a report is late or differs from rank 0's.
pub fn agree(reports: &mut dyn Ranks, step: u64, output: &StepOutput) -> Result<(), Disagreement> {
    let drawn: Vec<u8> = output.drawn().flat_map(|sampled| sampled.token.to_le_bytes()).collect();
    let mut mine = [0; REPORT_BYTES];
    mine[..8].copy_from_slice(&step.to_le_bytes());
    mine[8..].copy_from_slice(&xxh3_64(&drawn).to_le_bytes());
    let mut all = vec![0; REPORT_BYTES * reports.count()];
    reports.gather(&mine, &mut all)?;
    let (reports, _) = all.as_chunks::<REPORT_BYTES>();
    match reports.iter().position(|report| *report != reports[0]) {
        None => Ok(()),
        Some(rank) => {
            let its_step = reports[rank].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            Err(Disagreement::Tokens { rank, step, its_step })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_obeyed_once_in_order_and_only_in_their_epoch() {
        let (mut writer, mut reader) = (Sequence { epoch: 7, step: 0 }, Sequence { epoch: 7, step: 0 });
        let mut words = Vec::new();
        writer.write(&Frame::Check, &mut words);
        assert!(matches!(reader.read(&words), Ok(Frame::Check)));
        assert_eq!(reader.read(&words).unwrap_err(), FrameError::Step { got: 1, expected: 2 });
        writer.write(&Frame::Run(Batch::of_one_row(Vec::new())), &mut words);
        let mut late = Sequence { epoch: 8, step: 1 };
        assert_eq!(late.read(&words).unwrap_err(), FrameError::Epoch { got: 7, own: 8 });
        let mut changed = words.clone();
        changed[HEADER + 1] ^= 1;
        assert_eq!(reader.read(&changed).unwrap_err(), FrameError::Digest(2));
        let frame = reader.read(&words);
        assert!(matches!(&frame, Ok(Frame::Run(batch)) if batch.tokens == [0]), "{frame:?}");
        for directory in ["/adapters/sql", "/adapters/übung"] {
            writer.write(&Frame::Load(AdapterId(u64::MAX - 2), directory.into()), &mut words);
            let frame = reader.read(&words);
            let is_equal = |id: &AdapterId, path: &Path| id.0 == u64::MAX - 2 && path == Path::new(directory);
            assert!(matches!(&frame, Ok(Frame::Load(id, path)) if is_equal(id, path)), "{frame:?}");
            writer.write(&Frame::Examine(AdapterId(u64::MAX - 2), directory.into()), &mut words);
            let frame = reader.read(&words);
            assert!(matches!(&frame, Ok(Frame::Examine(id, path)) if is_equal(id, path)), "{frame:?}");
        }
        writer.write(&Frame::Unload(AdapterId(5)), &mut words);
        assert!(matches!(reader.read(&words), Ok(Frame::Unload(AdapterId(5)))));
        writer.write(&Frame::Stop, &mut words);
        assert!(matches!(reader.read(&words), Ok(Frame::Stop)));
        assert_eq!(reader.read(&[]).unwrap_err(), FrameError::Unknown(0));
    }
}
