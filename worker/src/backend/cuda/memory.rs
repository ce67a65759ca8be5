//! Device memory of a step other than weights, cache and activations: its inputs and outputs.

use skein_kernels::cuda::DeviceSlice;
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::ops::inputs::{HEADER_WORDS, Inputs, Message, WindowTables};
use skein_kernels::cuda::ops::kv::StepSequences;
use skein_kernels::cuda::ops::sample::SampleParams;
use skein_kernels::cuda::ops::score::{ScoreParams, Scored};

use super::pack::{PassLimits, mask_words};
use crate::config::SchedulerConfig;

/// Most words of histories and forbidden tokens in a message: 16 MiB. More takes several passes.
const MAX_LIST_WORDS: usize = 4 << 20;
/// Most forbidden tokens, and most biases, of one sample; more than a request may have.
const MAX_FORBIDDEN: usize = 4096;
/// Most biases in a message.
const MAX_BIASES: usize = 1 << 16;

/// Rows of the largest step. Every running sequence has a row, whatever the token budget.
pub fn most_rows(limits: &SchedulerConfig) -> u32 {
    limits.max_num_batched_tokens.max(limits.max_num_seqs)
}

/// Parts of a step's message that not every backend has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepParts {
    /// Layers with a window may have blocks apart.
    pub windows: bool,
    /// Rows may have adapters.
    pub adapters: bool,
}

/// Sizes of the largest step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepSizes {
    /// Rows of the batch.
    pub rows: usize,
    /// Sequences in the batch.
    pub sequences: usize,
    /// Blocks of the longest sequence.
    pub table_stride: usize,
    /// Parts that not every step has.
    pub parts: StepParts,
    /// Limits of one pass.
    pub pass: PassLimits,
}

impl StepSizes {
    /// Sizes of the largest step that a scheduler with these limits plans, with at most `drafted` draft
    /// tokens.
    pub fn new(limits: &SchedulerConfig, max_model_len: u32, drafted: usize, parts: StepParts) -> Self {
        let sequences = limits.max_num_seqs as usize;
        let one_sample = max_model_len as usize + MAX_FORBIDDEN;
        Self {
            rows: most_rows(limits) as usize,
            sequences,
            table_stride: max_model_len.div_ceil(limits.block_size) as usize,
            parts,
            pass: PassLimits {
                rows: sequences + drafted,
                list_words: (sequences * one_sample).min(MAX_LIST_WORDS).max(one_sample),
                biases: (sequences * MAX_FORBIDDEN).min(MAX_BIASES),
            },
        }
    }

    /// Words of the largest message.
    pub fn message_words(&self) -> usize {
        let caches = self.caches();
        let rows = (2 + caches) * self.rows;
        let sequences = 3 * self.sequences + 1 + caches * self.sequences * self.table_stride;
        let PassLimits { rows: logit_rows, list_words, biases } = self.pass;
        let drawing = logit_rows * (1 + PARAM_WORDS + SCORE_WORDS) + 2 + list_words + 2 * biases;
        let tiles = if self.parts.adapters {
            Message::tile_words(self.rows) + Message::tile_words(logit_rows)
        } else {
            0
        };
        HEADER_WORDS + rows + sequences + self.copy_words() + drawing + tiles
    }

    /// Number of caches that rows have slots in.
    fn caches(&self) -> usize {
        1 + usize::from(self.parts.windows)
    }

    /// Words of block copies: each sequence may have one in each cache, in its own wave.
    fn copy_words(&self) -> usize {
        self.caches() * 3 * self.sequences
    }

    /// Number of outputs: the most samples and scores of a step, plus slack for a sampler launched with
    /// padding.
    pub fn entries(&self) -> usize {
        self.sequences + self.rows + self.pass.rows
    }
}

/// Words of the parameters of a sample and of a score.
const PARAM_WORDS: usize = size_of::<SampleParams>() / size_of::<u32>();
const SCORE_WORDS: usize = size_of::<ScoreParams>() / size_of::<u32>();

/// A step's inputs and outputs on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepMemory {
    sizes: StepSizes,
    /// The message, and slack behind it for a sampler launched with padding.
    pub packed: DeviceSlice<u32>,
    tokens: DeviceSlice<u32>,
    positions: DeviceSlice<u32>,
    slots: DeviceSlice<u32>,
    row_starts: DeviceSlice<u32>,
    context_lens: DeviceSlice<u32>,
    block_tables: DeviceSlice<u32>,
    /// Where rows lie in window blocks; `None` if there are none.
    pub windows: Option<WindowTables>,
    logit_rows: DeviceSlice<u32>,
    /// Logits of a pass: `[pass.rows, vocab]`.
    pub logits: DeviceSlice<f32>,
    /// Masks of a pass: `[pass.rows, mask_words(vocab)]`.
    pub masks: DeviceSlice<u32>,
    /// `[entries]`: tokens drawn in this step, pass by pass.
    pub sampled: DeviceSlice<u32>,
    /// `[entries]`: tokens drawn in the previous step.
    pub previous: DeviceSlice<u32>,
    /// `[entries]`: 1 for a row without usable logits.
    pub status: DeviceSlice<u32>,
    /// `[entries]`: log-probabilities of drawn tokens.
    pub drawn_scores: DeviceSlice<Scored>,
    /// `[entries]`: log-probabilities of prompt tokens.
    pub scores: DeviceSlice<Scored>,
}

impl StepMemory {
    /// Allocates memory for the largest step.
    pub fn place(sizes: StepSizes, vocab: usize, memory: &mut Carver) -> Self {
        let StepSizes { rows, sequences, table_stride, parts, pass } = sizes;
        let entries = sizes.entries();
        Self {
            sizes,
            packed: memory.take(sizes.message_words() + pass.rows * PARAM_WORDS),
            tokens: memory.take(rows),
            positions: memory.take(rows),
            slots: memory.take(rows),
            row_starts: memory.take(sequences + 1),
            context_lens: memory.take(sequences),
            block_tables: memory.take(sequences * table_stride),
            windows: parts.windows.then(|| WindowTables {
                slots: memory.take(rows),
                block_tables: memory.take(sequences * table_stride),
            }),
            logit_rows: memory.take(pass.rows),
            logits: memory.take(pass.rows * vocab),
            masks: memory.take(pass.rows * mask_words(vocab)),
            sampled: memory.take(entries),
            previous: memory.take(entries),
            status: memory.take(entries),
            drawn_scores: memory.take(entries),
            scores: memory.take(entries),
        }
    }

    /// Destinations of a message's contents, padded to `rows` rows and `sequences` sequences. Both are 0 for
    /// passes after the first.
    pub fn inputs(&self, rows: usize, sequences: usize) -> Inputs {
        Inputs {
            packed: self.packed,
            sampled: self.sampled,
            previous: if rows > 0 { self.previous } else { DeviceSlice::NONE },
            tokens: self.tokens,
            positions: self.positions,
            slots: self.slots,
            sequences: StepSequences {
                row_starts: self.row_starts,
                context_lens: self.context_lens,
                block_tables: self.block_tables,
                table_stride: self.sizes.table_stride,
                capacity: sequences,
                rows,
            },
            windows: self.windows,
            logit_rows: self.logit_rows,
        }
    }
}
