//! Copies whole KV blocks; `cu/block_copy.cu`.

use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Threads per block.
const THREADS: u32 = 256;
/// Most pairs of one plane in flight; with the planes of all layers, that fills a device.
const MAX_PARTS: usize = 16;
/// Bytes per thread and iteration.
const VECTOR: usize = 16;

/// Copies blocks of all layers, keys and values, in one launch.
#[derive(Debug, Clone, Copy)]
pub struct BlockCopy {
    kernel: Kernel,
}

/// A cache as `planes` of blocks. A plane is the keys or the values of a layer, and planes are `plane_bytes`
/// apart.
///
/// The memory may be page-locked host memory, which has a device address, too.
#[derive(Debug, Clone, Copy)]
pub struct BlockPlanes {
    /// From the start of the first plane to the end of the last one.
    pub memory: DeviceSlice<u8>,
    /// Bytes from the start of one plane to the next.
    pub plane_bytes: usize,
    /// Blocks per plane.
    pub blocks: usize,
}

/// One [`BlockCopy`] launch.
#[derive(Debug, Clone, Copy)]
pub struct BlockCopies {
    /// Source of the copies.
    pub from: BlockPlanes,
    /// Destination of the copies; the same as `from` for copy-on-write.
    pub to: BlockPlanes,
    /// Number of planes: twice the number of layers.
    pub planes: usize,
    /// Bytes of a block in one plane.
    pub block_bytes: usize,
    /// `[capacity, 2]`: pairs of from and to, copied in any order, so no `to` may occur in another pair.
    /// Pairs with blocks outside the caches are ignored.
    pub pairs: DeviceSlice<u32>,
    /// `[1]`: number of pairs. Zero costs no more than a launch.
    pub count: DeviceSlice<u32>,
}

impl BlockCopy {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("block_copy")? })
    }

    /// Queues the launch.
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
