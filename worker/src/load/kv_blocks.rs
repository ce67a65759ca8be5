//! How many KV blocks fit in memory beside the weights.

use super::memory_plan::Needs;
use super::sizing::{self, KvTokenBytes, Room, WindowRows};
use crate::backend::KvBlocks;
use crate::config::WorkerConfig;
use crate::error::WorkerError;

/// Number of KV blocks, and of slots for states of `state_bytes` each, that fit beside `weight_bytes`; fails
/// if they do not fit. `bytes`: of a token on each rank.
pub(super) fn kv_blocks(
    config: &WorkerConfig,
    weight_bytes: u64,
    windows: WindowRows,
    bytes: &[KvTokenBytes],
    state_bytes: u64,
    model_len: u32,
) -> Result<KvBlocks, WorkerError> {
    let bytes_per_token = bytes.iter().map(KvTokenBytes::all).max().unwrap_or(0);
    sizing::check_model_len(&config.scheduler, model_len)?;
    let given = config.kv_cache_memory_bytes;
    let needs = Needs {
        // Nodes have nearly equal parts.
        weight_bytes: weight_bytes / u64::from(config.ranks.nodes.count.max(1)),
        kv_bytes: given,
        least_kv_bytes: bytes_per_token * u64::from(config.scheduler.block_size) + state_bytes,
        // Each rank on this node has a cache of this size; together the ranks hold the weights once.
        workers: u64::from(config.memory_sharers.max(1)) * u64::from(config.ranks.on_node()),
        beside: config.memory_beside,
    };
    if state_bytes > 0 && given.is_some_and(|given| given < needs.least_kv_bytes) {
        return Err(WorkerError::Setting {
            setting: "kv_cache_memory_bytes",
            got: given.unwrap_or_default(),
            allowed: format!("{} or more: the states of one sequence and one block", needs.least_kv_bytes),
        });
    }
    let memory = skein_sys::memory_limit::of_this_process();
    memory.as_ref().map_or(Ok(()), |memory| needs.check(memory))?;
    let available = memory.as_ref().map(|memory| memory.available / needs.workers);
    let left = memory.as_ref().map_or(u64::MAX, |memory| needs.left(memory));
    let room = Room { given, available, left };
    let (states, room) = sizing::state_slots(&config.scheduler, state_bytes, room);
    let blocks = sizing::kv_blocks_by_layer(&config.scheduler, windows, bytes, model_len, room);
    Ok(KvBlocks { states, ..blocks })
}
