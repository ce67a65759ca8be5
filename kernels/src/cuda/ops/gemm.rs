//! Products of many rows; `cu/gemm.cu`.

use std::marker::PhantomData;

use super::Activation;
use super::product::{Output, Product, Table, WeightValues, product_names};
use crate::cuda::launch::Grid;
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, Kernels, Stream};
use crate::gate::Gate;

/// Columns of k per stage.
const STAGE_K: usize = 64;
/// Padding of each row of results in shared memory, in bytes.
const ROW_PADDING: usize = 16;

/// Tile size of a product. Does not change the bits of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tile {
    /// 32 rows of the weight by 32 of `x`.
    Small,
    /// 64 by 64.
    Medium,
    /// 128 by 128, or by 64 with e4m3 weights or leaves.
    Large,
}

impl Tile {
    /// All tile sizes.
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// Returns (rows of the weight, rows of `x`, threads, stages). `is_narrow`: weights are e4m3 or have
    /// leaves.
    pub(super) fn shape(self, is_narrow: bool) -> (usize, usize, u32, usize) {
        match (self, is_narrow) {
            (Self::Small, _) => (32, 32, 128, 8),
            (Self::Medium, _) => (64, 64, 128, 4),
            (Self::Large, false) => (128, 128, 256, 3),
            (Self::Large, true) => (128, 64, 256, 3),
        }
    }

    pub(super) fn shared_bytes(self, e4m3: bool, has_leaves: bool, output: Output) -> u32 {
        let (weight_rows, x_rows, _, stages) = self.shape(e4m3 || has_leaves);
        let weight_bytes = if e4m3 { 1 } else { 2 };
        let stage = STAGE_K * (weight_rows * weight_bytes + x_rows * 2);
        let row = match output {
            Output::Plain => weight_rows * 2,
            Output::F32 => weight_rows * 4,
            Output::Gated(_) => weight_rows,
        };
        (stages * stage).max(x_rows * (row + ROW_PADDING)) as u32
    }

    pub(super) fn blocks(self, is_narrow: bool, output: Output, rows: usize, columns: usize) -> usize {
        let (weight_rows, x_rows, ..) = self.shape(is_narrow);
        let outputs = if output.is_gated() { weight_rows / 2 } else { weight_rows };
        rows.div_ceil(x_rows) * columns.div_ceil(outputs)
    }
}

/// `out = x weight^T` for any number of rows.
#[derive(Debug, Clone, Copy)]
pub struct Gemm<T> {
    table: Table<3>,
    multiprocessors: usize,
    of: PhantomData<T>,
}

impl<T: Activation> Gemm<T> {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let names = match T::SUFFIX {
            "bf16" => product_names!("gemm_bf16", "small", "medium", "large"),
            _ => product_names!("gemm_f16", "small", "medium", "large"),
        };
        let table = Table::new(kernels, &names)?;
        for (output, e4m3, tile, kernel) in table.all() {
            let gated = Output::Gated(Gate::Silu);
            let (output, has_leaves) = [
                (Output::Plain, false),
                (Output::F32, false),
                (gated, false),
                (Output::Plain, true),
                (Output::F32, true),
            ][output];
            kernel.allow_shared(Tile::ALL[tile].shared_bytes(e4m3, has_leaves, output))?;
        }
        let multiprocessors = kernels.device().multiprocessors as usize;
        Ok(Self { table, multiprocessors, of: PhantomData })
    }

    /// The largest tile whose blocks still occupy every multiprocessor, and at least half of which `rows`
    /// fill.
    pub fn tile<O: Element>(&self, product: &Product<'_, T, O>) -> Tile {
        let (e4m3, has_leaves) = kind(product);
        let fits = |tile: &Tile| {
            let (_, x_rows, ..) = tile.shape(e4m3 || has_leaves);
            let blocks = tile.blocks(e4m3 || has_leaves, product.output, product.rows, product.columns());
            product.rows * 2 > x_rows && blocks >= self.multiprocessors
        };
        Tile::ALL.into_iter().rev().find(fits).unwrap_or(Tile::Small)
    }

    /// Queues the launch.
    pub fn launch<O: Element>(&self, stream: &Stream, product: &Product<'_, T, O>) -> Result<(), CudaError> {
        self.launch_tile(stream, product, self.tile(product))
    }

    /// Queues the launch with the given tile size.
    pub fn launch_tile<O: Element>(
        &self,
        stream: &Stream,
        product: &Product<'_, T, O>,
        tile: Tile,
    ) -> Result<(), CudaError> {
        if product.rows == 0 {
            return Ok(());
        }
        let (e4m3, has_leaves) = kind(product);
        let (_, _, threads, _) = tile.shape(e4m3 || has_leaves);
        let blocks = tile.blocks(e4m3 || has_leaves, product.output, product.rows, product.columns());
        let shared_bytes = tile.shared_bytes(e4m3, has_leaves, product.output);
        let grid = Grid::new(blocks as u32, threads).shared(shared_bytes);
        let kernel = self.table.get(product, tile as usize);
        kernel.launch(stream, grid.overlapping(), &product.args())
    }
}

/// Whether the weights are e4m3, and whether they have leaves.
fn kind<T, O>(product: &Product<'_, T, O>) -> (bool, bool) {
    let e4m3 = matches!(product.weight.values, WeightValues::E4m3 { .. });
    (e4m3, product.weight.leaf > 0)
}
