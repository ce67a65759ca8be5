//! Rows of each expert; `cu/experts_route.cu`.

use super::{MAX_EXPERTS, SortedPairs};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Pairs up to which a block has few threads.
const FEW_PAIRS: usize = 2048;
/// Threads per block for few and for many pairs.
const THREADS: [u32; 2] = [256, 1024];

/// Sorts pairs by expert, those of an expert in their order, and cuts them into tiles.
#[derive(Debug, Clone, Copy)]
pub struct Sort {
    kernel: Kernel,
}

/// Memory of one [`Sort`] launch.
#[derive(Debug, Clone, Copy)]
pub struct SortPairs {
    /// Result.
    pub to: SortedPairs,
    /// `[pairs]`: expert of each pair; those of `u32::MAX` are left out.
    pub chosen: DeviceSlice<u32>,
    /// Expert that counts as the first. Pairs with others than the [`Pairs::experts`](super::Pairs) from
    /// there on are left out, too.
    pub first: usize,
}

impl Sort {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("sort_pairs")? })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, sort: SortPairs) -> Result<(), CudaError> {
        let SortPairs { to: SortedPairs { sorted, tiles, pairs, tile_rows, .. }, chosen, first } = sort;
        let count = pairs.count();
        assert!(pairs.experts <= MAX_EXPERTS, "{} experts: at most {MAX_EXPERTS}", pairs.experts);
        assert!(tile_rows > 0 && sorted.len() >= count && chosen.len() >= count, "{pairs:?} do not fit");
        let words = SortedPairs::tile_words(pairs, tile_rows);
        assert!(tiles.len() >= words, "{words} words of tiles do not fit {}", tiles.len());
        assert!(tiles.address().is_multiple_of(16), "tiles at {:#x} are not aligned", tiles.address());
        if count == 0 || pairs.experts == 0 {
            return Ok(());
        }
        let args = Args::new()
            .slice(sorted)
            .slice(tiles)
            .slice(chosen)
            .size(count)
            .size(first)
            .size(pairs.experts)
            .size(tile_rows);
        let grid = Grid::new(pairs.experts as u32, THREADS[usize::from(count > FEW_PAIRS)]);
        self.kernel.launch(stream, grid.overlapping(), &args)
    }
}
