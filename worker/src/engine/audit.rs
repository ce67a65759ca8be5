//! Invariants of an engine between any two turns, checked by tests and the simulator.

use super::Engine;
use crate::draft_model::DraftModel;
use crate::scheduler;
use crate::streams::{self, Counts};

/// A broken invariant, which is always a bug in this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An invariant of blocks or queues.
    #[error(transparent)]
    Scheduler(#[from] scheduler::Violation),
    /// An invariant of requests and their output.
    #[error(transparent)]
    Streams(#[from] streams::Violation),
    /// Blocks, requests or streams are left after everything ended.
    #[error("{blocks} blocks and {requests} requests are left, or streams are kept")]
    NotAtRest {
        /// Blocks still held.
        blocks: u32,
        /// Requests running or waiting.
        requests: usize,
    },
}

impl Engine {
    /// Checks that every block is in one state with the right number of holders, that every request has a
    /// stream, that no orphan outlives its linger, and that no request is lost from the counts. Linear in
    /// blocks and streams.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn audit(&self) -> Result<(), Violation> {
        self.scheduler.audit()?;
        Ok(self.outbox.audit(&self.scheduler.requests())?)
    }

    /// Also checks that nothing is left: no request, held block, stream or reader name. Holds after an idle
    /// [`turn`](Self::turn) once all readers are gone and all lingers have expired.
    ///
    /// # Errors
    /// If anything is left.
    pub fn audit_at_rest(&self) -> Result<(), Violation> {
        self.audit()?;
        let drafting = self.draft_model.as_ref().map_or(0, DraftModel::held_blocks);
        let (blocks, requests) = (self.scheduler.blocks_held() + drafting, self.scheduler.requests().len());
        let empty = self.outbox.is_empty() && self.in_flight.is_empty();
        if empty && blocks == 0 && requests == 0 {
            return Ok(());
        }
        Err(Violation::NotAtRest { blocks, requests })
    }

    /// Number of requests by outcome.
    pub fn counts(&self) -> Counts {
        self.outbox.counts()
    }
}
