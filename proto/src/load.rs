//! How busy a worker is.

use crate::worker::v1 as wire;

/// A worker's queue, running samples, free cache and measured speed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Prompt tokens not yet computed: of waiting requests and of those in prefill, without tokens found in
    /// the prefix cache.
    pub queued_uncached_tokens: u64,
    /// Samples in the queue.
    pub waiting: u32,
    /// Samples in the running batch.
    pub running: u32,
    /// Blocks that are free or only cached, so available to a new request.
    pub free_blocks: u32,
    /// Measured prefill rate; 0 = not measured yet.
    pub prefill_tokens_per_second: f32,
    /// Measured decode rate, all running sequences together; 0 = not measured yet.
    pub decode_tokens_per_second: f32,
    /// What people want to see of it.
    pub detail: LoadDetail,
}

/// Details of a worker's load for people. No decision depends on them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadDetail {
    /// Blocks without a holder whose content is cached.
    pub cached_blocks: u32,
    /// Blocks that several sequences hold.
    pub shared_blocks: u32,
    /// Time of the latest steps, exponentially weighted; 0 = not measured yet.
    pub step_seconds: f32,
    /// Prompt tokens of requests that began to run, since the start.
    pub prompt_tokens: u64,
    /// Those of them that were found in the prefix cache.
    pub cached_prompt_tokens: u64,
    /// Tokens generated since the start.
    pub output_tokens: u64,
}

/// A worker's report to one router.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadReport {
    /// Queue, running samples, free cache and measured speed.
    pub load: Load,
    /// Engine steps since start.
    pub step: u64,
    /// The last placement of this router that the worker saw; 0 = none.
    pub last_placement_sequence: u64,
    /// Accepts no new requests.
    pub draining: bool,
    /// Its streams should move to another worker, if there is one.
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
            totals: Vec::new(),
            detail: (load.detail != LoadDetail::default()).then(|| load.detail.into()),
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
                detail: report.detail.map(Into::into).unwrap_or_default(),
            },
            step: report.step,
            last_placement_sequence: report.last_placement_sequence,
            draining: report.draining,
            giving_back: report.giving_back,
        }
    }
}

impl From<LoadDetail> for wire::LoadDetail {
    fn from(detail: LoadDetail) -> Self {
        let LoadDetail {
            cached_blocks,
            shared_blocks,
            step_seconds,
            prompt_tokens,
            cached_prompt_tokens,
            output_tokens,
        } = detail;
        Self {
            cached_blocks,
            shared_blocks,
            step_seconds,
            prompt_tokens,
            cached_prompt_tokens,
            output_tokens,
        }
    }
}

impl From<wire::LoadDetail> for LoadDetail {
    fn from(detail: wire::LoadDetail) -> Self {
        let wire::LoadDetail {
            cached_blocks,
            shared_blocks,
            step_seconds,
            prompt_tokens,
            cached_prompt_tokens,
            output_tokens,
        } = detail;
        Self {
            cached_blocks,
            shared_blocks,
            step_seconds,
            prompt_tokens,
            cached_prompt_tokens,
            output_tokens,
        }
    }
}
