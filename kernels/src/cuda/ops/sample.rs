//! Tokens drawn on the device; `cu/sample.cu`. The same token that [`crate::cpu::sample::draw`] draws from the same logits.

use crate::cpu::sample::{Controls, Sampling};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Logits of a block.
pub(super) const CHUNK: usize = 4096;
/// Most tokens of a vocabulary: sums of weights are 64-bit integers.
pub const MAX_VOCAB: usize = 1 << 19;
/// Bins of a sample's histogram, and tokens of its list.
const BINS: usize = 2048;
/// Bytes of a sample's state, and of what a block finds.
const STATE_BYTES: usize = 64;
const PART_BYTES: usize = 24;
/// In a field of [`SampleParams`]: there is none.
pub const NONE: u32 = u32::MAX;

/// How to draw one token: [`crate::cpu::sample::Sampling`], as the device reads it.
///
/// Lists are parts of arrays that all samples of a batch share. The entries of one bias list name distinct tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct SampleParams {
    /// Row of the logits.
    pub row: u32,
    /// Temperature, cuts and penalties.
    pub controls: Controls,
    /// Key of the random stream, its lower half.
    pub seed_low: u32,
    /// Its upper half.
    pub seed_high: u32,
    /// Which of a request's samples.
    pub sample_index: u32,
    /// Absolute position of the token to draw.
    pub position: u32,
    /// First entry of the bias list in [`SampleBatch::bias_tokens`].
    pub bias_start: u32,
    /// Its entries.
    pub bias_len: u32,
    /// First forbidden token in [`SampleBatch::forbidden`].
    pub forbidden_start: u32,
    /// How many.
    pub forbidden_len: u32,
    /// First token of the history in [`SampleBatch::history`]; needed by penalties only.
    pub history_start: u32,
    /// Its tokens.
    pub history_len: u32,
    /// How many of them are prompt.
    pub prompt_len: u32,
    /// Entry of [`SampleBatch::previous`] that ends the history, as a token of the output that the host does not know
    /// yet; or [`NONE`].
    pub carried: u32,
    /// Row of [`SampleBatch::masks`], or [`NONE`]: tokens whose bit is 0 are forbidden.
    pub mask: u32,
    /// How many best tokens to score with the drawn one, or [`NONE`]: no log-probabilities.
    pub logprobs: u32,
}

// SAFETY: 22 numbers of four bytes, without padding; every bit pattern is one.
unsafe impl Element for SampleParams {}

impl SampleParams {
    /// As `sampling` says, from `row`; where its lists begin is the caller's to say.
    pub fn of(row: u32, sampling: &Sampling<'_>) -> Self {
        Self {
            controls: sampling.controls,
            seed_low: sampling.seed as u32,
            seed_high: (sampling.seed >> 32) as u32,
            sample_index: sampling.sample_index,
            position: sampling.position,
            bias_len: sampling.logit_bias.len() as u32,
            forbidden_len: sampling.forbidden.len() as u32,
            history_len: sampling.history.len() as u32,
            prompt_len: sampling.prompt_len as u32,
            ..Self::greedy(row)
        }
    }

    /// The best token of `row`.
    pub const fn greedy(row: u32) -> Self {
        Self {
            row,
            controls: Controls::GREEDY,
            seed_low: 0,
            seed_high: 0,
            sample_index: 0,
            position: 0,
            bias_start: 0,
            bias_len: 0,
            forbidden_start: 0,
            forbidden_len: 0,
            history_start: 0,
            history_len: 0,
            prompt_len: 0,
            carried: NONE,
            mask: NONE,
            logprobs: NONE,
        }
    }
}

/// Memory of one [`Sampler`] launch. Contents may change from step to step; addresses and sizes are what a graph keeps.
#[derive(Debug, Clone, Copy)]
pub struct SampleBatch {
    /// `[rows, stride]`; not changed.
    pub logits: DeviceSlice<f32>,
    /// Values between two rows of logits; a multiple of 4 makes for wide loads.
    pub stride: usize,
    /// Tokens of the vocabulary, at most [`MAX_VOCAB`].
    pub vocab: usize,
    /// `[capacity]`
    pub samples: DeviceSlice<SampleParams>,
    /// `[1]`: how many samples there are; blocks of the others end at once.
    pub count: DeviceSlice<u32>,
    /// All bias lists' tokens; those outside the vocabulary are ignored.
    pub bias_tokens: DeviceSlice<u32>,
    /// As many biases.
    pub bias_values: DeviceSlice<f32>,
    /// All forbidden tokens.
    pub forbidden: DeviceSlice<u32>,
    /// All histories.
    pub history: DeviceSlice<u32>,
    /// `[masks, ceil(vocab / 32)]`: bit `token % 32` of word `token / 32` is 1 where a token may be drawn.
    pub masks: DeviceSlice<u32>,
    /// Tokens of the step before, see [`SampleParams::carried`]. Not the memory of `tokens`.
    pub previous: DeviceSlice<u32>,
    /// `[capacity]`: the drawn tokens. Always tokens of the vocabulary.
    pub tokens: DeviceSlice<u32>,
    /// `[capacity]`: 0, or 1 for a row that cannot be drawn from ([`crate::cpu::sample::is_usable`]).
    pub status: DeviceSlice<u32>,
    /// [`Sampler::workspace_bytes`], aligned to 8, filled with zeros once before its first launch.
    pub workspace: DeviceSlice<u8>,
    /// Which launches are needed.
    pub stages: Stages,
}

/// Launches of a draw. A stage that no sample needs may be left out; with it the result is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stages {
    /// Every temperature is 0.
    Greedy,
    /// And no sample has a top-k or a top-p.
    Uncut,
    /// All of them.
    All,
}

impl Stages {
    /// Those that `sample` needs.
    pub fn of(sample: &SampleParams) -> Self {
        match sample.controls {
            Controls { temperature: 0.0, .. } => Self::Greedy,
            Controls { top_k: 0, top_p, .. } if top_p >= 1.0 => Self::Uncut,
            _ => Self::All,
        }
    }

    /// Those that either needs.
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Uncut, _) | (_, Self::Uncut) => Self::Uncut,
            _ => Self::Greedy,
        }
    }
}

/// As the kernels' parameter.
#[repr(C)]
struct SampleArgs {
    /// Addresses, in the kernels' order: logits to lists.
    memory: [u64; 16],
    /// vocab, stride, capacity, mask_words, history_len, previous_len
    sizes: [u32; 6],
}

/// Draws tokens from logits.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    scan: Kernel,
    weigh: Kernel,
    cut: Kernel,
}

impl Sampler {
    /// Finds the kernels.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self {
            scan: kernels.get("sample_scan")?,
            weigh: kernels.get("sample_weigh")?,
            cut: kernels.get("sample_cut")?,
        })
    }

    /// Bytes of [`SampleBatch::workspace`] for up to `capacity` samples.
    pub fn workspace_bytes(capacity: usize, vocab: usize) -> usize {
        capacity * (STATE_BYTES + parts(vocab) * PART_BYTES + BINS * (8 + 8 + 4))
    }

    /// Queues the launches.
    pub fn launch(&self, stream: &Stream, batch: SampleBatch) -> Result<(), CudaError> {
        let (capacity, vocab) = (batch.samples.len(), batch.vocab);
        assert!(
            (1..=MAX_VOCAB).contains(&vocab),
            "a vocabulary of {vocab}; the sampler takes 1 to {MAX_VOCAB}"
        );
        assert!(
            batch.stride >= vocab,
            "rows of {} logits are shorter than a vocabulary of {vocab}",
            batch.stride
        );
        assert_eq!(batch.count.len(), 1, "one count");
        assert_eq!(batch.bias_tokens.len(), batch.bias_values.len(), "as many biases as tokens");
        assert!(
            batch.tokens.len() >= capacity && batch.status.len() >= capacity,
            "{capacity} samples do not fit into {} tokens and {} states",
            batch.tokens.len(),
            batch.status.len()
        );
        let needed = Self::workspace_bytes(capacity, vocab);
        assert!(
            batch.workspace.len() >= needed && batch.workspace.address().is_multiple_of(8),
            "a workspace of {} bytes at {:#x}; {capacity} samples need {needed}, aligned to 8",
            batch.workspace.len(),
            batch.workspace.address()
        );
        if capacity == 0 {
            return Ok(());
        }
        let args = Self::args(&batch, capacity);
        // SAFETY: plain numbers without padding: 16 times 8 bytes, 6 times 4.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const args).cast::<u8>(), size_of::<SampleArgs>()) };
        let args = Args::new().bytes(bytes);
        let grid = Grid::of([parts(vocab) as u32, capacity as u32, 1], THREADS).overlapping();
        self.scan.launch(stream, grid, &args)?;
        if batch.stages != Stages::Greedy {
            self.weigh.launch(stream, grid, &args)?;
        }
        if batch.stages == Stages::All {
            self.cut.launch(stream, grid, &args)?;
        }
        Ok(())
    }

    fn args(batch: &SampleBatch, capacity: usize) -> SampleArgs {
        let SampleBatch { logits, samples, count, bias_tokens, bias_values, forbidden, history, .. } = *batch;
        let states = batch.workspace.address();
        let masses = states + (capacity * STATE_BYTES) as u64;
        let lists = masses + (capacity * BINS * 8) as u64;
        let found = lists + (capacity * BINS * 8) as u64;
        let counts = found + (capacity * parts(batch.vocab) * PART_BYTES) as u64;
        SampleArgs {
            memory: [
                logits.address(),
                samples.address(),
                count.address(),
                bias_tokens.address(),
                bias_values.address(),
                forbidden.address(),
                history.address(),
                batch.masks.address(),
                batch.previous.address(),
                batch.tokens.address(),
                batch.status.address(),
                states,
                found,
                counts,
                masses,
                lists,
            ],
            sizes: [
                batch.vocab as u32,
                batch.stride as u32,
                capacity as u32,
                batch.vocab.div_ceil(32) as u32,
                history.len() as u32,
                batch.previous.len() as u32,
            ],
        }
    }
}

/// Blocks of a row.
pub(super) fn parts(vocab: usize) -> usize {
    vocab.div_ceil(CHUNK)
}
