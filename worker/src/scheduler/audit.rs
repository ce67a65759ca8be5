//! Invariants that hold between any two calls. Tests and the simulator check them after every step.

use std::collections::BTreeSet;

use super::{RequestKey, Scheduler};
use crate::BlockId;
use crate::backend::StateId;
use crate::kv_cache::StateCounts;

/// A broken invariant: a bug in this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A block is in no state, or in two.
    #[error("{free} free + {cached} cached + {held} held blocks are not all {total}")]
    BlockStates {
        /// Blocks without content.
        free: u32,
        /// Cached blocks that no sequence holds.
        cached: u32,
        /// Blocks in block tables.
        held: u32,
        /// Size of the pool.
        total: u32,
    },
    /// A block was released too often or not at all.
    #[error("block {block} counts {counted} holders and has {holders}")]
    Holders {
        /// The block's id.
        block: u32,
        /// Holders according to the pool.
        counted: u32,
        /// Block tables that contain it.
        holders: u32,
    },
    /// A window block was released too often or not at all.
    #[error("the window block of block {base} counts {counted} holders and has {holders}")]
    WindowHolders {
        /// Block of the other layers for the same positions.
        base: u32,
        /// Holders according to the pool.
        counted: u32,
        /// Block tables that hold it.
        holders: u32,
    },
    /// The number of held window blocks is wrong.
    #[error(
        "tables hold {held} window blocks, {counted} are counted, beside {free} free and {cached} cached"
    )]
    WindowStates {
        /// Blank window blocks.
        free: u32,
        /// Cached window blocks that no sequence holds.
        cached: u32,
        /// Window blocks that tables hold.
        held: u32,
        /// Held window blocks according to the pool.
        counted: u32,
    },
    /// A slot for states was freed too often or not at all.
    #[error("tables hold {slots} slots for states, {held} are held of {total}, {free} free, {cached} cached")]
    StateSlots {
        /// Different slots in tables.
        slots: u32,
        /// Slots without content.
        free: u32,
        /// Slots with a cached state.
        cached: u32,
        /// Held slots by the cache's count.
        held: u32,
        /// All slots.
        total: u32,
    },
    /// `running` is not sorted by rank, so lookups fail.
    #[error("running sequences are not in the order of their ranks")]
    Order,
    /// A waiting sequence still holds blocks.
    #[error("a waiting sequence of request {request} holds {blocks} blocks")]
    WaitingHolds {
        /// The request's key.
        request: u64,
        /// Blocks in its table.
        blocks: usize,
    },
}

impl Scheduler {
    /// Checks every invariant of blocks and queues, in time linear in the blocks.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn audit(&self) -> Result<(), Violation> {
        let (counts, total) = (self.kv.counts(), self.kv.total());
        if counts.free + counts.cached + counts.held != total {
            let (free, cached, held) = (counts.free, counts.cached, counts.held);
            return Err(Violation::BlockStates { free, cached, held, total });
        }
        self.audit_holders(total)?;
        self.audit_states()?;
        if !self.queues.running.is_sorted_by_key(|sequence| sequence.rank) {
            return Err(Violation::Order);
        }
        match self.queues.waiting.values().find(|sequence| !sequence.table.blocks().is_empty()) {
            Some(waiting) => Err(Violation::WaitingHolds {
                request: waiting.request.0,
                blocks: waiting.table.blocks().len(),
            }),
            None => Ok(()),
        }
    }

    fn audit_holders(&self, total: u32) -> Result<(), Violation> {
        let mut holders = vec![0; total as usize];
        for block in self.queues.running.iter().flat_map(|sequence| sequence.table.blocks()) {
            holders[block.0 as usize] += 1;
        }
        for (block, holders) in (0..total).zip(holders) {
            let counted = self.kv.holders(BlockId(block));
            if counted != holders {
                return Err(Violation::Holders { block, counted, holders });
            }
        }
        self.audit_windows(total)?;
        let held = (0..total).filter(|&block| self.kv.holders(BlockId(block)) > 0).count() as u32;
        let counts = self.kv.counts();
        if held == counts.held {
            return Ok(());
        }
        let (free, cached) = (counts.free, counts.cached);
        Err(Violation::BlockStates { free, cached, held, total })
    }

    fn audit_windows(&self, total: u32) -> Result<(), Violation> {
        let Some(counts) = self.kv.window_counts() else { return Ok(()) };
        let mut holders = vec![0; total as usize];
        for base in self.queues.running.iter().flat_map(|sequence| self.kv.window_bases(&sequence.table)) {
            holders[base.0 as usize] += 1;
        }
        let held = holders.iter().filter(|holders| **holders > 0).count() as u32;
        for (base, holders) in (0..total).zip(holders) {
            let counted = self.kv.window_holders(BlockId(base));
            if counted != holders {
                return Err(Violation::WindowHolders { base, counted, holders });
            }
        }
        if held != counts.held {
            let (free, cached) = (counts.free, counts.cached);
            return Err(Violation::WindowStates { free, cached, held, counted: counts.held });
        }
        Ok(())
    }

    fn audit_states(&self) -> Result<(), Violation> {
        let Some((counts, total)) = self.kv.state_counts().zip(self.kv.state_slots()) else { return Ok(()) };
        let StateCounts { free, cached, held } = counts;
        let of_tables = self.queues.all().flat_map(|sequence| sequence.table.state_slots());
        let all: Vec<StateId> = of_tables.collect();
        let slots = all.iter().collect::<BTreeSet<_>>().len() as u32;
        let is_right = slots == held && all.len() as u32 == held && free + cached + held == total;
        if is_right { Ok(()) } else { Err(Violation::StateSlots { slots, free, cached, held, total }) }
    }

    /// Blocks in block tables.
    pub fn blocks_held(&self) -> u32 {
        self.kv.counts().held
    }

    /// Window blocks in block tables.
    pub fn window_blocks_held(&self) -> u32 {
        self.kv.window_counts().map_or(0, |counts| counts.held)
    }

    /// All requests, running and waiting.
    pub fn requests(&self) -> BTreeSet<RequestKey> {
        self.queues.all().map(|sequence| sequence.request).collect()
    }
}
