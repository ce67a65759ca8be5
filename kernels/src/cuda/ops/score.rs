//! Log-probabilities on the device; `cu/score.cu`. The same as [`crate::cpu::sample::score`] computes from
//! the same logits.

use super::sample::{MAX_VOCAB, SampleParams, THREADS, parts};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most best tokens to report.
pub const MAX_TOP: usize = 20;
/// Bytes of a block's partial result.
const PART_BYTES: usize = 176;

/// Parameters of one score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ScoreParams {
    /// Row of the logits.
    pub row: u32,
    /// Token to score.
    pub target: u32,
    /// Number of best tokens to report, at most [`MAX_TOP`].
    pub top: u32,
}

// SAFETY: three numbers without padding; every bit pattern is one.
unsafe impl Element for ScoreParams {}

/// A token's score under the raw distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Scored {
    /// Natural-log probability of the token.
    pub logprob: f32,
    /// Rank of the token, 1 = most probable.
    pub rank: u32,
    /// 0, or 1 for a row that is not usable ([`crate::cpu::sample::is_usable`]).
    pub status: u32,
    /// Number of valid entries in the arrays below.
    pub top_len: u32,
    /// The best tokens, best first, the lower id first among equals.
    pub top_tokens: [u32; MAX_TOP],
    /// Log-probabilities of the best tokens.
    pub top_logprobs: [f32; MAX_TOP],
}

// SAFETY: 44 numbers of four bytes, without padding; every bit pattern is one.
unsafe impl Element for Scored {}

/// The tokens that a launch scores.
#[derive(Debug, Clone, Copy)]
pub enum Targets {
    /// `[capacity]`: given tokens.
    Given(DeviceSlice<ScoreParams>),
    /// `[capacity]` each: the drawn tokens of samples with [`SampleParams::logprobs`].
    Drawn(DeviceSlice<SampleParams>, DeviceSlice<u32>),
}

/// Memory of one [`Scorer`] launch.
#[derive(Debug, Clone, Copy)]
pub struct ScoreBatch {
    /// `[rows, stride]` logits.
    pub logits: DeviceSlice<f32>,
    /// Values from one row of logits to the next; a multiple of 4 allows wide loads.
    pub stride: usize,
    /// Size of the vocabulary, at most [`MAX_VOCAB`].
    pub vocab: usize,
    /// Tokens to score.
    pub targets: Targets,
    /// `[1]`: number of entries.
    pub count: DeviceSlice<u32>,
    /// Output, `[capacity]`: a score for each entry.
    pub out: DeviceSlice<Scored>,
    /// [`Scorer::workspace_bytes`], aligned to 8; must be zeroed once before the first launch.
    pub workspace: DeviceSlice<u8>,
}

/// The kernels' parameter.
#[repr(C)]
struct ScoreArgs {
    /// Addresses in the kernels' order, from logits to done.
    memory: [u64; 8],
    /// Vocabulary size and stride of the logits.
    sizes: [u32; 2],
}

/// Computes log-probabilities and ranks of tokens.
#[derive(Debug, Clone, Copy)]
pub struct Scorer {
    targets: Kernel,
    samples: Kernel,
}

impl Scorer {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { targets: kernels.get("score_targets")?, samples: kernels.get("score_samples")? })
    }

    /// Bytes of [`ScoreBatch::workspace`] for up to `capacity` entries.
    pub fn workspace_bytes(capacity: usize, vocab: usize) -> usize {
        capacity * (parts(vocab) * PART_BYTES + size_of::<u64>())
    }

    /// Queues the launch.
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
        // SAFETY: plain numbers without padding: 8 of 8 bytes and 2 of 4.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const args).cast::<u8>(), size_of::<ScoreArgs>()) };
        let grid = Grid::of([parts(vocab) as u32, capacity as u32, 1], THREADS).overlapping();
        kernel.launch(stream, grid, &Args::new().bytes(bytes))
    }
}
