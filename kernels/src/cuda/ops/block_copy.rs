//! Whole KV blocks from place to place; `cu/block_copy.cu`.

use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Threads of a block.
const THREADS: u32 = 256;
/// Pairs of one plane under way at once; with the planes of all layers that fills a device.
const MAX_PARTS: usize = 16;
/// Bytes a thread moves at a time.
const VECTOR: usize = 16;

/// Copies blocks of all layers, keys and values, in one launch.
#[derive(Debug, Clone, Copy)]
pub struct BlockCopy {
    kernel: Kernel,
}

/// One cache: `planes` (the keys of a layer, or its values) of blocks, each plane `plane_bytes` after the one before.
///
/// Its memory is the device's, or page-locked host memory, which has a device address of its own.
#[derive(Debug, Clone, Copy)]
pub struct BlockPlanes {
    /// From the first plane's first block to the last one's end.
    pub memory: DeviceSlice<u8>,
    /// Between the starts of two planes.
    pub plane_bytes: usize,
    /// Blocks of a plane.
    pub blocks: usize,
}

/// One [`BlockCopy`] launch.
#[derive(Debug, Clone, Copy)]
pub struct BlockCopies {
    /// Read.
    pub from: BlockPlanes,
    /// Written. The same as `from` for copy-on-write.
    pub to: BlockPlanes,
    /// Planes: twice the layers.
    pub planes: usize,
    /// Bytes of a block in one plane.
    pub block_bytes: usize,
    /// `[capacity, 2]`: from, to. In any order: no `to` may be another pair's `from` or `to`. Blocks that are not there are
    /// left alone.
    pub pairs: DeviceSlice<u32>,
    /// `[1]`: how many pairs there are. Zero costs a launch and nothing else.
    pub count: DeviceSlice<u32>,
}

impl BlockCopy {
    /// Finds the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("block_copy")? })
    }

    /// Queues it.
    pub fn launch(&self, stream: &Stream, copies: BlockCopies) -> Result<(), CudaError> {
        let BlockCopies { from, to, planes, block_bytes, pairs, count } = copies;
        assert!(
            block_bytes > 0 && block_bytes.is_multiple_of(VECTOR),
            "a block of {block_bytes} bytes is not a multiple of {VECTOR}"
        );
        for side in [from, to] {
            let last = planes.saturating_sub(1) * side.plane_bytes + side.blocks * block_bytes;
            assert!(
                side.plane_bytes.is_multiple_of(VECTOR)
                    && side.memory.address().is_multiple_of(VECTOR as u64),
                "planes of {} bytes at {:#x} are not aligned to {VECTOR}",
                side.plane_bytes,
                side.memory.address()
            );
            assert!(
                side.memory.len() >= last,
                "{planes} planes of {} blocks of {block_bytes} bytes need {last} bytes, and there are {}",
                side.blocks,
                side.memory.len()
            );
        }
        assert_eq!(count.len(), 1, "one count");
        let capacity = pairs.len() / 2;
        if planes == 0 || capacity == 0 {
            return Ok(());
        }
        let args = Args::new().slice(to.memory).slice(from.memory);
        let args = args.u64(to.plane_bytes as u64).u64(from.plane_bytes as u64).u64(block_bytes as u64);
        let args = args.size(to.blocks).size(from.blocks).slice(pairs).slice(count).size(capacity);
        let parts = capacity.min(MAX_PARTS) as u32;
        self.kernel.launch(stream, Grid::of([planes as u32, parts, 1], THREADS).overlapping(), &args)
    }
}
