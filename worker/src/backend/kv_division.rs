//! Division of a KV cache's memory between blocks and window blocks. Pure.

use skein_model::kv_blocks::{KvBlocks, KvTokenBytes, WindowBlocks};

use crate::config::SchedulerConfig;

/// Tokens of a cached sequence for which there are window blocks.
pub(crate) const MODERATE_LEN: u32 = 1024;

/// Layers with a window have blocks apart if the longest sequence has at least this many windows: with
/// fewer, little is given back.
const LEAST_WINDOWS: u32 = 2;

/// Memory of each rank's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvLimit {
    /// As many bytes on every rank.
    Bytes(u64),
    /// As many as this number of blocks takes if all layers share them: stages of a pipeline have different
    /// layers, so their blocks have different sizes.
    Blocks(u32),
}

/// A cache whose layers with a window can have blocks apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowedCache<'a> {
    pub config: &'a SchedulerConfig,
    /// Longest window of any layer, in tokens.
    pub window: u32,
    /// Most rows in flight.
    pub rows: u32,
    /// Bytes of a token on each rank.
    pub bytes: &'a [KvTokenBytes],
    /// Tokens of the longest sequence.
    pub longest: u32,
}

impl WindowedCache<'_> {
    /// The longest window of a model, if its layers with a window should have blocks apart for sequences of
    /// up to `longest` tokens.
    pub fn worthwhile(window: Option<u32>, longest: u32) -> Option<u32> {
        window.filter(|window| longest / LEAST_WINDOWS >= *window)
    }

    /// Window blocks that one sequence holds.
    pub fn of_sequence(&self) -> u32 {
        WindowBlocks { window: self.window, blocks: 0 }.of_sequence(self.config.block_size)
    }

    /// Window blocks for `max_num_seqs` sequences.
    pub fn of_all(&self) -> u32 {
        let SchedulerConfig { max_num_seqs, max_num_batched_tokens, block_size, .. } = *self.config;
        // Rows in flight are in window blocks, too, and each sequence's may begin in another block.
        let of_all = max_num_seqs.min(max_num_batched_tokens).saturating_mul(self.of_sequence() + 1);
        of_all.saturating_add(self.rows.div_ceil(block_size))
    }

    /// Whether `main` blocks and `windows` window blocks fit each rank's limit.
    pub fn fits(&self, main: u32, windows: u32, limit: KvLimit) -> bool {
        let block_size = u128::from(self.config.block_size);
        let of_rank = |bytes: &KvTokenBytes, main: u32, windows: u32| {
            let blocks =
                u128::from(bytes.main) * u128::from(main) + u128::from(bytes.windowed) * u128::from(windows);
            blocks * block_size
        };
        self.bytes.iter().all(|bytes| {
            let most = match limit {
                KvLimit::Bytes(most) => u128::from(most),
                KvLimit::Blocks(shared) => of_rank(bytes, shared, shared),
            };
            of_rank(bytes, main, windows) <= most
        })
    }

    /// These numbers of blocks; window blocks beyond the others are of no use.
    pub fn with(&self, blocks: u32, windows: u32) -> KvBlocks {
        let window = WindowBlocks { window: self.window, blocks: windows.min(blocks) };
        KvBlocks { blocks, window: Some(window), states: None }
    }

    /// Divides memory for `shared` blocks of all layers, up to `limit`: window blocks for `max_num_seqs`
    /// sequences, and for as many cached ones of moderate length as the other blocks hold, but at most half
    /// of `shared`. So the cache holds about as many contexts of two windows as without window blocks, and
    /// more longer ones. A cache is not divided if it is too small for two windows, or if a rank could not
    /// have more blocks.
    pub fn divide(&self, shared: u32, limit: KvLimit) -> KvBlocks {
        let of_sequence = self.of_sequence();
        if shared / 2 < of_sequence {
            return shared.into();
        }
        let block_size = self.config.block_size;
        let most = i32::MAX as u32 / block_size;
        if self.bytes.iter().all(|bytes| bytes.main == 0) {
            // Blocks of no bytes are limited by the memory for their accounts.
            let accounts = shared.saturating_mul(8).max(self.longest.div_ceil(block_size));
            return self.with(accounts.min(most), shared);
        }
        let moderate = MODERATE_LEN.div_ceil(block_size);
        let of_moderate =
            |blocks: u32| (u64::from(blocks) * u64::from(of_sequence) / u64::from(moderate)) as u32;
        let fits = |blocks, windows| self.fits(blocks, windows, limit);
        let cached = of_moderate(most_that(shared, most, |blocks| fits(blocks, of_moderate(blocks))));
        let windows = self.of_all().max(cached).min(shared / 2);
        match most_that(shared, most, |blocks| fits(blocks, windows)) {
            blocks if blocks == shared => shared.into(),
            blocks => self.with(blocks, windows),
        }
    }
}

/// The highest number up to `most` that `fits`, or `least`; whatever is below one that fits also fits.
fn most_that(least: u32, most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (least, most.max(least));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
