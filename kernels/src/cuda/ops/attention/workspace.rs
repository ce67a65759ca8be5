//! Layout of the memory that attention keeps between its launches.

use super::shape::AttentionShape;
use crate::cuda::DeviceSlice;

/// Size of an `Item` in `cu/attention.cuh`.
const ITEM_BYTES: usize = 16;
/// Space for the header.
const HEADER_BYTES: usize = 256;

/// Tiles of one size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    /// Packed query rows per tile.
    pub(super) rows: u32,
    /// Rows that a block computes at once: all, or half.
    pub(super) at_once: u32,
    /// Blocks per launch.
    pub(super) blocks: u32,
    /// Fewest positions per part.
    pub(super) least_part: u32,
    /// Target number of items; see `cu/attention_plan.cu`.
    pub(super) wanted: u32,
    /// Number of partial results that there is space for.
    pub(super) slots: u32,
}

impl Tiles {
    /// Tiles of 64 rows if they are large, or else 16, for kernels whose blocks compute `at_once` of them.
    pub(super) fn new(is_large: bool, at_once: u32, blocks: u32) -> Self {
        let rows = if is_large { 64 } else { 16 };
        let items = (blocks / (rows / at_once)).max(1);
        // Small tiles are cheap to divide, and finer parts even out the last wave. A part of a large tile
        // writes and reads 64 rows of sums, as much memory as 128 positions of keys and values.
        let (least_part, wanted) = if is_large { (512, items) } else { (128, 2 * items) };
        Self { rows, at_once, blocks, least_part, wanted, slots: 2 * wanted }
    }
}

/// Byte offsets in the workspace, for steps with capacity for some number of rows and sequences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workspace {
    items: [usize; 2],
    groups: [usize; 2],
    partials: [usize; 2],
    sums: [usize; 2],
    folded: [usize; 2],
    /// Size of the workspace.
    pub(super) bytes: usize,
}

impl Workspace {
    /// `held_values`: values of a head's output that a block has space for.
    pub(super) fn new(
        tiles: [Tiles; 2],
        shape: &AttentionShape,
        held_values: usize,
        rows: usize,
        sequences: usize,
    ) -> Self {
        let mut bytes = HEADER_BYTES;
        let mut take = |len: usize| {
            let at = bytes;
            bytes += len.next_multiple_of(256);
            at
        };
        // Each sequence rounds its rows up to whole tiles once; divided tiles have slots.
        let cut = tiles.map(|tiles| (tiles.slots as usize).div_ceil(shape.kv_heads));
        let whole = [sequences, rows * shape.group() / tiles[1].rows as usize + sequences];
        let values = |i: usize| tiles[i].rows as usize * size_of::<f32>();
        let folded = |i: usize| tiles[i].at_once as usize * size_of::<f32>() * held_values;
        let folds = usize::from(shape.batch_invariant);
        Self {
            items: [0, 1].map(|i| take((whole[i] + cut[i]) * ITEM_BYTES)),
            groups: [0, 1].map(|i| take(cut[i] * ITEM_BYTES)),
            partials: [0, 1].map(|i| take(tiles[i].slots as usize * values(i) * 2)),
            sums: [0, 1].map(|i| take(tiles[i].slots as usize * values(i) * shape.value_dim())),
            folded: [0, 1].map(|i| take(folds * tiles[i].blocks as usize * folded(i))),
            bytes,
        }
    }

    /// Asserts that `memory` is large enough and aligned.
    pub(super) fn check(&self, memory: DeviceSlice<u8>) {
        let (have, need) = (memory.len(), self.bytes);
        assert!(have >= need, "a workspace of {have} bytes, {need} needed; ask workspace_bytes");
        assert!(memory.address().is_multiple_of(256), "the workspace is 256-byte aligned");
    }

    fn from(memory: DeviceSlice<u8>, at: usize) -> DeviceSlice<u8> {
        memory.slice(at..memory.len())
    }

    pub(super) fn header(&self, memory: DeviceSlice<u8>) -> DeviceSlice<u8> {
        Self::from(memory, 0)
    }

    pub(super) fn items(&self, memory: DeviceSlice<u8>, large: usize) -> DeviceSlice<u8> {
        Self::from(memory, self.items[large])
    }

    pub(super) fn groups(&self, memory: DeviceSlice<u8>, large: usize) -> DeviceSlice<u8> {
        Self::from(memory, self.groups[large])
    }

    pub(super) fn partials(&self, memory: DeviceSlice<u8>, large: usize) -> DeviceSlice<u8> {
        Self::from(memory, self.partials[large])
    }

    pub(super) fn sums(&self, memory: DeviceSlice<u8>, large: usize) -> DeviceSlice<u8> {
        Self::from(memory, self.sums[large])
    }

    pub(super) fn folded(&self, memory: DeviceSlice<u8>, large: usize) -> DeviceSlice<u8> {
        Self::from(memory, self.folded[large])
    }
}
