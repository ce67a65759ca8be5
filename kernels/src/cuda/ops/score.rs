//! Log-probabilities on the device; `cu/score.cu`. What [`crate::cpu::sample::score`] says of the same logits.

use super::sample::{MAX_VOCAB, SampleParams, THREADS, parts};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most best tokens that are told.
pub const MAX_TOP: usize = 20;
/// Bytes of what a block finds.
const PART_BYTES: usize = 176;

/// What to score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ScoreParams {
    /// Row of the logits.
    pub row: u32,
    /// The token.
    pub target: u32,
    /// How many best tokens to tell, at most [`MAX_TOP`].
    pub top: u32,
}

// SAFETY: three numbers without padding; every bit pattern is one.
unsafe impl Element for ScoreParams {}

/// What a distribution says of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Scored {
    /// Its natural-log probability.
    pub logprob: f32,
    /// Its rank, 1 = most probable.
    pub rank: u32,
    /// 0, or 1 for a row that is not [`crate::cpu::sample::is_usable`].
    pub status: u32,
    /// How many of the following there are.
    pub top_len: u32,
    /// The best tokens, best first, the lower id first among equals.
    pub top_tokens: [u32; MAX_TOP],
    /// Their log-probabilities.
    pub top_logprobs: [f32; MAX_TOP],
}

// SAFETY: 44 numbers of four bytes, without padding; every bit pattern is one.
unsafe impl Element for Scored {}

/// Which tokens a launch scores.
#[derive(Debug, Clone, Copy)]
pub enum Targets {
    /// `[capacity]`: given ones.
    Given(DeviceSlice<ScoreParams>),
    /// `[capacity]` each: those that were drawn, of samples with [`SampleParams::logprobs`].
    Drawn(DeviceSlice<SampleParams>, DeviceSlice<u32>),
}

/// Memory of one [`Scorer`] launch.
#[derive(Debug, Clone, Copy)]
pub struct ScoreBatch {
    /// `[rows, stride]`
    pub logits: DeviceSlice<f32>,
    /// Values between two rows of logits; a multiple of 4 makes for wide loads.
    pub stride: usize,
    /// Tokens of the vocabulary, at most [`MAX_VOCAB`].
    pub vocab: usize,
    /// What to score.
    pub targets: Targets,
    /// `[1]`: how many entries there are.
    pub count: DeviceSlice<u32>,
    /// `[capacity]`
    pub out: DeviceSlice<Scored>,
    /// [`Scorer::workspace_bytes`], aligned to 8, filled with zeros once before its first launch.
    pub workspace: DeviceSlice<u8>,
}

/// As the kernels' parameter.
#[repr(C)]
struct ScoreArgs {
    /// Addresses, in the kernels' order: logits to done.
    memory: [u64; 8],
    /// vocab, stride
    sizes: [u32; 2],
}

/// Scores tokens.
#[derive(Debug, Clone, Copy)]
pub struct Scorer {
    targets: Kernel,
    samples: Kernel,
}

impl Scorer {
    /// Finds the kernels.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { targets: kernels.get("score_targets")?, samples: kernels.get("score_samples")? })
    }

    /// Bytes of [`ScoreBatch::workspace`] for up to `capacity` entries.
    pub fn workspace_bytes(capacity: usize, vocab: usize) -> usize {
        capacity * (parts(vocab) * PART_BYTES + size_of::<u64>())
    }

    /// Queues it.
    pub fn launch(&self, stream: &Stream, batch: ScoreBatch) -> Result<(), CudaError> {
        let ScoreBatch { logits, stride, vocab, count, out, workspace, .. } = batch;
        let (kernel, capacity, [given, samples, tokens]) = match batch.targets {
            Targets::Given(given) => (self.targets, given.len(), [given.address(), 0, 0]),
            Targets::Drawn(samples, tokens) => {
                assert!(tokens.len() >= samples.len(), "{} samples have a token each", samples.len());
                (self.samples, samples.len(), [0, samples.address(), tokens.address()])
            }
        };
        assert!((1..=MAX_VOCAB).contains(&vocab), "a vocabulary of {vocab}; scores take 1 to {MAX_VOCAB}");
        assert!(stride >= vocab, "rows of {stride} logits are shorter than a vocabulary of {vocab}");
        assert_eq!(count.len(), 1, "one count");
        assert!(out.len() >= capacity, "{capacity} scores do not fit into {}", out.len());
        let needed = Self::workspace_bytes(capacity, vocab);
        assert!(
            workspace.len() >= needed && workspace.address().is_multiple_of(8),
            "a workspace of {} bytes at {:#x}; {capacity} scores need {needed}, aligned to 8",
            workspace.len(),
            workspace.address()
        );
        if capacity == 0 {
            return Ok(());
        }
        let found = workspace.address();
        let done = found + (capacity * parts(vocab) * PART_BYTES) as u64;
        let (logits, count, out) = (logits.address(), count.address(), out.address());
        let memory = [logits, given, samples, tokens, count, out, found, done];
        let args = ScoreArgs { memory, sizes: [vocab as u32, stride as u32] };
        // SAFETY: plain numbers without padding: 8 times 8 bytes, 2 times 4.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const args).cast::<u8>(), size_of::<ScoreArgs>()) };
        let grid = Grid::of([parts(vocab) as u32, capacity as u32, 1], THREADS).overlapping();
        kernel.launch(stream, grid, &Args::new().bytes(bytes))
    }
}
