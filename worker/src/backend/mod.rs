//! The backend trait and the batches that it runs. A backend sees rows, slots and block tables,
//! never a request.
//!
//! Several steps may be in flight, so that a device never waits for its host. A batch then contains tokens
//! that the previous step is still drawing. The batch says where they belong ([`Batch::carried`]), and the
//! backend fills them in without the host.

mod connections;
pub mod cpu;
pub mod cuda;
pub mod fake;
mod fake_states;
pub(crate) mod kv_division;
mod mask;
mod sampling;
mod states;
mod want;

use std::ops::Range;
use std::sync::Arc;

use skein_kernels::collective::Lost;

pub use connections::Connections;
pub use mask::{Allowed, MaskSlot};
pub use states::{BatchState, MOST_DRAFTED_WITH_STATES, StateCopy, StateId, StateSave};
pub use want::{Answer, Draw, PoolRows, SampleRow, Sampled, ScoreRow, StepOutput, VerifyRows, Want};

use crate::{BlockId, TokenId};
pub use skein_model::kv_blocks::{KvBlocks, KvTokenBytes, WindowBlocks};
pub use skein_model::served_adapter::LoadedAdapter;

/// Runs batches: one CPU or CUDA rank, a group of ranks, or a fake that hashes what it reads back.
pub trait Backend: Send {
    /// KV blocks that fit beside the weights; for a group, those of its smallest rank.
    fn kv_blocks(&self) -> u32;
    /// Blocks that layers with a window have apart, so that sequences can give them back. `None`: the blocks
    /// of [`kv_blocks`](Self::kv_blocks) hold all layers.
    fn window_blocks(&self) -> Option<WindowBlocks> {
        None
    }
    /// Slots for the states of recurrent layers. `None`: the model has no such layers.
    fn state_slots(&self) -> Option<u32> {
        None
    }
    /// All of these.
    fn all_blocks(&self) -> KvBlocks {
        KvBlocks { blocks: self.kv_blocks(), window: self.window_blocks(), states: self.state_slots() }
    }
    /// Steps that the engine keeps in flight. 1: a step is launched once the previous one's tokens are known.
    /// More: the next ones are launched before.
    fn steps_in_flight(&self) -> usize {
        1
    }
    /// Number of pipeline stages that a step passes in turn, while other steps are in other stages. With
    /// several, no step carries tokens over from the one before, and sequences are spread evenly over the
    /// steps in flight.
    fn stages(&self) -> usize {
        1
    }
    /// Whether it supports [`Want::Verify`].
    fn verifies(&self) -> bool {
        false
    }
    /// Starts one forward step and returns before it finishes. At most
    /// [`steps_in_flight`](Self::steps_in_flight) may be in flight.
    ///
    /// Steps take effect in launch order: everything a step reads or writes in the KV cache, copies included,
    /// comes after everything the previous step reads or writes. The scheduler relies on it when it reuses
    /// blocks that a step in flight still accesses.
    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError>;
    /// Waits for `step`, which must be the oldest in flight.
    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError>;
    /// Whether the oldest step in flight has ended, so that [`collect`](Self::collect) does not wait for it;
    /// `None` if the backend cannot tell.
    fn has_ended(&mut self) -> Option<bool> {
        None
    }
    /// Sets a callback, called from any thread, for a failure while nothing is in flight. An engine without
    /// steps in flight sleeps; the callback wakes it to check [`health`](Self::health). Only backends that
    /// work between steps need it.
    fn on_failure(&mut self, _alarm: Alarm) {}
    /// The error that ended it, if no step in flight will report it. Called before each step, so it
    /// must be cheap.
    fn health(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Called once by a failing backend; see [`Backend::on_failure`].
pub type Alarm = Box<dyn FnOnce() + Send>;

/// Identifies a launched step; collected once, oldest first.
#[derive(Debug)]
pub struct StepHandle(pub u64);

/// One forward step over rows of many sequences. Row `i` is one token: `tokens[i]` at `positions[i]`, whose
/// key and value are written to `slots[i]` before any row attends.
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
    /// `[rows]` slots in the window blocks; empty if the backend has none.
    pub window_slots: Vec<u32>,
    /// Window blocks of the blocks in [`block_tables`](Self::block_tables), or empty. Block 0 stands for
    /// those that no row sees any more.
    pub window_tables: Vec<BlockId>,
    /// Copies of window blocks, done as `copies`.
    pub window_copies: Vec<BlockCopy>,
    /// The sequences' states, one each; empty if the model has no recurrent layers.
    pub states: Vec<BatchState>,
    /// Copies of states, done before any row, in order.
    pub state_copies: Vec<StateCopy>,
    /// Block copies (copy-on-write) done before anything else in this step, in order.
    pub copies: Vec<BlockCopy>,
    /// The results to return. Several may read the same row (`n` samples of one prompt).
    pub wants: Vec<Want>,
    /// Tokens so far of sequences whose sampling needs them; see [`SampleRow::history`]. 0 where
    /// [`carried_history`](Self::carried_history) names the index.
    pub history: Vec<TokenId>,
    /// Rows whose token the previous step draws, with `at` an index into [`tokens`](Self::tokens). Each is
    /// its sequence's only row. Ascending.
    pub carried: Vec<Carried>,
    /// The same for [`history`](Self::history): always the last token of a sample's history.
    pub carried_history: Vec<Carried>,
}

impl Batch {
    /// One row with token 0 in the first slot, with which a backend tests its weights.
    pub(crate) fn of_one_row(wants: Vec<Want>) -> Self {
        Self {
            tokens: vec![0],
            positions: vec![0],
            slots: vec![0],
            sequences: vec![BatchSequence { rows: 0..1, context_len: 1, blocks: 0..1, adapter: None }],
            block_tables: vec![BlockId(0)],
            states: vec![BatchState::alone()],
            wants,
            ..Self::default()
        }
    }

    /// The copies of blocks and of window blocks.
    pub(crate) fn all_copies(&mut self) -> [&mut Vec<BlockCopy>; 2] {
        [&mut self.copies, &mut self.window_copies]
    }

    /// Whether every sequence has one row: a pure decode step without drafts.
    pub fn has_one_row_each(&self) -> bool {
        self.tokens.len() == self.sequences.len()
    }

    /// The draft tokens of `verify`.
    pub fn draft(&self, verify: &VerifyRows) -> &[TokenId] {
        &self.tokens[verify.rows.start as usize + 1..verify.rows.end as usize]
    }

    fn history_in(&self, range: &Range<u32>) -> &[TokenId] {
        &self.history[range.start as usize..range.end as usize]
    }

    /// Fills in the carried tokens from `drawn`, the tokens of the previous step by want.
    ///
    /// For backends that prepare batches on the host; others do this on the device.
    pub fn fill_carried(&mut self, drawn: &[TokenId]) {
        for Carried { at, want } in self.carried.drain(..) {
            self.tokens[at as usize] = drawn[want as usize];
        }
        for Carried { at, want } in self.carried_history.drain(..) {
            self.history[at as usize] = drawn[want as usize];
        }
    }
}

/// A token unknown when the batch was made: the sample `wants[want]` of the step launched just before. If its
/// sequence ends with that token, this step's results for it are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Index to fill in.
    pub at: u32,
    /// Index of the want in the previous step.
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
    /// Its adapter; `None` = the model alone.
    pub adapter: Option<Arc<LoadedAdapter>>,
}

/// Copies one block's keys and values in all layers that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Block to read.
    pub from: BlockId,
    /// Block to write.
    pub to: BlockId,
}

/// Why a step could not be computed. Any such error ends the engine; its requests resume on another worker.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The device or its thread is gone.
    #[error("the {backend} backend stopped: {reason}; restart the worker")]
    Stopped {
        /// Name of the backend.
        backend: &'static str,
        /// What was observed.
        reason: String,
    },
    /// Another rank of the group failed.
    #[error("the group has failed: {0}")]
    Lost(#[from] Lost),
    /// The weights produced NaN or infinite logits.
    #[error(
        "row {row} has no finite logit: its tokens met weights that are NaN, infinite or too large; download or convert the model again"
    )]
    NotFinite {
        /// Row of the batch.
        row: u32,
    },
    /// The batch contains a want that this backend does not support.
    #[error("the {backend} backend does not {want}")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// The unsupported operation.
        want: &'static str,
    },
}
