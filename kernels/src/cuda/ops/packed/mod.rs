//! Products with weights in codes of 4, 6 or 8 bits, which are dequantised in registers; `cu/gemv_packed.cu`
//! and `cu/gemm_packed.cu`, whose arithmetic is in `cu/packed.cuh`. A row has the same bits in every batch.
//!
//! Activations keep their 16 bits. [`Form`] says what codes, scales and minima mean, [`Shape`] where they
//! are, and [`pack`] arranges them.

mod embed;
mod form;
mod pack;
mod values;

use std::marker::PhantomData;

use super::Activation;
use super::product::{Output, Product, WeightValues};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::memory::Element;
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use crate::gate::Gate;
use crate::leaves::MAX_LEAVES;

pub use embed::{EmbedPacked, EmbedPackedRows};
pub use form::{BLOCK, Form, MAX_PARTS, Meaning, OCTET, Places, ScaleKind, Shape, Span};
pub use pack::{Octets, Row, Table, pack};
pub use values::PackedValues;

/// Most rows of a launch that reads the weight once.
const FEW_ROWS: usize = 16;
/// Rows of the smaller of the kernels for few rows.
const FEWER_ROWS: usize = 8;
/// Threads per block of the kernels for few rows.
const THREADS: u32 = 256;
/// Stages of the kernels for many rows.
const STAGES: usize = 3;
/// Most threads per row of a reordering.
const MAX_THREADS: usize = 1024;

/// Bytes of shared memory of a block of `cu/gemm_packed.cuh`, for so many rows of the weight and of `x`.
pub(super) fn gemm_shared_bytes(bits: usize, weight_rows: usize, x_rows: usize, is_gated: bool) -> usize {
    let outputs = if is_gated { weight_rows / 2 } else { weight_rows };
    let stage = weight_rows * BLOCK * bits / 8 + x_rows * BLOCK * 2;
    (STAGES * stage).max(x_rows * (outputs + 4) * 4)
}

/// Tile of a product of many rows. Does not change the bits of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedTile {
    /// 64 rows of the weight by 32 of `x`.
    Small,
    /// 128 by 64, or by 32 with leaves.
    Large,
}

impl PackedTile {
    /// All tiles.
    pub const ALL: [Self; 2] = [Self::Small, Self::Large];

    /// (Rows of the weight, rows of `x`, threads).
    fn shape(self, has_leaves: bool) -> (usize, usize, u32) {
        match (self, has_leaves) {
            (Self::Small, _) => (64, 32, 128),
            (Self::Large, false) => (128, 64, 256),
            (Self::Large, true) => (128, 32, 256),
        }
    }

    fn outputs(self, is_gated: bool) -> usize {
        let (weight_rows, ..) = self.shape(false);
        if is_gated { weight_rows / 2 } else { weight_rows }
    }

    fn shared_bytes(self, bits: usize, is_gated: bool, has_leaves: bool) -> u32 {
        let (weight_rows, x_rows, _) = self.shape(has_leaves);
        gemm_shared_bytes(bits, weight_rows, x_rows, is_gated) as u32
    }
}

/// Kernels by bits, by mode, and by rows or tile.
type Modes = [[[Kernel; 2]; 3]; 3];

/// `out = x weight^T` for packed weights.
#[derive(Debug, Clone, Copy)]
pub struct PackedProducts<T> {
    few: Modes,
    many: Modes,
    reorder: Kernel,
    multiprocessors: usize,
    of: PhantomData<T>,
}

/// Names of the kernels of a type.
macro_rules! names {
    ($kind:literal, $t:literal, $a:literal, $b:literal) => {
        [
            names!(@modes concat!($kind, "_packed4_", $t), $a, $b),
            names!(@modes concat!($kind, "_packed6_", $t), $a, $b),
            names!(@modes concat!($kind, "_packed8_", $t), $a, $b),
        ]
    };
    (@modes concat!($($part:literal),*), $a:literal, $b:literal) => {
        [
            [concat!($($part),*, "_plain_", $a), concat!($($part),*, "_plain_", $b)],
            [concat!($($part),*, "_gated_", $a), concat!($($part),*, "_gated_", $b)],
            [concat!($($part),*, "_leaves_", $a), concat!($($part),*, "_leaves_", $b)],
        ]
    };
}

const BITS: [usize; 3] = [4, 6, 8];

fn kernels_of(kernels: &Kernels, names: [[[&'static str; 2]; 3]; 3]) -> Result<Modes, CudaError> {
    let mut modes = [[[kernels.get(names[0][0][0])?; 2]; 3]; 3];
    for (kernel, name) in
        modes.as_flattened_mut().as_flattened_mut().iter_mut().zip(names.as_flattened().as_flattened())
    {
        *kernel = kernels.get(name)?;
    }
    Ok(modes)
}

impl<T: Activation> PackedProducts<T> {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let (few, many) = match T::SUFFIX {
            "bf16" => (names!("gemv", "bf16", "rows8", "rows16"), names!("gemm", "bf16", "small", "large")),
            _ => (names!("gemv", "f16", "rows8", "rows16"), names!("gemm", "f16", "small", "large")),
        };
        let (few, many) = (kernels_of(kernels, few)?, kernels_of(kernels, many)?);
        for (modes, bits) in many.iter().zip(BITS) {
            for (mode, kernels) in modes.iter().enumerate() {
                for (kernel, tile) in kernels.iter().zip(PackedTile::ALL) {
                    kernel.allow_shared(tile.shared_bytes(bits, mode == 1, mode == 2))?;
                }
            }
        }
        let multiprocessors = kernels.device().multiprocessors as usize;
        let reorder = kernels.get("reorder_columns")?;
        Ok(Self { few, many, reorder, multiprocessors, of: PhantomData })
    }

    /// Bytes of the workspace for launches of up to `max_rows` rows with a weight of `k` inputs in an order
    /// of its own.
    pub fn workspace_bytes(max_rows: usize, k: usize) -> usize {
        max_rows * k * size_of::<T>()
    }

    /// Queues the launch. `workspace` has [`Self::workspace_bytes`] if the weight has an order of its own.
    pub fn launch<O: Element>(
        &self,
        stream: &Stream,
        product: &Product<'_, T, O>,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let Some(x) = self.in_order(stream, product, workspace)? else { return Ok(()) };
        let product = Product { x, ..*product };
        if product.rows <= FEW_ROWS {
            self.launch_few(stream, &product)
        } else {
            self.launch_many(stream, &product, self.tile(&product))
        }
    }

    /// Queues the launch of the kernel for few rows, or of that for many with a given tile.
    pub fn launch_by<O: Element>(
        &self,
        stream: &Stream,
        product: &Product<'_, T, O>,
        tile: Option<PackedTile>,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let Some(x) = self.in_order(stream, product, workspace)? else { return Ok(()) };
        let product = Product { x, ..*product };
        match tile {
            None => self.launch_few(stream, &product),
            Some(tile) => self.launch_many(stream, &product, tile),
        }
    }

    /// `x` in the order of the weight's columns; `None` without rows.
    fn in_order<O: Element>(
        &self,
        stream: &Stream,
        product: &Product<'_, T, O>,
        workspace: DeviceSlice<u8>,
    ) -> Result<Option<DeviceSlice<T>>, CudaError> {
        let Product { x, weight, rows, .. } = *product;
        let WeightValues::Packed(packed) = weight.values else { unreachable!("the weight is packed") };
        if rows == 0 {
            return Ok(None);
        }
        let (k, order) = (weight.k, packed.orders(&weight.packed_shape(packed.form)));
        assert!(order.len() <= k, "a dense product has one order of inputs");
        if order.is_empty() {
            return Ok(Some(x));
        }
        assert!(x.len() >= rows * k, "x of {} is less than [{rows}, {k}]", x.len());
        let sorted = workspace.cast::<T>();
        assert!(sorted.len() >= rows * k, "a workspace of {} bytes for [{rows}, {k}]", workspace.len());
        let sorted = sorted.slice(0..rows * k);
        let threads = k.next_multiple_of(32).min(MAX_THREADS) as u32;
        let args = Args::new().slice(sorted).slice(x).slice(order).size(k);
        self.reorder.launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)?;
        Ok(Some(sorted))
    }

    /// The largest tile whose blocks still occupy every multiprocessor, and at least half of which the rows
    /// fill.
    fn tile<O: Element>(&self, product: &Product<'_, T, O>) -> PackedTile {
        let (_, x_rows, _) = PackedTile::Large.shape(product.weight.leaf > 0);
        let outputs = PackedTile::Large.outputs(product.output.is_gated());
        let blocks = product.rows.div_ceil(x_rows) * product.columns().div_ceil(outputs);
        if product.rows * 2 > x_rows && blocks >= self.multiprocessors {
            PackedTile::Large
        } else {
            PackedTile::Small
        }
    }

    fn launch_few<O: Element>(&self, stream: &Stream, product: &Product<'_, T, O>) -> Result<(), CudaError> {
        let rows = product.rows;
        assert!(rows <= FEW_ROWS, "{rows} rows: at most {FEW_ROWS}");
        let outputs = match (product.output.is_gated(), product.weight.leaf) {
            (true, _) => OCTET,
            (false, 0) => 2 * OCTET,
            // Warps without a leaf compute other outputs.
            (false, _) => 2 * OCTET * MAX_LEAVES / product.weight.leaves(),
        };
        let kernel = kernel(&self.few, product, usize::from(rows > FEWER_ROWS));
        let grid = Grid::new(product.columns().div_ceil(outputs) as u32, THREADS);
        kernel.launch(stream, grid.overlapping(), &args(product))
    }

    fn launch_many<O: Element>(
        &self,
        stream: &Stream,
        product: &Product<'_, T, O>,
        tile: PackedTile,
    ) -> Result<(), CudaError> {
        let (is_gated, has_leaves) = (product.output.is_gated(), product.weight.leaf > 0);
        let (_, x_rows, threads) = tile.shape(has_leaves);
        let blocks = product.rows.div_ceil(x_rows) * product.columns().div_ceil(tile.outputs(is_gated));
        let shared = tile.shared_bytes(form_of(product).bits, is_gated, has_leaves);
        let grid = Grid::new(blocks as u32, threads).shared(shared);
        kernel(&self.many, product, tile as usize).launch(stream, grid.overlapping(), &args(product))
    }
}

fn form_of<T, O>(product: &Product<'_, T, O>) -> Form {
    match product.weight.values {
        WeightValues::Packed(packed) => packed.form,
        WeightValues::Same(_) | WeightValues::E4m3 { .. } => unreachable!("the weight is packed"),
    }
}

fn kernel<T, O>(modes: &Modes, product: &Product<'_, T, O>, last: usize) -> Kernel {
    let mode = match (product.output, product.weight.leaf) {
        (Output::Gated(_), _) => 1,
        (_, 0) => 0,
        _ => 2,
    };
    modes[form_of(product).bits / 2 - 2][mode][last]
}

fn args<T: Activation, O: Element>(product: &Product<'_, T, O>) -> Args<'static> {
    product.check();
    let Product { out, x, weight, rows, output } = *product;
    let WeightValues::Packed(packed) = weight.values else { unreachable!("the weight is packed") };
    let shape = weight.packed_shape(packed.form);
    let args = Args::new().slice(out).u32(u32::from(output == Output::F32)).slice(x);
    packed
        .args(&shape.places(), args)
        .size(shape.octets())
        .slice(weight.bias)
        .size(rows)
        .size(product.columns())
        .size(weight.k)
        .u32(if let Output::Gated(by) = output { Gate::on_cuda(by) } else { 0 })
        .size(weight.leaf)
}
