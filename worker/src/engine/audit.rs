//! What must hold of an engine between any two turns, for tests and simulators to check.

use super::Engine;
use crate::scheduler;
use crate::streams::{self, Counts};

/// A broken invariant: a bug of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Of blocks or queues.
    #[error(transparent)]
    Scheduler(#[from] scheduler::Broken),
    /// Of requests and their output.
    #[error(transparent)]
    Streams(#[from] streams::Broken),
    /// Something is left where nothing should be.
    #[error("{blocks} blocks are held and {requests} requests are here, or streams are kept")]
    NotAtRest {
        /// Held ones.
        blocks: u32,
        /// Running or waiting.
        requests: usize,
    },
}

impl Engine {
    /// Checks what must always hold: every block in one state, counts equal to holders, a stream for every request, no
    /// orphan beyond its linger, no request lost from the counts. Linear in the blocks and the streams.
    ///
    /// # Errors
    /// The first thing found that does not.
    pub fn audit(&self) -> Result<(), Broken> {
        self.scheduler.audit()?;
        Ok(self.outbox.audit(&self.scheduler.requests())?)
    }

    /// Checks besides that nothing is left: no request, no held block, no stream, no name. True after an idle
    /// [`turn`](Self::turn) when all readers are gone and all lingers are over.
    ///
    /// # Errors
    /// What is left.
    pub fn audit_at_rest(&self) -> Result<(), Broken> {
        self.audit()?;
        let (blocks, requests) = (self.scheduler.blocks_held(), self.scheduler.requests().len());
        let empty = self.outbox.is_empty() && self.under_way.is_empty();
        if empty && blocks == 0 && requests == 0 {
            return Ok(());
        }
        Err(Broken::NotAtRest { blocks, requests })
    }

    /// What became of the requests so far.
    pub fn counts(&self) -> Counts {
        self.outbox.counts()
    }
}
