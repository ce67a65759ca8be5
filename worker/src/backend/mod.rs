//! What computes: a trait, and the batch it runs. A backend sees rows, slots and block tables, never a request.
//!
//! Several steps may be under way at once, so that a device never waits for its host. A batch then holds tokens that
//! nobody knows yet: those that the step before draws. The batch says where they go ([`Batch::carried`]), and the
//! backend puts them there without asking the host.

pub mod cpu;
pub mod cuda;
pub mod fake;
mod sampling;
mod want;

use std::ops::Range;

pub use want::{Answer, Draw, PoolRow, SampleRow, Sampled, ScoreRow, StepOutput, VerifyRows, Want};

use crate::{BlockId, TokenId};

/// Runs batches: one CPU or CUDA rank, a group of ranks, or a fake that hashes what it reads back.
pub trait Backend: Send {
    /// KV blocks that fit once the weights are loaded; a group answers for its smallest rank.
    fn kv_blocks(&self) -> u32;
    /// How many steps the engine keeps under way: 1 where a step is launched once the last one's tokens are known, more
    /// where the next ones should be launched before. Nothing else in the worker knows the number.
    fn steps_in_flight(&self) -> usize {
        1
    }
    /// Whether it answers [`Want::Verify`].
    fn verifies(&self) -> bool {
        false
    }
    /// Starts one forward step and returns before it finishes. At most [`steps_in_flight`](Self::steps_in_flight) may be
    /// under way.
    ///
    /// Steps take effect in the order of their launch: whatever a step reads or writes in the KV cache, copies
    /// included, comes after all that the step before it reads or writes. The scheduler counts on it: it hands out
    /// blocks that a step under way still uses.
    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError>;
    /// Waits for `step`, which must be the oldest one under way.
    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError>;
    /// Takes what is to be called, from any thread, when the backend ends with an error while nobody collects: an
    /// engine without steps under way sleeps, and asks for [`health`](Self::health) then. For backends that do
    /// something between steps.
    fn on_failure(&mut self, _alarm: Alarm) {}
    /// Why it has ended, if it has and no step under way will say so. Asked before each step: cheap.
    fn health(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

/// What a failing backend calls, once; see [`Backend::on_failure`].
pub type Alarm = Box<dyn FnOnce() + Send>;

/// Names a launched step; collected once, oldest first.
#[derive(Debug)]
pub struct StepHandle(pub u64);

/// One forward step over rows of many sequences. Row `i` is one token: `tokens[i]` at `positions[i]`, whose key
/// and value are written to `slots[i]` before any row attends.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// `[rows]` token ids; 0 where [`carried`](Self::carried) names the row.
    pub tokens: Vec<TokenId>,
    /// `[rows]` absolute positions.
    pub positions: Vec<u32>,
    /// `[rows]` slot mapping: `block_id * block_size + position % block_size`.
    pub slots: Vec<u32>,
    /// The sequences, in row order; their row ranges cover `0..rows` without gaps.
    pub sequences: Vec<BatchSequence>,
    /// All block tables, one after another; see [`BatchSequence::blocks`].
    pub block_tables: Vec<BlockId>,
    /// Block copies (copy-on-write) done before anything else in this step, in order.
    pub copies: Vec<BlockCopy>,
    /// What to answer. Several may read the same row (`n` samples of one prompt).
    pub wants: Vec<Want>,
    /// Tokens so far of the sequences whose sampling needs them; see [`SampleRow::history`]. 0 where
    /// [`carried_history`](Self::carried_history) names the index.
    pub history: Vec<TokenId>,
    /// Rows whose token the step before draws, `at` in [`tokens`](Self::tokens): each its sequence's only row. Rising.
    pub carried: Vec<Carried>,
    /// The same for [`history`](Self::history): always the last token of some sample's history.
    pub carried_history: Vec<Carried>,
}

impl Batch {
    /// One row over token 0, in the first slot: the step that a backend tries its weights with.
    pub(crate) fn of_one_row(wants: Vec<Want>) -> Self {
        Self {
            tokens: vec![0],
            positions: vec![0],
            slots: vec![0],
            sequences: vec![BatchSequence { rows: 0..1, context_len: 1, blocks: 0..1 }],
            block_tables: vec![BlockId(0)],
            wants,
            ..Self::default()
        }
    }

    /// Whether each sequence has one row, as where all decode. One with a draft has more.
    pub fn has_one_row_each(&self) -> bool {
        self.tokens.len() == self.sequences.len()
    }

    /// The tokens that `verify` is to verify.
    pub fn draft(&self, verify: &VerifyRows) -> &[TokenId] {
        &self.tokens[verify.rows.start as usize + 1..verify.rows.end as usize]
    }

    fn history_in(&self, range: &Range<u32>) -> &[TokenId] {
        &self.history[range.start as usize..range.end as usize]
    }

    /// Puts the carried tokens into their places. `drawn`: those of the step launched just before, `[its wants]`.
    ///
    /// For backends that make their batches ready on the host; one with a device of its own does this there.
    pub fn fill_carried(&mut self, drawn: &[TokenId]) {
        for Carried { at, want } in self.carried.drain(..) {
            self.tokens[at as usize] = drawn[want as usize];
        }
        for Carried { at, want } in self.carried_history.drain(..) {
            self.history[at as usize] = drawn[want as usize];
        }
    }
}

/// A token that was not known when the batch was made: the one drawn for `wants[want]`, a sample, of the step launched
/// just before this one. Its sequence may turn out to have ended with it; then what this step makes of it is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Where it belongs.
    pub at: u32,
    /// Which of that step's wants it is.
    pub want: u32,
}

/// One sequence's part of a batch.
#[derive(Debug, Clone)]
pub struct BatchSequence {
    /// Its rows: consecutive positions that end at `context_len - 1`.
    pub rows: Range<u32>,
    /// Tokens its last row attends to, itself included; row `r` attends to positions `0..=positions[r]`.
    pub context_len: u32,
    /// Its block table in [`Batch::block_tables`]; covers `context_len` positions.
    pub blocks: Range<u32>,
}

/// Copies one block's keys and values, all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Read from here.
    pub from: BlockId,
    /// Written there.
    pub to: BlockId,
}

/// A step that could not be computed. The engine that gets one is done: its requests resume on another worker.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The device or its thread is gone.
    #[error("the {backend} backend stopped: {reason}; restart the worker")]
    Stopped {
        /// Which backend.
        backend: &'static str,
        /// What was seen.
        reason: String,
    },
    /// The weights produced no usable number.
    #[error("row {row} has no finite logit: the weights or the kernels are broken")]
    NotFinite {
        /// Batch row.
        row: u32,
    },
    /// The batch asks for what this backend cannot give.
    #[error("the {backend} backend does not {want}")]
    Unsupported {
        /// Which backend.
        backend: &'static str,
        /// What was asked.
        want: &'static str,
    },
}
