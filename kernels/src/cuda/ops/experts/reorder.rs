//! Inputs of experts whose weights have their inputs in orders of their own; `cu/experts_reorder.cu`.

use std::marker::PhantomData;

use super::SortedPairs;
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::ops::Activation;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads per row.
const MAX_THREADS: usize = 256;

/// Brings the inputs of each pair into the order of its expert's columns, and pairs into sorted order.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReorderPairs<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`ReorderPairs`] launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reordered<T> {
    /// Result, `[pairs, k]` in sorted order.
    pub out: DeviceSlice<T>,
    /// `[rows, k]`: pair `p` reads row `p / per_row`.
    pub x: DeviceSlice<T>,
    /// `[experts, k]`: input of each column.
    pub orders: DeviceSlice<u32>,
    /// 0: `x` is in sorted order.
    pub per_row: usize,
    pub k: usize,
}

impl<T: Activation> ReorderPairs<T> {
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("reorder_pairs")?, of: PhantomData })
    }

    pub fn launch(
        &self,
        stream: &Stream,
        pairs: &SortedPairs,
        reordered: Reordered<T>,
    ) -> Result<(), CudaError> {
        let SortedPairs { sorted, tiles, pairs, tile_rows, .. } = *pairs;
        let Reordered { out, x, orders, per_row, k } = reordered;
        assert!(out.len() >= pairs.count() * k, "a workspace of {} for [{}, {k}]", out.len(), pairs.count());
        assert!(orders.len() >= pairs.experts * k, "an order for each of {} experts", pairs.experts);
        let blocks = [pairs.most_tiles(tile_rows) as u32, tile_rows as u32, 1];
        let threads = k.next_multiple_of(32).min(MAX_THREADS) as u32;
        let args = Args::new().slice(out).slice(x).slice(orders).slice(tiles).slice(sorted);
        let args = args.size(per_row).size(k);
        self.kernel.launch(stream, Grid::of(blocks, threads).overlapping(), &args)
    }
}
