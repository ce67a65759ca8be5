//! Products of few rows; `cu/gemv.cu`.

use std::marker::PhantomData;

use super::Activation;
use super::product::{Product, Table, product_names};
use crate::cuda::launch::Grid;
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, Kernels, Stream};
use crate::leaves::MAX_LEAVES;

/// Most rows per launch.
pub const MAX_ROWS: usize = 16;
/// Threads per block.
const THREADS: u32 = 256;
/// For each kernel: (most rows, rows of the weight per block).
const TILES: [(usize, usize); 2] = [(8, 16), (16, 32)];

/// `out = x weight^T` for up to [`MAX_ROWS`] rows; limited by the bandwidth for reading the weight.
#[derive(Debug, Clone, Copy)]
pub struct Gemv<T> {
    table: Table<2>,
    of: PhantomData<T>,
}

impl<T: Activation> Gemv<T> {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let names = match T::SUFFIX {
            "bf16" => product_names!("gemv_bf16", "rows8", "rows16"),
            _ => product_names!("gemv_f16", "rows8", "rows16"),
        };
        Ok(Self { table: Table::new(kernels, &names)?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch<O: Element>(&self, stream: &Stream, product: &Product<'_, T, O>) -> Result<(), CudaError> {
        let rows = product.rows;
        assert!(rows <= MAX_ROWS, "{rows} rows: at most {MAX_ROWS}");
        if rows == 0 {
            return Ok(());
        }
        let tile = usize::from(rows > TILES[0].0);
        let outputs = match (product.output.is_gated(), product.weight.leaf) {
            (true, _) => TILES[tile].1 / 2,
            (false, 0) => TILES[tile].1,
            // Warps without a leaf compute other outputs.
            (false, _) => TILES[tile].1 * MAX_LEAVES / product.weight.leaves(),
        };
        let blocks = product.columns().div_ceil(outputs) as u32;
        self.table.get(product, tile).launch(
            stream,
            Grid::new(blocks, THREADS).overlapping(),
            &product.args(),
        )
    }
}
