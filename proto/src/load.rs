//! How busy a worker is.

use crate::worker::v1 as wire;

/// What waits and runs at a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Prompt tokens waiting or part-way through prefill that no cache will save.
    pub queued_uncached_tokens: u64,
    /// Samples that wait.
    pub waiting: u32,
    /// Samples that run.
    pub running: u32,
    /// Blocks free or only cached: what a new request could get.
    pub free_blocks: u32,
    /// Measured prefill rate; 0 = not measured yet.
    pub prefill_tokens_per_second: f32,
    /// Measured decode rate of all running sequences together; 0 = not measured yet.
    pub decode_tokens_per_second: f32,
}

/// A worker's report to one router.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadReport {
    /// What waits and runs.
    pub load: Load,
    /// Engine steps since start.
    pub step: u64,
    /// The last placement of this router that the worker had seen; 0 = none.
    pub last_placement_sequence: u64,
    /// Takes no new requests any more.
    pub draining: bool,
    /// Wants its streams to go on elsewhere, where there is an elsewhere.
    pub giving_back: bool,
}

impl From<LoadReport> for wire::Load {
    fn from(report: LoadReport) -> Self {
        let LoadReport { load, step, last_placement_sequence, draining, giving_back } = report;
        Self {
            queued_uncached_tokens: load.queued_uncached_tokens,
            waiting: load.waiting,
            running: load.running,
            free_blocks: load.free_blocks,
            prefill_tokens_per_second: load.prefill_tokens_per_second,
            decode_tokens_per_second: load.decode_tokens_per_second,
            step,
            last_placement_sequence,
            draining,
            giving_back,
        }
    }
}

impl From<wire::Load> for LoadReport {
    fn from(report: wire::Load) -> Self {
        Self {
            load: Load {
                queued_uncached_tokens: report.queued_uncached_tokens,
                waiting: report.waiting,
                running: report.running,
                free_blocks: report.free_blocks,
                prefill_tokens_per_second: report.prefill_tokens_per_second,
                decode_tokens_per_second: report.decode_tokens_per_second,
            },
            step: report.step,
            last_placement_sequence: report.last_placement_sequence,
            draining: report.draining,
            giving_back: report.giving_back,
        }
    }
}
