//! Number of KV blocks, and the longest sequence that they allow. Pure.

use crate::backend::KvBlocks;
pub(super) use crate::backend::KvTokenBytes;
use crate::backend::kv_division::{KvLimit, MODERATE_LEN, WindowedCache};
use crate::config::SchedulerConfig;
use crate::error::WorkerError;

/// The shortest sequence: one prompt token and one output token.
const SHORTEST_LEN: u32 = 2;

/// The default cache takes at most this share of the available memory.
const MEMORY_SHARE_PERCENT: u64 = 40;
/// Bytes assumed if the system does not say how much is available.
const UNKNOWN_MEMORY: u64 = 4 << 30;

/// Memory for the KV cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Configured bytes.
    pub given: Option<u64>,
    /// Free memory, if the system says how much.
    pub available: Option<u64>,
    /// Bytes left beside the weights.
    pub left: u64,
}

/// Refuses lengths beyond the model's positions: it gives nonsense at positions that it was not trained on.
pub(super) fn check_model_len(config: &SchedulerConfig, model_len: u32) -> Result<(), WorkerError> {
    if model_len < SHORTEST_LEN {
        let reason = format!(
            "max_position_embeddings in config.json is {model_len}; a prompt and an answer need {SHORTEST_LEN} or more"
        );
        return Err(WorkerError::Load(reason.into()));
    }
    match config.max_model_len {
        Some(got) if got > model_len => {
            let allowed =
                format!("{SHORTEST_LEN}..={model_len}, the model's max_position_embeddings; or leave it out");
            Err(WorkerError::Setting { setting: "max_model_len", got: got.into(), allowed })
        }
        _ => Ok(()),
    }
}

/// Number of KV blocks: the configured bytes, or else `max_num_seqs` sequences of moderate length, but at
/// most a share of the `available` bytes and what is `left` beside the weights. At least one block.
pub(super) fn kv_blocks(
    config: &SchedulerConfig,
    kv_cache_memory_bytes: Option<u64>,
    bytes_per_token: u64,
    model_len: u32,
    available: Option<u64>,
    left: u64,
) -> u32 {
    let bytes_per_block = (bytes_per_token * u64::from(config.block_size)).max(1);
    let blocks = match kv_cache_memory_bytes {
        Some(bytes) => bytes / bytes_per_block,
        None => {
            let longest = config.max_model_len.unwrap_or(model_len).min(model_len);
            let wanted = u64::from(config.max_num_seqs)
                * u64::from(longest.min(MODERATE_LEN).div_ceil(config.block_size));
            // At least one sequence of full length, if memory allows.
            let wanted = wanted.max(u64::from(longest.div_ceil(config.block_size)));
            let share = available.unwrap_or(UNKNOWN_MEMORY) / 100 * MEMORY_SHARE_PERCENT;
            wanted.min(share.min(left) / bytes_per_block)
        }
    };
    // Slot numbers have 32 bits.
    blocks.clamp(1, u64::from(i32::MAX as u32 / config.block_size)) as u32
}

/// Slots for states kept for later prompts, beside those of running sequences and of their answers.
const KEPT_STATES: u32 = 64;

/// Number of slots for states of `bytes` each, and the room left for KV blocks. `None` without states. There
/// are slots for two states of each running sequence and for [`KEPT_STATES`] more, but at most half of the
/// room goes to them; at least one.
pub(super) fn state_slots(config: &SchedulerConfig, bytes: u64, room: Room) -> (Option<u32>, Room) {
    if bytes == 0 {
        return (None, room);
    }
    let share = room.available.unwrap_or(UNKNOWN_MEMORY) / 100 * MEMORY_SHARE_PERCENT;
    let all = room.given.unwrap_or(share.min(room.left));
    let seats = config.max_num_seqs.min(config.max_num_batched_tokens);
    let kept = if config.enable_prefix_caching { seats.saturating_add(KEPT_STATES) } else { 0 };
    let wanted = u64::from(seats.saturating_add(kept));
    let slots = wanted.min(all / 2 / bytes).max(1);
    if slots < u64::from(seats) {
        tracing::warn!(
            slots,
            max_num_seqs = seats,
            "there is memory for the states of {slots} sequences: no more run at once; raise --kv-cache-memory-bytes"
        );
    }
    let left = all.saturating_sub(slots * bytes);
    let room = match room.given {
        Some(_) => Room { given: Some(left), ..room },
        None => Room { left, ..room },
    };
    (Some(slots as u32), room)
}

/// What the blocks of layers with a window are sized by.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowRows {
    /// Most tokens that a row of any layer attends to; `None` = no layer has a window.
    pub window: Option<u32>,
    /// Most rows in flight.
    pub rows: u32,
}

/// Number of blocks of a model whose layers with a window have `windows`; `bytes` of each rank. Without a
/// window, and where little would be given back, all layers share the blocks of [`kv_blocks`]; otherwise see
/// [`WindowedCache::divide`].
pub(super) fn kv_blocks_by_layer(
    config: &SchedulerConfig,
    windows: WindowRows,
    bytes: &[KvTokenBytes],
    model_len: u32,
    room: Room,
) -> KvBlocks {
    let most_bytes = bytes.iter().map(KvTokenBytes::all).max().unwrap_or(0);
    let blocks = |room: Room| kv_blocks(config, room.given, most_bytes, model_len, room.available, room.left);
    let longest = config.max_model_len.unwrap_or(model_len).min(model_len);
    let WindowRows { window, rows } = windows;
    let Some(window) = WindowedCache::worthwhile(window, longest) else {
        return blocks(room).into();
    };
    let cache = WindowedCache { config, window, rows, bytes, longest };
    let limit = match room.given {
        Some(given) => given,
        None => {
            let wanted = blocks(Room { available: Some(u64::MAX), left: u64::MAX, given: None });
            let share = room.available.unwrap_or(UNKNOWN_MEMORY) / 100 * MEMORY_SHARE_PERCENT;
            let limit = share.min(room.left);
            let windows = cache.of_all();
            if cache.fits(wanted, windows.min(wanted), KvLimit::Bytes(limit)) {
                return cache.with(wanted, windows);
            }
            limit
        }
    };
    cache.divide(blocks(Room { given: Some(limit), ..room }), KvLimit::Bytes(limit))
}

/// The longest sequence: the configured length or else the model's, but at most what the cache holds.
pub(crate) fn max_model_len(config: &SchedulerConfig, model_len: u32, kv_blocks: u32) -> u32 {
    let asked = config.max_model_len.unwrap_or(model_len).min(model_len);
    let held = kv_blocks.saturating_mul(config.block_size);
    if held < asked {
        tracing::warn!(
            asked,
            max_model_len = held,
            "the KV cache holds {held} tokens: max_model_len is lowered to that; raise --kv-cache-memory-bytes"
        );
    }
    asked.min(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        given: Option<u64>,
        bytes_per_token: u64,
        model_len: u32,
        available: Option<u64>,
        expected: u32,
    ) {
        let config = SchedulerConfig { max_num_seqs: 4, block_size: 16, ..SchedulerConfig::default() };
        assert_eq!(kv_blocks(&config, given, bytes_per_token, model_len, available, u64::MAX), expected);
    }

    #[test]
    fn the_cache_has_the_configured_size_or_a_sensible_one() {
        check(Some(16 * 100 * 7 + 5), 100, 4096, None, 7);
        check(Some(0), 100, 4096, None, 1);
        check(None, 100, 512, Some(1 << 40), 4 * 32);
        check(None, 100, 100_000, Some(1 << 40), 6250); // one whole sequence is more than four moderate ones
        check(None, 1 << 20, 4096, Some(100 << 20), 2);
        check(Some(u64::MAX), 1, 4096, None, i32::MAX as u32 / 16);
    }

    #[test]
    fn the_default_cache_leaves_room_for_the_weights() {
        let config = SchedulerConfig { max_num_seqs: 4, block_size: 16, ..SchedulerConfig::default() };
        let blocks = |left| kv_blocks(&config, None, 100, 512, Some(1 << 40), left);
        assert_eq!(blocks(16 * 100 * 9), 9);
        assert_eq!(blocks(0), 1);
    }

    /// The Gemma 3 shape: five layers of six have a window.
    const GEMMA: KvTokenBytes = KvTokenBytes { main: 100, windowed: 500 };

    fn with_windows(
        bytes: &[KvTokenBytes],
        seqs: u32,
        longest: u32,
        given: Option<u64>,
    ) -> (u32, Option<u32>) {
        let config = SchedulerConfig {
            max_num_seqs: seqs,
            block_size: 16,
            max_num_batched_tokens: 512,
            ..SchedulerConfig::default()
        };
        let room = Room { given, available: Some(1 << 40), left: u64::MAX };
        let blocks =
            kv_blocks_by_layer(&config, WindowRows { window: Some(1024), rows: 512 }, bytes, longest, room);
        let takes = |bytes: &KvTokenBytes| {
            let windows = blocks.window.map_or(blocks.blocks, |window| window.blocks);
            16 * (bytes.main * u64::from(blocks.blocks) + bytes.windowed * u64::from(windows))
        };
        assert!(given.is_none_or(|given| bytes.iter().all(|bytes| takes(bytes) <= given)), "{blocks:?}");
        (blocks.blocks, blocks.window.map(|window| window.blocks))
    }

    #[test]
    fn window_blocks_suffice_for_all_sequences_or_get_half() {
        // 65 blocks hold a window of 1024 tokens; 32 more hold the rows in flight.
        assert_eq!(with_windows(&[GEMMA], 1, 32_768, None), (2048, Some(66 + 32)));
        assert_eq!(with_windows(&[GEMMA], 4, 32_768, None), (2048, Some(4 * 66 + 32)));
        // Bytes of 2048 blocks of all layers; half of them are window blocks, which cached sequences need.
        let given = Some(2048 * 16 * 600);
        for seqs in [1, 256] {
            assert_eq!(with_windows(&[GEMMA], seqs, 32_768, given), (2048 * 6 - 1024 * 5, Some(1024)));
        }
        let even = KvTokenBytes { main: 300, windowed: 300 };
        assert_eq!(with_windows(&[GEMMA, even], 256, 32_768, given), (3072, Some(1024)), "the largest rank");
        assert_eq!(with_windows(&[GEMMA], 1, 2047, None), (128, None), "nothing to give back");
        assert_eq!(with_windows(&[GEMMA], 1, 32_768, Some(16 * 600 * 100)), (100, None), "too small");
        let all = KvTokenBytes { main: 0, windowed: 600 };
        assert_eq!(with_windows(&[all], 4, 32_768, given), (8 * 2048, Some(2048)), "blocks of no bytes");
    }

    #[test]
    fn states_get_at_most_half_of_the_room() {
        let config = SchedulerConfig { max_num_seqs: 4, ..SchedulerConfig::default() };
        let check = |given: Option<u64>, expected: (Option<u32>, u64)| {
            let room = Room { given, available: Some(1000 << 20), left: 300 << 20 };
            let (slots, room) = state_slots(&config, 1 << 20, room);
            assert_eq!((slots, room.given.unwrap_or(room.left) >> 20), expected);
        };
        check(Some(1000 << 20), (Some(4 * 2 + 64), 1000 - 72));
        check(Some(100 << 20), (Some(50), 50));
        check(Some(1 << 10), (Some(1), 0));
        check(None, (Some(72), 300 - 72));
        let alone = SchedulerConfig { enable_prefix_caching: false, ..config.clone() };
        let room = Room { given: Some(1000 << 20), available: None, left: 0 };
        assert_eq!(state_slots(&alone, 1 << 20, room).0, Some(4));
        let room = Room { given: None, available: None, left: 7 };
        let (slots, room) = state_slots(&config, 0, room);
        assert_eq!((slots, room.left), (None, 7));
    }

    #[test]
    fn a_length_beyond_the_models_is_refused_and_not_shortened_silently() {
        let check = |asked: Option<u32>, model_len: u32, expected: Option<&str>| {
            let config = SchedulerConfig { max_model_len: asked, ..SchedulerConfig::default() };
            let said = check_model_len(&config, model_len).err().map(|error| error.to_string());
            assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check(None, 1024, None);
        check(Some(1024), 1024, None);
        check(Some(5000), 1024, Some("max_model_len is 5000; allowed: 2..=1024"));
        check(None, 1, Some("max_position_embeddings in config.json is 1"));
    }

    #[test]
    fn max_model_len_fits_the_cache() {
        let config = SchedulerConfig { block_size: 16, ..SchedulerConfig::default() };
        assert_eq!(max_model_len(&config, 1000, 1000), 1000);
        assert_eq!(max_model_len(&config, 1000, 10), 160);
        let asked = SchedulerConfig { max_model_len: Some(64), ..config };
        assert_eq!(max_model_len(&asked, 1000, 10), 64);
    }
}
