//! Ranges of the scheduler's settings.

use crate::config::SchedulerConfig;
use crate::error::WorkerError;

/// # Errors
/// The first setting that is out of its range.
pub(crate) fn check_settings(config: &SchedulerConfig) -> Result<(), WorkerError> {
    let check = |setting, got: u32, range: std::ops::RangeInclusive<u32>| {
        let allowed = format!("{}..={}", range.start(), range.end());
        let wrong = WorkerError::Setting { setting, got: got.into(), allowed };
        if range.contains(&got) { Ok(()) } else { Err(wrong) }
    };
    check("block_size", config.block_size, 1..=1024)?;
    check("max_num_seqs", config.max_num_seqs, 1..=65_536)?;
    check("max_num_batched_tokens", config.max_num_batched_tokens, 1..=1 << 20)?;
    check("max_num_queued_reqs", config.max_num_queued_reqs, 1..=1 << 20)?;
    config.max_model_len.map_or(Ok(()), |len| check("max_model_len", len, 2..=1 << 27))
}
