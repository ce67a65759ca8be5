//! Products with a matrix for each head, for latent attention; `gemm_heads` in `cu/gemm.cu`.

use std::marker::PhantomData;

use super::Activation;
use super::gemm::Tile;
use super::product::Output;
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Kernels load and write this many values at once.
const UNIT: usize = 8;

/// Values of all heads of some rows, each row's one after the other.
#[derive(Debug, Clone, Copy)]
pub struct OfHeads<T> {
    /// The first row's first head.
    pub values: DeviceSlice<T>,
    /// Values from one row to the next.
    pub stride: usize,
    /// Values from one head to the next; a product may use only the first ones.
    pub each: usize,
}

impl<T: Activation> OfHeads<T> {
    fn check(&self, rows: usize, heads: usize, used: usize) {
        let Self { values, stride, each } = *self;
        let (all, len) = ((heads - 1) * each + used, values.len());
        assert!(used <= each && all <= stride, "{heads} heads of {each} values in rows of {stride}");
        assert!(rows == 0 || len >= (rows - 1) * stride + all, "{rows} rows of {stride} in {len} values");
    }

    fn is_aligned(&self) -> bool {
        let Self { values, stride, each } = *self;
        values.address().is_multiple_of(16) && stride.is_multiple_of(UNIT) && each.is_multiple_of(UNIT)
    }
}

/// `out[r, h] = x[r, h] weight[h]^T`. A row's bits do not depend on the other rows.
#[derive(Debug, Clone, Copy)]
pub struct HeadProducts<T> {
    kernels: [Kernel; 3],
    multiprocessors: usize,
    of: PhantomData<T>,
}

/// Memory of one [`HeadProducts`] launch.
#[derive(Debug, Clone, Copy)]
pub struct HeadProduct<T> {
    /// Results: the first `n` values of each head.
    pub out: OfHeads<T>,
    /// Inputs: the first `k` values of each head; 16-byte aligned.
    pub x: OfHeads<T>,
    /// `[heads, n, k]`
    pub weight: DeviceSlice<T>,
    /// Number of heads.
    pub heads: usize,
    /// Outputs of a head.
    pub n: usize,
    /// Inputs of a head, a multiple of 8.
    pub k: usize,
    /// Number of rows.
    pub rows: usize,
}

impl<T: Activation> HeadProducts<T> {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let names = match T::SUFFIX {
            "bf16" => ["gemm_heads_bf16_small", "gemm_heads_bf16_medium", "gemm_heads_bf16_large"],
            _ => ["gemm_heads_f16_small", "gemm_heads_f16_medium", "gemm_heads_f16_large"],
        };
        let found = [kernels.get(names[0])?, kernels.get(names[1])?, kernels.get(names[2])?];
        for (tile, kernel) in Tile::ALL.iter().zip(&found) {
            kernel.allow_shared(tile.shared_bytes(false, false, Output::Plain))?;
        }
        let multiprocessors = kernels.device().multiprocessors as usize;
        Ok(Self { kernels: found, multiprocessors, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, product: HeadProduct<T>) -> Result<(), CudaError> {
        let blocks = |tile: &Tile| tile.blocks(false, Output::Plain, product.rows, product.n) * product.heads;
        let is_filled =
            |tile: &Tile| product.rows * 2 > tile.shape(false).1 && product.n * 2 > tile.shape(false).0;
        let fits = |tile: &Tile| is_filled(tile) && blocks(tile) >= self.multiprocessors;
        let tile = Tile::ALL.into_iter().rev().find(fits).unwrap_or(Tile::Small);
        self.launch_tile(stream, product, tile)
    }

    /// Queues the launch with the given tile size, which does not change the result's bits.
    pub fn launch_tile(&self, stream: &Stream, product: HeadProduct<T>, tile: Tile) -> Result<(), CudaError> {
        let HeadProduct { out, x, weight, heads, n, k, rows } = product;
        assert!(heads > 0 && n > 0 && k > 0 && k.is_multiple_of(UNIT), "{heads} matrices {n} x {k}");
        assert!(weight.len() >= heads * n * k, "{} weights of {heads} matrices {n} x {k}", weight.len());
        out.check(rows, heads, n);
        x.check(rows, heads, k);
        assert!(x.is_aligned() && weight.address().is_multiple_of(16), "x and its weights are aligned");
        assert!(!n.is_multiple_of(UNIT) || out.is_aligned(), "out is aligned");
        if rows == 0 {
            return Ok(());
        }
        let args = Args::new().slice(out.values).slice(x.values).slice(weight).size(rows).size(n).size(k);
        let args = args.size(out.stride).size(out.each).size(x.stride).size(x.each);
        let blocks = [tile.blocks(false, Output::Plain, rows, n) as u32, heads as u32, 1];
        let grid =
            Grid::of(blocks, tile.shape(false).2).shared(tile.shared_bytes(false, false, Output::Plain));
        self.kernels[tile as usize].launch(stream, grid.overlapping(), &args)
    }
}
