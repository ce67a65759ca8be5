//! What must hold of an engine between any two turns, for tests and simulators to check.

use super::{Counts, Engine};
use crate::scheduler;

/// A broken invariant: a bug of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Of blocks or queues.
    #[error(transparent)]
    Scheduler(#[from] scheduler::Broken),
    /// Somebody computes what nobody may read, or the other way round.
    #[error("the scheduler has requests {scheduled:?}, the streams are of {streamed:?}")]
    Requests {
        /// In the scheduler.
        scheduled: Vec<u64>,
        /// In the outbox.
        streamed: Vec<u64>,
    },
    /// A reader's name or a stream's key outlived its stream.
    #[error("request {request} is gone, and a name or a key leads to it")]
    Forgotten {
        /// Which.
        request: u64,
    },
    /// A request was counted twice, or not at all.
    #[error("{0:?} do not add up")]
    Counts(Counts),
    /// Output is held and not counted, or the other way round.
    #[error("streams hold {held} bytes, {counted} are counted")]
    OutputBytes {
        /// In the rings.
        held: usize,
        /// In the account.
        counted: usize,
    },
    /// A stream outlived its linger.
    #[error("request {request} has no reader, its linger is over, and it is still here")]
    Orphan {
        /// Whose.
        request: u64,
    },
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
        self.outbox.audit(&self.scheduler.requests())
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
