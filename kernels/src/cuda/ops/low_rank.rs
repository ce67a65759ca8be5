//! Changes by low-rank adapters to the rows of a batch; `cu/low_rank.cu`.

use std::marker::PhantomData;
use std::ops::Range;

use super::inputs::TileList;
use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use crate::gate::Gate;
use crate::leaves::MAX_LEAVES;

/// Most rows of a tile; all have one adapter.
pub const TILE_ROWS: usize = 16;
/// Matrices that may share the input of a product.
pub const MATRICES: usize = 3;
/// Ranks in a slot are padded to a multiple of this.
pub const RANK_UNIT: usize = 16;
/// Words of a product's record at the start of a slot: ranks of its matrices, then the bits of their scales,
/// each padded to four.
pub const RECORD_WORDS: usize = 8;

const THREADS: u32 = 256;
/// Outputs of a block.
const OUTPUTS: usize = 512;

/// Where a slot has the matrices of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotProduct {
    /// Index of its record.
    pub index: usize,
    /// Byte of its matrices A in the slot, `[matrices, max_rank, k]`.
    pub a_at: usize,
    /// Byte of its matrix B in the slot, `[max_rank, n_stride]`.
    pub b_at: usize,
    /// Inputs, a multiple of 8.
    pub k: usize,
    /// Outputs of all matrices.
    pub n: usize,
    /// Leaves of the inputs here if ranks may divide them: a power of two. 0: they are never divided.
    pub leaves: usize,
    /// Number of matrices.
    pub matrices: usize,
    /// First output of each matrix, even; `n` for missing ones.
    pub firsts: [usize; MATRICES],
}

impl SlotProduct {
    /// Columns of B.
    pub fn n_stride(&self) -> usize {
        self.n.next_multiple_of(8)
    }
}

/// Slots that hold adapters, and the rows of a step that use them.
#[derive(Debug, Clone, Copy)]
pub struct ChangedRows {
    /// `[slots, slot_bytes]`
    pub slots: DeviceSlice<u8>,
    /// Bytes of a slot, a multiple of 16.
    pub slot_bytes: usize,
    /// Most components of a matrix in a slot, a multiple of [`RANK_UNIT`].
    pub max_rank: usize,
    /// The step's message.
    pub packed: DeviceSlice<u32>,
    /// Which list of the message has the rows.
    pub list: TileList,
    /// Most tiles in the list.
    pub tiles: usize,
}

/// Products of rows with A.
#[derive(Debug, Clone, Copy)]
pub struct InnerSums {
    /// `[ranks, rows, matrices, max_rank]`
    pub values: DeviceSlice<f32>,
    /// Ranks that share the inputs, each with whole leaves: a power of two.
    pub ranks: usize,
}

/// Queues `inner = x A`, then `out += scale * (inner B)`.
#[derive(Debug, Clone, Copy)]
pub struct LowRankAdd<T> {
    inner: Kernel,
    add: Kernel,
    add_wide: Kernel,
    glu: Kernel,
    of: PhantomData<T>,
}

impl<T: Activation> LowRankAdd<T> {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self {
            inner: kernel_for!(kernels, T, "low_rank_inner")?,
            add: kernel_for!(kernels, T, "low_rank_add")?,
            add_wide: kernel_for!(kernels, T, "low_rank_add_f32")?,
            glu: kernel_for!(kernels, T, "glu_wide")?,
            of: PhantomData,
        })
    }

    /// Queues the inner sums of the rows of `x`, `[rows, k]`, into `inner`, `[rows, matrices, max_rank]`.
    pub fn inner(
        &self,
        stream: &Stream,
        of: &ChangedRows,
        product: &SlotProduct,
        x: DeviceSlice<T>,
        inner: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let SlotProduct { index, a_at, k, leaves, matrices, .. } = *product;
        check(of, product);
        assert!(k.is_multiple_of(8 * leaves.max(1)), "{k} inputs are not {leaves} leaves of multiples of 8");
        assert!(leaves <= MAX_LEAVES && (leaves == 0 || leaves.is_power_of_two()), "{leaves} leaves");
        let rows = x.len() / k;
        assert!(inner.len() >= rows * matrices * of.max_rank, "{rows} rows of components do not fit");
        if of.tiles == 0 {
            return Ok(());
        }
        let strips = (matrices * of.max_rank / RANK_UNIT) as u32;
        let args = Args::new()
            .slice(inner)
            .slice(x)
            .slice(of.slots)
            .u64(of.slot_bytes as u64)
            .slice(of.packed)
            .u32(of.list as u32)
            .u32(index as u32)
            .u64(a_at as u64)
            .size(k)
            .size(leaves)
            .size(of.max_rank);
        self.inner.launch(stream, Grid::of([of.tiles as u32, strips, 1], THREADS).overlapping(), &args)
    }

    /// Queues the changes to `out`, `[rows, n]`.
    pub fn add(
        &self,
        stream: &Stream,
        of: &ChangedRows,
        product: &SlotProduct,
        inner: InnerSums,
        out: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let rows = out.len() / product.n;
        let args = Args::new().slice(out);
        add(&self.add, args, stream, of, product, inner, 0..rows)
    }

    /// As [`add`](Self::add), to sums in f32. The first row of `out` is row `first_row` of the batch.
    pub fn add_wide(
        &self,
        stream: &Stream,
        of: &ChangedRows,
        product: &SlotProduct,
        inner: InnerSums,
        (out, first_row): (DeviceSlice<f32>, usize),
    ) -> Result<(), CudaError> {
        let rows = first_row..first_row + out.len() / product.n;
        add(&self.add_wide, Args::new().slice(out), stream, of, product, inner, rows)
    }

    /// Queues `out = activation(gate) * up` from sums `gate_up`, `[rows, 2 * inner]`, with the bits of the
    /// gated products of `ops/gemv.rs` and `ops/gemm.rs`. At most 65,535 rows.
    pub fn glu(
        &self,
        stream: &Stream,
        out: DeviceSlice<T>,
        gate_up: DeviceSlice<f32>,
        by: Gate,
        inner: usize,
    ) -> Result<(), CudaError> {
        let rows = out.len() / inner;
        assert!(gate_up.len() >= 2 * rows * inner, "gate and up of {rows} rows of {inner} are missing");
        if rows == 0 {
            return Ok(());
        }
        let parts = inner.div_ceil(THREADS as usize) as u32;
        let args = Args::new().slice(out).slice(gate_up).size(inner).u32(by.on_cuda());
        self.glu.launch(stream, Grid::of([parts, rows as u32, 1], THREADS).overlapping(), &args)
    }
}

fn add(
    kernel: &Kernel,
    args: Args<'_>,
    stream: &Stream,
    of: &ChangedRows,
    product: &SlotProduct,
    InnerSums { values: inner, ranks }: InnerSums,
    rows: Range<usize>,
) -> Result<(), CudaError> {
    let SlotProduct { index, b_at, n, matrices, firsts, .. } = *product;
    check(of, product);
    assert!(ranks.is_power_of_two() && ranks <= MAX_LEAVES, "{ranks} ranks cannot be joined as a tree");
    let apart = inner.len() / ranks;
    assert!(apart >= rows.end * matrices * of.max_rank, "rows of components are missing");
    if of.tiles == 0 || rows.is_empty() {
        return Ok(());
    }
    let args = args
        .slice(inner)
        .slice(of.slots)
        .u64(of.slot_bytes as u64)
        .slice(of.packed)
        .u32(of.list as u32)
        .u32(index as u32)
        .u64(b_at as u64)
        .size(n)
        .size(product.n_stride())
        .size(firsts[1])
        .size(firsts[2])
        .size(matrices)
        .size(of.max_rank)
        .size(ranks)
        .u64(apart as u64)
        .size(rows.start)
        .size(rows.len());
    let parts = n.div_ceil(OUTPUTS) as u32;
    kernel.launch(stream, Grid::of([of.tiles as u32, parts, 1], THREADS).overlapping(), &args)
}

fn check(of: &ChangedRows, product: &SlotProduct) {
    let SlotProduct { a_at, b_at, k, matrices, firsts, .. } = *product;
    let ChangedRows { slot_bytes, max_rank, slots, .. } = *of;
    assert!(max_rank > 0 && max_rank.is_multiple_of(RANK_UNIT), "{max_rank} is no multiple of {RANK_UNIT}");
    let is_aligned =
        [slot_bytes, a_at, b_at, slots.address() as usize].iter().all(|at| at.is_multiple_of(16));
    let [a, b] = [matrices * k, product.n_stride()].map(|values| values * max_rank * size_of::<u16>());
    assert!(
        is_aligned && a_at + a <= slot_bytes && b_at + b <= slot_bytes && matrices <= MATRICES,
        "{product:?} is not inside a slot of {slot_bytes} bytes"
    );
    assert!(firsts.iter().all(|first| first.is_multiple_of(2) || *first >= product.n), "{firsts:?} are even");
}
