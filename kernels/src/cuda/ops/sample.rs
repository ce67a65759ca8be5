//! Sampling on the device; `cu/sample.cu`. Draws the same token as [`crate::cpu::sample::draw`] from the same
//! logits.

use crate::cpu::sample::{Controls, Sampling};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Threads per block.
pub(super) const THREADS: u32 = 256;
/// Logits per block.
pub(super) const CHUNK: usize = 4096;
/// Largest vocabulary, because sums of weights are 64-bit integers.
pub const MAX_VOCAB: usize = 1 << 19;
/// Bins of a sample's histogram, and tokens in its list.
const BINS: usize = 2048;
/// Bytes of a sample's state, and of a block's partial result.
const STATE_BYTES: usize = 64;
const PART_BYTES: usize = 24;
/// Value of a field of [`SampleParams`] that means none.
pub const NONE: u32 = u32::MAX;

/// Parameters of one draw: [`crate::cpu::sample::Sampling`] as the device reads it.
///
/// Lists are parts of arrays shared by all samples of a batch. The tokens in a bias list must be distinct.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct SampleParams {
    /// Row of the logits.
    pub row: u32,
    /// Temperature, cuts and penalties.
    pub controls: Controls,
    /// Lower half of the random stream's key.
    pub seed_low: u32,
    /// Upper half of the random stream's key.
    pub seed_high: u32,
    /// Index of the sample if a request has several.
    pub sample_index: u32,
    /// Absolute position of the token to draw.
    pub position: u32,
    /// First entry of the bias list in [`SampleBatch::bias_tokens`].
    pub bias_start: u32,
    /// Length of the bias list.
    pub bias_len: u32,
    /// First forbidden token in [`SampleBatch::forbidden`].
    pub forbidden_start: u32,
    /// Number of forbidden tokens.
    pub forbidden_len: u32,
    /// First token of the history in [`SampleBatch::history`]; only penalties need it.
    pub history_start: u32,
    /// Length of the history.
    pub history_len: u32,
    /// Number of prompt tokens at the start of the history.
    pub prompt_len: u32,
    /// Entry of [`SampleBatch::previous`] that ends the history, an output token that the host does not know
    /// yet; or [`NONE`].
    pub carried: u32,
    /// Row of [`SampleBatch::masks`], where tokens with bit 0 are forbidden; or [`NONE`].
    pub mask: u32,
    /// Number of best tokens to score besides the drawn one, or [`NONE`] for no log-probabilities.
    pub logprobs: u32,
}

// SAFETY: 22 numbers of four bytes, without padding; every bit pattern is one.
unsafe impl Element for SampleParams {}

impl SampleParams {
    /// Parameters for `row` as in `sampling`. The caller sets where its lists start.
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

    /// Greedy decoding of `row`.
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

/// Memory of one [`Sampler`] launch. A captured graph fixes addresses and sizes; contents may change.
#[derive(Debug, Clone, Copy)]
pub struct SampleBatch {
    /// `[rows, stride]`; read only.
    pub logits: DeviceSlice<f32>,
    /// Values from one row of logits to the next; a multiple of 4 allows wide loads.
    pub stride: usize,
    /// Size of the vocabulary, at most [`MAX_VOCAB`].
    pub vocab: usize,
    /// Parameters of each sample, `[capacity]`.
    pub samples: DeviceSlice<SampleParams>,
    /// `[1]`: number of samples; blocks of further ones end at once.
    pub count: DeviceSlice<u32>,
    /// Tokens of all bias lists; those outside the vocabulary are ignored.
    pub bias_tokens: DeviceSlice<u32>,
    /// Bias of each of `bias_tokens`.
    pub bias_values: DeviceSlice<f32>,
    /// Forbidden tokens of all samples.
    pub forbidden: DeviceSlice<u32>,
    /// Histories of all samples.
    pub history: DeviceSlice<u32>,
    /// `[masks, ceil(vocab / 32)]`: bit `token % 32` of word `token / 32` is 1 if the token may be drawn.
    pub masks: DeviceSlice<u32>,
    /// Tokens of the previous step, see [`SampleParams::carried`]. Must not overlap `tokens`.
    pub previous: DeviceSlice<u32>,
    /// Output, `[capacity]`: the drawn tokens, always inside the vocabulary.
    pub tokens: DeviceSlice<u32>,
    /// Output, `[capacity]`: 0, or 1 for a row that cannot be drawn from ([`crate::cpu::sample::is_usable`]).
    pub status: DeviceSlice<u32>,
    /// [`Sampler::workspace_bytes`], aligned to 8; must be zeroed once before the first launch.
    pub workspace: DeviceSlice<u8>,
    /// Stages to launch.
    pub stages: Stages,
}

/// Stages of a draw. Skipping a stage that no sample needs does not change the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stages {
    /// For samples of temperature 0.
    Greedy,
    /// Also for samples without top-k and top-p.
    Uncut,
    /// For all samples.
    All,
}

impl Stages {
    /// The stages that `sample` needs.
    pub fn of(sample: &SampleParams) -> Self {
        match sample.controls {
            Controls { temperature: 0.0, .. } => Self::Greedy,
            Controls { top_k: 0, top_p, .. } if top_p >= 1.0 => Self::Uncut,
            _ => Self::All,
        }
    }

    /// The stages that either needs.
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Uncut, _) | (_, Self::Uncut) => Self::Uncut,
            _ => Self::Greedy,
        }
    }
}

/// The kernels' parameter.
#[repr(C)]
struct SampleArgs {
    /// Addresses in the kernels' order, from logits to lists.
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
    /// Looks the kernels up.
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
        // SAFETY: plain numbers without padding: 16 of 8 bytes and 6 of 4.
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

/// Blocks per row.
pub(super) fn parts(vocab: usize) -> usize {
    vocab.div_ceil(CHUNK)
}
